"""What a Flower coordinator or site runs: its processes, started again when they are killed, until it is told to stop.

Run as ``python -m coterie.deployment.flower.supervisor coordinator|site FOLDER``;
:mod:`coterie.deployment.flower.operator_commands` does so.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import math
import os
import signal
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from coterie.deployment import toml_files
from coterie.deployment.certificates import private
from coterie.deployment.federation_toml import SITE, Config
from coterie.deployment.logs import recent
from coterie.deployment.processes import LOOPBACK, Child, await_ready, free_port, tend
from coterie.errors import CoterieError, plural

FILES = "flower"  # folder of all that Flower needs, within a coordinator's or a site's
READY, PID, LOG, MARK = "ready.json", "pid", "log.txt", "flower.json"
"""A coordinator that is ready, a process, its log; and, in a run's folder, how far Flower's part of it is."""
UNSIGNED = "not signed with the key of a site"
_START = 60.0  # seconds for a SuperLink to come up
log = logging.getLogger("coterie.flower")


def refused(log: Path) -> str:
    """What to say of calls that a coordinator's gate has refused in the last seconds; "" where there are none.

    A site whose key is not known starts again, and calls, every twenty seconds.
    """
    found = [when for when, said in recent(log, " WARNING refused ") if UNSIGNED in said]
    if not found or datetime.now() - found[-1] > timedelta(seconds=40):
        return ""
    return (
        f"{plural(len(found), 'call')} with an unknown key were refused in the last 3 minutes, the last at "
        f"{found[-1]:%H:%M:%S}: where that is a site, give it its own folder of this federation again."
    )


def program(name: str) -> str:
    """Path of a program of flwr; a CoterieError if it is not installed beside this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise CoterieError("Flower is not installed here: pip install 'coterie[flower]'.")
    return str(path)


def environment(folder: Path) -> dict[str, str]:
    """Environment of all Flower processes of a coordinator or site: nothing is reported, checked or installed."""
    home = folder / FILES / "home"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A client's process lives for one message: it would compile anew all that it imports, which takes seconds.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return own | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # A site's client processes start once a message; a coordinator's programs once a run.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25" if (folder / SITE).exists() else "1.0",
        "COTERIE_FOLDER": str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "NO_COLOR": "1",
    }


def serve(kind: str, folder: Path) -> None:
    """Run a coordinator's or site's processes until SIGTERM or SIGINT."""
    files = folder / FILES
    handler = logging.handlers.RotatingFileHandler(files / LOG, maxBytes=1_000_000, backupCount=3, encoding="utf-8")
    logging.basicConfig(level=logging.INFO, handlers=[handler], format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    gate = Coordinator(folder) if kind == "coordinator" else None
    children = _site(folder) if gate is None else gate.children
    try:
        # The main thread starts the children, since the kernel ends them with the thread that did.
        while not stop.wait(0.1):
            # As one at a site: a SuperNode waits for ever for the answer to what it has given to a starter that died.
            tend(children, as_one=gate is None)
            if gate is not None and gate.failed:
                log.error("%s", gate.failed)
                raise SystemExit(1)
    finally:
        if gate is not None:
            gate.close()
        for child in reversed(children):
            child.end()
        (files / READY).unlink(missing_ok=True)
        (files / PID).unlink(missing_ok=True)
        log.info("ended")


def _children(folder: Path, **arguments: list[str]) -> list[Child]:
    """Processes of the programs ``flower-<name>``, which know each other by a secret."""
    secret = "--superexec-auth-secret-file", str(folder / FILES / "secret")
    return [
        Child(name, [program(f"flower-{name}"), *given, *secret], folder / FILES, environment(folder), _exit_reason)
        for name, given in arguments.items()
    ]


def _exit_reason(printed: str) -> str:
    _, found, reason = printed.rpartition("Exit Code: ")
    return " ".join(reason.splitlines()[1:3]) if found else ""


def _site(folder: Path) -> list[Child]:
    """A site's processes: the SuperNode, and the one that starts its client processes."""
    config, files, port = Config.read(folder), folder / FILES, str(free_port())
    node = [
        *("--superlink", f"{config.host}:{config.port}", "--root-certificates", str(files / "ca.crt")),
        *("--auth-supernode-private-key", str(files / "node.key")),
        *("--host", LOOPBACK, "--port", port, "--isolation", "process"),
    ]
    starter = ["--runtime-api-address", f"{LOOPBACK}:{port}", "--insecure", "--parent-pid", str(os.getpid())]
    return _children(folder, supernode=node, superexec=starter)


class Coordinator:
    """A coordinator's processes: the SuperLink on this machine alone, what starts programs, and the gate for sites."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files, self._config = folder, folder / FILES, Config.read(folder)
        self._port = free_port()
        self._server: Any = None
        self.failed = ""
        files = self._files
        link = [
            *("--host", LOOPBACK, "--port", str(self._port), "--ssl-ca-certfile", str(files / "ca.crt")),
            *("--ssl-certfile", str(files / "server.crt"), "--ssl-keyfile", str(files / "server.key")),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--isolation", "process", "--database", str(files / "state.db")),
        ]
        starter = [
            *("--runtime-api-address", f"{LOOPBACK}:{self._port}", "--root-certificates", str(files / "ca.crt")),
            *("--parent-pid", str(os.getpid())),
        ]
        self.children = _children(folder, superlink=link, superexec=starter)
        threading.Thread(target=self._open, daemon=True).start()

    def _open(self) -> None:
        """When the SuperLink is up: register the sites' keys, then open the gate."""
        from coterie.deployment.flower.gate import Gate, server

        try:
            address = f"https://{LOOPBACK}:{self._port}"
            superlink = self.children[0]
            await_ready(None, lambda: bool(superlink.failing) or self._healthy(address), _START)
            if superlink.failing or not self._healthy(address):
                raise CoterieError(f"The SuperLink does not come up ({superlink.failing}): see superlink.txt.")
            link = {"address": f"{LOOPBACK}:{self._port}", "root-certificates": str(self._files / "ca.crt")}
            known = toml_files.text({"superlink": {"default": "coterie", "coterie": link}})  # to Flower's command line
            private(self._files / "home" / "config.toml", known.encode())
            register(self._folder)
            gate = Gate(address, self._files / "ca.crt", self._files / "nodes")
            self._server = server(gate, self._config.host, self._config.port, self._files / "server")
            threading.Thread(target=self._say_ready, daemon=True).start()
            self._server.run()
            self.failed = f"the gate at {self._config.host}:{self._config.port} ended"
        except SystemExit:
            self.failed = f"port {self._config.port} of {self._config.host} cannot be opened: is it in use?"
        except Exception as problem:
            self.failed = f"{problem}"

    def _healthy(self, address: str) -> bool:
        context = ssl.create_default_context(cafile=str(self._files / "ca.crt"))
        with suppress(OSError), urlopen(f"{address}/health", timeout=5.0, context=context):  # noqa: S310 (https)
            return True
        return False

    def _say_ready(self) -> None:
        await_ready(None, lambda: self._server.started, math.inf)
        private(self._files / READY, json.dumps({"pid": os.getpid(), "port": self._port}).encode())
        log.info("sites are served at %s:%d", self._config.host, self._config.port)

    def close(self) -> None:
        """Close the gate."""
        if self._server is not None:
            self._server.should_exit = True


def flwr(folder: Path, *arguments: str, timeout: float = 60.0) -> dict[str, Any]:
    """What Flower's command line says, as JSON; a CoterieError with its own words if it refuses."""
    command = [program("flwr"), *arguments, "--format", "json"]
    try:
        done = subprocess.run(  # noqa: S603
            command, env=environment(folder), cwd=folder / FILES, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise CoterieError(f"Flower does not answer within {timeout:g} s: see {folder / FILES / LOG}.") from None
    try:
        found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        found = {"success": False, "error-message": f"{done.stdout} {done.stderr}"}
    if not found.get("success"):
        text = " ".join(str(found.get("error-message", found)).split())
        raise CoterieError(f"Flower refused '{arguments[0]}': {text}")
    return found


def register(folder: Path) -> None:
    """Register the keys of all sites under their names, unless this was done; kept in ``nodes.json``."""
    files = folder / FILES
    known = nodes(folder) if (files / "state.db").exists() else {}
    public = {path.stem: path for path in sorted((files / "nodes").glob("*.pub")) if path.stem not in known}

    def one(name: str) -> int:
        return int(flwr(folder, "supernode", "register", str(public[name]), "--name", name)["node-id"])

    with ThreadPoolExecutor(4) as pool:
        for name, number in zip(public, pool.map(one, public), strict=True):
            known[name] = number
            private(files / "nodes.json", json.dumps(known).encode())
            log.info("site %s is node %d", name, number)


def nodes(folder: Path) -> dict[str, int]:
    """Node number of each registered site."""
    path = folder / FILES / "nodes.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
