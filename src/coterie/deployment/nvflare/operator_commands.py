"""A federation over NVFlare: its certificates, its processes, and runs that go on after anything was killed.

NVFlare's logs are ``nvflare/log.txt`` in each member's folder, and ``nvflare/<job>/log.txt`` for a job; the server's
names those that were refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coterie import files
from coterie.deployment import certificates, membership, processes
from coterie.deployment.coordinator.run_toml import digest
from coterie.deployment.federation_toml import COORDINATOR, Config
from coterie.deployment.logs import AGAIN, RunLog, recent
from coterie.deployment.nvflare import provisioning
from coterie.deployment.nvflare.job import LOCK, CoordinatorJob, Outcome, SiteJob, held
from coterie.deployment.nvflare.server_session import AwayError, ServerSession
from coterie.deployment.nvflare.transport import JobEndedError
from coterie.engines.retry_and_quorum import BelowQuorum
from coterie.errors import CoterieError, listed

T = TypeVar("T")
KEY, ROOT = f"{provisioning.WORKSPACE}/startup/client.key", f"{provisioning.WORKSPACE}/startup/rootCA.pem"
new_key = certificates.rsa_key
_SCRIPT = "startup/sub_start.sh"
_PARENTS = ("server_train", "client_train")
PATIENCE = 60.0  # seconds that the server may be away
_REFUSED = timedelta(seconds=12)  # in which a site that is refused has come again: its client does within ten

_RESTARTS = 3  # jobs in a row that may end without a new exchange
_START = 60.0  # seconds for the server to listen, and for a job to begin
_AGAIN = ("", BelowQuorum.__name__, JobEndedError.__name__)  # errors after which another job may do better
_ENDING = 5.0  # seconds for processes to end by themselves
_FREE = 5.0  # seconds for a port to become free
_LOOK = 1.0  # seconds between questions to the server
_CHECK = 5.0  # seconds between questions to the sites whether they still have the job


def init(folder: Path, config: Config, at_home: Sequence[str] = ()) -> None:
    """Make NVFlare's certificates, keys and settings in ``coordinator/`` and ``sites/<name>/``.

    What it keeps to sign certificates of sites that join later is in ``authority/``. No keys are made of sites
    ``at_home``.
    """
    provisioning.provision(folder.resolve(), config.name, config.host, config.port, config.sites, at_home)


def admit(folder: Path, config: Config, site: str, csr: Any) -> dict[str, str]:
    """Sign a site's request, and let it in where it was expelled; what it is to install."""
    made = provisioning.signed(folder, config.name, site, csr.public_key())
    _bar(folder / COORDINATOR, site, False)
    return {f"{provisioning.WORKSPACE}/startup/{name}": text for name, text in made.items()}


def expel(folder: Path, site: str) -> None:
    """Let a site's client in no more. NVFlare refuses it by its name, whatever certificate it shows."""
    _bar(folder, site, True)


def renew(folder: Path) -> None:
    """Make the certificates of a federation's coordinator and of its operator anew."""
    cert, key = provisioning.authority(folder, Config.read(folder).name)
    for path in _own_certificates(folder / COORDINATOR):
        certificates.renew(path, cert, key, provisioning.DAYS)


def _own_certificates(home: Path) -> list[Path]:
    startup = home / provisioning.WORKSPACE / "startup"
    found = [home / provisioning.CONSOLE / "startup/client.crt", startup / "server.crt", startup / "client.crt"]
    return [path for path in found if path.exists()]


def ends(folder: Path) -> datetime | None:
    """When the first of a coordinator's or a site's own certificates ends."""
    return min(filter(None, map(certificates.ends, _own_certificates(folder))), default=None)


def _bar(folder: Path, site: str, barred: bool) -> None:
    """Tell the server which sites it refuses by name: where it runs by its console, and for its next start."""
    path = folder / provisioning.WORKSPACE / "disabled_clients.json"
    if parent(folder / provisioning.WORKSPACE) is not None:
        with ServerSession(provisioning.console(folder)) as session:
            session.bar(site, barred)
        return
    before = json.loads(path.read_text())["disabled_clients"] if path.exists() else []
    after = sorted({*before, site} if barred else {*before} - {site})
    if after != before:
        files.write(path, [json.dumps({"disabled_clients": after}).encode()], mode=0o600)


def start_coordinator(folder: Path) -> subprocess.Popen[bytes]:
    """Start the server in a coordinator's folder, and wait until it listens."""
    workspace, config = folder.resolve() / provisioning.WORKSPACE, Config.read(folder)
    if parent(workspace) is None:
        processes.need_free_port(config.port, _FREE)  # a server that was killed a moment ago may still hold it
        # who asked whether it listens counts once a server: two starts in minutes are no two sites that are refused
        (workspace / provisioning.REFUSED).unlink(missing_ok=True)
    certificates.need_valid(workspace / "startup/server.crt")
    provisioning.settle(workspace)
    process = start(workspace)
    if not processes.await_ready(process, partial(processes.listens, config.host, config.port), _START):
        stop(folder)
        raise CoterieError(f"The coordinator did not start: {workspace / 'console.log'} says why.")
    return process


def start_site(folder: Path) -> subprocess.Popen[bytes]:
    """Start the client in a site's folder; it connects by itself, and again after the server was away."""
    workspace = folder.resolve() / provisioning.WORKSPACE
    provisioning.settle(workspace)
    return start(workspace)


def need_trust(folder: Path) -> None:
    """A CoterieError where certificates of a folder have ended, or a site and its coordinator do not trust each other.

    At a coordinator that is also said of handshakes that failed in the last minutes.
    """
    workspace, config = folder.resolve() / provisioning.WORKSPACE, Config.read(folder)
    startup = workspace / "startup"
    if (own := startup / "server.crt").exists():
        certificates.need_valid(own)
        if refused := provisioning.refused(workspace):
            raise CoterieError(refused)
    else:
        certificates.need_valid(own := startup / "client.crt")
        if (told := recent(workspace / "log.txt", "registration rejected: ")) and (
            told[-1][0].timestamp() > own.stat().st_mtime
        ):
            raise CoterieError(
                f"The coordinator does not let this site in ({told[-1][1]}): if its key was revoked, ask for another "
                "('coterie federation request')."
            )
        pair = own, own.with_suffix(".key")
        certificates.need_trust(config.host, config.port, startup / "rootCA.pem", pair)


def start(workspace: Path) -> subprocess.Popen[bytes]:
    """Start the server or client of a workspace by its own script; what it prints goes to ``console.log`` in it."""
    processes.need_stopped(workspace.parent, parent(workspace))
    stop(workspace.parent)  # jobs whose parent was killed
    script = workspace.resolve() / _SCRIPT
    if not script.is_file():
        raise CoterieError(f"{workspace.parent} has no {script.name} of NVFlare: make it with federation init.")
    here = str(Path(sys.executable).parent)  # the script runs the first python3 it finds
    environment = {k: v for k, v in os.environ.items() if k != "NVFL_WORKSPACE"}
    if (workspace / "startup/fed_server.json").exists():
        environment["PYTHONASYNCIODEBUG"] = "1"  # a handshake that failed is told in this mode alone
    environment["PATH"] = os.pathsep.join([here, environment.get("PATH", "")])
    command = ["/usr/bin/env", "bash", str(script), "--once"]
    return processes.start(command, workspace / "console.log", environment, workspace)


def found(workspace: Path) -> list[int]:
    """Ids of the processes of a workspace, the parent's first, then those of jobs."""
    return [pid for _, pid in _roles(workspace)]


def parent(workspace: Path) -> int | None:
    """Id of the server or client of a workspace, None where it does not run."""
    return next((pid for is_job, pid in _roles(workspace) if not is_job), None)


def _roles(workspace: Path) -> list[tuple[bool, int]]:
    """Whether it is a job's, and its id, of each process of a workspace; NVFlare names the workspace in commands."""
    root, roles = workspace.resolve(), []
    for process in processes.running():
        modules = [w for w in process.words if w.startswith("nvflare.private.fed.app.")]
        if modules and str(root) in process.words:
            roles.append((not modules[0].endswith(_PARENTS), process.pid))
        elif str(root / _SCRIPT) in process.words:
            roles.append((False, process.pid))  # it is about to become the parent
    return sorted(roles)


def stop(folder: Path) -> None:
    """End all processes of a coordinator's or site's folder, within about ten seconds."""
    processes.end(partial(found, folder.resolve() / provisioning.WORKSPACE), _ENDING)


def status(folder: Path) -> dict[str, Any]:
    """What runs in a folder; jobs have "job_id", "job_name" and "status", the newest first."""
    folder = folder.resolve()
    running = parent(folder / provisioning.WORKSPACE)
    found: dict[str, Any] = {"running": running is not None, "pid": running}
    if not (folder / provisioning.CONSOLE).exists():
        return found
    found |= {"sites": dict.fromkeys(Config.read(folder).sites, "offline"), "jobs": []}
    if running is not None:
        with ServerSession(provisioning.console(folder)) as session:
            connected, answering = session.sites(), session.answering()
            for name in found["sites"].keys() & connected:
                silent = f"does not answer, last heard of {max(time.time() - connected[name], 0.0):.0f} s ago"
                found["sites"][name] = "online" if name in answering else silent
            found["jobs"] = session.jobs()
    return found


def run(folder: Path, run_id: str, timeout: float) -> None:
    """Run a program at the coordinator as a job of NVFlare, and wait for its end.

    A job that is killed, or that ends because too few sites answered, is followed by another on the same journal. So is
    one that a site has lost, whose client was started again: NVFlare takes no site back into a running job, which is
    ended as soon as the site answers without it. A job waits for the sites for a minute, then goes on
    with those that are there, or says who is not where ``min_clients`` is "all". Three jobs in a row without a new
    exchange end the run.
    """
    from coterie.deployment.coordinator.run import waits

    config, home, (whole, patience) = Config.read(folder), folder / "runs" / run_id, waits(folder, run_id)
    coordinator = partial(CoordinatorJob, digest=digest(folder, run_id))
    try:
        carry_out(folder, run_id, timeout, coordinator, SiteJob, whole, patience)
    except BelowQuorum as problem:
        RunLog(home, config.sites).end("below quorum", str(problem))
        raise


def carry_out(
    folder: Path, run_id: str, timeout: float, server: Callable[..., Any], site: type[Any], whole: bool = False,
    patience: float = processes.PATIENCE,
) -> None:  # fmt: skip
    """As :func:`run`, with the classes of the two sides of the job, whether it needs all sites, and waits for them."""
    folder = folder.resolve()
    path = folder / "runs" / run_id
    if parent(workspace := folder / provisioning.WORKSPACE) is None:
        raise processes.not_running(folder)
    end, idle, seen, why = time.monotonic() + timeout, 0, -1, ""
    refused = partial(provisioning.refused, workspace)
    with ServerSession(provisioning.console(folder)) as session:
        connected = partial(_ask_until_answered, session.answering, end)
        while True:
            outcome = Outcome.read(path)
            if outcome is not None and outcome.state == "running" and held(path / LOCK):
                job = outcome.job  # of an earlier command
            else:
                session.abort_all(run_id)
                names = membership.wanted(folder, run_id)  # who belongs now: a site may have left since the last job
                wait = min(patience, end - time.monotonic())
                there = processes.gathered(names, connected, wait, whole, refused, partial(refused, _REFUSED), _LOOK)
                if why:
                    RunLog(path, names).end(AGAIN, why)
                sides = server(run_id, names), site(run_id)
                job = _ask_until_answered(lambda: session.submit(run_id, *sides, there), end)  # noqa: B023
            outcome = _follow(session, job, path, end)
            if outcome.state == "finished":
                return
            if outcome.state == "late":
                session.abort_all(run_id)
                raise processes.late(folder, run_id, timeout)
            if outcome.error not in _AGAIN:
                raise CoterieError(f"Run {run_id!r} failed: {outcome.message}")
            number = int(RunLog(path).status["exchange"])
            idle, seen = (0 if number > seen else idle + 1), number
            why = outcome.message or "A process of its job has died."
            if idle >= _RESTARTS:
                raise BelowQuorum(outcome.message or f"Run {run_id!r} does not get on: run it again to try again.")


def _follow(session: ServerSession, job: str, run: Path, end: float) -> Outcome:
    """Wait for the end of a job and say what came of it; "lost" where it was killed, "late" where the time is over.

    Its file and its lock tell, not NVFlare: a killed server may never learn of the end of its jobs. A job that a site
    has lost is ended.
    """
    begin, look, check, why = time.monotonic() + _START, 0.0, time.monotonic() + _CHECK, ""
    while time.monotonic() < end:
        lives = held(run / LOCK)  # before the file is read: who let go of the lock has written it
        outcome = Outcome.read(run)
        if outcome is not None and outcome.job == job:
            if outcome.state != "running":
                return replace(outcome, message=why) if why and outcome.error in _AGAIN else outcome
            if not lives:
                return Outcome(job, "lost", message=why)
        elif time.monotonic() > look:
            if time.monotonic() > begin or session.ended(_ask_until_answered(lambda: session.status(job), end)):
                said = f"Job {job} did not begin: {provisioning.WORKSPACE}/log.txt may say why."
                return Outcome(job, "lost", message=why or said)
            look = time.monotonic() + _LOOK
        if time.monotonic() > check:
            why = _ended_without(session, job) or why
            check = time.monotonic() + _CHECK
        time.sleep(0.1)
    return Outcome(job, "late")


def _ended_without(session: ServerSession, job: str) -> str:
    """End a job that a site has lost, and say which site; nothing if none has."""
    with suppress(CoterieError):
        if sites := session.without(job):
            session.abort(job)
            return (
                f"Without the job: {listed(sites)}. Its client there was started again, or its process died, and "
                "NVFlare takes no site back into a running job."
            )
    return ""


def _ask_until_answered(question: Callable[[], T], end: float) -> T:
    """Ask until the server answers; an AwayError if it does not for some time."""
    last = min(end, time.monotonic() + PATIENCE)
    while True:
        try:
            return question()
        except AwayError:
            if time.monotonic() > last:
                raise
            time.sleep(_LOOK)
