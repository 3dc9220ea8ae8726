"""NVFlare's processes of one workspace: started, found and ended by their ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from coterie.errors import CoterieError

_PATIENCE = 5.0  # seconds for processes to end by themselves
_SCRIPT = "startup/sub_start.sh"
_PARENTS = ("server_train", "client_train")


def start(workspace: Path) -> subprocess.Popen[bytes]:
    """Start the server or client of a workspace by its own script; what it prints goes to ``console.log`` in it.

    Raises
    ------
    CoterieError
        If it runs already.
    """
    running = parent(workspace)
    if running is not None:
        raise CoterieError(f"{workspace.parent} runs already (process {running}): stop it first.")
    stop(workspace)  # jobs whose parent was killed
    script = workspace.resolve() / _SCRIPT
    if not script.is_file():
        raise CoterieError(f"{workspace.parent} has no {script.name} of NVFlare: make it with federation init.")
    here = str(Path(sys.executable).parent)  # the script runs the first python3 it finds
    environment = {k: v for k, v in os.environ.items() if k != "NVFL_WORKSPACE"}
    if (workspace / "startup/fed_server.json").exists():
        environment["PYTHONASYNCIODEBUG"] = "1"  # a handshake that failed is told in this mode alone
    environment["PATH"] = os.pathsep.join([here, environment.get("PATH", "")])
    with (workspace / "console.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603
            ["/usr/bin/env", "bash", str(script), "--once"],
            cwd=workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            umask=0o077,  # what NVFlare keeps of keys is for its owner alone, too
            start_new_session=True,
        )


def stop(workspace: Path) -> None:
    """End all processes of a workspace, the parent's first: they are asked to, and after some seconds killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in found(workspace):
            with suppress(ProcessLookupError):
                os.kill(process, number)
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if not found(workspace):
                return
            time.sleep(0.05)


def found(workspace: Path) -> list[int]:
    """Ids of the processes of a workspace, the parent's first, then those of jobs."""
    return [process for _, process in _roles(workspace)]


def parent(workspace: Path) -> int | None:
    """Id of the server or client of a workspace, None where it does not run."""
    return next((process for is_job, process in _roles(workspace) if not is_job), None)


def _roles(workspace: Path) -> list[tuple[bool, int]]:
    """Whether it is a job's, and its id, of each process of a workspace; NVFlare names the workspace in commands."""
    root, roles = workspace.resolve(), []
    for process, words in _commands():
        modules = [w for w in words if w.startswith("nvflare.private.fed.app.")]
        if modules and str(root) in words:
            roles.append((not modules[0].endswith(_PARENTS), process))
        elif str(root / _SCRIPT) in words:
            roles.append((False, process))  # it is about to become the parent
    return sorted(roles)


def _commands() -> list[tuple[int, list[str]]]:
    """Id and words of the command of each process that has one (those that have ended do not)."""
    folder = Path("/proc")
    if not (folder / "self/cmdline").exists():
        command = ["/bin/ps", "-axww", "-o", "pid=,command="]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603
        return [(int(line.split()[0]), line.split()[1:]) for line in lines]
    read = []
    for entry in folder.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                read.append((int(entry.name), words))
    return read
