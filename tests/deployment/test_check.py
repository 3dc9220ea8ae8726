"""Before a run: who is there, and who differs in what."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from coterie.deployment import check as checks
from coterie.deployment.preview import Here
from coterie.deployment.schema import Column, Schema
from coterie.engines import wire
from tests.deployment.sites import NAMES, build, home, hosts


def agreed(folder):
    return Schema.read(folder / "coordinator" / "schema.toml")


def asked(folder, **changes):
    """The report on sites some of whose answers are changed."""
    receivers = {name: host.receive for name, host in hosts(folder).items()}
    for name, change in changes.items():
        receivers[name] = lambda data, real=receivers[name], change=change: change(real, data)
    return checks.check(Here(receivers), agreed(folder))


def with_(**values):
    def change(real, data):
        return wire.encode(wire.decode(real(data)) | values)

    return change


def test_sites_that_agree_are_ready(tmp_path):
    build(tmp_path)
    report = asked(tmp_path)
    assert report.sound
    assert report.lines() == [f"{name}: coterie {report.versions[name]}, ready" for name in NAMES]


def test_nothing_of_a_row_travels(tmp_path):
    build(tmp_path)
    said = wire.decode(hosts(tmp_path)["basel"].receive(wire.encode({"kind": "check", "columns": True})))
    assert said.keys() == {"done", "name", "version", "wire", "clock", "schema", "problems", "columns"}
    assert said["columns"]["age"] == {"type": "number"}
    assert not (home(tmp_path, "basel") / "cache").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (with_(clock=time.time() + 86400), "its clock is 1 day ahead: set it"),
        (with_(clock=time.time() - 7200), "its clock is 2 hours behind: set it"),
        (with_(version="0.0.9"), "it has coterie 0.0.9, and the coordinator"),
        (with_(name="bern"), "it calls itself 'bern'"),
        (lambda real, data: None, "it did not answer: start it with"),
        (lambda real, data: b"garbage", "its answer cannot be read"),
        (lambda real, data: wire.encode([1]), "its answer is none of coterie's"),
        (lambda real, data: wire.encode({"garbled": "format 9, not 2."}), "it answers: format 9, not 2"),
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
    Schema(united.columns | {"age": Column("number", "months")}).write(home(tmp_path, "bern") / "schema.toml")
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
    everyone = Here({name: host.receive for name, host in hosts(tmp_path).items()})
    assert checks.program(everyone, folder, "c", add_levels=True).added == []
    assert agreed(tmp_path).columns["pain"].levels == ("1", "2", "3", "4")
    assert checks.read(folder, "c").sound


def test_the_first_schema_is_made_of_those_of_the_sites(tmp_path):
    build(tmp_path)
    folder = tmp_path / "coordinator"
    (folder / "schema.toml").unlink()
    everyone = Here({name: host.receive for name, host in hosts(tmp_path).items()})
    assert "The coordinator has no schema.toml yet" in checks.program(everyone, folder, "c").lines()[-1]
    checks.program(everyone, folder, "d", add_levels=True)
    assert agreed(tmp_path).columns["pain"].levels == ("1", "2", "3", "4")
    own = Schema.read(home(tmp_path, "bern") / "schema.toml")
    Schema(own.columns | {"age": Column("number", "months")}).write(home(tmp_path, "bern") / "schema.toml")
    (folder / "schema.toml").unlink()
    report = checks.program(everyone, folder, "e", add_levels=True)
    assert report.problems == ["at site 'bern' 'age' is in months and not in no unit"]
    assert not (folder / "schema.toml").exists()
