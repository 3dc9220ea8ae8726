"""Logs: a line an exchange, whole or not there, and what a reader makes of it."""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from coterie.deployment import logs
from coterie.engines.coordinator import Exchanged
from coterie.errors import CoterieError
from tests.messages import names

EVENT = Exchanged(
    number=3, kind="total", work="coterie.methods.tree.client_work:gram", asked=("basel", "bern"), answered=("basel",),
    missing={"bern": "did not answer"}, clients=(1, 2), down=1234, up=999, seconds=0.25,
)  # fmt: skip


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_a_fault_cut_short_breaks_no_reader(cut, tmp_path):
    path = tmp_path / "log.jsonl"
    logs.append(path, {"n": 1})
    logs.append(path, {"n": 2, "text": "grüezi\nmitenand"})
    path.write_bytes(path.read_bytes()[:-cut])
    logs.append(path, {"n": 3})
    assert [e["n"] for e in logs.read(path)] in ([1, 2, 3], [1, 3])
    assert path.read_bytes().count(b"\n") == 3


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    logs.append(path, {"n": 1})
    before = path.read_bytes()
    write = os.write

    def full(file, data):
        if path.stat().st_size == len(before):
            return write(file, data[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        logs.append(path, {"n": 2})
    assert path.read_bytes() == before


def test_a_run_that_logs_says_how_it_stands(tmp_path):
    log = logs.RunLog(tmp_path / "r", ("basel", "bern"))
    log.opened({"basel": 1, "bern": 1, "chur": 0}, {"chur": "no row is left"})
    log(EVENT)
    log(Exchanged(4, "ask", "x", ("basel", "bern"), ("basel",), {"bern": "did not answer"}, (1, 2), 10, 10, 0.1))
    log.quarantine({"bern": "its 'g' is not a number (NaN)"})
    status = logs.read_status(tmp_path / "r")
    assert (status["state"], status["exchange"], status["bytes_down"]) == ("running", 4, 1244)
    assert status["missing"]["bern"]["exchange"] == 3
    assert status["quarantined"] == {"bern": "its 'g' is not a number (NaN)"}
    again = logs.RunLog(tmp_path / "r", ("basel", "bern"))
    again(Exchanged(5, "ask", "x", ("basel", "bern"), ("basel", "bern"), {}, (2, 2), 10, 10, 0.1))
    again.end("finished")
    status = logs.read_status(tmp_path / "r")
    assert (status["state"], status["missing"], status["bytes_down"]) == ("finished", {}, 1254)
    entries = logs.read(tmp_path / "r" / "log.jsonl")
    assert len(entries) == 5
    assert logs.words(entries[0])[10:] == "clients: basel 1, bern 1  chur takes no part: no row is left"


def test_a_full_disk_does_not_stop_a_run(tmp_path, monkeypatch):
    log = logs.RunLog(tmp_path / "r")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logs, "append", full)
    log(EVENT)
    log.end("failed", "why")
    assert (log.status["exchange"], log.status["state"], log.status["why"]) == (3, "failed", "why")
    assert not (tmp_path / "r" / logs.LOG).exists()


def test_lines_for_people():
    entry = {"time": "2026-11-28T10:11:12.345Z", "exchange": 3, "kind": "total", "work": "gram", "asked": 2}
    entry |= {"answered": ["basel"], "missing": {"bern": "did not answer"}, "bytes_down": 1234, "bytes_up": 999}
    line = logs.words(entry | {"seconds": 0.25})
    assert (
        line
        == "10:11:12  exchange 3  total gram  1 of 2 sites  1.2 kB down  999 B up  0.25 s  bern missing: did not answer"
    )
    site = {
        "time": entry["time"],
        "run": "r",
        "kind": "ask",
        "work": "gram",
        "exchange": 3,
        "values": {"g": "float64 (2,)"},
    }
    assert logs.words(site | {"covers": 1200, "bytes": 2_500_000, "seconds": 0.1}) == (
        "10:11:12  exchange 3  ask gram  g float64 (2,)  covers 1,200 rows at least  2.5 MB out  0.10 s"
    )
    assert logs.words({"time": entry["time"], "run": "r", "kind": "open", "refused": "no", "bytes": 3}) == (
        "10:11:12  r  open  refused: no"
    )
    assert logs.words({"time": entry["time"], "state": "failed", "why": "x"}) == "10:11:12  failed: x"


def test_no_log_is_no_line(tmp_path):
    assert logs.read(tmp_path / "log.jsonl") == []
    with pytest.raises(CoterieError, match=names("no run 'r'")):
        logs.read_status(tmp_path / "r")
    (tmp_path / "status.json").write_text("[1]")
    with pytest.raises(CoterieError, match="is no status of a run"):
        logs.read_status(tmp_path)


def test_the_log_of_a_site_is_for_its_owner_alone(tmp_path):
    logs.append(tmp_path / "log.jsonl", {"n": 1})
    assert Path(tmp_path / "log.jsonl").stat().st_mode & 0o077 == 0
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {"n": 1}


def test_what_an_engine_has_said_lately_is_found_in_either_form_of_its_log(tmp_path):
    assert logs.recent(tmp_path / "none", "refused ") == []
    new, old = (f"{datetime.now() - timedelta(minutes=m):%Y-%m-%d %H:%M:%S}" for m in (1, 10))
    lines = [f"{old},296 WARNING refused a: b", f"{new},296 WARNING refused 127.0.0.1 POST: no key.", "refused c", new]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    ((when, said),) = logs.recent(tmp_path / "log.txt", "refused ")
    assert f"{when:%Y-%m-%d %H:%M:%S}" == new and said == "127.0.0.1 POST: no key"
