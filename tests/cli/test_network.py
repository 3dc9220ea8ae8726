"""A similarity network from the command line: edges in files, covariates by name, slips."""

from __future__ import annotations

import pytest

from tests.cli.harness import coterie, table

FIT = ("fit", "t.csv", "--formula", "score ~ hours", "--client", "school")
TIED = ("--method", "similarity-network", "--splits", 0, "--network", "lam=0.05")
FILES = {
    "pairs.csv": "from,to\nash,birch\nbirch,oak\n",
    "weights.csv": "from,to,weight\nash,birch,1\nbirch,oak,2.5\n",
    "tabs.tsv": "from\tto\nash\tbirch\nbirch\toak\n",
    "with, comma.csv": "from,to\nash,birch\nbirch,oak\n",
    "bare.csv": "ash,birch\nbirch,oak\n",
    "bare-weights.csv": "ash,birch,1\nbirch,oak,2\n",
    "index.csv": ",from,to\n0,ash,birch\n",
    "one.csv": "from\nash\n",
    "none.csv": "from,to\n",
    "nothing.csv": "",
    "ragged.csv": "from,to\nash,birch\nash,oak,2\n",
    "heavy.csv": "from,to,weight\nash,birch,heavy\n",
    "negative.csv": "from,to,weight\nash,birch,-1\n",
    "loop.csv": "from,to\nash,ash\n",
    "unknown.csv": "from,to\nash,birsh\n",
    "gap.csv": "from,to\nash,\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    size = table()["school"].map({"ash": 1, "birch": 2, "cedar": 3, "elm": 40, "fir": 50, "oak": 60})
    table(**{"2020": size}).to_csv("t.csv", index=False)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize("file", ["pairs.csv", "weights.csv", "tabs.tsv", "with, comma.csv"])
def test_edges_are_read_from_a_file(file):
    ran = coterie(*FIT, *TIED, "--network", f"edges={file}")
    assert ran.code == 0, ran.err
    assert "2 ties between schools that were named" in ran.out and "3 clients have no ties" in ran.out


def test_who_is_in_which_group_is_said_and_where_to_look():
    options = ("--method", "similarity-network", "--splits", 0, "--network", "edges=pairs.csv", "--network", "lam=1e9")
    ran = coterie(*FIT, *options)
    assert "Who became equal, the largest groups first: ash, birch and oak; 3 alone." in ran.out
    assert "Groups: add --out DIR for the report, which lists who is in which; in Python, result.merged" in ran.out
    ran = coterie(*FIT, *options, "--out", "m")
    assert ran.out.splitlines()[-1].startswith("Groups: the report lists who is in which; in Python, result.merged")


def test_a_network_that_was_not_chosen_is_said():
    ran = coterie(*FIT, "--network", "edges=pairs.csv", "--network", "lam=1e-9")
    assert "Note: The similarity network was compared and not chosen" in ran.out
    assert "--method similarity-network" in ran.out and "Groups:" not in ran.out


def test_covariates_are_columns_whatever_they_are_called():
    ran = coterie(*FIT, *TIED, "--network", "covariates=2020,sector", "--network", "k=2")
    assert ran.code == 0, ran.err
    assert "with alike covariates" in ran.out


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ("edges=bare.csv", "put a first line such as from,to above them"),
        ("edges=bare-weights.csv", "put a first line such as from,to above them"),
        ("edges=index.csv", "without their index"),
        ("edges=one.csv", "not 1 column"),
        ("edges=none.csv", "no rows"),
        ("edges=nothing.csv", "no rows"),
        ("edges=ragged.csv", "line 3"),
        ("edges=heavy.csv", "must be numbers"),
        ("edges=negative.csv", "school ash and birch must have a positive finite weight, not -1"),
        ("edges=loop.csv", "tie school ash to itself"),
        ("edges=unknown.csv", "names school 'birsh', not in the table. Did you mean 'birch'?"),
        ("edges=gap.csv", "Edge 1 has no school at one end"),
        ("edges=pears.csv", "no file 'pears.csv'"),
        ("edges=5", "'5'"),
        ("edges=true", "'true'"),
        ("edges=", "takes NAME=VALUE, such as k=5"),
        ("edges", "takes NAME=VALUE, such as k=5"),
        ("k=6", "k must be at most 5 among 6 clients"),
        ("k=five", "k of a similarity network must be auto or a whole number"),
        ("k=2,3", "k of a similarity network must be auto or a whole number"),
        ("space=Model", "Did you mean 'model'?"),
        ("covariates=2020,", "empty value between commas"),
        ("covariates=sektor", "Did you mean 'sector'?"),
        ("covariates=hours", "must not vary within a school, and hours does in ash"),
        ("neighbours=3", "no option 'neighbours'"),
        ("lam=0.1", "gives lam twice"),
    ],
)
def test_slips_are_one_sentence(network, says):
    assert says in coterie(*FIT, *TIED, "--network", network).message


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--bytes-per-update", "few"), "--bytes-per-update takes a whole number"),
        (("--bytes-per-update", ""), "--bytes-per-update takes a whole number"),
        (("--bytes-per-update", 0), "bytes_per_update of a run on a similarity network must be a whole number from 1"),
        (("--bytes-per-update", 3), "8 bytes an update at least"),
        (("--bytes-per-update", 9, "--rounds", "bytes_per_update=9"), "give one of them"),
        (("--bytes-per-update", 9, "--rounds", "codec=sign"), "leave codec out"),
        (("--rounds", "codec=5"), "codec of a run on a similarity network must be the name of a codec"),
        (("--rounds", "codec=tv:4,sign"), "codec of a run on a similarity network must be the name of a codec"),
        (("--rounds", "phases=5"), "phases of a run on a similarity network must be 2 whole numbers"),
        (("--rounds", "feedback=ef22"), "Did you mean 'ef21'"),
    ],
)
def test_slips_in_a_run_are_one_sentence(options, says):
    assert says in coterie(*FIT, *TIED, *options).message


def test_bytes_are_an_option_of_one_method():
    assert "add --method similarity-network" in coterie(*FIT, "--bytes-per-update", 9).message


def test_a_run_in_few_bytes_writes_its_report(tmp_path):
    ran = coterie(*FIT, *TIED, "--bytes-per-update", 9, "--rounds", "steps=20", "--out", "m")
    assert ran.code == 0, ran.err
    assert "tv:bytes=9" in (tmp_path / "m" / "report.html").read_text()
