"""Processes of coordinators and sites: started on their own, found again, waited for, ended, kept alive.

Numbers of processes are given anew, so a process is known by what its command names, never by its number alone.
"""

from __future__ import annotations

import ctypes
import getpass
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coterie.engines.retry_and_quorum import BelowQuorum
from coterie.errors import CoterieError, listed

LOOPBACK = "127.0.0.1"
PATIENCE = 60.0  # seconds that a run waits for sites that are not connected before it goes on without them
GRACE = 5.0  # the same where the coordinator refuses somebody at its port
_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_AGAIN = (1.0, 2.0, 5.0, 10.0)  # seconds before a process is started again; the last one for good
_STEADY = 30.0  # seconds after which a process counts as started well
_CRASHES = 3  # ends in a row, each sooner than that, after which another start is not waited for
_TICK = 0.1  # seconds between looks
log = logging.getLogger("coterie.processes")


@dataclass(frozen=True)
class Running:
    """A living process: its number, that of its group, and the words of its command."""

    pid: int
    group: int
    words: tuple[str, ...]


def running() -> list[Running]:
    """All living processes of this machine that have a command: one that has ended and is yet to be buried has none."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if words := tuple(process.cmdline()):
                found.append(Running(process.pid, os.getpgid(process.pid), words))
    return found


def alive(pid: int) -> bool:
    """Whether a process lives, and does not only wait to be buried."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def start(
    command: Sequence[str],
    output: Path,
    environment: Mapping[str, str],
    folder: Path | None = None,
    end_with: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that adds what it prints to ``output``; what it keeps of keys is for its owner alone.

    It has a group of its own and outlives this one, unless the process itself asks, by ``end_with``, to end with it.
    """
    with open(output, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
        return subprocess.Popen(  # noqa: S603
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            umask=0o077, start_new_session=end_with is None, preexec_fn=end_with,
        )  # fmt: skip


def not_running(folder: Path) -> CoterieError:
    """That no coordinator runs."""
    return CoterieError(f"No coordinator runs in {folder}: 'coterie federation start-coordinator' starts it.")


def gathered(
    names: Collection[str], connected: Callable[[], Collection[str]], patience: float, whole: bool,
    refused: Callable[[], str], refusing: Callable[[], object], pause: float,
) -> list[str]:  # fmt: skip
    """The sites that are connected, sorted: all, or after ``patience`` seconds, fewer while it is ``refusing``, some.

    A CoterieError where none is, BelowQuorum where a run that needs the ``whole`` federation lacks some; that has what
    the coordinator says of those it ``refused``. Between looks are ``pause`` seconds.
    """
    begin = time.monotonic()
    while True:
        here, took = {*connected()}.intersection(names), time.monotonic() - begin
        if len(here) == len(names) or took >= patience or (took > GRACE and refusing()):
            break
        time.sleep(pause)
    if not here:
        raise CoterieError(f"No site is connected: start {listed(names)}, then run again. {refused()}".rstrip())
    if whole and (away := [name for name in names if name not in here]):
        raise BelowQuorum(
            f"Not connected: {listed(away)}. The run needs all sites (min_clients): start them first, and stop one "
            f"before that runs and does not answer. {refused()}".rstrip()
        )
    return sorted(here)


def need_stopped(folder: Path, pid: int | None) -> None:
    """Raise where a coordinator or a site runs already."""
    if pid is not None:
        raise CoterieError(f"{folder} runs already, as process {pid}: stop it first.")


def late(folder: Path, run_id: str, timeout: float) -> CoterieError:
    """That a run took too long."""
    return CoterieError(
        f"Run '{run_id}' did not end within {timeout:g} s: 'coterie federation status {folder}' says who is connected. "
        "Run it again to go on."
    )


def await_ready(process: subprocess.Popen[bytes] | None, ready: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is ready; False where its process ends before, or it takes longer than so many seconds."""
    end = time.monotonic() + seconds
    while not ready():
        if (process is not None and process.poll() is not None) or time.monotonic() > end:
            return False
        time.sleep(_TICK)
    return True


def end(found: Callable[[], Sequence[int]], patience: float, asked: int | None = None) -> None:
    """End processes: they are asked to, and those that live after ``patience`` seconds are killed.

    ``found()`` gives those that live; only the first ``asked`` of them are asked, where these end the others.
    """
    for number, some in ((signal.SIGTERM, asked), (signal.SIGKILL, None)):
        chosen = list(found())[:some]
        for pid in chosen:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        await_ready(None, lambda chosen=set(chosen): not chosen or chosen.isdisjoint(found()), patience)  # type: ignore[misc]


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


def listens(host: str, port: int) -> bool:
    """Whether something listens at an address."""
    try:
        with socket.create_connection((host, port), timeout=2.0) as found:
            return bool(found.getsockname() != found.getpeername())  # a free port can be connected to itself
    except OSError:
        return False


def need_free_port(port: int, patience: float = 0.0) -> None:
    """A CoterieError where another program still listens at a port of this machine after ``patience`` seconds."""

    def free() -> bool:
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
                return True
            except PermissionError as problem:
                raise CoterieError(f"Port {port} may not be used by you: choose one from 1024.") from problem
        return False

    if not await_ready(None, free, patience):
        raise CoterieError(
            f"Port {port} is taken by another program: end it, or choose another port with "
            "'coterie federation init --port'."
        )


def end_with_parent() -> None:
    """Ask the kernel to end this process with its parent, also where the parent was killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


_UNIT = """\
# {what}
# Put it into /etc/systemd/system/{name}.service, then: systemctl enable --now {name}
[Unit]
Description={what}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User={user}
ExecStart={command} federation {start}
{stop}Restart=always
RestartSec=10
TimeoutStopSec=60
KillMode=mixed
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictSUIDSGID=yes

[Install]
WantedBy=multi-user.target
"""


def unit(what: str, name: str, start: Sequence[str], stop: Sequence[str] = ()) -> str:
    """A service of systemd that runs ``coterie federation start`` as whoever asks, and starts it again when it ends."""
    command = _escaped([str(Path(sys.executable).with_name("coterie"))])
    ended = f"ExecStop={command} federation {_escaped(stop)}\n" if stop else ""
    user = getpass.getuser()
    return _UNIT.format(what=what, name=name, user=user, command=command, start=_escaped(start), stop=ended)


def _escaped(words: Sequence[str]) -> str:
    """Words as systemd reads a command line."""
    quoted = (word.replace("\\", r"\\").replace('"', r"\"").replace("%", "%%").replace("$", "$$") for word in words)
    return " ".join(f'"{word}"' if any(c in word for c in " \t'\"\\") else word for word in quoted)


class Child:
    """A process that is started again whenever it ends, until :meth:`end`.

    It runs in ``folder``, where what it prints is in ``<name>.txt``; ``reason`` makes of the end of that why it gave
    up, "" where it does not say.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        reason: Callable[[str], str] = lambda text: "",
    ) -> None:
        self.name, self._command, self._folder = name, command, folder
        self._environment, self._reason = environment, reason
        self._path = folder / f"{name}.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self._tries, self._next, self._since = 0, 0.0, 0.0
        self.failing = ""  # why, where it ended at once several times in a row

    def died(self) -> bool:
        """Whether the process has ended by itself since it was started; then it starts again in a while."""
        if self._process is None or (code := self._process.poll()) is None:
            return False
        now = time.monotonic()
        self._tries = 0 if now - self._since > _STEADY else self._tries + 1
        pause = _AGAIN[min(self._tries, len(_AGAIN) - 1)]
        with self._path.open("rb") as file:
            file.seek(max(self._path.stat().st_size - 4000, 0))
            printed = file.read().decode(errors="replace")
        why = self._reason(printed) or f"see {self._path.name}"
        log.warning("%s ended with code %d (%s) and starts again in %g s", self.name, code, why, pause)
        self._process, self._next = None, now + pause
        self.failing = f"code {code}, {why}" if self._tries >= _CRASHES else ""
        return True

    def watch(self) -> None:
        """Start the process if it does not run and its time has come."""
        now = time.monotonic()
        if self._process is None and now >= self._next:
            self._process = start(self._command, self._path, self._environment, self._folder, end_with_parent)
            self._since = now
            log.info("%s runs as process %d", self.name, self._process.pid)

    def end(self) -> None:
        """End the process: politely, then at once."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """End the process, and start it again when it is next watched."""
        self.end()
        self._process = None


def tend(children: Sequence[Child], as_one: bool) -> None:
    """Start again what has ended; where they live ``as_one``, together with the others."""
    lost = [child for child in children if child.died()]
    for child in children:
        if as_one and lost and child not in lost:
            child.restart()
        child.watch()
