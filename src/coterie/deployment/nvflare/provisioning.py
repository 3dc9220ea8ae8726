"""NVFlare's own certificates and configuration, for one federation: its official provisioning, then stricter settings.

A member's folder gets a workspace of NVFlare, ``nvflare/``; the coordinator's gets the operator's too,
``nvflare-admin/``. What provisioning keeps for sites that join later (the key that signs certificates) stays in the
federation's ``authority/``, which is copied nowhere. The server logs who was refused at its port in a file of its own:
without it a failed TLS handshake leaves no trace there.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.utils import Identity, generate_cert

from coterie import files
from coterie.deployment.logs import RECENT, recent
from coterie.deployment.nvflare.server_session import ADMIN
from coterie.errors import CoterieError, fitting, plural

SERVER = "coordinator"
WORKSPACE, CONSOLE = "nvflare", "nvflare-admin"
CLASSES = ["nvflare.collab.runtime.", "coterie.deployment.nvflare.job."]
"""The only classes a job may name: no job can bring code of its own to a member."""

DAYS = 365  # that a certificate holds which is signed or renewed here
_PATIENCE = 120  # seconds in which NVFlare must have made the certificates
_LIVENESS = 60  # seconds without a heartbeat until NVFlare takes a site for gone
_BUILDERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("workspace.WorkspaceBuilder", {}),
    ("static_file.StaticFileBuilder", {"config_folder": "config", "scheme": "http"}),
    ("cert.CertBuilder", {"root_valid_days": 3650}),
    ("signature.SignatureBuilder", {}),
)


def provision(folder: Path, name: str, host: str, port: int, sites: Sequence[str], at_home: Sequence[str] = ()) -> None:
    """Make the workspaces of a federation in ``folder``, with certificates for every member but those ``at_home``.

    It gets ``coordinator/``, ``sites/<name>/`` and ``authority/``; members that are there keep their certificates.
    Sites reach the coordinator at ``host:port``; at a loopback address it listens there alone. A CoterieError says that
    NVFlare refuses a name, or takes too long.
    """
    authority = folder / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    project: dict[str, Any] = {
        "api_version": 3,
        "name": name,
        "description": "a federation of coterie",
        "participants": [
            {"name": SERVER, "type": "server", "fed_learn_port": port, "admin_port": port, "default_host": host},
            *({"name": site, "type": "client"} for site in sites),
            {"name": ADMIN, "type": "admin", "role": "project_admin"},
        ],
        "builders": [{"path": f"nvflare.lighter.impl.{path}", "args": args} for path, args in _BUILDERS],
    }
    certified = next(builder for builder in project["builders"] if builder["path"].endswith(".CertBuilder"))
    certified |= {"path": f"{__name__}.OwnKeys", "args": certified["args"] | {"at_home": list(at_home)}}
    for participant in project["participants"]:
        participant["org"] = "coterie"
    _write(authority / "project.yml", project)  # JSON is YAML
    command = [sys.executable, "-m", "nvflare.cli", "provision", "--force", "-p", "project.yml", "-w", "."]
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=authority, capture_output=True, text=True, timeout=_PATIENCE, umask=0o077
        )
    except subprocess.TimeoutExpired:
        raise CoterieError(
            f"NVFlare did not make the certificates in {_PATIENCE} seconds: run again when this computer is less busy."
        ) from None
    made = sorted((authority / name).glob("prod_*"))
    if done.returncode or not made:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it gave no reason"]
        raise CoterieError(f"NVFlare could not make the certificates: {said[0]}")
    coordinator, target = folder / "coordinator", f"{host}:{port}"
    _install(made[-1] / SERVER, coordinator / WORKSPACE, "fed_server", lambda c: _service(c, target))
    _install(made[-1] / ADMIN, coordinator / CONSOLE, "fed_admin", lambda c: c["admin"].update(host=host, port=port))
    for site in sites:
        _install(made[-1] / site, folder / "sites" / site / WORKSPACE, "fed_client", lambda c: _service(c, target))
    shutil.rmtree(made[-1])
    for place in (authority, *folder.glob(f"*/{WORKSPACE}*"), *folder.glob(f"sites/*/{WORKSPACE}")):
        for path in (place, *place.rglob("*")):  # keys are for their owner alone, whatever made them
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)


class OwnKeys(CertBuilder):
    """NVFlare's certificates, without keys of sites ``at_home``, which make their own."""

    def __init__(self, at_home: Sequence[str], **args: Any) -> None:
        super().__init__(**args)
        self._at_home = frozenset(at_home)

    def _build_write_cert_pair(self, participant: Any, base_name: str, ctx: Any) -> None:
        if participant.type == "client" and participant.name in self._at_home:
            (Path(ctx.get_kit_dir(participant)) / "rootCA.pem").write_bytes(self.serialized_cert)
        else:
            super()._build_write_cert_pair(participant, base_name, ctx)


def authority(folder: Path, name: str) -> tuple[x509.Certificate, Any]:
    """The certificate and the key of a federation's authority."""
    path = folder / "authority" / name / "state" / "cert.json"
    with fitting(f"'{path}'", "Sign where the federation was made, with all of its folder."):
        state = json.loads(path.read_text(encoding="utf-8"))
        root = x509.load_pem_x509_certificate(state["root_cert"].encode())
        return root, serialization.load_pem_private_key(state["root_pri_key"].encode(), None)


def signed(folder: Path, name: str, site: str, key: Any) -> dict[str, str]:
    """The certificate of a site's own public key, and that of the authority, by their names in a workspace."""
    root, root_key = authority(folder, name)
    made = generate_cert(Identity(site, "coterie"), Identity(name), root_key, key, valid_days=DAYS)
    pem = serialization.Encoding.PEM
    return {"client.crt": made.public_bytes(pem).decode(), "rootCA.pem": root.public_bytes(pem).decode()}


def settle(workspace: Path) -> None:
    """Settings of a workspace, written before each start since they hold its place, which may have changed.

    Jobs and snapshots are kept in the coordinator's workspace, not in a temporary folder. Jobs bring no code and name
    no classes but coterie's. No log leaves a site. Logs are files.
    """
    local = workspace / "local"

    def resources(settings: dict[str, Any]) -> None:
        settings |= {"class_allow_list": CLASSES, "allow_log_streaming": False}
        settings["components"] = [c for c in settings["components"] if c["id"] != "site_log_streamer"]
        for component in settings["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = str(workspace / "jobs")
        if "snapshot_persistor" in settings:
            settings["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(workspace / "snapshots")
        for server in settings.get("servers", ()):
            server["heart_beat_timeout"] = _LIVENESS

    def rights(settings: dict[str, Any]) -> None:
        every = dict.fromkeys(("submit_job", "clone_job", "manage_job", "download_job", "view", "operate"), "any")
        none = dict.fromkeys(("shell_commands", "byoc", "server-predeployed-flwr"), "none")
        settings["permissions"] = {"project_admin": every | none}

    def logs(settings: dict[str, Any]) -> None:
        settings["loggers"]["root"]["handlers"] = ["logFileHandler", "errorFileHandler"]
        # Two lines for every message would bury the rest.
        if (workspace / "startup/fed_server.json").exists():
            log_refusals(settings)
        settings["loggers"]["nvflare.collab.runtime.cell_dispatcher"] = {"level": "WARNING"}

    for name, change in (("resources", resources), ("authorization", rights), ("log_config", logs)):
        _change(local / f"{name}.json.default", change, local / f"{name}.json")
    (workspace / "transfer").mkdir(mode=0o700, exist_ok=True)


def console(coordinator: Path) -> Path:
    """The operator's workspace, with its places made absolute."""
    workspace = (coordinator / CONSOLE).resolve()
    transfer = workspace / "transfer"
    if not (workspace / "startup/fed_admin.json").is_file():
        raise CoterieError(f"{coordinator} is no coordinator's folder of NVFlare: make one with federation init.")
    transfer.mkdir(mode=0o700, exist_ok=True)
    place = {"upload_dir": str(transfer), "download_dir": str(transfer)}
    _change(workspace / "startup/fed_admin.json", lambda settings: settings["admin"].update(place))
    return workspace


def _service(settings: dict[str, Any], target: str) -> None:
    """Where the server is; one that is told a loopback address listens there alone."""
    settings["servers"][0]["service"]["target"] = target
    if "admin_port" in settings["servers"][0]:
        settings["servers"][0]["admin_port"] = int(target.rpartition(":")[2])


def _install(made: Path, workspace: Path, name: str, aim: Callable[[dict[str, Any]], None]) -> None:
    """Make a workspace of what was provisioned; one that is there keeps all but where the server is."""
    startup = workspace / "startup"
    if not startup.is_dir():
        workspace.mkdir(parents=True, exist_ok=True)
        shutil.move(made / "local", workspace / "local")
        shutil.move(made / "startup", startup)  # last: it is the mark of a whole workspace
    _change(startup / f"{name}.json", aim)


def _change(source: Path, change: Callable[[dict[str, Any]], None], target: Path | None = None) -> None:
    try:
        settings = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise CoterieError(f"{source} cannot be read ({problem}): make it again with federation init.") from problem
    change(settings)
    _write(target or source, settings)


def _write(path: Path, settings: dict[str, Any]) -> None:
    files.write(path, [json.dumps(settings, indent=1).encode()], mode=0o600, durable=False)  # made again at each start


REFUSED = "refused.txt"


def refused(workspace: Path, within: timedelta = RECENT) -> str:
    """What to say of handshakes that failed at a server's port in the last minutes, the last ``within`` some time.

    It is "" of a single one, or none: a single one is that of who asked whether the server listens.
    """
    found = recent(workspace / REFUSED, " - refused: ")
    if len(found) < 2 or datetime.now() - found[-1][0] > within:
        return ""
    last, why = found[-1]
    return (
        f"{plural(len(found), 'handshake')} failed in the last 3 minutes, the last at {last:%H:%M:%S} ({why}): where "
        "that is a site, its certificate is of another federation or has ended; 'coterie federation status' says at "
        "the site which."
    )


class Refusals(logging.Filter):
    """Lets through what asyncio, in its debug mode, says of connections and of handshakes that failed, in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record, which is shortened."""
        said = record.msg
        if said == "%r got a new connection from %r: %r" and isinstance(record.args, tuple):
            record.msg, record.args = "connection from %s", (record.args[1],)
            return True
        failed = isinstance(record.args, tuple) and any("handshake failed" in str(a) for a in record.args)
        if failed and record.exc_info:
            problem = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
            reason = str(problem) or f"it hung up ({type(problem).__name__})"
            record.msg, record.args, record.exc_info = "refused: %s", (reason,), None
            return True
        return False


def log_refusals(log: dict[str, Any]) -> None:
    """Add the file of those who were refused to NVFlare's log configuration."""
    name = f"{__name__}.{Refusals.__name__}"
    log.setdefault("filters", {})["refusals"] = {"()": name}
    log["handlers"]["refusals"] = {
        "class": "logging.handlers.RotatingFileHandler",
        "level": "DEBUG",
        "formatter": "baseFormatter",
        "filters": ["refusals"],
        "filename": REFUSED,
        "mode": "a",
        "maxBytes": 20_971_520,
        "backupCount": 10,
    }
    log["loggers"]["asyncio"] = {"level": "DEBUG", "handlers": ["refusals"], "propagate": False}
