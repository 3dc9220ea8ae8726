"""A deployed site: what it answers, what it refuses, and what it keeps."""

from __future__ import annotations

import errno
import fcntl
import json
import re
import shutil
import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coterie import files
from coterie.data.prepare_table import prepare
from coterie.deployment import logs, toml_files
from coterie.deployment.column_types import SchemaColumn
from coterie.deployment.federation_toml import Config
from coterie.deployment.schema import Schema
from coterie.deployment.site import prepared_data, receiver
from coterie.deployment.site.preview import LocalTransport
from coterie.deployment.site.receiver import LOCK, SiteReceiver
from coterie.deployment.site.redaction_and_owner_log import tell_owner
from coterie.deployment.site.site_toml import Member
from coterie.deployment.site.table import PROBLEM
from coterie.engines import wire
from coterie.engines.retry_and_quorum import BelowQuorum, Policy, Refused
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.federation import work
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.registry import FITTED
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import run
from tests.deployment.sites import FORMULA, LENIENT, NAMES, build, home, hosts, say, table, tables, task, transport
from tests.messages import names


@work
def rows_here(site):
    """Rows of every client."""
    return {"rows": site.objective.counts.astype(np.float64)}


def opened(folder, **more):
    return {"kind": "open", "run": "r", "task": task(folder, **more), "seed": 0}


def problem_of(people, family="gaussian", p=5):
    return GroupedProblem(ClusterTree(tuple(level.parent for level in people.levels)), family, np.arange(p), 0)


@pytest.mark.soak("a client a site")
@pytest.mark.parametrize("by_client", [False, True], ids=["a client a site", "many clients a site"])
def test_a_fit_over_sites_is_that_of_all_rows_in_one_table(by_client, tmp_path):
    build(tmp_path)
    columns = {"client": "ward", "cluster": ["kind"]} if by_client else {}
    fed = Remote(transport(tmp_path), run="r", task=task(tmp_path, **columns))
    fitted = FITTED["hierarchical"].fit(fed, problem_of(fed.participants))
    every = pd.concat([f.assign(site=name) for name, f in tables().items()], ignore_index=True)
    clients, _ = prepare(every, FORMULA, columns.get("client", "site"), columns.get("cluster", ()))
    alone, _ = run("hierarchical", clients, problem_of(clients), {})
    assert fed.participants.labels.tolist() == clients.labels.tolist()
    assert np.allclose(fitted.client, alone.client, rtol=1e-11, atol=1e-12)
    assert np.allclose(fitted.root, alone.root, rtol=1e-11, atol=1e-12)


def test_columns_in_another_order_are_found_by_name(tmp_path):
    build(tmp_path)
    before = say(hosts(tmp_path)["bern"], **opened(tmp_path))
    build(tmp_path / "other", {n: f[f.columns[::-1]] if n == "bern" else f for n, f in tables().items()})
    host = SiteReceiver(home(tmp_path / "other", "bern"))
    assert say(host, **opened(tmp_path / "other"))["counts"].tolist() == before["counts"].tolist()
    here = [h._runs["r"]._run.site.objective for h in (host, _host(tmp_path, "bern"))]
    assert np.array_equal(here[0].X, here[1].X)


def _host(folder, name):
    host = SiteReceiver(home(folder, name))
    say(host, **opened(folder))
    return host


def test_a_level_at_one_site_only_works_everywhere(tmp_path):
    build(tmp_path)
    for name in NAMES:
        assert _host(tmp_path, name)._runs["r"]._run.site.objective.X.shape == (40, 5)


def test_a_level_the_schema_has_not_is_refused_with_a_remedy(tmp_path):
    build(tmp_path)
    request = opened(tmp_path)
    request["task"]["schema"] = Schema.read(home(tmp_path, "basel") / "schema.toml").plain()
    said = say(hosts(tmp_path)["chur"], **request)["refused"]
    assert "Site 'chur': Column 'pain' has levels not in the schema" in said


def test_other_units_are_refused_by_name(tmp_path):
    united = build(tmp_path)
    own = dict(united.columns)
    own["age"] = SchemaColumn("number", "months")
    Schema(own).write(home(tmp_path, "bern") / "schema.toml")
    said = say(hosts(tmp_path)["bern"], **opened(tmp_path))["refused"]
    assert said == "Site 'bern': Its schema is not that of the run: 'age' is in months and not in no unit."
    with pytest.raises(CoterieError, match=r"bern.*in months"):
        Remote(transport(tmp_path), run="r", task=task(tmp_path))


@pytest.mark.parametrize("min_group", [1, 5])
def test_values_outside_the_range_are_refused_or_clipped_by_the_owners_rules(min_group, tmp_path):
    united = build(tmp_path, min_group=min_group)
    columns = dict(united.columns) | {"age": SchemaColumn("number", "years", low=20, high=60)}
    Schema(columns).write(tmp_path / "coordinator" / "schema.toml")
    for name in NAMES:
        Schema(columns).write(home(tmp_path, name) / "schema.toml")
    host = hosts(tmp_path)["chur"]
    said = say(host, **opened(tmp_path))
    if min_group == 1:
        assert "Column 'age' has values outside the range of the schema." in said["refused"]
    else:
        age = host._prepared["r"].objective.X[:, 1]
        want = tables()["chur"]["age"].clip(20, 60)
        assert said["counts"].tolist() == [40] and np.array_equal(np.sort(age), np.sort(want)) and age.max() == 60
    kept = home(tmp_path, "chur") / PROBLEM
    assert "outside 20 to 60 years in" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_what_is_wrong_in_a_table_is_for_its_owner_alone_whoever_asked(tmp_path):
    united = build(tmp_path)
    for folder in (tmp_path / "coordinator", home(tmp_path, "bern")):
        Schema(dict(united.columns) | {"age": SchemaColumn("number", "years", low=20, high=60)}).write(
            folder / "schema.toml"
        )
    kept, host = home(tmp_path, "bern") / PROBLEM, SiteReceiver(home(tmp_path, "bern"))
    for request in ({"kind": "check"}, opened(tmp_path, formula="score ~ age * pain"), {"kind": "check"}):
        kept.unlink(missing_ok=True)
        for mode in (None, 0o644):  # also where there is one that others may read
            if mode is not None:
                kept.chmod(mode)
            shutil.rmtree(home(tmp_path, "bern") / "cache", ignore_errors=True)
            host._runs.clear()
            say(host, **request)
            assert kept.stat().st_mode & 0o077 == 0 and "outside 20 to 60" in kept.read_text()


def test_no_column_is_read_by_calling_its_values_clients(tmp_path):
    build(tmp_path)
    host = hosts(tmp_path)["bern"]
    for columns in ({"client": "age"}, {"client": "ward", "cluster": ["pain"]}):
        request = opened(tmp_path, **columns) | {"task": task(tmp_path, "score ~ 1", **columns)}
        assert "does not name clients or clusters here" in say(host, **request)["refused"]


FITS = {
    "a term that is not finite": {"formula": "score ~ log(age - 50)"},
    "an outcome that is not finite": {"formula": "sqrt(age - 50) ~ pain"},
    "no counts": {"formula": "age ~ pain", "family": "poisson"},
    "neither 0 nor 1": {"formula": "age ~ pain", "family": "binomial"},
    "missing values": {"formula": "age ~ pain", "hole": True},
    "no row": {"formula": "score ~ 1", "missing": "drop", "empty": True},
}


@pytest.mark.parametrize("case", FITS.values(), ids=FITS)
def test_a_formula_that_does_not_fit_tells_of_no_row(case, tmp_path):
    case, frames = dict(case), tables()
    if case.pop("hole", False):
        frames["bern"].loc[2, "age"] = np.nan
    if case.pop("empty", False):
        frames["bern"] = frames["bern"].assign(score=np.nan)
    build(tmp_path, frames, min_group=1)
    host = hosts(tmp_path)["bern"]
    answer = say(host, **opened(tmp_path) | {"task": task(tmp_path, **case)})
    said = answer.get("refused") or answer["info"]["notes"][0]
    assert re.search(r"\d", said) is None
    assert re.search(r"\d", (home(tmp_path, "bern") / PROBLEM).read_text())


def test_notes_of_rows_left_out_have_no_places_and_no_values(tmp_path):
    frames = tables()
    frames["bern"].loc[[2, 5, 7], "age"] = np.nan
    build(tmp_path, frames, min_group=1)
    told = say(hosts(tmp_path)["bern"], **opened(tmp_path, missing="drop"))
    assert told["info"]["notes"] == ["3 of 40 rows were left out: column 'age' has missing values in 3 rows."]


def test_a_site_without_rows_takes_no_part_and_the_run_goes_on(tmp_path):
    frames = tables()
    frames["bern"] = frames["bern"].assign(score=np.nan)
    build(tmp_path, frames, min_group=1)
    fed = Remote(transport(tmp_path), run="r", task=task(tmp_path, missing="drop"))
    assert len(fed.participants.roster) == 2
    assert fed.away["bern"].startswith("no row of its table can be used")
    assert fed.ask(rows_here)["rows"].tolist() == [40, 40]


def test_where_rules_hold_a_site_without_rows_says_so_when_a_sum_is_to_leave_not_before(tmp_path):
    frames = tables()
    frames["bern"] = frames["bern"].assign(score=np.nan)
    build(tmp_path, frames)
    fed = Remote(transport(tmp_path), run="r", task=task(tmp_path), policy=Policy(strict=False))
    assert len(fed.participants.roster) == 3 and not fed.away
    assert fed.ask(rows_here)["rows"].tolist() == [40, 40]
    assert "0 rows can be used" in (home(tmp_path, "bern") / PROBLEM).read_text()


def test_an_owner_reads_the_cause_and_not_only_what_came_of_it(tmp_path):
    build(tmp_path)
    frame = table(1)
    frame = frame.assign(age=frame.age.map(lambda v: str(v).replace(".", ",")), pain="mild")
    frame.to_csv(home(tmp_path, "bern") / "data.csv", index=False)
    for name in "rst":
        fed = Remote(transport(tmp_path), run=name, task=task(tmp_path), policy=Policy(strict=False))
        fed.ask(rows_here)
    told = (home(tmp_path, "bern") / PROBLEM).read_text()
    assert told.count("write numbers as in 1234.5") == 1 and told.count("0 rows can be used") == 3
    assert "column 'pain' has no level of the schema, but 'mild', in 40 rows" in told
    for n in range(100):
        tell_owner(home(tmp_path, "bern"), [f"problem {n}"])
    told = (home(tmp_path, "bern") / PROBLEM).read_text()
    assert "problem 99" in told and "problem 90\n" in told and "problem 9\n" not in told


def test_a_client_at_two_sites_is_named(tmp_path):
    frames = tables()
    frames["bern"].loc[0, "ward"] = "basel-a"
    build(tmp_path, frames)
    with pytest.raises(CoterieError, match=names("Client basel-a basel bern")):
        Remote(transport(tmp_path), run="r", task=task(tmp_path, client="ward"))


def test_groups_smaller_than_the_owner_allows_do_not_leave(tmp_path):
    build(tmp_path, min_group=30)
    fed = Remote(transport(tmp_path), run="r", task=task(tmp_path, client="ward"))
    with pytest.raises(CoterieError, match="would tell of too few rows"):
        fed.ask(rows_here)
    assert fed.total(rows_here)["rows"] == 120


def test_data_are_prepared_once(tmp_path, monkeypatch):
    build(tmp_path)
    first = hosts(tmp_path)["basel"]
    said = say(first, **opened(tmp_path))
    monkeypatch.setattr("coterie.deployment.site.table.guarded_arrays", lambda *_: pytest.fail("prepared again"))
    again = hosts(tmp_path)["basel"]
    assert say(again, kind="about", run="r")["ids"].tolist() == said["ids"].tolist()
    assert say(hosts(tmp_path)["basel"], **opened(tmp_path))["done"] == "open"


def test_prepared_data_that_are_damaged_are_made_again(tmp_path):
    build(tmp_path)
    say(hosts(tmp_path)["basel"], **opened(tmp_path))
    (file,) = (home(tmp_path, "basel") / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:-3] + b"abc")
    assert say(hosts(tmp_path)["basel"], kind="about", run="r")["counts"].tolist() == [40]


def test_data_that_change_during_a_run_end_it_at_that_site(tmp_path):
    build(tmp_path)
    say(hosts(tmp_path)["basel"], **opened(tmp_path))
    table(1).to_csv(home(tmp_path, "basel") / "data.csv", index=False)
    assert "have changed since" in say(hosts(tmp_path)["basel"], kind="about", run="r")["refused"]
    assert "have changed since" in say(hosts(tmp_path)["basel"], **opened(tmp_path))["refused"]


def test_a_run_of_other_options_needs_another_name(tmp_path):
    build(tmp_path)
    host = hosts(tmp_path)["basel"]
    say(host, **opened(tmp_path))
    assert "choose another name" in say(host, **opened(tmp_path, formula="score ~ age"))["refused"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"kind": "about", "run": "never"}, "was not opened here"),
        ({"kind": "about", "run": "../../up"}, "is no name of a run"),
        ({"kind": "about"}, "None is no name of a run"),
        ({"run": "r"}, "A request without a kind"),
        ({"kind": "open", "run": "r", "seed": 0}, "with a task and a seed"),
        ({"kind": "open", "run": "r", "task": {"kind": "table"}, "seed": "0"}, "with a task and a seed"),
        ({"kind": "open", "run": "r", "task": {"kind": "sql"}, "seed": 0}, "no task of kind 'sql'"),
        ({"kind": "open", "run": "r", "task": {"kind": "table", "query": 1}, "seed": 0}, "has no 'query'"),
        ({"kind": "open", "run": "r", "task": {"kind": "table", "formula": "y ~ open('x')"}, "seed": 0}, "open"),
    ],
    ids=str,
)
def test_requests_that_have_no_answer_are_refused(request_, said, tmp_path):
    build(tmp_path)
    assert said in say(hosts(tmp_path)["basel"], **request_)["refused"]


def test_a_host_never_raises(tmp_path):
    build(tmp_path)
    host = hosts(tmp_path)["basel"]
    for data in (
        b"",
        b"abc",
        wire.encode(None),
        wire.encode([1]),
        wire.encode({"kind": 3}),
        wire.encode({"kind": "open"}),
    ):
        assert wire.decode(host.receive(data)).keys() & {"garbled", "refused", "failed"}


def test_a_full_disk_is_said_and_the_run_goes_on_without_the_site(tmp_path, monkeypatch):
    build(tmp_path)
    everyone = transport(tmp_path)
    fed = Remote(everyone, run="r", task=task(tmp_path), policy=Policy(strict=False))
    write = files.write

    def full(path, parts, **options):
        if "bern" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, parts, **options)

    monkeypatch.setattr("coterie.files.write", full)
    found = fed.ask(rows_here)
    assert found["rows"].tolist() == [40, 40]
    assert "no space left on device" in fed.troubles["bern"].lower()
    monkeypatch.setattr("coterie.files.write", write)
    assert fed.ask(rows_here)["rows"].tolist() == [40, 40, 40]


def test_a_full_disk_before_the_run_is_said(tmp_path, monkeypatch):
    build(tmp_path)

    def full(path, parts, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("coterie.files.write", full)
    assert say(hosts(tmp_path)["bern"], **opened(tmp_path)) == {"failed": "no space left on device"}
    with pytest.raises(BelowQuorum, match=names("basel bern chur cannot take part")):
        Remote(transport(tmp_path), run="r", task=task(tmp_path), policy=Policy(strict=False))


def test_a_run_that_was_opened_after_a_full_disk_outlives_its_process(tmp_path, monkeypatch):
    build(tmp_path)
    host, write = hosts(tmp_path)["bern"], files.write

    def full(path, parts, **options):
        if path.name == "opened":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, parts, **options)

    monkeypatch.setattr("coterie.files.write", full)
    assert say(host, **opened(tmp_path)) == {"failed": "no space left on device"}
    monkeypatch.setattr("coterie.files.write", write)
    assert say(host, **opened(tmp_path))["done"] == "open"
    assert say(hosts(tmp_path)["bern"], kind="about", run="r")["counts"].tolist() == [40]


def test_a_site_of_another_version_is_left_out_and_named(tmp_path, monkeypatch):
    build(tmp_path)
    everyone = hosts(tmp_path)
    about = everyone["chur"]._node

    def older(*given):
        node = about(*given)
        node._about["info"]["version"] = "0.9.1"
        return node

    monkeypatch.setattr(everyone["chur"], "_node", older)
    to = LocalTransport({name: host.receive for name, host in everyone.items()})
    with pytest.raises(CoterieError, match=r"At chur, it has coterie 0\.9\.1, and the coordinator"):
        Remote(to, run="r", task=task(tmp_path))
    fed = Remote(to, run="r", task=task(tmp_path), policy=Policy(strict=False))
    assert fed.names == ["basel", "bern"]
    assert "it has coterie 0.9.1" in fed.away["chur"]
    with pytest.raises(BelowQuorum, match=r"chur cannot take part \(chur: it has coterie 0\.9\.1"):
        Remote(to, run="r", task=task(tmp_path), policy=Policy(strict=False, min_clients="all"))


FACTORY = """
import numpy as np
from coterie.objectives.quadratic import Quadratic

def make(path, site, clients=2):
    return Quadratic(np.ones((clients, 1, 1)), np.zeros((clients, 1))), [f"{site}-{i}" for i in range(clients)]
"""


def test_an_objective_needs_its_owners_leave(tmp_path, monkeypatch):
    build(tmp_path, min_group=1)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    basel = home(tmp_path, "basel")
    (basel / "models_of_basel.py").write_text(FACTORY)
    wanted = {"kind": "factory", "name": "models_of_basel:make", "options": {"clients": 3}}
    request = {"kind": "open", "run": "r", "task": wanted, "seed": 0}
    assert "Objective 'models_of_basel:make' is not allowed here" in say(SiteReceiver(basel), **request)["refused"]
    Member("basel", "data.csv", 1, ("models_of_basel:make",)).write(basel)
    assert say(SiteReceiver(basel), **request)["labels"].tolist() == ["basel-0", "basel-1", "basel-2"]
    wanted["name"] = "models_of_basel:other"
    assert "not allowed" in say(SiteReceiver(basel), **request | {"run": "s"})["refused"]


def test_bytes_that_are_written_are_those_that_went_out_without_a_form_that_is_known(tmp_path):
    build(tmp_path)
    sent = {name: [] for name in NAMES}

    class Counted(LocalTransport):
        def send(self, messages, timeout):
            answers = super().send(messages, timeout)
            for name, answer in answers.items():
                sent[name].append(len(answer))
            return answers

    fed = Remote(
        Counted({name: host.receive for name, host in hosts(tmp_path).items()}),
        run="r",
        task=task(tmp_path, client="ward"),
    )
    for _ in range(3):
        fed.total(rows_here)
    lines = logs.read(home(tmp_path, "bern") / "log.jsonl")
    assert [line["bytes"] for line in lines] == sent["bern"] and lines[-1]["bytes"] < lines[1]["bytes"]


def test_what_left_is_written_for_the_owner(tmp_path):
    build(tmp_path)
    fed = Remote(transport(tmp_path), run="r", task=task(tmp_path, client="ward"))
    fed.total(rows_here)
    fed.ask(rows_here)
    lines = [json.loads(line) for line in (home(tmp_path, "bern") / "log.jsonl").read_text().splitlines()]
    assert [(e["kind"], e.get("covers")) for e in lines] == [("open", None), ("total", 40), ("ask", 20)]
    assert lines[2]["values"] == {"rows": "float64 (2,)"}
    assert lines[0]["clients"] == 2


def test_secure_sums_hide_what_a_site_sends(tmp_path):
    pytest.importorskip("cryptography")
    from coterie.deployment import secure_sum_setup
    from coterie.deployment.coordinator import run

    united = build(tmp_path, secure={"min_sites": 3})
    config = Config.read(tmp_path / "coordinator")
    secure_sum_setup.init(config, [home(tmp_path, name) for name in NAMES])
    fed = Remote(transport(tmp_path), run="r", task=task(tmp_path), secure=secure_sum_setup.settings(config))
    assert fed.total(rows_here)["rows"] == 120
    plain = Remote(transport(tmp_path), run="p", task=task(tmp_path))
    with pytest.raises(CoterieError, match="set `secure` alike everywhere"):
        plain.total(rows_here)
    folder = tmp_path / "coordinator"
    toml_files.write(folder / "runs" / "s" / "run.toml", {"program": "pooled", "task": {"formula": FORMULA}})
    run.run(transport(tmp_path), folder, "s")
    assert logs.read_status(folder / "runs" / "s")["state"] == "finished"
    assert united.columns["pain"].levels == ("1", "2", "3", "4")


def test_a_site_that_guards_its_privacy_gives_no_plain_sum(tmp_path):
    pytest.importorskip("dp_accounting")
    build(tmp_path)
    privacy = {"clip": 1.0, "noise": 1.0, "clients": 3, "epsilon": 2.0}
    Member("bern", "data.csv", privacy=privacy, disclosure=LENIENT).write(home(tmp_path, "bern"))
    assert Member.read(home(tmp_path, "bern")).privacy == privacy
    fed = Remote(transport(tmp_path), run="r", task=task(tmp_path))
    with pytest.raises(CoterieError, match=r"gives private sums only, and was asked for .*rows_here"):
        fed.total(rows_here)
    last = logs.read(home(tmp_path, "bern") / "log.jsonl")[-1]
    assert "private sums only" in last["refused"]
    Member("bern", "data.csv", privacy={"clipp": 1.0}).write(home(tmp_path, "bern"))
    with pytest.raises(CoterieError, match=r"\[privacy\] of .* has no option 'clipp'"):
        SiteReceiver(home(tmp_path, "bern"))


def test_sums_that_the_owner_does_not_let_leave_are_not_charged(tmp_path):
    pytest.importorskip("dp_accounting")
    from coterie.engines.privacy import Private

    build(tmp_path)
    privacy = {"clip": {"rows": 50.0}, "noise": 1.0, "epsilon": 50.0}
    Member("bern", "data.csv", privacy=privacy, total=("coterie.methods.*",), disclosure=LENIENT).write(
        home(tmp_path, "bern")
    )
    everyone = hosts(tmp_path)
    fed = Remote(LocalTransport({n: h.receive for n, h in everyone.items()}), run="r", task=task(tmp_path))
    with pytest.raises(CoterieError, match=r"The owner does not let answers to .*clipped leave by total"):
        Private(fed, clip={"rows": 50.0}, noise=1.0, hide="site").total(rows_here)
    assert everyone["bern"]._guard.spent == 0.0


@pytest.mark.parametrize("kind", ["ask", "total"])
@pytest.mark.parametrize("deep", [1, 2])
def test_what_the_owner_does_not_let_leave_does_not_leave_inside_a_sum_with_noise(kind, deep, tmp_path):
    build(tmp_path)
    clipped, describe = (
        "coterie.engines.privacy.gaussian_mechanism:clipped",
        "coterie.methods.tree.penalised_tree:describe",
    )
    folder, how = home(tmp_path, "bern"), {"form": "names", "noise": 0.0, "sampling": 1.0, "seed": None}
    how["bound"] = dict.fromkeys(("rows", "w", "y", "x", "xx", "constant"), 1e300)
    message = {"inner": describe, "message": {}} | how
    for _ in range(deep - 1):
        message = {"inner": clipped, "message": message} | how
    request = {"kind": kind, "run": "r", "work": clipped, "message": message, "rows": None, "by": None}
    request |= {"exchange": [1, 1], "counted": [0, 0]}

    def answer(*patterns):
        Member("bern", "data.csv", 5, **{kind: patterns}, disclosure=LENIENT).write(folder)
        host = SiteReceiver(folder)
        say(host, **opened(tmp_path))
        return say(host, **request)

    refused = f"The owner does not let answers to {describe} leave by {kind}"
    assert refused in answer("coterie.engines.privacy.*")["refused"]
    assert deep > 1 or "values" in answer("coterie.engines.privacy.*", describe)


@pytest.mark.parametrize("privacy", [{}, {"clip": 1.0, "noise": 1.0, "epsilon": 5.0}], ids=["plain", "guarded"])
def test_a_message_is_read_once(privacy, tmp_path, monkeypatch):
    if privacy:
        pytest.importorskip("dp_accounting")
    build(tmp_path)
    Member("bern", "data.csv", privacy=privacy, disclosure=LENIENT).write(home(tmp_path, "bern"))
    host, decode, read = hosts(tmp_path)["bern"], wire.decode, []
    say(host, **opened(tmp_path))
    sums = {"kind": "total", "work": rows_here.work_name, "by": None, "rows": None, "message": {}, "run": "r"}
    message = wire.encode(sums | {"exchange": [1, 1], "counted": [0, 0]})
    monkeypatch.setattr(wire, "decode", lambda data, *more: (read.append(data), decode(data, *more))[1])
    host.receive(message)
    assert read.count(message) == 1


def test_two_processes_of_a_site_answer_one_after_the_other_and_know_of_each_other(tmp_path):
    build(tmp_path)
    first, second = (hosts(tmp_path, ["bern"])["bern"] for _ in range(2))
    say(first, **opened(tmp_path))
    say(second, **opened(tmp_path))
    sums = {"kind": "total", "work": rows_here.work_name, "by": None, "rows": None, "message": {}, "run": "r"}
    one = wire.encode(sums | {"exchange": [1, 1], "counted": [0, 0]})
    two = sums | {"exchange": [1, 2], "counted": [1, 1]}
    assert first.receive(one) == second.receive(one)
    assert "values" in say(second, **two)
    assert (
        "stands at exchange 1"
        in say(first, **two | {"exchange": [1, 1], "counted": [0, 0], "message": {"again": 1}})["refused"]
    )


def test_a_process_of_a_site_waits_for_another_that_is_answering(tmp_path):
    build(tmp_path)
    host, done = hosts(tmp_path, ["bern"])["bern"], threading.Event()
    with (home(tmp_path, "bern") / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: (say(host, **opened(tmp_path)), done.set()))
        waiting.start()
        assert not done.wait(0.3)
    assert done.wait(60.0)
    waiting.join()


def test_a_process_that_waits_too_long_lets_the_coordinator_ask_again(tmp_path, monkeypatch):
    build(tmp_path)
    monkeypatch.setattr(receiver, "WAIT", 0.1)
    fed = Remote(transport(tmp_path), run="r", task=task(tmp_path), policy=Policy(strict=False, retries=1))
    with (home(tmp_path, "bern") / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert fed.ask(rows_here)["rows"].tolist() == [40, 40]
        assert fed.troubles == {"bern": "another process of site 'bern' is answering"}
    assert not fed.quarantined


def test_the_state_of_a_run_is_for_its_owner_alone(tmp_path):
    build(tmp_path)
    say(hosts(tmp_path, ["bern"])["bern"], **opened(tmp_path))
    assert (home(tmp_path, "bern") / "runs" / "r").stat().st_mode & 0o077 == 0


ENDLESS = {
    "a power": "score ~ (age + pain + kind)**30",
    "all interactions": "score ~ " + "*".join(f"I(age + {i})" for i in range(22)),
    "powers of plain numbers": "score ~ I(I(9)**I(9)**I(99)) + age",
    "signs": "score ~ I(" + "-" * 5000 + "age)",
    "text many times": "score ~ I(I('a') * 1000000000)",
    "text of a column many times": "I(name * 1000000000) ~ age",
}


@pytest.mark.parametrize("formula", ENDLESS.values(), ids=ENDLESS)
def test_a_formula_without_end_does_not_hold_a_site_up(formula, tmp_path):
    build(tmp_path, {name: frame.assign(name="abc") for name, frame in tables().items()})
    answer = say(hosts(tmp_path)["bern"], **opened(tmp_path) | {"task": task(tmp_path, formula)})
    assert len(answer["refused"]) < 1000


def test_a_schema_of_any_size_does_not_hold_a_site_up(tmp_path):
    build(tmp_path)
    host, request = hosts(tmp_path)["bern"], opened(tmp_path)
    schema = request["task"]["schema"]
    schema["pain"]["levels"] = [str(i) for i in range(20_000)]
    schema |= {f"column {i}": {"type": "number"} for i in range(5000)}
    assert "has 20,000 levels" in say(host, **request)["refused"]
    schema["pain"]["levels"] = ["1", "2", "3", "4"]
    assert say(host, **request)["done"] == "open"
    assert (
        "there is no column 'column 0'"
        in say(host, **request | {"run": "s", "task": request["task"] | {"formula": "score ~ ."}})["refused"]
    )


def test_advice_after_too_few_answers_fits_the_reason(tmp_path):
    build(tmp_path, min_group=30)
    policy = Policy(strict=False, min_clients="all")
    fed = Remote(transport(tmp_path), run="r", task=task(tmp_path, client="ward"), policy=policy)
    with pytest.raises(Refused, match=r"prevents it\)\. They will answer the same again: ask for something") as problem:
        fed.ask(rows_here)
    assert "when they are back" not in str(problem.value)
    everyone = transport(tmp_path)
    fed = Remote(everyone, run="s", task=task(tmp_path), policy=replace(policy, retries=0))
    everyone._receivers["bern"] = lambda _: None
    with pytest.raises(BelowQuorum, match=names("Nothing lost run back")):
        fed.ask(rows_here)


def test_prepared_arrays_of_the_last_few_tasks_are_kept(tmp_path, monkeypatch):
    build(tmp_path, min_group=1)
    folder, host = home(tmp_path, "basel") / "cache", hosts(tmp_path)["basel"]
    say(host, **opened(tmp_path))
    (first,) = folder.iterdir()
    for n in range(2 * prepared_data.KEPT):
        formula = f"score ~ age + I(age + {n})"
        assert say(host, kind="open", run=f"r{n}", task=task(tmp_path, formula), seed=0)["done"] == "open"
        say(hosts(tmp_path)["basel"], kind="about", run="r")  # another process, which reads the first task's
        assert len(list(folder.iterdir())) <= prepared_data.KEPT and first.exists()
    assert len(list(folder.iterdir())) == prepared_data.KEPT
    assert say(hosts(tmp_path)["basel"], kind="about", run="r0")["counts"].tolist() == [40]


@pytest.mark.parametrize(
    "name", ["kind", "run", "work", "tag", "formula", "family", "client", "missing", "column", "unit"]
)
def test_texts_of_any_length_are_shortened_in_answers_and_in_the_log(name, tmp_path):
    build(tmp_path)
    host, long = hosts(tmp_path)["bern"], "l" * 200_000
    say(host, **opened(tmp_path))
    request = opened(tmp_path) | {"run": "s"}
    if name in ("kind", "run"):
        request[name] = long
    elif name in ("work", "tag"):
        request = {"kind": "total" if name == "work" else "restore", "run": "r", "exchange": [1, 1], "counted": [0, 0]}
        request |= {"rows": None, "by": None, "message": {}, name: long}
    elif name == "column":
        request["task"]["schema"] |= {long: {"type": "number"}}
        request["task"]["formula"] = f"score ~ {long}"
    elif name == "unit":
        request["task"]["schema"]["age"]["unit"] = long
    else:
        request["task"][name] = f"score ~ age + {long}" if name == "formula" else long
    answer = say(host, **request)
    assert len(str(answer.get("refused") or answer["failed"])) <= 2000
    assert (home(tmp_path, "bern") / "log.jsonl").stat().st_size < 10_000
