"""Processes of a part are started again when they die, found by what their commands name, and ended for certain."""

import os
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from coterie.deployment import processes
from coterie.deployment.federation_toml import Config
from coterie.deployment.flower import supervisor
from coterie.deployment.flower.supervisor import environment
from coterie.deployment.processes import Child, tend
from coterie.errors import CoterieError


def test_processes_of_one_message_keep_what_they_compile(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in environment(tmp_path)


@pytest.mark.parametrize("as_one", [True, False])
def test_what_dies_starts_again(as_one, tmp_path):
    children = [Child(name, ["sleep", "60"], tmp_path, os.environ) for name in ("one", "other")]
    try:
        tend(children, as_one)
        one, other = (child._process.pid for child in children)
        assert not any(child.died() for child in children)
        os.kill(one, 9)
        end = time.monotonic() + 30.0
        while any(child._process is None or child._process.pid == one for child in children[:1]):
            assert time.monotonic() < end
            tend(children, as_one)
            time.sleep(0.02)
        tend(children, as_one)
        assert (children[1]._process.pid != other) == as_one
        assert all(child._process.poll() is None for child in children)
    finally:
        for child in children:
            child.end()


def test_what_ends_at_once_again_and_again_is_failing_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_AGAIN", (0.0,))
    child, ends = Child("one", ["sh", "-c", "echo broken; exit 3"], tmp_path, os.environ, lambda text: text.strip()), 0
    while not child.failing:
        assert ends < 3
        child.watch()
        child._process.wait(30.0)
        ends += child.died()
    assert ends == 3 and child.failing == "code 3, broken\nbroken\nbroken"


def test_a_superlink_that_crashes_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "_children", lambda *_, **__: [SimpleNamespace(failing="code 3, broken")])
    monkeypatch.setattr(supervisor, "threading", SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=lambda: 0)))
    Config("test", "flower", port=1, sites=("a",)).write(tmp_path)
    coordinator, begin = supervisor.Coordinator(tmp_path), time.monotonic()
    coordinator._open()
    assert "does not come up (code 3, broken)" in coordinator.failed and time.monotonic() - begin < 10.0


def test_what_a_process_prints_is_for_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        assert processes.start(["true"], tmp_path / "log.txt", os.environ).wait(30) == 0
    finally:
        os.umask(before)
    assert (tmp_path / "log.txt").stat().st_mode & 0o777 == 0o600


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def test_what_does_not_end_when_it_is_asked_is_killed(tmp_path):
    started = processes.start([sys.executable, "-c", DEAF, str(tmp_path)], tmp_path / "out.txt", os.environ)

    def found():
        return [p.pid for p in processes.running() if str(tmp_path) in p.words]

    assert processes.await_ready(started, lambda: "deaf" in (tmp_path / "out.txt").read_text(), 60.0)
    assert found() == [started.pid] and processes.alive(started.pid)
    processes.end(found, 0.3)
    assert started.wait(30.0) == -9 and found() == [] and not processes.alive(started.pid)


def test_one_that_ends_at_once_is_never_ready(tmp_path):
    started = processes.start(["false"], tmp_path / "out.txt", os.environ)
    assert not processes.await_ready(started, lambda: False, 60.0)
    assert started.returncode == 1


def test_a_port_is_free_or_waited_for_or_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert processes.listens("127.0.0.1", port)
        with pytest.raises(CoterieError, match=f"Port {port} is taken by another program"):
            processes.need_free_port(port, 0.2)
    processes.need_free_port(port, 5.0)
    assert not processes.listens("127.0.0.1", port)


def test_a_run_that_takes_too_long_says_where_to_look(tmp_path):
    assert f"coterie federation status {tmp_path}" in str(processes.late(tmp_path, "check-3", 40.0))


def test_a_service_file_is_one_that_systemd_reads(tmp_path):
    place = tmp_path / "a %h of $HOME" / 'the "site"'
    text = processes.unit("coterie: site a", "coterie-heart-a", ["start-site", str(place)], ["stop", str(place)])
    path = tmp_path / "coterie-heart-a.service"
    path.write_text(text)
    quoted = str(place).replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    assert f'federation start-site "{quoted}"\n' in text and f'federation stop "{quoted}"\n' in text
    if (verify := shutil.which("systemd-analyze")) is not None:
        done = subprocess.run([verify, "verify", path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and path.name not in done.stderr, done.stderr
