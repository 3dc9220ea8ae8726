"""What the operator asks of a running NVFlare server: who is connected, which jobs there are, a new job."""

from __future__ import annotations

import io
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from coterie.errors import CoterieError

T = TypeVar("T")
ADMIN = "operator@coterie.local"  # the operator's name in its certificate
_CONNECT = 5.0  # seconds
_ANSWER = 3.0  # seconds a site has to say that it lives, or which jobs it has
_SILENT = "No replies"  # NVFlare's word for a site that did not answer; any other error is an answer
_REFUSED = ("AuthorizationError", "InvalidJobDefinition", "JobNotFound", "JobNotRunning", "InvalidTarget")


class AwayError(CoterieError):
    """The server does not answer."""


class ServerSession:
    """A session with a federation's server, by NVFlare's ``workspace``; a new one after it was away."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._session: Any = None

    def sites(self) -> dict[str, float]:
        """Names of the connected sites, and when each was last heard of, in seconds since 1970."""
        info = self._ask(lambda session: session.get_system_info())
        return {client.name: float(client.last_connect_time) for client in info.client_info}

    def answering(self) -> set[str]:
        """Names of the sites that answer now: a site that was just killed is still called connected for a while."""
        if not (names := list(self.sites())):
            return set()
        question = self._limited(lambda session: session.report_version("client", names))
        said: dict[str, dict[str, Any]] = self._ask(question)
        return {name for name in names if said.get(name, {"error": _SILENT}).get("error") != _SILENT}

    @staticmethod
    def ended(status: str | None) -> bool:
        """Whether a job of this status is over, whichever way it ended."""
        return status is None or not status.startswith(("SUBMITTED", "APPROVED", "DISPATCHED", "RUNNING"))

    def jobs(self, name: str = "") -> list[dict[str, Any]]:
        """Jobs, the newest first: "job_id", "name" and "status" of each; those called ``name``, or all."""
        found = self._ask(lambda session: session.list_jobs(name_prefix=name or None, reverse=True))
        named = [job for job in found if not name or job.get("job_name") == name]
        return [{k: job.get(k) for k in ("job_id", "job_name", "status")} for job in named]

    def status(self, job: str) -> str:
        """The status of a job, such as "RUNNING" or "FINISHED:COMPLETED"."""
        return str(self._ask(lambda session: session.get_job_status(job)))

    def without(self, job: str) -> list[str]:
        """Names of the sites of a running job that answer and do not have it.

        Their client was started again. NVFlare starts a job at its sites once, when it begins, and has no command that
        brings it to a site later.
        """

        def question(session: Any) -> list[str]:
            about = session.get_job_meta(job)
            if about["status"] != "RUNNING":
                return []  # it has yet to be started at its sites, or is over
            found = self._limited(lambda session: session.get_client_job_status())(session) or ()
            answering = {row["client_name"] for row in found if row["status"] not in ("no_reply", "error")}
            having = {row["client_name"] for row in found if row.get("job_id") == job}
            members = {name for names in about["deploy_map"].values() for name in names}
            return sorted((answering - having) & members)

        return self._ask(question)

    def submit(self, name: str, server: object, site: object, names: Iterable[str]) -> str:
        """Start a job at the sites ``names`` and return its number.

        ``server`` and ``site`` are the two sides of :mod:`coterie.deployment.nvflare.job`. Their classes are named in
        the job, their code is not sent: members run what they have installed.
        """
        from nvflare.collab import CollabRecipe
        from nvflare.recipe.secrets import PotentialSecretWarning

        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", PotentialSecretWarning)  # it takes the digest of run.toml for one
            recipe = CollabRecipe(name, server=server, client=site, sync_task_timeout=60)
            recipe.set_per_site_config({n: {} for n in names})  # at these sites, whoever else is connected
            recipe.export(folder)
            for code in Path(folder).glob("*/*/custom"):
                shutil.rmtree(code)
            return str(self._ask(lambda session: session.submit_job(str(Path(folder) / name))))

    def bar(self, site: str, barred: bool) -> None:
        """Let a site connect no more, or again."""
        self._ask(lambda session: session.disable_client(site) if barred else session.enable_client(site))

    def abort(self, job: str) -> None:
        """End a job."""
        self._ask(lambda session: session.abort_job(job))

    def abort_all(self, name: str) -> None:
        """End what is left of jobs called ``name``; a server that was killed takes them for running for ever."""
        with suppress(CoterieError):
            for job in self.jobs(name):
                if not self.ended(job["status"]):
                    with suppress(CoterieError):
                        self.abort(job["job_id"])

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception), redirect_stdout(io.StringIO()):
                session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _limited(question: Callable[[Any], T]) -> Callable[[Any], T]:
        """A question to the sites, which have :data:`_ANSWER` seconds."""

        def asked(session: Any) -> T:
            session.set_timeout(_ANSWER)
            try:
                return question(session)
            finally:
                session.unset_timeout()

        return asked

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Ask once; an AwayError if the server cannot be reached, and a new session the next time."""
        with redirect_stdout(io.StringIO()):
            try:
                if self._session is None:
                    self._session = self._connect()
                return question(self._session)
            except Exception as problem:
                self.close()
                if type(problem).__name__ in _REFUSED:
                    raise CoterieError(f"The coordinator's server refused: {problem}.") from problem
                why = str(problem).rstrip(".") or type(problem).__name__
                remedy = "start the coordinator if it has ended, then run again, and it goes on"
                raise AwayError(f"The coordinator's server does not answer ({why}): {remedy}.") from problem

    def _connect(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        return new_secure_session(ADMIN, str(self._workspace), timeout=_CONNECT, auto_login_max_tries=1)
