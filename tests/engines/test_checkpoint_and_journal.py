"""A site's folder: after a fault it holds what it held before, and nothing beside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from coterie import files
from coterie.engines.checkpoint_and_journal import Folder, Journal
from coterie.engines.secure_sum import Secure
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.federation import work
from tests.contract.cases import CASES, quadratic
from tests.engines.faults import Loopback
from tests.engines.sites import transport
from tests.messages import names


def kept_in(folder):
    return sorted(p.name for p in folder.iterdir())


def no_space(*_):
    raise OSError(28, "No space left on device")


def saved(path, value=0.0):
    folder = Folder(path)
    folder.save({"v": 0}, {"state": {"a": np.full(10, value)}})
    return folder


@pytest.mark.parametrize("file", ["head", "array-2"])
def test_a_save_that_fails_leaves_nothing_however_often_it_is_tried(file, tmp_path, monkeypatch):
    folder, write = saved(tmp_path), files.write

    def failing(path, parts, **options):
        if path.name.startswith(file[:5]) and (file == "head" or len(kept_in(tmp_path)) == 3):
            no_space()
        write(path, parts, **options)

    for value in range(5):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr("coterie.files.write", failing)
            folder.save({"v": value}, {"state": {"a": np.full(1000, value), "b": np.zeros(10)}})
        assert kept_in(tmp_path) == ["array-0", "head"]
        head, sets = Folder(tmp_path).load()
        assert head == {"v": 0} and not sets["state"]["a"].any()
    folder.save({"v": 9}, {"state": {"a": np.ones(10)}})
    assert len(kept_in(tmp_path)) == 2
    assert Folder(tmp_path).load()[1]["state"]["a"].all()


def test_a_head_that_is_in_place_and_not_known_to_be_durable_keeps_its_arrays(tmp_path, monkeypatch):
    folder, replace, fsync = saved(tmp_path), os.replace, os.fsync
    placed = []
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "replace", lambda a, b: (replace(a, b), placed.append(b.name)))
        patch.setattr(os, "fsync", lambda f: no_space() if "head" in placed else fsync(f))
        folder.save({"v": 1}, {"state": {"a": np.ones(10)}})
    assert Folder(tmp_path).load()[0] == {"v": 1}
    folder.save({"v": 2}, {"state": {"a": np.full(10, 2.0)}})
    head, sets = Folder(tmp_path).load()
    assert head == {"v": 2} and sets["state"]["a"][0] == 2.0


@pytest.mark.parametrize("begun", [True, False])
def test_what_a_killed_save_left_is_removed(begun, tmp_path):
    if begun:
        saved(tmp_path)
    for name in ("array-1", "array-7", ".array-8.0a1b2c3d.part", ".head.0a1b2c3d.part"):
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "mine").touch()
    Folder(tmp_path).load()
    assert kept_in(tmp_path) == (["array-0", "head", "mine"] if begun else ["mine"])


def test_an_array_in_two_sets_is_one_file(tmp_path):
    array = np.ones(3)
    Folder(tmp_path).save({}, {"state": {"a": array}, "mark c": {"a": array}})
    assert kept_in(tmp_path) == ["array-0", "head"]
    sets = Folder(tmp_path).load()[1]
    assert sets["state"]["a"] is sets["mark c"]["a"]


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


@pytest.mark.parametrize("place", [0, 1, 7])
def test_a_length_that_a_fault_changed_loses_no_entry_unsaid(tmp_path, place):
    """It may say that the entry goes on beyond the end of the file, as one does that was being written."""
    book = Journal(tmp_path)
    for n in range(3):
        book.add("ask", b"key", {"values": {"x": np.arange(n)}})
    path = tmp_path / "entries-0"
    for bit in range(8):
        data = bytearray(path.read_bytes())
        data[place] ^= 1 << bit
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / "entries-0").write_bytes(data)
        with pytest.raises(CoterieError, match="damaged in the middle"):
            Journal(tmp_path / "other")
        assert (tmp_path / "other" / "entries-0").read_bytes() == data


def test_damage_in_the_middle_is_said(tmp_path):
    book = Journal(tmp_path)
    for n in range(3):
        book.add("ask", b"key", {"values": {"x": np.arange(n)}})
    path = tmp_path / "entries-0"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CoterieError, match=r"damaged in the middle.*another name.*empty folders"):
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


def test_a_disk_that_was_really_full_leaves_whole_entries_also_to_a_process_that_goes_on(tmp_path):
    code = f"""if True:
        import os, resource, signal
        import numpy as np
        from coterie.engines.checkpoint_and_journal import Journal
        from coterie.errors import CoterieError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        book, entry = Journal({str(tmp_path)!r}), {{"values": {{"x": np.zeros(100)}}}}
        book.add("ask", b"1", entry)
        size, (soft, hard) = os.path.getsize(book._entries.path), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 500, hard))
        try:
            book.add("ask", b"2", entry)
        except CoterieError as problem:
            print(problem)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        book.add("ask", b"2", entry)
        book.add("ask", b"3", entry)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "entries-0 cannot be written: File too large." in done.stdout
    book = Journal(tmp_path)
    assert [book.next("ask", key) is not None for key in (b"1", b"2", b"3")] == [True, True, True]
    assert len(book) == 0


def test_a_state_that_cannot_be_kept_leaves_the_entries(tmp_path, monkeypatch):
    book = Journal(tmp_path)
    book.add("ask", b"key", {"values": {}})
    with monkeypatch.context() as patch, pytest.raises(CoterieError, match=names("base cannot written No space left")):
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        book.keep({"t": 1}, {})
    book.add("ask", b"key", {"values": {}})
    assert len(Journal(tmp_path)) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["entries-0", "lock"]


@pytest.mark.parametrize(
    "how", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=["a fault", "an interrupt"]
)
def test_a_run_goes_on_from_a_state_that_was_kept_though_its_writing_failed(how, tmp_path, monkeypatch):
    book = Journal(tmp_path)
    book.add("ask", b"1", {"values": {}})

    def fails(folder):
        raise how

    with monkeypatch.context() as patch:
        patch.setattr("coterie.files.sync", fails)
        with pytest.raises((CoterieError, KeyboardInterrupt)):
            book.keep({"t": 1}, {})
        with pytest.raises((CoterieError, KeyboardInterrupt)):
            book.add("ask", b"2", {"values": {}})  # until the names of files are on disk, nothing is counted
    for key in (b"2", b"3"):
        book.add("ask", key, {"values": {}})
    again = Journal(tmp_path)
    assert again.base["state"] == {"t": 1}
    assert [again.next("ask", key) is not None for key in (b"2", b"3")] == [True, True]
    assert len(again) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "entries-1", "lock"]
    book = again
    book.keep({"t": 2}, {})
    book.add("ask", b"4", {"values": {}})
    assert Journal(tmp_path).base["era"] == 2 and len(Journal(tmp_path)) == 1


def test_nothing_is_added_while_it_cannot_be_told_which_state_was_kept(tmp_path, monkeypatch):
    book = Journal(tmp_path)
    book.add("ask", b"1", {"values": {}})

    def fails(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("coterie.files.sync", fails)
        with pytest.raises(CoterieError, match="base cannot be written"):
            book.keep({"t": 1}, {})
    with monkeypatch.context() as patch:
        patch.setattr("coterie.files.content", fails)
        with pytest.raises(CoterieError, match="base cannot be read"):
            book.add("ask", b"2", {"values": {}})
    book.add("ask", b"2", {"values": {}})
    assert len(Journal(tmp_path)) == 1


def full(*_):
    raise CoterieError("entries cannot be written: No space left on device.")


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("kind", ["ask", "total"])
def test_what_could_not_be_written_was_not_counted(kind, secure, tmp_path, monkeypatch):
    if secure:
        pytest.importorskip("cryptography")
    events = []
    places = {"folder": tmp_path / "sites", "journal": tmp_path / "journal", "watch": events.append}

    def begin():
        return Loopback(quadratic(12).objective, sites=3, secure=Secure() if secure else None, **places)

    fed = begin()
    first = getattr(fed, kind)(add, x=1.0)["u"]
    before = fed.number, list(fed._counted), fed.ledger.gradient_calls
    with monkeypatch.context() as patch, pytest.raises(CoterieError, match="No space left"):
        patch.setattr(Journal, "add", full)
        getattr(fed, kind)(add, x=1.0)
    assert (fed.number, fed._counted, fed.ledger.gradient_calls) == before
    assert [event.number for event in events] == [1]
    np.testing.assert_allclose(getattr(fed, kind)(add, x=1.0)["u"], 2 * first)
    np.testing.assert_allclose(getattr(fed, kind)(add, x=1.0)["u"], 3 * first)
    assert [event.number for event in events] == [1, 2, 3]
    number, ledger = fed.number, fed.ledger.as_dict()
    if secure:
        return  # the sites of this process hold their keys
    again = begin()
    for n in (1, 2, 3):
        np.testing.assert_allclose(getattr(again, kind)(add, x=1.0)["u"], n * first)
    assert again.number == number and len(events) == 3
    assert {**again.ledger.as_dict(), "seconds": 0} == {**ledger, "seconds": 0}
    np.testing.assert_allclose(getattr(again, kind)(add, x=1.0)["u"], 4 * first)


@pytest.mark.parametrize("truncates", [True, False], ids=["at once", "before the next"])
@pytest.mark.parametrize("kind", ["ask", "total", "mark", "restore"])
def test_an_interrupt_after_an_entry_is_on_disk_takes_it_back(kind, truncates, tmp_path, monkeypatch):
    add_entry = Journal.add

    def begin():
        return Loopback(quadratic(12).objective, sites=3, journal=tmp_path / "journal", folder=tmp_path / "sites")

    def step(fed):
        if kind == "mark":
            return fed.mark("here"), fed.make_marks()
        return fed.restore("here") if kind == "restore" else getattr(fed, kind)(add, x=1.0)

    def interrupted(*given):
        add_entry(*given)
        raise KeyboardInterrupt

    def fails(*_):
        raise OSError(5, "Input/output error")

    fed = begin()
    fed.ask(add, x=1.0)
    fed.mark("here")
    fed.make_marks()
    before = fed._life, fed.number, list(fed._counted), fed.ledger.gradient_calls
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", interrupted)
        if not truncates:
            patch.setattr("os.truncate", fails)
        for _ in range(2 if truncates else 1):
            with pytest.raises(KeyboardInterrupt):
                step(fed)
    assert (fed._life, fed.number, fed._counted, fed.ledger.gradient_calls) == before
    step(fed)
    last = fed.ask(add, x=1.0)["u"]
    number = fed.number
    again = begin()
    assert len(again._journal) == 4
    again.ask(add, x=1.0)
    again.mark("here")
    again.make_marks()
    step(again)
    np.testing.assert_array_equal(again.ask(add, x=1.0)["u"], last)
    assert again.number == number and len(again._journal) == 0
    np.testing.assert_array_equal(again.ask(add, x=1.0)["u"], last + 1.0)


def test_another_process_counts_what_could_not_be_written(tmp_path, monkeypatch):
    def begin():
        return Loopback(quadratic(12).objective, sites=3, journal=tmp_path / "journal", folder=tmp_path / "sites")

    fed = begin()
    fed.ask(add, x=1.0)
    with monkeypatch.context() as patch, pytest.raises(CoterieError, match="No space left"):
        patch.setattr(Journal, "add", full)
        fed.ask(add, x=1.0)
    again = begin()
    assert [again.ask(add, x=1.0)["u"][0] for _ in range(3)] == [1.0, 2.0, 3.0]


def test_who_watches_and_fails_does_not_undo_what_was_counted(tmp_path):
    def watch(event):
        raise Killed

    fed = Loopback(quadratic(12).objective, sites=3, journal=tmp_path / "journal", watch=watch)
    with pytest.raises(Killed):
        fed.ask(add, x=1.0)
    assert fed.number == 1
    again = Loopback(quadratic(12).objective, sites=3, journal=tmp_path / "journal")
    assert len(again._journal) == 1
    np.testing.assert_array_equal(again.ask(add, x=1.0)["u"], 1.0)
    assert again.number == 1


def test_a_restore_that_could_not_be_written_is_as_if_it_never_was(tmp_path, monkeypatch):
    fed = Loopback(quadratic(12).objective, sites=3, journal=tmp_path / "journal", folder=tmp_path / "sites")
    fed.ask(add, x=1.0)
    fed.mark("here")
    fed.ask(add, x=1.0)
    before = fed._life, fed.number, list(fed._counted)
    with monkeypatch.context() as patch, pytest.raises(CoterieError, match="No space left"):
        patch.setattr(Journal, "add", full)
        fed.restore("here")
    assert (fed._life, fed.number, fed._counted) == before
    fed.restore("here")
    np.testing.assert_array_equal(fed.ask(add, x=1.0)["u"], 2.0)


def test_people_that_do_not_fit_together_may_be_put_right_under_the_same_name(tmp_path):
    problem = CASES[0].problem()
    twice = [PARTS[0], [*PARTS[1], PARTS[0][0]], PARTS[2]]
    with pytest.raises(CoterieError, match="a client has one site"):
        Remote(transport(problem, twice), journal=tmp_path / "journal")
    fed = Remote(transport(problem, PARTS), journal=tmp_path / "journal")
    np.testing.assert_array_equal(fed.ask(add, x=1.0)["u"], 1.0)


def test_two_processes_never_write_one_journal(tmp_path, monkeypatch):
    code = "import sys; from coterie.engines.checkpoint_and_journal import Journal; book = Journal(sys.argv[1])"
    code += "; print(1, flush=True)"
    command = [sys.executable, "-c", f"{code}; sys.stdin.read()", tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.read(1) == b"1"
            monkeypatch.setattr("coterie.engines.checkpoint_and_journal.WAIT", 0.2)
            with pytest.raises(CoterieError, match="Another process goes on with the run"):
                Journal(tmp_path)
            monkeypatch.setattr("coterie.engines.checkpoint_and_journal.WAIT", 60.0)
            threading.Timer(0.3, other.kill).start()
            assert len(Journal(tmp_path)) == 0, "it is waited for"
        finally:
            other.kill()


def test_a_journal_is_held_while_any_of_a_process_is_open(tmp_path):
    code = "import sys; from coterie.engines import checkpoint_and_journal as c; c.WAIT = 0.0; c.Journal(sys.argv[1])"
    command = [sys.executable, "-c", code, tmp_path]
    first, again = Journal(tmp_path), Journal(tmp_path)
    del again
    assert b"Another process goes on" in subprocess.run(command, capture_output=True, timeout=60).stderr
    del first
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_a_disk_that_cannot_lock_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.lockf", lambda *_: (_ for _ in ()).throw(OSError(37, "No locks available")))
    with pytest.raises(CoterieError, match=names("cannot locked No locks available")):
        Journal(tmp_path)
