"""Slips in commands of a federation: one sentence at once, without asking a site, and nothing left behind."""

from __future__ import annotations

import time
from threading import Event
from types import SimpleNamespace

import pandas as pd
import pytest

from coterie.cli import fit_over_sites as sites
from coterie.deployment import calls_over_sites, folders, toml_files
from coterie.deployment.logs import RunLog
from coterie.deployment.site.preview import LocalTransport
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member
from coterie.engines.retry_and_quorum import BelowQuorum, Policy, Refused, reasons
from coterie.engines.site_enrolment import Remote
from tests.cli.harness import coterie
from tests.cli.test_federation import RUN, Engine
from tests.deployment.sites import FORMULA, NAMES, build, home, task, transport
from tests.messages import names
from tests.test_status_line import Terminal


class Asked(Engine):
    """An engine that a slip must not reach."""

    running = True

    def run(self, folder, run_id, timeout):
        raise AssertionError("sites were asked")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A federation whose sites would be asked in vain."""
    build(tmp_path / "heart")
    monkeypatch.setattr(folders, "engine", lambda name: Asked())
    return tmp_path / "heart"


FIT = ("--method", "hierarchical", "--formula", FORMULA)
SLIPS = {
    "column": (("--method", "pooled", "--formula", "score ~ agee"), "Did you mean 'age'?"),
    "formula": (("--method", "pooled", "--formula", "score ~"), "nothing on its right side"),
    "option": ((*FIT, "--rounds", "nonsense=1"), "rounds are options of the methods"),
    "value": ((*FIT, "--covariance", "round"), "covariance must be auto, "),
    "shared": ((*FIT, "--family", "gauss"), "Did you mean 'gaussian'?"),
    "missing": ((*FIT, "--missing", "skip"), "missing must be 'error' or 'drop'"),
    "client": ((*FIT, "--client", "wards"), "The schema has no column 'wards'. Did you mean 'ward'?"),
    "weights": ((*FIT, "--weights", "agee"), "The schema has no column 'agee'."),
    "clusters": (("--method", "clusterwise", "--formula", FORMULA), "needs clusters: name a cluster column"),
    "program": (("--method", "hierarchica", "--formula", FORMULA), "Did you mean 'hierarchical'?"),
    "network": ((*FIT, "--network", "k=3"), "Method 'hierarchical' has no network"),
    "no table": (("--method", "fedbn", "--formula", FORMULA), "is about layers that normalise"),
    "no objective": (("--method", "hierarchical", "--objective", "a:b"), "formula"),
    "one place": (("--method", "pooled", "--objective", "a:b"), "these stay at their sites: use 'fedavg'"),
    "held out": (
        ("--method", "similarity-network", "--formula", FORMULA, "--network", "k=2"),
        "give a number over sites",
    ),
    "trainer": (("--method", "fedavg", "--objective", "a:b", "--rounds", "etta=1"), "Did you mean 'eta'?"),
    "rounds": (
        ("--method", "fedavg", "--objective", "a:b", "--rounds", "rounds=few"),
        "rounds must be a whole number",
    ),
    "several": (("--method", "fedavg", "--objective", "a:b", "--rounds", "eta=0.1,0.2"), "eta must be one value"),
    "function": (("--method", "nowhere:f", "--objective", "a:b"), "'nowhere:f' cannot be imported"),
    "call": (("--method", "math:sqrt", "--objective", "a:b", "--rounds", "k=2"), "cannot be called with"),
    "run": ((*FIT, "--name", "a/b"), "A run's name is letters"),
}


@pytest.mark.parametrize(("arguments", "words"), SLIPS.values(), ids=SLIPS)
def test_a_slip_is_said_before_any_site_is_asked(arguments, words, place):
    ran = coterie("fit", place, *arguments)
    assert words in ran.message and ran.message.count(words) == 1
    assert not list((place / "coordinator").glob("runs/*"))


@pytest.mark.parametrize("seconds", ["0", "-3", "nan"])
def test_time_must_be_some(place, seconds):
    for words in (("fit", place, *RUN), ("federation", "check", place)):
        assert "a number of seconds above 0" in coterie(*words, f"--timeout={seconds}").message


def test_a_preview_of_a_slip_is_an_error(place):
    ran = coterie("federation", "preview", home(place, "bern"), "--method", "pooled", "--formula", "score ~ agee")
    assert ran.code == 2
    assert ran.err.count("agee") == 1 and "Nothing would leave: The formula uses 'agee'" in ran.err


def test_one_reason_of_many_sites_is_said_once(tmp_path):
    build(tmp_path)
    gone = task(tmp_path, "score ~ age", weights="lost")
    with pytest.raises(Refused) as found:
        Remote(transport(tmp_path), run="r", task=gone, policy=Policy(strict=False, min_clients="all"))
    assert str(found.value).startswith("basel, bern, chur cannot take part (")
    assert str(found.value).count("has no column 'lost'") == 1 and isinstance(found.value, BelowQuorum)
    assert reasons({"a": "Site 'a': No.", "b": "lost", "c": "Site 'c': No."}) == "a, c: No; b: lost"


def test_a_site_that_is_away_may_come_back(tmp_path):
    build(tmp_path)
    some = transport(tmp_path, ("basel", "bern"))
    some.sites = ["basel", "bern", "chur"]
    some.send = lambda messages, timeout, send=some.send: send({k: v for k, v in messages.items() if k != "chur"}, 1)
    with pytest.raises(BelowQuorum, match="chur cannot take part") as found:
        Remote(some, run="r", task=task(tmp_path), policy=Policy(strict=False, min_clients="all", retries=1))
    assert not isinstance(found.value, Refused)


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_is_left_is_said_to_go_on(place, monkeypatch, begun):
    def leave(folder, run_id, timeout):
        if begun:
            RunLog(folder / "runs" / run_id).note({})
        raise KeyboardInterrupt

    found = Asked()
    found.run = leave
    monkeypatch.setattr(folders, "engine", lambda name: found)
    ran = coterie("fit", place, *RUN, "--name", "mine")
    assert ran.code == 130
    known = "goes on at the coordinator" if begun else "had not begun, or begins just now"
    assert f"Run 'mine' {known}: the same command with --name mine shows it again" in ran.err
    assert (place / "coordinator" / "runs" / "mine" / "run.toml").exists()


def test_the_last_run_is_no_check_and_not_running_where_nothing_runs(place, monkeypatch):
    found = Engine()
    monkeypatch.setattr(folders, "engine", lambda name: found)
    runs = place / "coordinator"
    with folders.begun(runs, "mine", {"program": "hierarchical"}):
        pass
    RunLog(runs / "runs" / "mine", ("basel",)).note()
    found.running = True
    assert coterie("federation", "check", place).code == 0
    assert "Run 'mine': running, at exchange 0." in coterie("federation", "status", place).out
    found.running = False
    assert "Run 'mine': cut short (run it again, and it goes on)" in coterie("federation", "status", place).out


def test_the_end_of_a_run_is_said_once(place, monkeypatch):
    class Failing(Asked):
        def run(self, folder, run_id, timeout):
            RunLog(folder / "runs" / run_id, ()).end("failed", "Something is wrong.")
            toml_files.write(folder / "runs" / run_id / "job.toml", {})
            raise BelowQuorum("Something is wrong.")

    monkeypatch.setattr(folders, "engine", lambda name: Failing())
    ran = coterie("fit", place, *RUN)
    assert (ran.out + ran.err).count("Something is wrong") == 1


def test_a_wait_is_said(place, monkeypatch):
    def slow(folder, run_id, timeout):
        time.sleep(0.2)
        (folder / "runs" / run_id / "log.jsonl").write_text("")

    found = Asked()
    found.run = slow
    monkeypatch.setattr(folders, "engine", lambda name: found)
    monkeypatch.setattr(sites, "_LOOK", 0.01)
    monkeypatch.setattr(sites, "_QUIET", 3)
    assert coterie("fit", place, *RUN).out.count("sites are away, or have much to do.") == 1


def test_a_person_sees_where_a_run_is_and_what_time_is_left(place, monkeypatch):
    texts, seen = list[str](), Event()

    def run(folder, run_id, timeout):
        log = RunLog(folder / "runs" / run_id, ())
        log.at("Rounds: 3 of 9, 12 s left")
        log.end("running")
        assert seen.wait(10.0)

    def update(self, text):
        texts.append(text)
        seen.set()

    found = Asked()
    found.run = run
    monkeypatch.setattr(folders, "engine", lambda name: found)
    monkeypatch.setattr(calls_over_sites, "_LOOK", 0.01)
    monkeypatch.setattr("rich.status.Status.update", update)
    monkeypatch.setattr("sys.stderr", Terminal())
    calls_over_sites.carried_out(place, {"program": "hierarchical", "task": {"formula": FORMULA}}, "mine")
    assert texts[0] == "Run 'mine': exchange 0, Rounds: 3 of 9, 12 s left"
    assert "at exchange 0, Rounds: 3 of 9, 12 s left." in coterie("federation", "status", place).out


SETTINGS = {
    'deadline = "x"': "deadline of [policy] must be a number of seconds above 0, not 'x'.",
    "retries = 1.5": "retries of [policy] must be a whole number from 0, not 1.5.",
    "rejoin = true": "rejoin of [policy] must be a number of seconds from 0, not True.",
    "strict = 1": "strict of [policy] must be true or false, not 1.",
    "min_clients = 1.5": "min_clients of [policy] must be a whole number or 'all', not 1.5.",
    "deadlin = 3": "[policy] has no option 'deadlin'. Did you mean 'deadline'?",
}


@pytest.mark.parametrize(("line", "words"), SETTINGS.items())
def test_what_is_wrong_with_a_setting_is_said(line, words, place):
    path = place / "coordinator" / "federation.toml"
    path.write_text(path.read_text().replace("[policy]", f"[policy]\n{line}"))
    assert coterie("fit", place, *RUN).message == words


def test_the_folder_of_another_site_is_told(tmp_path):
    build(tmp_path)
    to = LocalTransport(
        {name: SiteReceiver(home(tmp_path, "bern" if name == "chur" else name)).receive for name in NAMES}
    )
    with pytest.raises(Refused, match=names("chur calls itself 'bern' site's folder used")):
        Remote(to, run="r", task=task(tmp_path), policy=Policy(strict=False, min_clients="all"))


def test_columns_that_are_not_there_are_one_problem(tmp_path):
    build(tmp_path)
    own = home(tmp_path, "bern")
    text = (own / "data.csv").read_text()
    (own / "data.csv").write_text(text.replace(",", ", ", text.split("\n")[0].count(",")))
    (problem,) = SiteReceiver(own).check({})["problems"]
    assert problem.startswith("its table has no columns 'pain', 'score', ")


def test_a_hospital_predicts_its_own_rows(place, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "engine", lambda name: Engine())
    assert coterie("fit", place, *RUN, "--name", "mine").code == 0
    model, rows, out = place / "coordinator/runs/mine/result", home(place, "bern") / "data.csv", tmp_path / "p.csv"
    assert "Name the client with --client" in coterie("predict", model, rows).message
    assert "Did you mean 'bern'?" in coterie("predict", model, rows, "--client", "berne").message
    assert coterie("predict", model, rows, "--client", "bern", "--out", out).code == 0
    found = pd.read_csv(out)
    assert set(found["site"]) == {"bern"} and set(found["source"]) == {"client"}
    assert "whose rows they are" in coterie("predict", model, out, "--client", "bern").message


def test_two_sites_have_no_secure_sum(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "engine", lambda name: Asked())
    sites = ("--site", "a", "--site", "b")
    ran = coterie("federation", "init", tmp_path / "two", "--engine", "nvflare", *sites, "--secure")
    assert "need 3 sites at least, and there are 2" in ran.message
    assert not (tmp_path / "two").exists()


def test_data_of_a_site_that_is_there_are_its_owners(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "engine", lambda name: SimpleNamespace(init=lambda *_: None))
    (tmp_path / "a.csv").write_text("x\n1\n")
    made = ("federation", "init", tmp_path / "heart", "--engine", "nvflare", "--site", "a")
    assert coterie(*made).code == 0
    ran = coterie(*made, "--site", "b", "--data", f"a={tmp_path / 'a.csv'}")
    assert "site.toml' is there and its owner's: write data = " in ran.message
    assert not (tmp_path / "heart" / "sites" / "b").exists()
    assert coterie(*made, "--site", "b", "--data", f"b={tmp_path / 'a.csv'}").code == 0


def test_a_preview_names_every_work_and_says_what_is_masked(place):
    own = home(place, "bern")
    before = coterie("federation", "preview", own, *RUN).out
    assert "…" not in before and "masked" not in before
    path = own / "federation.toml"
    path.write_text(path.read_text().replace("[secure]", "[secure]\nmin_sites = 3"))
    assert "Each 'total' leaves masked" in coterie("federation", "preview", own, *RUN).out


MODELS = """
import numpy as np
from coterie.objectives.softmax import Softmax

def make(path, site, clients=12, groups=0):
    starts = 4 * np.arange(clients)
    X = np.tile([[1.0, 0.0], [1.0, 1.0]], (2 * clients, 1))
    names = [f"{site}-{i}" for i in range(clients)]
    made = Softmax.of(X, np.arange(4 * clients) // 2 % 2, starts, starts + 4)
    return (made, names, [f"g{i % groups}" for i in range(clients)]) if groups else (made, names)
"""


@pytest.mark.parametrize("groups", [0, 3, 11])
def test_clients_of_an_objective_may_come_in_any_order(place, monkeypatch, groups):
    """Client 10 stands before client 2 where labels are text: the site sorts them, not who writes the function."""
    monkeypatch.setattr(folders, "engine", lambda name: Engine())
    for name in NAMES:
        (home(place, name) / "models_in_any_order.py").write_text(MODELS)
        Member(name, "", 1, ("models_in_any_order:make",)).write(home(place, name))
    made = ("--objective", "models_in_any_order:make", "--objective-option", f"groups={groups}")
    train = ("--method", "fedavg", *made, "--rounds", "rounds=1", "--rounds", "B=0")
    ran = coterie("fit", place, *train)
    assert ran.code == 0, ran.err
    assert "clients: basel 12, bern 12, chur 12" in ran.out
    (place / "coordinator" / "schema.toml").unlink()
    assert "schema" not in coterie("federation", "check", place).out
    ran = coterie("fit", place, *train, "--objective-option", "nope=3")
    assert "cannot be called with the path, site=... and the options of the run" in ran.err
