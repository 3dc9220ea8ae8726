"""Files are there whole or not at all, and locks end with who held them."""

import os
import stat
import subprocess
import sys
import threading
import time

import pytest

from coterie import files
from coterie.errors import CoterieError

HOLDER = """
import sys, time
from pathlib import Path
from coterie import files
with files.locked(Path(sys.argv[1]), 0.0, "busy"):
    print(1, flush=True)
    sys.stdin.read()
"""


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_file_reaches_the_disk_before_it_gets_its_name_and_its_name_after(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(os, "fsync", lambda _: events.append(names(tmp_path)))
    files.write(tmp_path / "a", [b"1", memoryview(b"2")])
    (before,), after = events
    assert before.startswith(".a.") and after == ["a"]
    files.write(tmp_path / "b", [b"1"], durable=False)
    assert len(events) == 2
    assert (tmp_path / "a").read_bytes() == b"12"


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_fault_leaves_the_old_file_and_nothing_else(name, tmp_path, monkeypatch):
    files.write(tmp_path / "a", [b"old"])
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, name, full)
        files.write(tmp_path / "a", [b"new"])
    with pytest.raises(TypeError):
        files.write(tmp_path / "a", [b"new", "no bytes"])
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_a_disk_that_is_really_full_leaves_the_old_file_and_nothing_else(tmp_path):
    code = f"""if True:
        import resource, signal
        from pathlib import Path
        from coterie import files
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            files.write(Path({str(tmp_path)!r}) / "a", [bytes(600), bytes(600)])
        except OSError as problem:
            print(type(problem).__name__)
    """
    files.write(tmp_path / "a", [b"old"])
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).stdout == b"OSError\n"
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_permissions_are_those_asked_for_less_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "a", [b""])
        files.write(tmp_path / "b", [b""], mode=0o600)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in "ab"] == [0o640, 0o600]


def test_two_that_write_one_file_do_not_meet(tmp_path):
    with files.replacing(tmp_path / "a") as one, files.replacing(tmp_path / "a") as other:
        one.write_bytes(b"one")
        other.write_bytes(b"other")
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"one"


def test_where_folders_cannot_be_opened_files_are_written_all_the_same(tmp_path, monkeypatch):
    real = os.open

    def windows(path, flags, *rest):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", windows)
    files.write(tmp_path / "a", [b"1"])
    assert (tmp_path / "a").read_bytes() == b"1"


def test_what_killed_writers_left_is_swept(tmp_path):
    code = f"""if True:
        import os
        from pathlib import Path
        from coterie import files
        writers = []
        for name in ("a", "[a]", "b"):
            files.write(Path({str(tmp_path)!r}) / name, [b"1"])
            writers.append(files.replacing(Path({str(tmp_path)!r}) / name))
            writers[-1].__enter__()
        os._exit(9)
    """
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 9
    (tmp_path / ".hidden.part").touch()
    files.sweep(tmp_path, "[a]")
    assert [n.split(".")[1] for n in names(tmp_path) if n.startswith(".")] == ["a", "b", "hidden"]
    files.need_writable(tmp_path / "b", tmp_path)  # the next writer of it
    assert [n.split(".")[1] for n in names(tmp_path) if n.startswith(".")] == ["a", "hidden"]
    with files.replacing(tmp_path / "c") as partial:  # who still writes is left alone
        files.write(tmp_path / "c", [b"3"])
        files.sweep(tmp_path)
        assert names(tmp_path) == [partial.name, ".hidden.part", "[a]", "a", "b", "c"]
    (tmp_path / "c").unlink()
    files.sweep(tmp_path)
    assert names(tmp_path) == [".hidden.part", "[a]", "a", "b"]


def test_what_cannot_be_added_whole_is_not_added(tmp_path, monkeypatch):
    file = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    real = os.write
    files.append(file, b"first")
    for fault in (lambda f, d: real(f, d[:3]) if len(d) == 6 else full(), full):  # some of it, or none
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(os, "write", fault)
            files.append(file, b"second")
        assert (tmp_path / "a").read_bytes() == b"first"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        files.append(file, b"second", durable=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda f, d: real(f, d[:2]))  # a call may write less than it was given
        files.append(file, b"third", durable=True)
    os.close(file)
    assert (tmp_path / "a").read_bytes() == b"firstthird"


def test_a_lock_is_waited_for_and_not_for_ever(tmp_path):
    path = tmp_path / "lock"
    with files.locked(path, 0.0, "busy"):
        start = time.monotonic()
        with pytest.raises(CoterieError, match=r"^busy: end it$"), files.locked(path, 0.2, "busy: end it"):
            pass
        assert 0.2 <= time.monotonic() - start < 30.0
    with files.locked(path, 0.0, "busy"):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.read(1) == b"1"
            with pytest.raises(CoterieError, match="busy"), files.locked(path, 0.0, "busy"):
                pass
            threading.Timer(0.3, other.kill).start()
            with files.locked(path, 60.0, "busy"):
                pass
        finally:
            other.kill()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_was_forked_off_neither_ends_a_lock_nor_makes_it_last(tmp_path):
    lock = files.locked(tmp_path / "lock", 0.0, "busy")
    lock.__enter__()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        lock.__exit__(None, None, None)
        os.read(reader, 1)
        os._exit(0)
    with pytest.raises(CoterieError, match="busy"), files.locked(tmp_path / "lock", 0.3, "busy"):
        pass
    lock.__exit__(None, None, None)
    with files.locked(tmp_path / "lock", 0.0, "busy"):
        pass
    os.write(writer, b"1")
    os.waitpid(child, 0)


@pytest.mark.parametrize("get", ["locked", "hold"])
def test_a_disk_that_cannot_lock_is_not_another_process(get, tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    monkeypatch.setattr(files.fcntl, "lockf", no_locks)
    with pytest.raises(OSError, match=r"No locks available.*lock"):
        if get == "hold":
            files.hold(tmp_path / "lock", 60.0, "busy")
        with files.locked(tmp_path / "lock", 60.0, "busy"):
            pass


def test_where_there_are_no_locks_all_is_as_ever_without_them(tmp_path):
    code = f"""if True:
        import sys
        sys.modules["fcntl"] = None  # as on Windows
        from pathlib import Path
        from coterie import files
        from coterie.engines.checkpoint_and_journal import Journal
        import coterie.deployment.nvflare.job, coterie.engines.ray.actors
        with files.locked(Path({str(tmp_path)!r}) / "lock", 0.0, "busy"):
            Journal({str(tmp_path)!r}).add("ask", b"key", {{}})
        print(len(Journal({str(tmp_path)!r})))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "1\n", done.stderr
