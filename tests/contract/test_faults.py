"""Law 8: an exchange happened at a site if and only if its reply was counted, whatever is lost and whoever dies."""

import os

import numpy as np
import pytest

from coterie.engines import InProcess, wire
from coterie.engines.checkpoint_and_journal import load_checkpoint, read_durable, save_checkpoint
from coterie.engines.retry_and_quorum import Policy
from coterie.errors import CoterieError
from coterie.federation import PerRow, work
from tests.contract.cases import make_federation, quadratic
from tests.engines.faults import Faults
from tests.messages import names

M = 12


@work
def add(site, x):
    """Not idempotent, so that running twice, or committing what was not counted, shows."""
    site.state["u"] = site.state.get("u", np.zeros(len(site))) + x
    site.count(gradients=len(site))
    return {"u": site.state["u"]}


@work
def read(site):
    return {"u": site.state.get("u", np.zeros(len(site)))}


RUNS = []


@work
def add_and_tell(site, x):
    RUNS.append(len(site))
    return add(site, x)


def federation(**options):
    return make_federation("loopback", quadratic(M, k=3), 3, **options)


def at(what, exchange, site):
    return Faults(**{what: lambda e, s: e == exchange and s == site})


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_site_that_was_not_counted_has_not_moved(what):
    fed = federation(retries=2, faults=at(what, 2, 1))
    fed.ask(add, x=1.0)
    replies = fed.ask(add, x=10.0)
    missing = fed.sites[1]
    np.testing.assert_array_equal(replies.missing, missing)
    np.testing.assert_array_equal(replies.rows, np.setdiff1d(np.arange(M), missing))
    assert len(replies["u"]) == M - len(missing)
    sums = fed.total(add, x=100.0)
    assert sums.count == M and len(sums.missing) == 0
    expected = np.full(M, 111.0)
    expected[missing] = 101.0
    np.testing.assert_array_equal(fed.ask(read)["u"], expected)
    assert sums["u"] == expected.sum()


def test_a_repeated_message_does_not_run_the_work_again():
    lost = set()

    def once(exchange, site):
        new = (exchange, site) not in lost
        lost.add((exchange, site))
        return new

    fed = federation(faults=Faults(reply=once))
    RUNS.clear()
    fed.ask(add_and_tell, x=1.0)
    fed.ask(add_and_tell, x=1.0)
    assert len(lost) == 6 and len(RUNS) == 6
    np.testing.assert_array_equal(fed.ask(read)["u"], 2.0)
    assert fed.ledger.gradient_calls == 2 * M


def test_missing_groups_and_nobody_at_all():
    fed = federation(retries=0, faults=Faults(request=lambda e, s: e == 1 or s == 0))
    nobody = fed.total(add, by="cluster", x=1.0)
    assert not nobody and list(nobody.missing) == list(range(M)) and len(nobody.rows) == 0
    np.testing.assert_array_equal(nobody.count, 0)
    labels = np.repeat([0, 1, 2], 4)
    some = fed.total(add, by=labels, groups=3, x=1.0)
    np.testing.assert_array_equal(some.count, [0, 4, 4])
    np.testing.assert_array_equal(some["u"], [0, 4, 4])


def test_a_dead_site_is_missing_until_it_comes_back(tmp_path):
    fed = federation(folder=tmp_path, retries=1)
    fed.ask(add, x=1.0)
    fed.kill(2)
    np.testing.assert_array_equal(fed.ask(add, x=1.0).missing, fed.sites[2])
    fed.mark("m")
    np.testing.assert_array_equal(fed.make_marks(), fed.sites[2])
    fed.revive(2)
    np.testing.assert_array_equal(fed.ask(read)["u"], np.repeat([2.0, 2.0, 1.0], 4))
    fed.ask(add, x=1.0)
    assert not len(fed.restore("m")), "the mark of the site that was away came with what it was asked next"
    np.testing.assert_array_equal(fed.ask(read)["u"], np.repeat([2.0, 2.0, 1.0], 4))


def test_a_site_without_the_last_mark_of_a_name_does_not_return_to_an_older_one():
    down = [False]
    fed = federation(retries=0, faults=Faults(request=lambda e, s: down[0] and s == 0))
    for _ in range(2):
        fed.mark("a")
        fed.ask(add, x=1.0)
    fed.mark("a")
    down[0] = True
    fed.ask(add, x=1.0)
    np.testing.assert_array_equal(fed.restore("a"), fed.sites[0])
    np.testing.assert_array_equal(fed.mark("b"), fed.sites[0])
    down[0] = False
    with pytest.raises(CoterieError, match="restore a mark"):
        fed.ask(read)
    assert not len(fed.restore("a"))
    np.testing.assert_array_equal(fed.ask(read)["u"], 2.0)


@pytest.mark.parametrize("strict", [True, False])
def test_a_site_that_lost_its_state_refuses_by_name(strict):
    fed = federation(policy=Policy(strict=strict))
    fed.ask(add, x=1.0)
    fed.ask(add, x=1.0)
    fed.kill(1)
    fed.revive(1)  # without a folder it has forgotten everything
    if strict:
        with pytest.raises(CoterieError, match=names("site 1 stands exchange 0 coordinator counted 2")):
            fed.ask(add, x=1.0)
    else:
        np.testing.assert_array_equal(fed.ask(add, x=1.0).missing, fed.sites[1])
        assert list(fed.troubles) == ["site 1"] and "stands at exchange 0" in fed.troubles["site 1"]


def test_a_site_that_missed_a_restore_refuses_until_it_is_restored():
    down = [False]
    fed = federation(retries=0, faults=Faults(request=lambda e, s: down[0] and s == 0))
    fed.ask(add, x=1.0)
    fed.mark("a")
    fed.ask(add, x=1.0)
    down[0] = True
    np.testing.assert_array_equal(fed.restore("a"), fed.sites[0])
    down[0] = False
    with pytest.raises(CoterieError, match="restore a mark"):
        fed.ask(add, x=1.0)
    assert len(fed.restore("a")) == 0
    np.testing.assert_array_equal(fed.ask(add, x=1.0)["u"], 2.0)


def test_a_new_coordinator_does_not_walk_into_an_old_run(tmp_path):
    old = federation(folder=tmp_path)
    old.ask(add, x=1.0)
    old.ask(add, x=1.0)
    with pytest.raises(CoterieError, match="begin with empty folders"):
        federation(folder=tmp_path).ask(add, x=1.0)


def test_a_folder_of_other_clients_is_refused(tmp_path):
    federation(folder=tmp_path).ask(add, x=1.0)
    with pytest.raises(CoterieError, match="holds the state of other clients"):
        make_federation("loopback", quadratic(M, k=3, seed=1), 3, folder=tmp_path)


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_a_site_that_dies_at_each_moment_of_a_call(moment, tmp_path):
    struck = []

    class Once(Faults):
        def draw(self, what, exchange, site, attempt):
            return (moment + 0.5) / 3 if what == "moment" else super().draw(what, exchange, site, attempt)

        def happens(self, what, exchange, site, attempt):
            now = what == "crash" and exchange == 2 and attempt == 0
            struck.extend([site] if now else [])
            return now

    fed = federation(folder=tmp_path, faults=Once(crash=1.0))
    for _ in range(3):
        fed.ask(add, x=1.0)
    assert struck == [0, 1, 2]
    np.testing.assert_array_equal(fed.ask(read)["u"], 3.0)


def test_files_of_a_site_do_not_pile_up(tmp_path):
    fed = federation(folder=tmp_path)
    for step in range(6):
        fed.ask(add, x=1.0)
        fed.mark(f"slot {step % 2}")
    files = sorted(p.name for p in (tmp_path / "site-0").iterdir())
    assert len(files) <= 4 and "head" in files  # the head, two marks, and what is pending


@pytest.mark.parametrize("strict", [False, True])
def test_a_site_with_a_full_disk_is_missing_and_no_exchange_happened_there(strict, tmp_path):
    fed = federation(folder=tmp_path, policy=Policy(strict=strict, retries=1))
    fed.ask(add, x=1.0)
    folder, fed._nodes[1]._folder = fed._nodes[1]._folder, Full()
    assert fed.ask(add, x=10.0).missing.tolist() == fed.sites[1].tolist()
    assert fed.troubles == {"site 1": "its state cannot be written (no space left on device)"} and not fed.quarantined
    fed._nodes[1]._folder = folder
    fed.ask(add, x=100.0)
    np.testing.assert_array_equal(fed.ask(read)["u"], [111.0] * 4 + [101.0] * 4 + [111.0] * 4)


class Full:
    def save(self, head, sets):
        raise OSError(28, "No space left on device")


def test_a_damaged_file_is_named(tmp_path):
    fed = federation(folder=tmp_path)
    fed.ask(add, x=1.0)
    head = tmp_path / "site-0" / "head"
    head.write_bytes(head.read_bytes()[:-1])
    fed.kill(0)
    with pytest.raises(CoterieError, match=r"head cannot be read"):
        fed.revive(0)


# -- checkpoints


def local(**options):
    return make_federation("inprocess", quadratic(M, k=3), **options)


def test_a_checkpoint_holds_state_of_every_kind(tmp_path):
    fed = local()
    fed.ask(add, x=PerRow(np.arange(M, dtype=float)))
    state = {"t": 3, "x": np.arange(4.0), "name": "a", "parts": [np.zeros(1), {"y": np.float32(1)}], "none": None}
    save_checkpoint(tmp_path / "c", fed, state)
    other = local()
    found = load_checkpoint(tmp_path / "c", other)
    assert wire.encode(found) == wire.encode(state)
    found["x"] += 1  # a method may change its own state
    np.testing.assert_array_equal(other.ask(read)["u"], np.arange(M))
    other.ask(add, x=1.0)
    np.testing.assert_array_equal(fed.ask(read)["u"], np.arange(M))
    assert other.ledger.exchanges == 3


def test_a_fault_while_writing_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    fed = federation(folder=tmp_path / "sites")
    fed.ask(add, x=1.0)
    save_checkpoint(tmp_path / "c", fed, {"t": 1})
    for _ in range(3):  # marks at the sites must not eat the one that the file relies on
        fed.ask(add, x=1.0)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="dead"):
            patch.setattr(os, "fsync", failing_in(tmp_path))
            save_checkpoint(tmp_path / "c", fed, {"t": 2})
        assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["c"]
    again = federation(folder=tmp_path / "sites")
    assert load_checkpoint(tmp_path / "c", again) == {"t": 1}
    np.testing.assert_array_equal(again.ask(read)["u"], 1.0)


def failing_in(folder):
    """As fsync, of any file but one of a checkpoint that is being written in the folder."""
    real = os.fsync

    def fsync(descriptor):
        number = os.fstat(descriptor).st_ino
        if any(p.stat().st_ino == number for p in folder.glob(".c.*.part")):
            raise OSError("dead")
        real(descriptor)

    return fsync


@pytest.mark.parametrize("damage", ["head", "middle", "cut", "version", "empty"])
def test_a_damaged_checkpoint_does_not_end_a_new_run(damage, tmp_path):
    file, sites = tmp_path / "c", tmp_path / "sites"
    save_checkpoint(file, federation(folder=tmp_path / "others"), {"t": 1})
    data = bytearray(file.read_bytes())
    data[{"head": 0, "version": 4}.get(damage, 60)] ^= 1
    file.write_bytes({"cut": data[:30], "empty": b""}.get(damage, data))
    fed = federation(folder=sites)
    for t in (1, 2, 3):
        fed.ask(add, x=1.0)
        save_checkpoint(file, fed, {"t": t})
        again = federation(folder=sites)
        assert load_checkpoint(file, again) == {"t": t}
        np.testing.assert_array_equal(again.ask(read)["u"], float(t))
        fed = again


def test_a_save_reads_the_beginning_of_the_last_checkpoint_alone_and_uses_the_other_mark(tmp_path, monkeypatch):
    fed, read = federation(folder=tmp_path / "sites"), read_durable
    monkeypatch.setattr("coterie.engines.checkpoint_and_journal.read_durable", lambda path: pytest.fail("read whole"))
    marks = []
    for _ in range(4):
        fed.ask(add, x=1.0)
        save_checkpoint(tmp_path / "c", fed, {"x": np.zeros(1000)})
        marks.append(read(tmp_path / "c")["engine"]["tag"])
    assert marks == ["c.0", "c.1", "c.0", "c.1"]


def test_what_a_run_left_that_was_killed_while_it_saved_goes_with_the_next_save(tmp_path):
    (tmp_path / ".c.0a1b2c3d.part").write_bytes(b"cotr")
    (tmp_path / ".other.0a1b2c3d.part").write_bytes(b"cotr")
    save_checkpoint(tmp_path / "c", local(), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.0a1b2c3d.part", "c"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "There is no file"),
        (b"", "cut short"),
        (b"x" * 100, "not a coterie message"),
        (wire.encode({"a": 1}), "is not a checkpoint"),
        (wire.encode(3), "is not a checkpoint"),
    ],
    ids=["missing", "empty", "strange", "other", "number"],
)
def test_what_is_no_checkpoint_is_named(content, sentence, tmp_path):
    if content is not None:
        (tmp_path / "c").write_bytes(content)
    with pytest.raises(CoterieError, match=sentence):
        load_checkpoint(tmp_path / "c", local())


def test_a_checkpoint_of_another_federation_is_refused(tmp_path):
    fed = local()
    fed.ask(add, x=1.0)
    save_checkpoint(tmp_path / "c", fed, {})
    other: InProcess = make_federation("inprocess", quadratic(M + 1, k=3))
    with pytest.raises(CoterieError, match="another number of clients"):
        load_checkpoint(tmp_path / "c", other)
    with pytest.raises(CoterieError, match="another engine"):
        load_checkpoint(tmp_path / "c", federation())
    save_checkpoint(tmp_path / "d", federation(), {})
    with pytest.raises(CoterieError, match="another engine"):
        load_checkpoint(tmp_path / "d", fed)
