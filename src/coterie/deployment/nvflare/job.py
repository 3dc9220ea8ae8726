"""What runs inside an NVFlare job: the coordinator's program at the server, a receiver at every site.

How the job of a run ended is in a file, beside a lock that one process alone holds.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.collab import collab

from coterie import files
from coterie.deployment import certificates
from coterie.deployment.membership import Register
from coterie.deployment.nvflare.transport import CollabTransport
from coterie.engines import wire
from coterie.errors import CoterieError

_FILE, LOCK = "job.json", "coordinator.lock"
_WAIT = 30.0  # seconds
_PROOF = b"coterie: this is the key of a site\n"


@dataclass(frozen=True)
class Outcome:
    """What a job made of a run: "running", "finished" or "failed", with type and text of the error that ended it.

    The states "lost" and "late" are no job's own words. ``job`` is NVFlare's number.
    """

    job: str
    state: str
    error: str = ""
    message: str = ""

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """The last outcome in a run's folder, or None."""
        try:
            return cls(**json.loads((run / _FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, run: Path) -> None:
        """Write it whole or not at all."""
        files.write(run / _FILE, [json.dumps(asdict(self)).encode()])


def held(path: Path) -> bool:
    """Whether a living process holds a lock."""
    try:
        with files.locked(path, 0.0, f"{path.name} is held."):
            return False
    except (CoterieError, OSError):
        return path.exists()


def sole(path: Path, wait: float = _WAIT) -> AbstractContextManager[None]:
    """Hold a lock that ends with the process, however it ends; a CoterieError if another holds it for ``wait`` s."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return files.locked(path, wait, f"Another process holds {path.name}: end it, then run again.")


log = logging.getLogger(__name__)


class CoordinatorJob(FLComponent):
    """The server's side of a job: runs the program that ``runs/<id>/run.toml`` names, and writes there how it ended.

    The file must have the ``digest`` that the command saw; ``sites`` are all of the federation, in the job or not.
    """

    def __init__(self, run_id: str, sites: Sequence[str], digest: str = "") -> None:
        super().__init__()
        self.run_id, self.sites, self.digest = run_id, list(sites), digest
        self.refused: dict[str, str] = {}
        self._transport: CollabTransport | None = None

    @collab.main
    def main(self) -> None:
        """Run the program to its end."""
        folder = folder_of(collab.fl_ctx)
        run, job = folder / "runs" / self.run_id, str(collab.fl_ctx.get_job_id())
        run.mkdir(parents=True, exist_ok=True)
        with sole(run / LOCK):
            Outcome(job, "running").write(run)
            self._transport = transport = CollabTransport(collab.clients, self.sites, collab.context.is_aborted)
            try:
                self.refused = unproved(collab.clients, Register.read(folder).keys)
                self.program(transport, folder, self.run_id)
            except Exception as problem:
                Outcome(job, "failed", type(problem).__name__, str(problem)).write(run)
                raise
            finally:
                transport.close()
            Outcome(job, "finished").write(run)

    def program(self, transport: CollabTransport, folder: Path, run_id: str) -> None:
        """What the coordinator does with the sites."""
        from coterie.deployment.coordinator.run import run

        run(transport, folder, run_id, self.digest, self.refused)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Tell the transport which sites NVFlare knows to be gone."""
        if self._transport is None:
            return
        if event_type == EventType.CLIENT_DISCONNECTED:
            self._transport.lost(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME))
        elif event_type == EventType.CLIENT_RECONNECTED:
            self._transport.found(fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME))


class SiteJob:
    """A site's side of a job: one receiver of its own folder, that lives as long as the job's process here."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._lock = threading.Lock()
        self._receive: Callable[[bytes], bytes] | None = None
        self._problem = "it is not ready"

    @collab.init
    def begin(self) -> None:
        """Make the receiver; what goes wrong is answered later, since an error here would end the job of all sites."""
        try:
            folder = folder_of(collab.fl_ctx)
            self._key = folder / "nvflare/startup/client.key"
            # A process of an earlier job of this run, whose parent was killed, ends within seconds.
            self._held = sole(folder / "runs" / f"{self.run_id}.lock")
            self._held.__enter__()
            self._receive = self.receiver(folder)
        except Exception as problem:  # what is wrong with files would tell the coordinator where they are
            log.exception("This site cannot take part in run %s.", self.run_id)
            said = isinstance(problem, CoterieError)
            self._problem = str(problem) if said else f"{type(problem).__name__} (the site's log says more)"

    def receiver(self, folder: Path) -> Callable[[bytes], bytes]:
        """The site's end of the federation."""
        from coterie.deployment.site import receiver

        return receiver.receiver(folder)

    @collab.publish
    def alive(self) -> bool:
        """Answered at once, also while a message is worked on."""
        return True

    @collab.publish
    def prove(self, question: bytes) -> bytes:
        """That this site has the key of its certificate."""
        return certificates.proof(self._key, _PROOF + bytes(question))

    @collab.publish
    def receive(self, data: bytes) -> bytes:
        """Answer one message; a message sent again waits for the first, and gets its stored reply."""
        with self._lock:
            if self._receive is None:
                return wire.encode({"refused": f"Site {collab.site_name!r} cannot take part: {self._problem}"})
            return self._receive(data)


def unproved(clients: Iterable[Any], keys: Mapping[str, str]) -> dict[str, str]:
    """The sites that do not prove to have the key that was signed for them last, and what to do.

    NVFlare lets in whoever has a certificate of the name, an older one too, whose key somebody may have stolen.
    """
    wrong = {}
    for client in clients:
        if (key := keys.get(client.name)) is None:
            continue
        question = os.urandom(32)
        try:
            answer = client(timeout=_WAIT).prove(question)
        except Exception:
            answer = None
        if not certificates.proved(key, _PROOF + question, answer):
            wrong[client.name] = (
                f"Site '{client.name}' does not have the key that was signed for it last: its owner accepts what was "
                "signed and starts it again; if it is a stranger, revoke the site's key."
            )
    return wrong


def folder_of(fl_ctx: FLContext) -> Path:
    """The folder of the coordinator or site: NVFlare's workspace is a folder in it."""
    return Path(fl_ctx.get_workspace().get_root_dir()).resolve().parent
