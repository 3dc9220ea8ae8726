"""The rules of a site's owner: answers to formulas depend on no single row, and sums do not differ by a few."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.deployment.coordinator.run_toml import RunConfig
from coterie.deployment.federation_toml import SITE, Config
from coterie.deployment.schema import Schema, propose
from coterie.deployment.site import disclosure
from coterie.deployment.site.receiver import FAILS, SiteReceiver
from coterie.deployment.site.site_toml import Disclosure, Member
from coterie.deployment.site.table import LEFT_OUT, PROBLEM
from coterie.engines import wire
from coterie.engines.privacy.gaussian_mechanism import clipped
from coterie.errors import CoterieError
from coterie.federation import work, work_name
from coterie.methods import dp_sgd, fedavg
from coterie.methods.clustered_l2gd.strong_convexity import send_constants
from coterie.methods.groups.find import halved
from coterie.methods.networks.client_embeddings import embed, radii
from coterie.methods.registry import FITTED
from coterie.methods.tree.penalised_tree import describe
from coterie.objectives.clipped_gradients import clipped_gradients
from coterie.options import declared
from tests.deployment import hostile
from tests.deployment.sites import say

MANY = {"formulas_per_day": 10**6, "refusals_per_day": 10**6, "works": ["*"]}


def patients(n=80):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(40, 80, n), "sex": rng.choice(["f", "m"], n)})
    frame = frame.assign(chol=(210 + 30 * rng.normal(size=n)).round(1), los=rng.gamma(3, 2, n).round(2))
    return frame.assign(event=rng.integers(0, 2, n), ward=np.array(["a", "b"])[np.arange(n) % 2])


def ranged(frame):
    """The schema of a table, with ranges for its numbers."""
    schema, _ = propose(frame, labels=["ward"])
    ends = {"age": (18.0, 110.0), "chol": (80.0, 500.0), "los": (0.01, 90.0)}
    return Schema(
        {n: replace(c, low=ends[n][0], high=ends[n][1]) if n in ends else c for n, c in schema.columns.items()}
    )


def place(folder, frame, schema=None, **rules):
    """A site's folder."""
    folder.mkdir(parents=True)
    frame.to_csv(folder / "data.csv", index=False)
    rules = {"min_group": 5, "disclosure": MANY} | rules
    Member("davos", "data.csv", **rules).write(folder)
    Config("heart", "nvflare", sites=("basel", "bern", "davos")).write(folder)
    (schema or ranged(frame)).write(folder / "schema.toml")
    return SiteReceiver(folder)


def opening(schema, formula="los ~ age + sex", run="r", **more):
    task = {"kind": "table", "formula": formula, "schema": schema.plain(), **more}
    return {"kind": "open", "run": run, "task": task, "seed": 0}


ROWS = {
    "an old man": {"age": 91, "sex": "m", "chol": 235.7},
    "extreme": {"age": 1e300, "chol": -1e18, "los": 1e-320, "event": 7},
    "outside": {"age": 130, "chol": 900.0, "los": -4.0},
    "missing": {"age": None, "sex": None, "chol": None, "los": None, "event": None},
    "text": {"age": "unknown", "chol": "0x1A", "los": "1,5", "event": "yes"},
    "a level of its own": {"sex": "x", "age": 0, "chol": 0.0, "los": 0.0},
}


@pytest.mark.parametrize("privacy", [{}, {"clip": 0.5, "noise": 3.3, "epsilon": 1.0}], ids=["min_group", "guard"])
@pytest.mark.parametrize("many", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_hostile_formulas_are_answered_alike_whatever_a_row_holds(many, privacy, tmp_path):
    """The long form asks a thousand formulas of every row."""
    if privacy:
        pytest.importorskip("dp_accounting")
    frame, rng, opened = patients(), np.random.default_rng(many), 0
    schema, group = ranged(frame), {"privacy": privacy, "min_group": 1} if privacy else {}
    before = place(tmp_path / "sites" / "plain", frame, schema, **group)
    names = list(ROWS)
    others = {}
    for name in names:
        other = frame.astype(object)
        other.loc[7, list(ROWS[name])] = list(ROWS[name].values())
        others[name] = place(tmp_path / "sites" / name.replace(" ", ""), other, schema, **group)
    for n in range(many):
        request = {"kind": "open", "run": f"r{n}", "task": hostile.task(rng, schema.plain()), "seed": 0}
        message = wire.encode(request)
        said = before.receive(message)
        asked = others.values() if many > 500 else [others[names[n % len(names)]]]
        for host in asked:
            assert host.receive(message) == said, request["task"]
        opened += wire.decode(said).get("done") == "open"
    assert many / 20 < opened < many / 2
    lines = [json.loads(line) for line in (before.folder / "log.jsonl").read_text().splitlines()]
    assert len(lines) == many and all("formula" in line for line in lines)


def test_a_row_without_a_value_of_a_computed_outcome_is_no_reason_to_refuse(tmp_path):
    frame = patients()
    schema, other = ranged(frame), frame.astype(object)
    other.loc[7, "los"] = None
    task = {"kind": "table", "formula": "log(los) ~ chol", "schema": schema.plain(), "missing": "drop"}
    message = wire.encode({"kind": "open", "run": "r", "task": task, "seed": 0})
    plain, lacks = (place(tmp_path / "sites" / name, table, schema) for name, table in (("a", frame), ("b", other)))
    said = plain.receive(message)
    assert wire.decode(said)["done"] == "open" and lacks.receive(message) == said
    for outcome in ("cbind(log(los), age)", "log(los) | trials(age)"):
        task |= {"formula": f"{outcome} ~ chol", "family": "binomial"}
        message = wire.encode({"kind": "open", "run": "counts", "task": task, "seed": 0})
        said = plain.receive(message)
        assert "columns as they are" in wire.decode(said)["refused"] and lacks.receive(message) == said


def test_a_patient_cannot_be_found_by_asking_whether_formulas_fit(tmp_path):
    """The search that reads a row where a formula may compare: halving, by whether a division by zero is refused."""
    frame = patients()
    frame.loc[7, ["age", "sex", "chol"]] = [91, "m", 235.7]
    schema, _ = propose(frame, labels=["ward"])
    host = place(tmp_path / "davos", frame, schema, privacy={})

    def answered(value):
        said = say(host, **opening(schema, f"los ~ I(1/(1-(age >= {value})))", f"r{value}"))
        return said["refused"].replace(f">= {value})", "")

    assert len({answered(value) for value in range(0, 130, 10)}) == 1


ALLOWED = (
    "age + sex",
    "age * sex",
    "(age + sex + chol)**2",
    "log(chol)",
    "bs(age, df=4)",
    "poly(chol, 2) + C(sex)",
    ".",
)
REFUSED = {
    "I(age)": "may not hold 'I(age)'",
    "age > 90": "cannot be read",
    "log(age - 90)": "may not hold 'log(age - 90)'",
    "log(log(age))": "may not hold",
    "2:age": "may not hold the number in '2'",
    "bs(age, knots=[90])": "df or degree up to 6",
    "bs(age, df=50)": "df or degree up to 6",
    "bs(age, df=4, degree=1)": "df or degree up to 6",
    "np.sign(age)": "may not hold",
    "C(sex, contr.treatment('m'))": "may not hold",
    "abs(age)": "may not hold 'abs(age)'",
    "exp(age)": "",
    "log(event)": "no number over the whole range",
    "center(sex)": "needs a column of numbers",
    "(age + sex + chol + event)**4": "columns, for which",
    "bs(event, df=4)": "write low and high of column 'event'",
}


@pytest.mark.parametrize("right", ALLOWED)
def test_what_formulas_may_hold(right, tmp_path):
    host, schema = place(tmp_path / "davos", patients()), ranged(patients())
    assert say(host, **opening(schema, f"los ~ {right}"))["counts"].tolist() == [80]


@pytest.mark.parametrize(("right", "why"), REFUSED.items())
def test_what_formulas_may_not_hold(right, why, tmp_path):
    schema = ranged(patients())
    host = place(tmp_path / "davos", patients(), disclosure=MANY | {"rows_per_column": 8})
    said = say(host, **opening(schema, f"los ~ {right}"))
    assert "refused" not in said if why == "" else why in said["refused"]
    assert not (host.folder / PROBLEM).exists()  # no row was looked at, or none was wrong


def test_a_coordinator_chooses_no_rows_by_its_schema(tmp_path):
    """With ranges, levels or centers of its own it would."""
    frame = patients()
    host, schema = place(tmp_path / "davos", frame), ranged(frame)
    wrong = {
        "bs(age, df=4)": ("age", {"low": 89.0}, "'age' has another low"),
        "scale(age)": ("age", {"scale": 1e-300}, "'age' has another scale"),
        "sex": ("sex", {"levels": ("m",)}, "has levels not in the schema"),
        "age": ("age", {"unit": "months"}, "'age' is in no unit and not in months"),
    }
    for right, (name, change, why) in wrong.items():
        other = Schema(schema.columns | {name: replace(schema.columns[name], **change)})
        assert why in say(host, **opening(other, f"los ~ {right}", f"r{name}{len(right)}"))["refused"]
    clip = Schema(
        schema.columns | {"age": replace(schema.columns["age"], low=89.0)}
    )  # of a column as it is: the site's
    say(host, **opening(clip, "los ~ age", "own"))
    assert np.array_equal(host._prepared["own"].objective.X[:, 1], frame["age"])


def total(host, run="r", n=1, rows=None, by=None, kind="total"):
    """A sum, or answers, over clients; the words of a refusal, or "" where it was answered."""
    request = {"kind": kind, "run": run, "work": work_name(describe), "message": {}, "rows": rows, "by": by}
    said = say(host, **request, exchange=[1, n], counted=[0, 0])
    return said.get("refused", "") if "failed" not in said else pytest.fail(said["failed"])


def test_two_sums_do_not_differ_by_a_few_rows(tmp_path):
    frame = patients().astype({"chol": object})
    frame.loc[[3, 9], "chol"] = None
    host, schema = place(tmp_path / "davos", frame), ranged(patients())
    for run, formula in (("a", "los ~ age"), ("b", "los ~ age + chol"), ("c", "los ~ sex"), ("d", "event ~ chol")):
        assert say(host, **opening(schema, formula, run))["counts"].tolist() == [80]
    assert total(host, "a") == total(host, "c") == ""
    assert total(host, "b").endswith(disclosure.DECLINES)
    host = SiteReceiver(host.folder)  # the memory is on disk
    assert total(host, "d").endswith(disclosure.DECLINES) and total(host, "a", 2) == ""
    assert "whose rows differ from these by 2." in (host.folder / PROBLEM).read_text()


def test_formulas_are_over_the_same_rows_where_columns_must_be_complete(tmp_path):
    frame = patients().astype({"chol": object, "sex": object})
    frame.loc[3, "chol"], frame.loc[9, "chol"], frame.loc[11, "sex"] = None, "unknown", None
    schema, whole = ranged(patients()), MANY | {"complete": ["chol", "sex"]}
    host = place(tmp_path / "davos", frame, schema, disclosure=whole)
    for n, formula in enumerate(("los ~ age", "los ~ age + chol", "event ~ sex", "chol ~ sex + age")):
        say(host, **opening(schema, formula, f"r{n}"))
        assert total(host, f"r{n}") == "" and len(host._prepared[f"r{n}"].objective.y) == 77
    say(host, **opening(schema, "los ~ age + event", "told"))
    assert "column 'chol' has no value (complete) in 2 rows (data rows 4, 10)" in (host.folder / PROBLEM).read_text()
    assert Disclosure(complete="chol").complete == ("chol",)
    with pytest.raises(CoterieError, match="complete must be a list of columns"):
        Disclosure(complete=3)
    other = place(tmp_path / "other" / "davos", frame, schema, disclosure=MANY | {"complete": ["weight"]})
    assert "'weight' (complete) that its schema has not" in say(other, **opening(schema))["refused"]


def test_a_row_that_is_added_or_changed_does_not_leave_by_the_difference(tmp_path):
    frame = patients(85)
    host, schema = place(tmp_path / "davos", frame[:80]), ranged(frame)
    say(host, **opening(schema, run="a"))
    assert total(host, "a") == ""
    for rows, words in ((81, disclosure.DECLINES), (85, "")):
        frame[:rows].iloc[::-1].to_csv(host.folder / "data.csv", index=False)
        say(host, **opening(schema, run=f"with {rows}".replace(" ", "-")))
        assert total(host, f"with-{rows}").endswith(words) and (words or not total(host, f"with-{rows}", 2))


def test_who_takes_part_does_not_tell_which_rows_have_a_weight(tmp_path):
    frame = patients().assign(ward=[f"w{i}" for i in range(80)])
    host, schema = place(tmp_path / "davos", frame), ranged(frame)
    said = say(host, **opening(schema, "los ~ age", client="ward", weights="event"))
    assert "need a smallest value above 0" in said["refused"]
    said = say(host, **opening(schema, "los ~ age", run="b", client="ward", weights="chol"))
    assert len(said["labels"]) == 80


@pytest.mark.parametrize("wards", [80, 8], ids=["patients", "wards"])
def test_who_takes_part_does_not_tell_which_rows_can_be_used(wards, tmp_path):
    """A label of one patient, and one of ten of whom six have no value: both stay, without rows."""
    frame, said = patients().assign(ward=[f"w{i % wards}" for i in range(80)]), []
    for lost in ([], [7, 15, 23, 31, 39, 47], [*range(80)]):
        other = frame.astype({"chol": object})
        other.loc[lost, "chol"] = None
        host = place(tmp_path / f"{len(lost)}" / "davos", other, ranged(frame))
        said.append(host.receive(wire.encode(opening(ranged(frame), "los ~ age + chol", client="ward"))))
        if len(lost) == 6:
            counts = dict(zip(wire.decode(said[-1])["labels"], host._prepared["r"].objective.counts, strict=True))
            assert total(host) == "" and counts["w7"] == 0
    assert said[0] == said[1] == said[2] and len(wire.decode(said[0])["labels"]) == wards
    assert total(host).endswith(disclosure.DECLINES)


def test_only_sums_of_exact_fits_read_a_table_unless_its_owner_names_others(tmp_path):
    host, schema = place(tmp_path / "davos", patients(), disclosure={}), ranged(patients())
    say(host, **opening(schema))
    asked = {"kind": "ask", "run": "r", "message": {}, "rows": None, "by": None, "exchange": [1, 1], "counted": [0, 0]}
    for strange in (radii, embed, halved, send_constants, fedavg.update, clipped):
        words = f"does not let {work_name(strange)} read a table"
        assert words in say(host, **asked | {"work": work_name(strange)})["refused"]
    hidden = {"inner": work_name(radii), "message": {}}
    assert "refused" in say(host, **asked | {"work": work_name(clipped), "message": hidden})
    assert "values" in say(host, **asked | {"work": work_name(describe)})
    Member("davos", "data.csv", 5, disclosure={"works": "coterie.methods.clustered_l2gd.*"}).write(host.folder)
    say(host, kind="about", run="r")
    assert "values" in say(host, **asked | {"work": work_name(send_constants), "message": {"at": ""}})
    assert "read a table" in say(host, **asked | {"work": work_name(describe)})["refused"]


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "ditto", "ifca", "found-groups", "group-penalty"])
def test_a_site_that_lets_only_some_of_a_methods_works_read_refuses_before_it_begins(tmp_path, name):
    own = FITTED[name].method_class.__mro__
    asked = RunConfig(name, {"formula": "los ~ age"}).asked(None)["works"]
    room = ["coterie.methods.local_training.*"]
    for works in (room, [*room, "coterie.methods.groups.*"]):
        member = Member("davos", "data.csv", 5, disclosure={"works": works})
        with pytest.raises(CoterieError, match=r"does not let coterie\.methods\.\w+.* read a table"):
            need_all(member, asked)
    need_all(Member("davos", "data.csv", 5, disclosure={"works": ["coterie.methods.*"]}), asked)
    assert any(start == f"{made.__module__}:" for start in asked for made in own)
    host = place(tmp_path / "davos", patients(), disclosure={"works": room})
    told = say(host, **opening(ranged(patients()), works=asked))
    assert "read a table" in told["refused"]


def need_all(member, starts):
    for start in starts:
        member.need_some(start)


def test_the_owner_reads_which_rule_a_small_client_broke_and_it_counts_as_no_bit(tmp_path):
    host, schema = place(tmp_path / "davos", patients(), disclosure=MANY | {"refusals_per_day": 1}), ranged(patients())
    frame = patients().assign(ward=np.repeat(["a", "b", "c"], [38, 38, 4]))
    frame.to_csv(host.folder / "data.csv", index=False)
    say(host, **opening(schema, "los ~ age", client="ward"))
    for n in range(3):
        assert total(host, rows=np.array([2]), n=n).endswith(disclosure.DECLINES)
    assert "fewer than 5 rows with its label (min_group)" in (host.folder / "problem.txt").read_text()
    assert total(host, rows=np.array([0]), n=4) == ""


def test_works_that_fail_leave_no_trace_but_a_bit_that_is_counted(tmp_path):
    rules = MANY | {"refusals_per_day": 3}
    host, schema = place(tmp_path / "davos", patients(), disclosure=rules), ranged(patients())
    frame = patients().assign(ward=np.repeat([f"w{i}" for i in range(8)], [20, 20, 20, 10, 4, 2, 2, 2]))
    frame.to_csv(host.folder / "data.csv", index=False)
    say(host, **opening(schema, "los ~ age", client="ward"))
    request = {"kind": "total", "run": "r", "work": work_name(slips), "by": None, "counted": [0, 0], "exchange": [1, 1]}
    for _ in range(5):  # the same again tells nothing new
        said = say(host, **request, rows=np.array([0, 4, 5]), message={})
        assert said == {"failed": f"CoterieError: {FAILS}"}
    assert total(host, rows=np.arange(4)) == ""  # differs by few rows from what failed, of which nothing left
    assert total(host, rows=np.arange(5)).endswith(disclosure.DECLINES)
    assert total(host, rows=np.array([0, 1, 2, 3, 7])).endswith(disclosure.DECLINES)
    host = SiteReceiver(host.folder)
    for rows in (np.arange(4), np.arange(6), None):
        assert "3 sums were refused today for what rows hold" in total(host, rows=rows, n=3)


def test_few_clients_are_not_left_out_of_a_sum_one_by_one(tmp_path):
    frame = patients().assign(ward=np.repeat([f"w{i}" for i in range(8)], [20, 20, 20, 10, 4, 2, 2, 2]))
    host, schema = place(tmp_path / "davos", frame), ranged(frame)
    told = say(host, **opening(schema, "los ~ age", client="ward"))
    assert told["counts"].tolist() == [20, 20, 20, 10, 2, 2, 2, 2]  # of small clients an even share
    assert total(host) == ""
    assert total(host, rows=np.arange(7), n=2).endswith(disclosure.DECLINES)  # all but two rows
    assert total(host, rows=np.arange(4), n=2) == ""
    assert total(host, rows=np.array([0, 4, 5]), n=3).endswith(disclosure.DECLINES)  # 6 rows, of which 4 stay alone
    assert total(host, rows=np.array([4]), n=4).endswith(disclosure.DECLINES)
    assert total(host, rows=np.array([4, *range(3), 4]), n=4).endswith(disclosure.DECLINES)  # the second time alone
    assert total(host, rows=np.arange(4), by=np.arange(4), n=4) == ""
    assert total(host, kind="ask", rows=np.arange(4), n=5) == ""


def test_groups_that_share_clients_are_no_way_to_a_small_one(tmp_path):
    frame = patients().assign(ward=np.repeat([f"w{i}" for i in range(8)], [20, 20, 20, 10, 4, 4, 1, 1]))
    host, schema = place(tmp_path / "davos", frame), ranged(frame)
    say(host, **opening(schema, "los ~ age", client="ward"))
    one = {"rows": np.array([0, 6, 0]), "by": np.array([0, 1, 1])}  # w0, and w0 with the single row of w6
    assert total(host, **one).endswith(disclosure.DECLINES)
    same = {"rows": np.tile(np.arange(4), 2), "by": np.repeat([0, 1], 4)}
    assert total(host, **same) == "" == total(host, n=2, rows=np.array([1, 1, 2]), by=np.array([0, 1, 1]))
    rng, sums, m = np.random.default_rng(5), [np.ones(8, bool)], 8
    assert total(host, n=3) == ""
    for n in range(60):
        rows, by = rng.integers(0, m, 9), rng.integers(0, 3, 9)
        if not total(host, n=4 + n, rows=rows, by=by):
            sums += [np.isin(np.arange(m), rows[by == g]) for g in np.unique(by)]
    parts = np.unique(np.stack(sums, axis=1), axis=0, return_inverse=True)[1]
    assert len(sums) > 4 and np.bincount(parts, [20, 20, 20, 10, 4, 4, 1, 1]).min() >= 5


@work
def slips(site, how="row"):
    told = {"row": f"row {site.objective.X[7]} is odd", "shape": site.objective.X[7, 1:]}
    raise (CoterieError if how == "row" else KeyError)(told[how])


@pytest.mark.parametrize("kind", ["ask", "total"])
def test_errors_of_works_do_not_say_what_rows_hold(kind, tmp_path):
    host, schema = place(tmp_path / "davos", patients()), ranged(patients())
    say(host, **opening(schema))
    request = {"kind": kind, "run": "r", "work": work_name(slips), "rows": None, "by": None, "counted": [0, 0]}
    for n, how in enumerate(("row", "shape")):
        said = say(host, **request, message={"how": how}, exchange=[1, n + 1])
        assert said == {"failed": f"CoterieError: {FAILS}"}
        assert f"{patients()['age'][7]}" in (host.folder / PROBLEM).read_text()
    said = say(host, **request, message={"now": 1}, exchange=[1, 3])  # a slip that no row has a part in
    assert said == {"failed": "TypeError: got an unexpected keyword argument 'now'"}


def test_errors_of_a_factory_stay_with_its_owner(tmp_path):
    host = place(tmp_path / "davos", patients(), allow=("reads_rows_here:make",))
    (host.folder / "reads_rows_here.py").write_text("def make(path, site):\n    raise ValueError('row 7 has 91')\n")
    said = say(host, kind="open", run="r", task={"kind": "factory", "name": "reads_rows_here:make"}, seed=0)
    assert (
        said["refused"]
        == "Site 'davos': 'reads_rows_here:make' fails here: 'problem.txt' in the site's folder says why."
    )
    assert "row 7 has 91" in (host.folder / PROBLEM).read_text()


def test_a_private_sum_that_fails_does_not_say_of_what(tmp_path):
    pytest.importorskip("dp_accounting")
    frame = patients()
    said = []
    for n, high in enumerate((60, 700)):
        frame.loc[7, "age"] = high
        privacy = {"clip": 0.5, "noise": 3.3, "epsilon": 50.0}
        host = place(tmp_path / f"{n}" / "davos", frame, min_group=1, privacy=privacy)
        say(host, **opening(propose(frame, labels=["ward"])[0], "event ~ age", family="poisson"))
        inner = {"inner": work_name(tells), "message": {"w": np.zeros(2)}, "form": "update:all", "bound": 0.5}
        message = inner | {"noise": 3.3, "sampling": 1.0, "seed": None}
        request = {"kind": "total", "run": "r", "work": work_name(clipped), "rows": None, "by": None}
        said.append(say(host, **request, message=message, exchange=[1, 1], counted=[0, 0]))
    assert said[0] == said[1] == {"failed": f"CoterieError: {FAILS}"}


@work
def tells(site, w):
    if site.objective.X[:, 1].max() > 100:
        raise CoterieError("somebody is old")
    return {"old": np.zeros(len(site))}


ROWS_OF_A_CHECK = {
    "plain": {}, "outside": {"age": 130}, "text": {"age": "unknown"}, "level": {"sex": "x"}, "missing": {"chol": None},
    "infinite": {"los": "inf"},
}  # fmt: skip


def test_a_check_does_not_depend_on_a_row(tmp_path):
    said = []
    for name, row in ROWS_OF_A_CHECK.items():
        frame = patients().astype(object)
        frame.loc[7, list(row)] = list(row.values())
        host = place(tmp_path / name / "davos", frame.drop(columns="event"), ranged(patients()))
        said.append(say(host, kind="check", schema=ranged(patients()).plain()) | {"clock": 0})
        assert (host.folder / PROBLEM).exists() == (name in ("outside", "text", "level", "infinite"))
    assert all(one == said[0] for one in said) and said[0]["problems"] == ["its table has no column 'event'"]


def test_splits_that_differ_by_a_row_do_not_both_leave(tmp_path):
    host, schema = place(tmp_path / "davos", patients()), ranged(patients())
    for n, (fraction, words) in enumerate(((0.25, ""), (0.2625, disclosure.DECLINES), (0.5, ""))):
        hold = {"seed": 0, "repeat": 0, "fraction": fraction}
        say(host, **opening(schema, run=f"r{n}", hold=hold))
        assert total(host, f"r{n}").endswith(words) and (words or not total(host, f"r{n}", 2))


def test_many_splits_are_not_a_system_of_equations_for_rows(tmp_path):
    """Sums over as many random splits as there are rows would give every row: each needs min_group rows of its own."""
    host, schema = place(tmp_path / "davos", patients()), ranged(patients())
    said = []
    for n in range(30):
        hold = {"seed": n, "repeat": 0, "fraction": 0.5}
        say(host, **opening(schema, run=f"r{n}", hold=hold))
        said.append(total(host, f"r{n}"))
    assert sum(not words for words in said) == 80 // 5 - 1, "and one over all rows, of which a split gives the rest"
    assert set(said[15:]) == {f"Site 'davos': {disclosure.DECLINES}"}
    assert "17 different sums would have left over 80 rows" in (host.folder / PROBLEM).read_text()
    assert total(host, "r3", 2) == ""


@pytest.mark.parametrize("sides", [(0,), (2, 1, 0)], ids=str)
def test_rows_that_are_cut_several_times_are_no_system_of_equations_either(sides, tmp_path):
    """Of the sums that left, over the rows trained on and those beside them, so many are independent."""
    host, schema, left = place(tmp_path / "davos", patients(), min_group=8), ranged(patients()), []
    for n in range(6):
        for side in sides:
            inside = {"fraction": 0.34, "depth": 2, "side": side}
            hold = {"seed": n, "repeat": 0, "fraction": 0.25, "inside": inside}
            say(host, **opening(schema, "los ~ age", run=f"r{n}-{side}", hold=hold))
            if not total(host, f"r{n}-{side}"):
                left += [part.rows for part in host._prepared[f"r{n}-{side}"].parts]
    assert 5 <= np.linalg.matrix_rank([np.isin(np.unique(np.concatenate(left)), rows) for rows in left]) <= 80 // 8


@pytest.mark.parametrize("by", ["split_by", "given_split"])
def test_what_a_column_sets_aside_does_not_tell_what_it_holds(by, tmp_path):
    """Not how many rows have some of its values; that rows cannot be split by it is a bit, which is counted."""
    frame, said = patients().assign(side=np.array(["test", "train", "train"])[np.arange(80) % 3]), []
    for name, value in (("davos", "test"), ("bern", "train"), ("chur", None)):
        other = frame.copy()
        other.loc[0, "side"] = value
        host = place(tmp_path / name, other, ranged(frame), disclosure=MANY | {"refusals_per_day": 1})
        hold = {"seed": 0, "repeat": 0, "fraction": 0.25, "by": {by: "side"}}
        said.append(host.receive(wire.encode(opening(ranged(frame), "los ~ age", hold=hold))))
        counted = len(host._releases._kept["declined"])
        assert counted == ("refused" in wire.decode(said[-1])) == (name == "chur")
    assert said[0] == said[1]
    assert "'side' has no value in 1 row (data row 1)" in (tmp_path / "chur" / PROBLEM).read_text()
    assert "cannot be split" not in wire.decode(said[2])["refused"]


def test_a_client_of_few_rows_is_not_answered_about_whether_it_has_any_or_not(tmp_path):
    frame = patients().assign(ward=[f"w{i}" for i in range(80)]).astype({"chol": object})
    frame.loc[7, "chol"] = None
    host, schema = place(tmp_path / "davos", frame), ranged(patients())
    said = say(host, **opening(schema, "los ~ chol", client="ward"))["labels"].tolist()
    none, some = (said.index(ward) for ward in ("w7", "w8"))
    for kind in ("ask", "total"):
        words = [total(host, rows=np.array([who]), kind=kind) for who in (none, some)]
        assert words[0] == words[1] and words[0].endswith(disclosure.DECLINES)
    assert not host._releases._kept["declined"]  # labels alone decide


def test_levels_classes_and_cells_have_rows_enough_in_every_sum(tmp_path):
    frame = patients()
    frame["sex"] = np.where(np.arange(80) < 4, "x", frame["sex"])
    frame["event"] = (np.arange(80) < 44).astype(int)
    frame["smoker"] = np.where(np.arange(80) < 41, "yes", "no")
    schema = ranged(frame)
    host = place(tmp_path / "davos", frame, schema, disclosure=MANY | {"rows_per_column": 5})
    sums = {
        "los ~ sex": {}, "los ~ age": {}, "los ~ event * smoker": {}, "event ~ age": {"family": "binomial"},
        "los ~ chol": {"client": "ward"}, "event ~ chol": {"client": "ward", "family": "binomial"},
    }  # fmt: skip
    found = {}
    for n, (formula, more) in enumerate(sums.items()):
        assert say(host, **opening(schema, formula, f"r{n}", **more))["done"] == "open"
        found[formula] = total(host, f"r{n}") == ""
    assert found == {f: f not in ("los ~ sex", "los ~ event * smoker") for f in sums}
    Member("davos", "data.csv", 5, disclosure=MANY | {"rows_per_column": 5, "min_level": 3}).write(host.folder)
    assert total(host, "r0") == "" == total(host, "r2")  # read anew


def test_rows_of_a_formula_are_counted_again_when_a_sum_leaves(tmp_path):
    frame = patients().astype({"chol": object})
    frame.loc[:55, "chol"] = None
    host, schema = place(tmp_path / "davos", frame), ranged(patients())
    assert say(host, **opening(schema, "los ~ chol + age"))["counts"].tolist() == [80]
    assert total(host).endswith(disclosure.DECLINES)
    assert "24 rows can be used for 3 columns" in (host.folder / PROBLEM).read_text()
    assert "makes 9 columns, for which" in say(host, **opening(schema, "los ~ (age + sex + event) ** 3 + chol", "s"))[
        "refused"
    ]  # fmt: skip


def test_formulas_are_counted_by_the_day(tmp_path, monkeypatch):
    host, schema = place(tmp_path / "davos", patients(), disclosure={"formulas_per_day": 3}), ranged(patients())
    for run, formula in (("a", "los ~ age"), ("a", "los ~ age"), ("b", "los ~ age"), ("c", "los ~ I(age)")):
        say(host, **opening(schema, formula, run))
    assert say(host, **opening(schema, "los ~ sex", "d"))["done"] == "open"
    said = say(SiteReceiver(host.folder), **opening(schema, "los ~ chol", "e"))["refused"]
    assert said.endswith("ask again tomorrow, after midnight UTC.") and "3 different formulas" in said
    assert total(SiteReceiver(host.folder), "a") == ""  # what was opened goes on

    class Tomorrow(datetime):
        @classmethod
        def now(cls, zone):
            return cls(2200, 1, 1, tzinfo=zone)

    monkeypatch.setattr(disclosure, "datetime", Tomorrow)
    assert say(host, **opening(schema, "los ~ chol", "e"))["done"] == "open"
    monkeypatch.undo()  # a clock that is put back gives nobody another day, and what was asked in it stays counted
    for run, formula in (("f", "los ~ age + sex"), ("g", "los ~ age + chol")):
        assert say(host, **opening(schema, formula, run))["done"] == "open"
    assert say(host, **opening(schema, "los ~ sex + chol", "h"))["refused"].endswith("past 2200-01-01 again.")
    lines = [json.loads(line) for line in (host.folder / "log.jsonl").read_text().splitlines()]
    assert [line.get("formula") for line in lines][3:6] == ["los ~ I(age)", "los ~ sex", "los ~ chol"]


def test_nothing_leaves_in_the_clear_where_the_owner_wants_none(tmp_path):
    host, schema = place(tmp_path / "davos", patients(), disclosure={"plain": False}), ranged(patients())
    say(host, **opening(schema))
    assert "neither a secure sum nor has noise" in total(host) and "neither" in total(host, kind="ask")


def test_sums_are_opened_over_as_many_sites_as_the_owner_wants(tmp_path):
    pytest.importorskip("cryptography")
    host, schema = place(tmp_path / "davos", patients()), ranged(patients())
    replace(host.config, secure={"min_sites": 2}).write(host.folder)
    said = say(SiteReceiver(host.folder), **opening(schema))["refused"]
    assert said.endswith(
        "Sums over 2 sites may be opened in this federation, and its owner wants 3 at least (min_sites)."
    )


def test_what_is_left_out_is_told_to_the_owner_alone(tmp_path):
    frame = patients().astype(object)
    frame.loc[[4, 6], "age"] = [None, 400]
    host, schema = place(tmp_path / "davos", frame, ranged(patients())), ranged(patients())
    said = say(host, **opening(schema, missing="drop"))
    assert said["counts"].tolist() == [80] and said["info"]["notes"] == [LEFT_OUT]
    told = (host.folder / PROBLEM).read_text()
    assert "Left out: column 'age' has missing values in 1 row (data row 5)." in told
    assert "Clipped: Column 'age' is outside 18 to 110 in 1 row (data row 7)" in told
    assert host._prepared["r"].objective.X[:, 1].max() == 110.0 and len(host._prepared["r"].objective.y) == 79


def test_the_rules_are_written_with_what_they_say(tmp_path):
    Member("davos", disclosure=Disclosure()).write(tmp_path)
    text = (tmp_path / SITE).read_text()
    assert "rows_per_column = 10  # rows that a site must have for each column of a formula" in text
    assert Member.read(tmp_path).disclosure == Member("davos").disclosure == Disclosure()
    wrong = {
        "min_levels": "Did you mean 'min_level'",
        "min_level": "a whole number from 1",
        "bases": "a list of bs, cc",
    }
    for (name, words), value in zip(wrong.items(), (3, 0, ["ns"]), strict=True):
        with pytest.raises(CoterieError, match=words):
            Member("davos", disclosure={name: value})


def test_the_nearest_sums_are_found_as_by_trying_all_of_them():
    rng = np.random.default_rng(3)
    for _ in range(200):
        a, b = (rng.integers(-1, rng.integers(1, 4), 12) for _ in range(2))
        sides = [[np.flatnonzero(x == g) for g in range(x.max() + 1) if np.any(x == g)] for x in (a, b)]
        found = []
        for mine, theirs in (sides, sides[::-1]):
            groups = [set(g) for g in mine] + ([set(np.concatenate(mine))] if mine else [])
            unions = chain.from_iterable(combinations(theirs, k) for k in range(len(theirs) + 1))
            found += [len(g ^ set(np.concatenate([[], *u]).astype(int))) for u in unions for g in groups]
        closest = [d for d in found if d]
        got = disclosure.closest(a, b)
        # an equal choice is not the nearest that differs: the nearest of a part is 0 then, and it is passed over
        assert got >= min(closest, default=13) and (0 in found or got == min(closest, default=13))


def test_rows_of_clients_that_may_be_told_are_those_of_labels(tmp_path):
    """Behind a guard of rows their number is public, and which can be used is not."""
    pytest.importorskip("dp_accounting")
    privacy, said = {"clip": 0.5, "noise": 3.3, "epsilon": 50.0, "unit": "row"}, []
    request = {"kind": "ask", "run": "r", "work": work_name(dp_sgd.row_counts), "message": {}, "rows": None, "by": None}
    for lost in (0, 1, 6):
        frame = patients().astype({"chol": object})
        frame.loc[range(lost), "chol"] = None
        host = place(tmp_path / f"{lost}" / "davos", frame, min_group=5, privacy=privacy)
        host.receive(wire.encode(opening(ranged(patients()), "los ~ chol", client="ward")))
        said.append(say(host, **request, exchange=[1, 1], counted=[0, 0])["values"]["rows"].tolist())
        objective = host._prepared["r"].objective
        used = objective.weights > 0.0
        assert np.count_nonzero(used) == 80 - lost and np.isfinite(objective.X).all()
        alone = replace(objective, weights=np.ones(80))
        for theta in np.eye(2):  # what cannot be used adds nothing, with noise or without
            np.testing.assert_array_equal(
                clipped_gradients(objective, theta, 1.0), clipped_gradients(alone, theta, 1.0, used)
            )
    assert said == [[40, 40]] * 3


def test_the_page_for_hospitals_has_every_rule():
    page = (Path(__file__).parents[3] / "docs" / "hospitals.md").read_text(encoding="utf-8")
    rules = page[page.index("| rule | default |") :].partition("\n\n")[0]
    assert [name for name in declared(Disclosure) if f"`{name}`" not in rules] == []
