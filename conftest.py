"""What every test shares: property tests that repeat, and one thread a process, as tests run in several."""

from __future__ import annotations

import gc
import os
import sys
from compileall import compile_file
from contextlib import suppress

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read where torch is loaded, by commands that tests start, too

import pytest
from hypothesis import settings

# What is imported and collected stays: looking through it again and again takes a sixth of that time.
gc.disable()

# Modules are compiled once, not by every one of the hundreds of commands and sites that tests start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Losses of power are not tried, so no test waits for the disk.
os.fsync = lambda file: None

# Tests write and delete tens of thousands of small files: in memory, where there is room, it takes half of the time.
MEMORY = "/dev/shm"  # noqa: S108
with suppress(OSError):
    room = os.statvfs(MEMORY)
    if os.access(MEMORY, os.W_OK) and not room.f_flag & os.ST_NOEXEC and room.f_bavail * room.f_frsize > 1 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# The first call of a kernel compiles it, so time says nothing; the same examples every time, so a failure repeats.
settings.register_profile("coterie", deadline=None, derandomize=True)
settings.load_profile("coterie")


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory):
    """What commands remember of the files they wrote lies beside the tests' files, not in the user's home."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def in_full(monkeypatch):
    """All messages carry their forms, for tests that read them on the way."""
    from coterie.engines.header_compression import SiteLink

    monkeypatch.setattr(SiteLink, "shortened", lambda link, request: None)


def pytest_sessionstart(session):
    """Processes of one run compile a share of all files each, before they import what the others have compiled, too."""
    if (worker := getattr(session.config, "workerinput", None)) is None:
        return
    with suppress(ImportError):  # it looks through all modules that are there when it is loaded: few, now
        import nvflare  # noqa: F401
    with suppress(ImportError, AttributeError, OSError):  # else each process compiles what it imports, as without this
        from _pytest.assertion import rewrite

        files = sorted(path for room in ("src", "tests", "papers") for path in (session.path / room).rglob("*.py"))
        for path in files[int(worker["workerid"][2:]) :: worker["workercount"]]:
            if not path.name.startswith(("test_", "conftest")):
                compile_file(path, quiet=2)
                continue
            cache = rewrite.get_cache_dir(path)
            cache.mkdir(exist_ok=True)
            kept = cache / f"{path.stem}{rewrite.PYC_TAIL}"
            if rewrite._read_pyc(path, kept) is None:
                stamp, code = rewrite._rewrite_test(path, session.config)
                rewrite._write_pyc(session.config.stash[rewrite.assertstate_key], code, stamp, kept)


def pytest_collection_finish(session):
    """Modules that a test writes, and writes again within a second, are read as they stand, not from a cache."""
    sys.dont_write_bytecode = True
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)
    gc.enable()


def pytest_configure(config):
    """Processes of one run wait for a kernel that one of them compiles, and read what it has cached."""
    if not hasattr(config, "workerinput"):
        return
    with suppress(ImportError):  # no such locks here: a kernel may be compiled by each
        import fcntl

        from numba.core.compiler_lock import global_compiler_lock
        from numba.core.dispatcher import Dispatcher

        compile_here, held = Dispatcher.compile, set()

        def compile_once(kernel, signature):
            path = kernel.py_func.__code__.co_filename
            if path in held or not kernel._cache.cache_path:
                return compile_here(kernel, signature)
            with global_compiler_lock, open(path) as source:
                fcntl.flock(source, fcntl.LOCK_EX)  # files call each other's kernels one way, so none waits for ever
                held.add(path)
                try:
                    return compile_here(kernel, signature)
                finally:
                    held.remove(path)

        Dispatcher.compile = compile_once


def pytest_xdist_auto_num_workers(config):
    """One process more than cores: tests of real servers mostly wait for them."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config, items):
    """Slow tests come first, so that no process ends with one; soak tests are left out unless -m names them."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if "soak" in (config.option.markexpr or ""):
        return
    soak, named, seen = [], set(), set()
    for item in items:
        marks = list(item.iter_markers("soak"))
        cases = {(item.nodeid.partition("[")[0], case) for mark in marks for case in mark.args}
        here = (item.nodeid.partition("[")[0], item.callspec.id if hasattr(item, "callspec") else "")
        named |= cases
        seen.add(here)
        if here in cases or any(not mark.args for mark in marks):
            soak.append(item)
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and named - seen:
        raise pytest.UsageError(f"These cases of soak tests do not exist: {sorted(named - seen)}.")
    if soak:
        left_out = set(map(id, soak))
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if id(item) not in left_out]
