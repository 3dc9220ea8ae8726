"""The commands of a federation, over an engine whose sites answer in this process."""

from __future__ import annotations

import json
import shutil
import socket
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from coterie.deployment import folders
from coterie.deployment.coordinator import run
from coterie.deployment.federation_toml import Config
from coterie.deployment.membership import Register
from coterie.deployment.site.preview import LocalTransport
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member
from coterie.errors import CoterieError
from tests.cli.harness import coterie
from tests.deployment.sites import FORMULA, NAMES, tables
from tests.messages import names

RUN = ("--method", "hierarchical", "--formula", FORMULA, "--covariance", "isotropic")


class Engine:
    """What an engine's module offers, without processes."""

    KEY = "site.toml"  # a file that is there

    def __init__(self):
        self.running, self.stopped, self.foreign = False, [], False

    def init(self, folder, config, at_home=()):
        (folder / "coordinator" / "keys").write_text(config.name)

    def start_coordinator(self, folder):
        self.running = True
        return SimpleNamespace(pid=17, wait=lambda: None)

    start_site = start_coordinator

    def status(self, folder):
        return {"running": self.running, "pid": 17, "sites": dict.fromkeys(NAMES, "online")}

    def ends(self, folder):
        return datetime(2099, 3, 4, tzinfo=UTC)

    def stop(self, folder):
        self.running = False
        self.stopped.append(folder)

    def need_trust(self, folder):
        if self.foreign:
            raise CoterieError("The coordinator is not trusted: ask it.")

    def run(self, folder, run_id, timeout):
        sites = folder.parent / "sites"
        run.run(LocalTransport({name: SiteReceiver(sites / name).receive for name in NAMES}), folder, run_id)


@pytest.fixture
def engine(monkeypatch):
    found = Engine()
    monkeypatch.setattr(folders, "engine", lambda name: found)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A federation as an operator makes it, with a schema of every site."""
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "engine", lambda name: Engine())
        for name, frame in tables().items():
            frame.to_csv(root / f"{name}.csv", index=False)
        sites = [a for name in NAMES for a in ("--site", name, "--data", f"{name}={root / name}.csv")]
        sites += ["--disclosure", "rows_per_column=1", "--disclosure", "min_level=1"]
        assert coterie("federation", "init", root / "heart", "--engine", "nvflare", *sites, "--port", free()).code == 0
        for name in NAMES:
            own = root / "heart" / "sites" / name
            ran = coterie("federation", "schema", own, "--category", "pain", "--label", "ward", "--unit", "age=years")
            assert ran.code == 0, ran.err
    return root


@pytest.fixture
def place(made, tmp_path, engine):
    """A copy of it, which a test may change."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "heart"


def free() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_a_site_that_is_not_trusted_is_told_before_it_starts_and_by_status(place, engine):
    engine.foreign = True
    ran = coterie("federation", "start-site", place, "--site", "basel")
    assert ran.code == 2 and "not trusted: ask it" in ran.err and not engine.running
    ran = coterie("federation", "status", place / "sites" / "basel")
    assert ran.code == 0 and "not trusted: ask it" in ran.out
    engine.foreign = False
    engine.start_site = lambda folder: SimpleNamespace(pid=17, wait=lambda: setattr(engine, "foreign", True))
    ran = coterie("federation", "start-site", place, "--site", "basel", "--foreground")
    assert ran.code == 2 and "not trusted: ask it" in ran.err  # it ended by itself


def test_a_status_that_an_engine_cannot_give_says_what_is_wrong_with_certificates(place, engine, monkeypatch):
    def away(folder):
        raise CoterieError("The server is unavailable: start it.")

    monkeypatch.setattr(engine, "status", away)
    for foreign, said in ((False, "unavailable: start it"), (True, "not trusted: ask it")):
        engine.foreign = foreign
        ran = coterie("federation", "status", place)
        assert ran.code == 2 and said in ran.err
    ran = coterie("federation", "stop", place)  # a coordinator that cannot be asked can be ended
    assert ran.code == 0 and "Stopped" in ran.out and engine.stopped == [place / "coordinator"]


def test_from_nothing_to_a_model(place, engine):
    ran = coterie("federation", "check", place, "--unite")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count(", ready") == 3
    assert "1 coordinator" not in ran.out
    assert "listens at 127.0.0.1" in coterie("federation", "start-coordinator", place).out
    assert "Site 'basel' connects" in coterie("federation", "start-site", place, "--site", "basel").out
    ran = coterie("fit", place, *RUN)
    assert ran.code == 0, ran.err
    assert "3 of 3 sites" in ran.out
    assert "Run 'hierarchical-1' has ended: its result is in" in ran.out
    assert "\nNote: " in ran.out and "No methods were compared." in ran.out
    assert f"Model:  {place / 'coordinator' / 'runs' / 'hierarchical-1' / 'result'}" in ran.out
    standing = coterie("federation", "status", place).out.splitlines()
    assert standing[0] == "Federation 'heart' over nvflare: runs."
    assert standing[-1].startswith("Run 'hierarchical-1': finished, at exchange ")
    assert json.loads(coterie("federation", "status", place, "--json").out)["run"]["missing"] == {}
    lines = coterie("federation", "log", place, "--json", "--last", 2).out.splitlines()
    assert [json.loads(line).get("state") for line in lines] == [None, "finished"]
    assert "covers 40 rows at least" in coterie("federation", "log", place / "sites" / "bern").out
    assert "Stopped" in coterie("federation", "stop", place).out
    assert "Nothing runs" in coterie("federation", "stop", place).out


def test_a_schema_of_columns_that_the_table_has_lost_is_written_and_says_so(place):
    own = place / "sites" / "bern"
    before = (own / "schema.toml").read_text()
    (own / "schema.toml").write_text(before + '\n[columns.town]\ntype = "category"\nlevels = ["a"]\n')
    ran = coterie("federation", "schema", own)
    assert (ran.code, ran.err) == (0, "") and "no column 'town'" in ran.out
    assert "[columns.town]" in (own / "schema.toml").read_text()


def test_a_preview_at_a_site(place):
    coterie("federation", "check", place, "--unite")
    ran = coterie("federation", "preview", place / "sites" / "basel", *RUN)
    assert (ran.code, ran.err) == (0, "")
    assert "Nothing was sent." in ran.out and "40 rows" in ran.out
    ran = coterie("federation", "preview", place / "sites" / "basel", *RUN, "--min-group", 50, "--json")
    assert ran.code == 2
    refused = [item["refused"] for item in json.loads(ran.out)["leaving"] if item["refused"]]
    assert "would tell of too few rows" in refused[0][0]


def test_a_site_sees_what_runs_will_spend_before_they_do(place):
    pytest.importorskip("dp_accounting")
    own, asked = place / "sites" / "basel", ("--run", 30, "--run", "20:0.1", "--group", 5)
    assert "no [privacy] in site.toml" in coterie("federation", "budget", own, *asked).message
    terms = '[privacy]\nclip = 1.0\nnoise = 20.0\nepsilon = 0.9\nunit = "row"\n'
    (own / "site.toml").write_text((own / "site.toml").read_text() + terms)
    ran = coterie("federation", "budget", own, *asked)
    # as docs/privacy.md has it
    assert ran.out.splitlines() == [
        "Site 'basel' hides every row by the noise of its own clients: multiplier 20.",
        "Epsilon at delta 1e-05, spent so far: 0 for 1 row and 0 for 5 rows.",
        "Epsilon at delta 1e-05, after run 1 (30 exchanges): 1.02 for 1 row and 6.33 for 5 rows.",
        "Epsilon at delta 1e-05, after run 2 (20 exchanges): 1.03 for 1 row and 6.35 for 5 rows.",
        "Run 1 would be refused after 23 of its 30 exchanges: 0.9 is allowed.",
    ]
    assert json.loads(coterie("federation", "budget", own, *asked, "--json").out)["answered"][0] == 23
    assert coterie("federation", "budget", own, "--run", "30:2").code == 2
    assert not (own / "privacy.book").exists()


def test_a_check_that_finds_something_says_so_and_fails(place):
    own = place / "sites" / "bern"
    text = (own / "schema.toml").read_text()
    (own / "schema.toml").write_text(text.replace("years", "months"))
    ran = coterie("federation", "check", place)
    assert ran.code == 2
    assert "at site 'bern' 'age' is in months and not in years" in ran.out


def test_a_check_says_of_a_site_that_is_silent_what_the_coordinator_saw_of_strangers(place, engine, monkeypatch):
    engine.foreign, others = True, dict.fromkeys(NAMES[1:])
    monkeypatch.setattr(LocalTransport, "send", lambda self, messages, timeout: others)
    ran = coterie("federation", "check", place)
    assert ran.code == 2 and "basel: it did not answer: start it with" in ran.out
    assert "not trusted: ask it" in ran.out


def test_a_site_is_added_and_nothing_that_was_there_is_changed(place):
    before = (place / "sites" / "bern" / "site.toml").read_text()
    sites = [a for name in (*NAMES, "sion") for a in ("--site", name)]
    assert coterie("federation", "init", place, "--engine", "nvflare", *sites).code == 0
    assert (place / "sites" / "bern" / "site.toml").read_text() == before
    assert Config.read(place / "sites" / "bern").sites == (*NAMES, "sion")
    assert Member.read(place / "sites" / "sion").min_group == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["init", "new", "--engine", "nvflare", "--site", "a", "--site", "a"], "Two sites are called 'a'"),
        (["init", "new", "--engine", "nvflare"], "Missing option '--site'"),
        (["init", "new", "--engine", "nvflar", "--site", "a"], "engine must be flower or nvflare, not 'nvflar'"),
        (["init", "new", "--engine", "flower", "--site", "a", "--data", "b=x.csv"], "There is no file 'x.csv'"),
        (["init", "new", "--engine", "flower", "--site", "a", "--data", "x.csv"], "--data takes SITE=TABLE"),
        (["init", "new", "--engine", "flower", "--site", "a", "--policy", "deadlin=3"], "Did you mean 'deadline'?"),
        (["init", "new", "--engine", "flower", "--site", "a", "--policy", "deadline=-3"], "above 0"),
        (["init", "new", "--engine", "flower", "--site", "a", "--port", "0"], "from 1 to 65,535"),
        (
            ["init", "new", "--engine", "flower", "--site", "a", "--secure", "--min-group", "0"],
            "min_group must be a whole number from 1",
        ),
        (["init", "new", "--engine", "flower", "--site", "a", "--schema", "no.toml"], "There is no file 'no.toml'"),
        (["init", "heart", "--engine", "flower", "--site", "a"], "whose engine is 'nvflare', not 'flower'"),
        (["init", "heart", "--engine", "nvflare", "--site", "basel"], "has the site 'bern' too"),
        (["init", "heart/sites", "--engine", "nvflare", "--site", "basel"], "holds other things"),
        (["start-coordinator", "nowhere"], "There is no folder 'nowhere'"),
        (["start-coordinator", "heart/sites"], "is not a federation folder: make one with"),
        (["start-coordinator", "heart/sites/basel"], "is the folder of a site"),
        (["start-site", "heart"], "Name one in it: 'heart/sites/basel' or another of basel, bern, chur."),
        (["start-site", "heart", "--site", "basle"], "no site 'basle' in federation 'heart'. Did you mean 'basel'"),
        (["fit", "heart", "--method", "hierarchical"], "Say what is modelled: add --formula"),
        (["fit", "heart", *RUN, "--objective", "a:b"], "leave out --formula"),
        (["fit", "heart", "--method", "fedavg", "--objective", "a"], "--objective takes module:function"),
        (["fit", "heart", "--objective", "a:b"], "Name one with --method"),
        (["fit", "heart", "--objective", "a:b", "--method", "fedavg", "--out", "x"], "--out keeps a formula's model"),
        (["fit", "heart", "--objective", "a:b", "--method", "fedavg", "--splits", "1"], "splits is for methods on a"),
        (["fit", "heart", *RUN, "--objective-option", "a=1"], "needs --objective"),
        (["fit", "heart", *RUN, "--name", "../x"], "A run's name is letters"),
        (["fit", "heart", *RUN, "--na-value", "x"], "is the folder of a federation: leave out --na-value"),
        (["advise", "heart", "--client", "ward"], "--formula 'outcome ~ columns'"),
        (["advise", "heart", "--formula", FORMULA, "--na-value", "x"], "folder of a federation: leave out --na-value"),
        (["advise", "basel.csv", "--formula", FORMULA, "--client", "ward", "--name", "x"], "a table: leave out --name"),
        (["fit", "basel.csv", *RUN, "--name", "mine"], "is a table: leave out --name"),
        (["log", "heart", "--name", "r"], "There is no run 'r'"),
        (["log", "heart"], "There was no run yet"),
        (["schema", "heart"], "neither a table nor the folder of a site"),
        (["schema", "basel.csv"], "say with --out where"),
        (["schema", "heart/sites/basel", "--category", "pian"], "'pian' is not in the table. Did you mean 'pain'"),
        (["schema", "heart/sites/basel", "--unit", "age"], "--unit takes COLUMN=UNIT"),
    ],
    ids=lambda value: " ".join(value[:6]) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_in_one_line(arguments, said, place, monkeypatch):
    monkeypatch.chdir(place.parent)
    first = [] if arguments[0] in ("fit", "compare", "advise") else ["federation"]
    assert said in coterie(*first, *arguments).message


def test_data_that_are_gone_keep_a_site_from_starting(place):
    Member("bern", "gone.csv").write(place / "sites" / "bern")
    assert "There is no file" in coterie("federation", "start-site", place / "sites" / "bern").message


def test_a_port_that_is_taken_is_named(place):
    with socket.socket() as other:
        other.bind(("", Config.read(place).port))
        other.listen()
        assert "is taken by another program" in coterie("federation", "start-coordinator", place).message


def test_a_run_that_is_named_again_must_be_the_same(place):
    coterie("federation", "check", place, "--unite")
    assert coterie("fit", place, *RUN, "--name", "mine").code == 0
    other = ("--method", "pooled", "--formula", FORMULA, "--name", "mine")
    assert "There is a run 'mine' with other options" in coterie("fit", place, *other).message


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch):
    monkeypatch.setattr(folders, "find_spec", lambda name: None)
    with pytest.raises(CoterieError, match=names("flwr installed pip install 'coterie[flower]'")):
        folders.engine("flower")


def test_a_service_file_of_a_coordinator_a_site_and_its_watch(place):
    for folder, more, command in (
        (place, (), f"start-coordinator {place / 'coordinator'} --foreground"),
        (place / "sites" / "bern", (), f"start-site {place / 'sites' / 'bern'} --foreground"),
        (place / "sites" / "bern", ("--watch",), f"watch {place / 'sites' / 'bern'}"),
    ):
        ran = coterie("federation", "service", folder, *more)
        assert ran.code == 0 and f" federation {command}\n" in ran.out
        assert ("ExecStop=" in ran.out) == (not more)


def test_a_status_says_until_when_keys_hold_and_whose_were_revoked(place):
    Register(keys={"bern": ""}, revoked={"bern": "2026-11-30 12:00 UTC: a laptop was stolen"}).write(
        place / "coordinator"
    )
    said = coterie("federation", "status", place).out
    assert "Its certificate holds until 2099-03-04." in said
    assert "Revoked: 'bern' on 2026-11-30 12:00 UTC: a laptop was stolen." in said
    assert json.loads(coterie("federation", "status", place, "--json").out)["revoked"].keys() == {"bern"}
