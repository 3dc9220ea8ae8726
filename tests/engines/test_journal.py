"""A coordinator that is killed at any moment: the same run again, with its journal, ends like one undisturbed."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from coterie.engines.journal import Journal
from coterie.engines.remote import Remote
from coterie.errors import CoterieError
from coterie.federation import work
from tests.contract.cases import CASES
from tests.engines.sites import transport

PARTS = [[22, 3, 8], list(range(9, 22)), [0, 1, 2, 4, 5, 6, 7]]
JOURNALED = [case for case in CASES if case.problem().objective.__class__.__name__ == "Quadratic"]


class Killed(BaseException):
    """The coordinator's process ends."""


def parts_of(problem):
    return PARTS if len(problem.ids) == 23 else np.array_split(np.arange(len(problem.ids)), 3)


def same(a, b):
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(b[name]), err_msg=name)


@pytest.mark.parametrize("case", JOURNALED, ids=lambda case: case.name)
def test_a_run_goes_on_from_its_journal_bit_for_bit(case, tmp_path):
    problem = case.problem()
    expected = case.run(Remote(transport(problem, parts_of(problem))))
    rng = np.random.default_rng(3)
    lives, calls = 0, 0
    while True:
        lives += 1
        assert lives < 300
        dies = int(rng.integers(1, 5))  # calls of the transport in this life, before or after the sites' work

        def fault(name, call, reply, dies=dies):
            if call == dies and name == "site 1":
                raise Killed
            return reply

        wire = transport(problem, parts_of(problem), tmp_path / "sites", fault)
        try:
            result = case.run(Remote(wire, journal=tmp_path / "journal"))
        except Killed:
            calls += wire.calls
            continue
        break
    assert lives > 1
    same(result, expected)


@work
def add(site, x):
    site.state["u"] = site.state.get("u", np.zeros(len(site))) + x
    return {"u": site.state["u"]}


def states(fed, stop, state=None):
    state = state or {"t": 0, "u": np.zeros(len(fed.clients))}
    while state["t"] < stop:
        state = {"t": state["t"] + 1, "u": fed.ask(add, x=float(state["t"] + 1))["u"]}
        yield state


def test_a_kept_state_replaces_what_led_to_it(tmp_path):
    problem = CASES[0].problem()

    def begin():
        return Remote(transport(problem, PARTS, tmp_path / "sites"), journal=tmp_path / "journal")

    fed = begin()
    for state in states(fed, 5):
        if state["t"] == 3:
            fed.keep(state)
    assert fed.ledger.exchanges == 5
    again = begin()
    assert again.kept["t"] == 3 and again.ledger.exchanges == 3
    wire = again._transport
    *_, state = states(again, 7, again.kept)
    assert again.ledger.exchanges == 7 and again.number == 7
    assert wire.calls == 2, "exchanges 4 and 5 were in the journal, 6 and 7 were not"
    np.testing.assert_array_equal(state["u"], 28.0)


def test_another_run_does_not_go_on_from_a_journal(tmp_path):
    problem = CASES[0].problem()
    fed = Remote(transport(problem, PARTS, tmp_path / "sites"), journal=tmp_path / "journal")
    fed.ask(add, x=1.0)
    other = Remote(transport(problem, PARTS, tmp_path / "sites"), journal=tmp_path / "journal")
    with pytest.raises(CoterieError, match="journal of another run"):
        other.ask(add, x=2.0)
    with pytest.raises(CoterieError, match="journal of another run"):
        Remote(transport(problem, PARTS, tmp_path / "sites"), journal=tmp_path / "journal", run="other")


@pytest.mark.parametrize("cut", [1, 7, 20, 60])
def test_an_entry_that_was_being_written_is_as_if_it_never_was(tmp_path, cut):
    book = Journal(tmp_path)
    for n in range(3):
        book.add("ask", b"key", {"values": {"x": np.arange(n)}})
    path = tmp_path / "entries-0"
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(tmp_path)
    assert len(again) == 2
    assert [len(again.next("ask", b"key")["values"]["x"]) for _ in range(2)] == [0, 1]
    assert again.next("ask", b"key") is None
    again.add("ask", b"key", {"values": {"x": np.arange(9)}})
    assert len(Journal(tmp_path)) == 3


def test_damage_in_the_middle_is_said(tmp_path):
    book = Journal(tmp_path)
    for n in range(3):
        book.add("ask", b"key", {"values": {"x": np.arange(n)}})
    path = tmp_path / "entries-0"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CoterieError, match="damaged in the middle"):
        Journal(tmp_path)


def test_a_full_disk_is_said_and_leaves_whole_entries(tmp_path, monkeypatch):
    book = Journal(tmp_path)
    book.add("ask", b"key", {"values": {}})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(CoterieError, match="No space left"):
            book.add("ask", b"key", {"values": {}})
    book.add("ask", b"key", {"values": {}})
    assert len(Journal(tmp_path)) == 2


def test_two_processes_never_write_one_journal(tmp_path, monkeypatch):
    code = "import sys; from coterie.engines.journal import Journal; book = Journal(sys.argv[1]); print(1, flush=True)"
    command = [sys.executable, "-c", f"{code}; sys.stdin.read()", tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.read(1) == b"1"
            monkeypatch.setattr("coterie.engines.journal.WAIT", 0.2)
            with pytest.raises(CoterieError, match="Another process goes on with the run"):
                Journal(tmp_path)
            monkeypatch.setattr("coterie.engines.journal.WAIT", 60.0)
            threading.Timer(0.3, other.kill).start()
            assert len(Journal(tmp_path)) == 0, "it is waited for"
        finally:
            other.kill()


def test_a_journal_is_held_while_any_of_a_process_is_open(tmp_path):
    code = "import sys; from coterie.engines import journal; journal.WAIT = 0.0; journal.Journal(sys.argv[1])"
    command = [sys.executable, "-c", code, tmp_path]
    first, again = Journal(tmp_path), Journal(tmp_path)
    del again
    assert b"Another process goes on" in subprocess.run(command, capture_output=True, timeout=60).stderr
    del first
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0
