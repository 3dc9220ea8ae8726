"""A federation over Flower: folders with certificates and keys, processes, runs.

A coordinator is a SuperLink behind a gate (:mod:`coterie.deployment.flower.gate`); a site is a SuperNode with a key of
its own. Both are kept alive by one supervising process each (:mod:`coterie.deployment.flower.supervisor`), which these
functions start and end by its number. Logs are in ``flower/`` within each folder: ``log.txt`` says what started, ended
or was refused, the other ``.txt`` files are what Flower's own processes print.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from coterie.deployment import certificates, processes
from coterie.deployment.coordinator.run_toml import digest
from coterie.deployment.federation_toml import COORDINATOR, Config
from coterie.deployment.flower import supervisor
from coterie.deployment.flower.supervisor import FILES, LOG, MARK, PID, READY
from coterie.deployment.logs import recent
from coterie.errors import CoterieError

KEY, ROOT = f"{FILES}/node.key", f"{FILES}/ca.crt"
new_key = certificates.ssh_key
_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "coterie-app"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"

[tool.flwr.app.config]
run = ""
"""
_PART = "from coterie.deployment.flower.app import {0}\n\napp = {0}()\n"
_START = 90.0  # seconds for a coordinator to come up
_PATIENCE = 20.0  # seconds for a supervising process to end the others
_LOOK = 3.0  # seconds between looks whether processes live
_FRESH = timedelta(seconds=40)  # since a process of a site ended, that is still so: it is started again within ten


def init(folder: Path, config: Config, at_home: Sequence[str] = (), *, days: float = 365.0) -> None:
    """Write certificates and keys into ``folder``/coordinator and ``folder``/sites/<name>, for their owners alone.

    An authority (``folder``/authority: keep it away from both), the coordinator's certificate, and for each site but
    those ``at_home`` a key, EC P-384, whose public half the coordinator gets. Certificates hold for ``days``, that of
    the authority ten times as long.
    """
    authority, files = folder / "authority", folder / COORDINATOR / FILES
    certificates.authority(authority, config.name, 10.0 * days)
    if not (files / "server.key").exists():
        certificates.certificate(authority, files / "server", config.host, days)
    _write_once(files / "secret", secrets.token_bytes(32))
    _write_once(files / "app" / "pyproject.toml", _PROJECT.encode())
    for part in ("client", "server"):
        _write_once(files / "app" / f"{part}.py", _PART.format(part).encode())
    ca = (authority / "ca.crt").read_bytes()
    _write_once(files / "ca.crt", ca)
    (files / "nodes").mkdir(mode=0o700, exist_ok=True)
    for name in config.sites:
        own = folder / "sites" / name / FILES
        _write_once(own / "ca.crt", ca)
        if not (own / "node.key").exists() and name not in at_home:
            _write_once(own / "secret", secrets.token_bytes(32))
            certificates.node_key(own / "node.key", files / "nodes" / f"{name}.pub")


def admit(folder: Path, config: Config, site: str, csr: Any) -> dict[str, str]:
    """Register the key of a site's request, in the place of an earlier one; what the site is to install."""
    home, key = folder.resolve() / COORDINATOR, certificates.openssh(certificates.public(csr))
    path = home / FILES / "nodes" / f"{site}.pub"
    if not path.exists() or path.read_bytes() != key:
        expel(home, site)
        certificates.private(path, key)  # from here on the gate lets it through
        if (home / FILES / READY).exists():
            supervisor.register(home)
    return {ROOT: (folder / "authority" / "ca.crt").read_text()}


def expel(folder: Path, site: str) -> None:
    """Let a site's key through the gate no more, from now on."""
    files, known = folder.resolve() / FILES, supervisor.nodes(folder.resolve())
    (files / "nodes" / f"{site}.pub").unlink(missing_ok=True)
    if (number := known.pop(site, None)) is None:
        return
    certificates.private(files / "nodes.json", json.dumps(known).encode())
    if (files / READY).exists():
        supervisor.flwr(folder.resolve(), "supernode", "unregister", str(number))


def renew(folder: Path) -> None:
    """Make the certificate of a federation's coordinator anew."""
    authority = folder / "authority"
    cert, key = certificates.load_authority(authority)
    certificates.renew(folder / COORDINATOR / FILES / "server.crt", cert, key, 365.0)


def ends(folder: Path) -> datetime | None:
    """When the first of a coordinator's or a site's certificates ends."""
    found = (certificates.ends(folder / FILES / name) for name in ("server.crt", "ca.crt"))
    return min(filter(None, found), default=None)


def start_coordinator(folder: Path) -> subprocess.Popen[bytes]:
    """Start the coordinator of ``folder`` and wait until sites can connect."""
    folder = folder.resolve()
    config = Config.read(folder)
    files = folder / FILES
    certificates.need_valid(files / "server.crt")
    (files / READY).unlink(missing_ok=True)
    process = _start("coordinator", folder)
    if not processes.await_ready(process, (files / READY).exists, _START):
        stop(folder)
        process.wait()
        lines = (files / LOG).read_text(errors="replace").splitlines() if (files / LOG).exists() else []
        said = lines[-1] if lines else f"see {files / LOG}."
        raise CoterieError(f"The coordinator at {config.host}:{config.port} did not start: {said}")
    return process


def start_site(folder: Path) -> subprocess.Popen[bytes]:
    """Start the site of ``folder``; it connects when the coordinator is there, again and again."""
    folder = folder.resolve()
    certificates.need_valid(folder / FILES / "ca.crt")
    _write_once(folder / FILES / "secret", secrets.token_bytes(32))
    return _start("site", folder)


def need_trust(folder: Path) -> None:
    """A CoterieError where certificates of a folder have ended, or site and coordinator do not trust each other."""
    own, config = folder.resolve() / FILES, Config.read(folder)
    certificates.need_valid(own / "ca.crt")
    if (own / "server.crt").exists():
        certificates.need_valid(own / "server.crt")
        if strangers := supervisor.refused(own / LOG):
            raise CoterieError(strangers)
    else:
        ended = recent(own / LOG, "supernode ended with ") if _running(folder.resolve()) is not None else []
        if ended and datetime.now() - ended[-1][0] < _FRESH:
            raise CoterieError(f"The site's process ended with {ended[-1][1]}.")
        certificates.need_trust(config.host, config.port, own / "ca.crt")


def run(folder: Path, run_id: str, timeout: float) -> None:
    """Start the program of ``folder``/runs/<run_id> as a job of Flower and wait for its end."""
    folder = folder.resolve()
    mark = folder / "runs" / run_id / MARK
    _need_running(folder)
    end = time.monotonic() + timeout
    job = _begin(folder, run_id, mark)
    looked = time.monotonic()
    while True:
        time.sleep(0.1)
        state, now = _read(mark), time.monotonic()
        if str(state.get("job")) != job or "pid" not in state:
            state = {}  # another job's program, which has yet to end
        if state.get("state") == "finished":
            return
        if state.get("state") == "failed":
            raise CoterieError(str(state["error"]))
        if now > end:
            with suppress(CoterieError):
                supervisor.flwr(folder, "stop", job)
            raise processes.late(folder, run_id, timeout)
        if now - looked > _LOOK:
            looked = now
            _need_running(folder)
            if not state:
                _need_begun(folder, run_id, job, mark)
            if state and not processes.alive(int(state["pid"])) and _read(mark) == state:
                raise CoterieError(f"The program of run {run_id} was ended from outside: run it again to go on.")


def _begin(folder: Path, run_id: str, mark: Path) -> str:
    """Start the job of a run; a SuperLink that was killed may have an earlier one yet to go on with, which ends."""
    if (before := _read(mark).get("job")) is not None:
        with suppress(CoterieError):
            supervisor.flwr(folder, "stop", str(before))
    mark.unlink(missing_ok=True)
    said = f"{run_id} {digest(folder, run_id)}".strip()
    job = str(supervisor.flwr(folder, "run", str(folder / FILES / "app"), "--run-config", f'run="{said}"')["run-id"])
    if not mark.exists():
        certificates.private(mark, json.dumps({"job": job}).encode())
    return job


def status(folder: Path) -> dict[str, Any]:
    """What runs in a coordinator's or site's folder; sites may be "registered", too."""
    folder = folder.resolve()
    pid = _running(folder)
    found: dict[str, Any] = {"running": pid is not None, "pid": pid}
    if not (folder / FILES / "nodes").exists():
        return found
    known = {number: name for name, number in supervisor.nodes(folder).items()}
    found |= {"sites": dict.fromkeys(Config.read(folder).sites, "offline"), "jobs": []}
    if pid is not None and (folder / FILES / READY).exists():
        for node in supervisor.flwr(folder, "supernode", "list")["nodes"]:
            if (name := known.get(int(node["node-id"]))) is not None:
                found["sites"][name] = node["status"]
        found["jobs"] = supervisor.flwr(folder, "list")["runs"]
    return found


def stop(folder: Path) -> None:
    """End the coordinator or site of ``folder`` with all its processes; nothing happens where none runs."""
    folder = folder.resolve()
    _end(folder)
    (folder / FILES / PID).unlink(missing_ok=True)


def _start(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    supervisor.program("flower-superlink")
    processes.need_stopped(folder, _running(folder))
    _end(folder)
    command = [sys.executable, "-m", "coterie.deployment.flower.supervisor", kind, str(folder)]
    process = processes.start(command, folder / FILES / "supervisor.txt", supervisor.environment(folder))
    certificates.private(folder / FILES / PID, str(process.pid).encode())
    return process


def _running(folder: Path) -> int | None:
    pid = _pid(folder)
    return pid if pid is not None and _group(folder)[:1] == [pid] else None


def _group(folder: Path) -> list[int]:
    """The processes of the supervising one's group, itself first; none unless one of them names the folder."""
    leader = _pid(folder)
    found = [p for p in processes.running() if p.group == leader] if leader is not None else []
    ours = any(str(folder) in " ".join(p.words) for p in found)
    return sorted((p.pid for p in found), key=lambda pid: pid != leader) if ours else []


def _end(folder: Path) -> None:
    """End the supervising process, which ends the others, and what is left of them where it is gone."""
    processes.end(lambda: _group(folder), _PATIENCE if _running(folder) is not None else 0.0, asked=1)


def _pid(folder: Path) -> int | None:
    with suppress(FileNotFoundError, ValueError):
        return int((folder / FILES / PID).read_text())
    return None


def _need_running(folder: Path) -> None:
    pid = _read(folder / FILES / READY).get("pid")
    if pid is None or not processes.alive(int(pid)):
        raise processes.not_running(folder)


def _need_begun(folder: Path, run_id: str, job: str, mark: Path) -> None:
    found = supervisor.flwr(folder, "list", "--run-id", job)["runs"][0]
    if found["status"].startswith("finished") and "pid" not in _read(mark):  # else it began, and ended, since
        said = found["status-details"]
        raise CoterieError(f"Run {run_id} did not begin ({said}): see `flwr log {job}` or {folder / FILES}.")


def _read(path: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError):
        return dict(json.loads(path.read_text()))
    return {}


def _write_once(path: Path, data: bytes) -> None:
    if not path.exists():
        certificates.private(path, data)
