"""Before a run: who is there, and who differs in what."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from coterie.deployment.column_types import SchemaColumn
from coterie.deployment.coordinator import check_sites as checks
from coterie.deployment.schema import Schema
from coterie.deployment.site.preview import LocalTransport
from coterie.engines import wire
from tests.deployment.sites import NAMES, build, home, hosts, tables


def agreed(folder):
    return Schema.read(folder / "coordinator" / "schema.toml")


def asked(folder, **changes):
    """The report on sites some of whose answers are changed."""
    receivers = {name: host.receive for name, host in hosts(folder).items()}
    for name, change in changes.items():
        receivers[name] = lambda data, real=receivers[name], change=change: change(real, data)
    return checks.check_sites(LocalTransport(receivers), agreed(folder))


def with_(**values):
    def change(real, data):
        return wire.encode(wire.decode(real(data)) | values)

    return change


def ahead(seconds):
    return lambda real, data: with_(clock=time.time() + seconds)(real, data)


def test_sites_that_agree_are_ready(tmp_path):
    build(tmp_path)
    report = asked(tmp_path)
    assert report.sound
    ready = [f"{name}: coterie {report.versions[name]}, ready" for name in NAMES]
    assert report.lines() == [
        *ready,
        "Look at it: enough rows have '4' of 'pain' at chur alone, so no other site tells of it.",
    ]


def test_nothing_of_a_row_travels(tmp_path):
    build(tmp_path)
    said = wire.decode(hosts(tmp_path)["basel"].receive(wire.encode({"kind": "check"})))
    assert said.keys() == {"done", "name", "version", "clock", "problems", "columns", "doubts", "present"}
    assert (said["doubts"], said["present"]) == ([], {"pain": ["1", "2", "3"]})
    assert said["columns"]["age"] == {"type": "number"}
    assert not (home(tmp_path, "basel") / "cache").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (ahead(86400), "its clock is 1 day ahead: set it"),
        (ahead(-7200), "its clock is 2 hours behind: set it"),
        (with_(version="1.0.0"), "so upgrade the coordinator"),
        (with_(name="bern"), "it calls itself 'bern'"),
        (lambda real, data: None, "it did not answer: start it with"),
        (lambda real, data: b"garbage", "its answer cannot be read"),
        (lambda real, data: wire.encode([1]), "its answer is no answer"),
        (lambda real, data: wire.encode({"garbled": "format 9."}), "could not read the request: format 9"),
    ],
    ids=["day", "hours", "version", "name", "silent", "garbage", "list", "wire"],
)
def test_a_site_that_is_not_ready_is_named(change, sentence, tmp_path):
    build(tmp_path)
    report = asked(tmp_path, chur=change)
    assert not report.sound
    assert [name for name, wrong in report.sites.items() if wrong] == ["chur"]
    assert sentence in report.sites["chur"][0]


def test_other_units_and_types_are_named(tmp_path):
    united = build(tmp_path)
    Schema(united.columns | {"age": SchemaColumn("number", "months")}).write(home(tmp_path, "bern") / "schema.toml")
    (home(tmp_path, "chur") / "data.csv").unlink()
    report = asked(tmp_path)
    assert report.sites["bern"] == ["'age' is in months and not in no unit"]
    assert "There is no file" in report.sites["chur"][0]
    assert report.sites["basel"] == []


def test_levels_of_sites_are_added_to_the_schema(tmp_path):
    united = build(tmp_path)
    old = dict(united.columns) | {"pain": replace(united.columns["pain"], levels=("1", "2"))}
    Schema(old).write(tmp_path / "coordinator" / "schema.toml")
    report = asked(tmp_path)
    assert report.sound
    assert report.added == ["'3' of 'pain'", "'4' of 'pain'"]
    folder = tmp_path / "coordinator"
    everyone = LocalTransport({name: host.receive for name, host in hosts(tmp_path).items()})
    assert checks.run_check(everyone, folder, "c", add_levels=True).added == []
    assert agreed(tmp_path).columns["pain"].levels == ("1", "2", "3", "4")
    assert checks.read_report(folder, "c").sound


def test_levels_of_rows_are_found_where_the_schema_is_another_sites(tmp_path):
    """Every site has the schema of the first, and the last has a level that only its rows have."""
    build(tmp_path)
    first = Schema.read(home(tmp_path, "basel") / "schema.toml")
    for folder in (tmp_path / "coordinator", *(home(tmp_path, name) for name in NAMES)):
        first.write(folder / "schema.toml")
    report = asked(tmp_path)
    assert report.sound
    assert report.added == ["'4' of 'pain'"]


def test_a_level_that_few_rows_have_is_not_named(tmp_path):
    frames = tables()
    frames["bern"].loc[:2, "pain"] = 987654321
    united = build(tmp_path, frames)
    known = Schema(united.columns | {"pain": replace(united.columns["pain"], levels=("1", "2", "3", "4"))})
    known.write(home(tmp_path, "bern") / "schema.toml")
    assert asked(tmp_path).sites["bern"] == []
    assert "fewer than 5 rows ('987654321')" in (home(tmp_path, "bern") / "problem.txt").read_text()
    assert "987654321" not in str(wire.decode(hosts(tmp_path)["bern"].receive(wire.encode({"kind": "check"}))))


def test_what_is_wrong_with_a_table_is_said_without_its_values(tmp_path):
    frames = tables()
    frames["chur"] = frames["chur"].assign(age=frames["chur"]["age"].astype(str) + " years").drop(columns="score")
    united = build(tmp_path)
    frames["chur"].to_csv(home(tmp_path, "chur") / "data.csv", index=False)
    Schema(united.columns | {"age": SchemaColumn("number", low=0, high=60)}).write(
        home(tmp_path, "bern") / "schema.toml"
    )
    report = asked(tmp_path)
    assert report.sites["chur"] == ["'age' is not a column of numbers", "its table has no column 'score'"]
    assert report.sites["bern"] == [
        "'age' has values outside the range of the site's schema",
        "'problem.txt' in the site's folder says in which rows",
    ]
    assert "Column 'age' is outside 0 to 60 in " in (home(tmp_path, "bern") / "problem.txt").read_text()


def test_the_first_schema_is_made_of_those_of_the_sites(tmp_path):
    build(tmp_path)
    folder = tmp_path / "coordinator"
    (folder / "schema.toml").unlink()
    everyone = LocalTransport({name: host.receive for name, host in hosts(tmp_path).items()})
    assert "The coordinator has no schema.toml yet" in checks.run_check(everyone, folder, "c").lines()[-1]
    checks.run_check(everyone, folder, "d", add_levels=True)
    assert agreed(tmp_path).columns["pain"].levels == ("1", "2", "3", "4")
    own = Schema.read(home(tmp_path, "bern") / "schema.toml")
    Schema(own.columns | {"age": SchemaColumn("number", "months")}).write(home(tmp_path, "bern") / "schema.toml")
    (folder / "schema.toml").unlink()
    report = checks.run_check(everyone, folder, "e", add_levels=True)
    assert report.problems == ["at site 'bern' 'age' is in months and not in no unit"]
    assert not (folder / "schema.toml").exists()


DAMAGED = [
    None, 3, "age", [], [1], [["age", 1]], {"age": None}, {"age": 3}, {"age": []}, {"age": {}}, {"age": {"type": None}},
    {"age": {"type": []}}, {"age": {"type": "number", "levels": 3}}, {"age": {"type": "category", "levels": None}},
    {"age": {"type": "category", "levels": [1]}}, {"age": {"type": "category", "levels": ["a", "a"]}},
    {"age": {"type": "category", "levels": {"a": 1}}}, {"age": {"type": "number", "unit": 3}},
    {"age": {"type": "number", "low": "a"}}, {"age": {"type": "number", "low": float("nan"), "high": 1.0}},
    {"age": {"type": "number", "center": float("nan")}}, {"age": {"type": "number", "scale": float("inf")}},
    {"age": {"type": "number", "scale": 0}}, {"age": {"type": "number", "low": 2, "high": 1}},
    {"age": {"type": "number", "low": 10**400}}, {"age": {"type": "number", "low": True}}, {"age": {"other": 1}},
    {"a" * 100_000: {"type": "number"}}, {"age": {"type": "number", "unit": "u" * 100_000}}, {"": {"type": "label"}},
    {"age": {"type": "category", "levels": ["l" * 100_000]}}, {"pain": {"type": "category", "levels": ["\x1b[2J"]}},
]  # fmt: skip


@pytest.mark.parametrize("columns", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_schema_is_a_sentence_of_its_site(columns, tmp_path):
    build(tmp_path)
    report = asked(tmp_path, bern=with_(columns=columns))
    assert report.sites["basel"] == report.sites["chur"] == []
    assert len(" ".join(report.lines())) < 3000
    host = hosts(tmp_path)["bern"]
    said = wire.decode(host.receive(wire.encode({"kind": "check", "schema": columns})))
    assert said["done"] == "check" if "done" in said else "refused" in said
    assert len(str(said)) < 5000


@pytest.mark.parametrize(
    "changes",
    [
        {"clock": "noon"}, {"clock": float("nan")}, {"clock": float("inf")}, {"clock": None}, {"problems": [3]},
        {"problems": None}, {"name": 3}, {"version": None}, {"columns": "x"}, {"present": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_of_another_form_is_that_of_its_site_alone(changes, tmp_path):
    build(tmp_path)
    report = asked(tmp_path, bern=with_(**changes))
    assert report.sites["bern"] == ["its answer is none of coterie's"]
    assert report.sites["basel"] == report.sites["chur"] == []


def test_texts_of_a_site_are_shortened(tmp_path):
    build(tmp_path)
    report = asked(tmp_path, bern=with_(problems=["p" * 100_000], version="v" * 100_000, name="n" * 100_000))
    assert len(" ".join(report.lines())) < 1500


def test_rows_outside_the_range_of_a_site_are_for_its_owner(tmp_path):
    united = build(tmp_path)
    ranged = Schema(united.columns | {"age": SchemaColumn("number", low=49.5, high=50.5)})
    ranged.write(home(tmp_path, "bern") / "schema.toml")
    said = wire.decode(hosts(tmp_path)["bern"].receive(wire.encode({"kind": "check"})))
    assert not any(c.isdigit() for c in " ".join(said["problems"]))


def with_scales(folder, frames, **numbers):
    """A federation that agreed on center and scale of its columns, which every site has from the first."""
    united = build(folder, frames)
    columns = {name: replace(united.columns[name], center=at, scale=wide) for name, (at, wide) in numbers.items()}
    for place in (folder / "coordinator", *(home(folder, name) for name in NAMES)):
        Schema(united.columns | columns).write(place / "schema.toml")


@pytest.mark.parametrize(
    ("factor", "shift", "odd"),
    [
        (1 / 38.67, 0.0, True),  # cholesterol in mmol/l where mg/dl was agreed
        (38.67, 0.0, True),
        (1.8, 32.0, False),  # 50 years old read as degrees of Celsius: 122 is within four scales of 22
        (100.0, 0.0, True),
        (2.2, 0.0, False),  # pounds for kilograms, which another hospital's patients might be
        (1.0, 10.0, False),
    ],
)
def test_a_column_in_another_unit_is_said_to_be_looked_at(factor, shift, odd, tmp_path):
    frames = tables()
    values = frames["bern"]["age"].to_numpy()
    scaled = 246.0 + 52.0 * (values - values.mean()) / values.std()
    for name in NAMES:
        frames[name]["age"] = scaled * (factor if name == "bern" else 1.0) + (shift if name == "bern" else 0.0)
    with_scales(tmp_path, frames, age=(246.0, 52.0))
    report = asked(tmp_path)
    assert report.sound  # it may be right: children have other numbers than their parents
    assert any("at bern 'age' lies far" in line for line in report.lines()) == odd
    assert not any("246" in line or "52" in line for line in report.lines())


def test_schemas_of_sites_that_drafted_their_own_in_other_units_are_compared(tmp_path):
    build(tmp_path)
    own = Schema.read(home(tmp_path, "bern") / "schema.toml")
    Schema(own.columns | {"age": replace(own.columns["age"], center=0.14, scale=0.03)}).write(
        home(tmp_path, "bern") / "schema.toml"
    )
    assert [doubt[:7] for doubt in asked(tmp_path).doubts if "'age' lies far" in doubt] == ["at bern"]


def test_with_noise_nothing_is_told_of_rows_that_no_budget_pays_for(tmp_path):
    frames = tables()
    frames["bern"]["age"] *= 1000.0
    with_scales(tmp_path, frames, age=(50.0, 9.0))
    text = (home(tmp_path, "bern") / "site.toml").read_text()
    privacy = "[privacy]\nclip = 1.0\nnoise = 1.0\nepsilon = 1.0\n"
    (home(tmp_path, "bern") / "site.toml").write_text(text + privacy)
    assert not [doubt for doubt in asked(tmp_path).doubts if "bern" in doubt]


def test_a_table_of_fewer_rows_than_may_leave_is_said_without_their_number(tmp_path):
    frames = tables()
    frames["chur"] = frames["chur"].iloc[:3]
    build(tmp_path, frames)
    report = asked(tmp_path)
    assert "fewer rows than any of its numbers must cover" in report.sites["chur"][0] and not report.sound


@pytest.mark.parametrize("min_group", [5, 1])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mueller.xyz", b""),
        ("mueller.csv", b"a,b\n1,2,3\n"),
        ("mueller.csv", b"age\n\xff\xfe\x00\n"),
        ("mueller.xlsx", b"PK"),
    ],
)
def test_no_file_is_named(name, content, min_group, tmp_path):
    build(tmp_path, min_group=min_group)
    own = home(tmp_path, "chur")
    (own / name).write_bytes(content)
    (own / "site.toml").write_text((own / "site.toml").read_text().replace("data.csv", name))
    report = asked(tmp_path)
    assert report.sites["chur"] and "mueller" not in "".join(report.lines())
