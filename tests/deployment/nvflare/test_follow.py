"""A site that was started again in a running job: NVFlare takes it back into the next job alone."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from coterie.deployment import logs
from coterie.deployment.federation_toml import Config
from coterie.deployment.nvflare import operator_commands as nvflare
from coterie.deployment.nvflare import provisioning, server_session
from coterie.deployment.nvflare.job import LOCK, Outcome, sole
from coterie.deployment.nvflare.transport import JobEndedError

NAMES = ("north", "south")


class Jobs:
    """A server whose first job is lost at ``north`` and ends when it is told to; the second ends by itself."""

    def __init__(self, run):
        self.run, self.aborted, self.submitted, self._held = run, [], 0, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def abort_all(self, name):
        pass

    def answering(self):
        return set(NAMES)

    def submit(self, name, server, site, names):
        self.submitted += 1
        job = f"job{self.submitted}"
        if self.submitted == 1:
            self._held = sole(self.run / LOCK)
            self._held.__enter__()
        Outcome(job, "running" if self.submitted == 1 else "finished").write(self.run)
        return job

    def without(self, job):
        return ["north"] if job == "job1" else []

    def abort(self, job):
        self.aborted.append(job)
        Outcome(job, "failed", JobEndedError.__name__, "NVFlare ended the job").write(self.run)
        self._held.__exit__(None, None, None)


def test_a_job_that_a_site_has_lost_is_ended_and_another_goes_on(tmp_path, monkeypatch):
    Config("heart", "nvflare", sites=NAMES).write(tmp_path)
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    server = Jobs(run)
    monkeypatch.setattr(nvflare, "_CHECK", 0.05)
    monkeypatch.setattr(nvflare, "parent", lambda workspace: 1)
    monkeypatch.setattr(nvflare.provisioning, "console", lambda folder: folder)
    monkeypatch.setattr(nvflare, "ServerSession", lambda folder: server)
    nvflare.carry_out(tmp_path, "r", 20.0, lambda *_: None, lambda *_: None)
    assert server.aborted == ["job1"] and server.submitted == 2
    (entry,) = logs.read(run / logs.LOG)
    assert entry["state"] == logs.AGAIN and "Without the job: north" in entry["why"]


@pytest.mark.parametrize(
    ("status", "rows", "lost"),
    [
        ("RUNNING", [("north", "no_jobs", None), ("south", "started", "j"), ("other", "no_jobs", None)], ["north"]),
        ("RUNNING", [("north", "started", "before"), ("south", "started", "j")], ["north"]),
        ("RUNNING", [("north", "no_reply", None), ("south", "started", "j")], []),
        ("DISPATCHED", [("north", "no_jobs", None), ("south", "started", "j")], []),
        ("RUNNING", None, []),
    ],
)
def test_sites_without_a_job_are_those_of_it_that_answer_and_do_not_have_it(status, rows, lost, monkeypatch):
    found = rows and [{"client_name": n, "status": s} | ({"job_id": j} if j else {}) for n, s, j in rows]
    session = SimpleNamespace(
        get_job_meta=lambda job: {"status": status, "deploy_map": {"a": ["north"], "b": ["south"], "c": ["server"]}},
        get_client_job_status=lambda: found,
        set_timeout=lambda seconds: None,
        unset_timeout=lambda: None,
        close=lambda: None,
    )
    monkeypatch.setattr(server_session.ServerSession, "_connect", lambda self: session)
    assert server_session.ServerSession(None).without("j") == lost


def test_a_server_that_was_started_again_has_refused_nobody_before(tmp_path, monkeypatch):
    """Each start asks once whether it listens, and hangs up: after two, sites would be waited for too shortly."""
    Config("toy", "nvflare", sites=NAMES).write(tmp_path)
    workspace = tmp_path / provisioning.WORKSPACE
    workspace.mkdir()
    monkeypatch.setattr(nvflare.certificates, "need_valid", lambda *_: None)
    monkeypatch.setattr(nvflare.provisioning, "settle", lambda *_: None)
    monkeypatch.setattr(nvflare.processes, "await_ready", lambda *_: True)

    def listens(_):
        with (workspace / provisioning.REFUSED).open("a") as file:
            file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S},000 - asyncio - DEBUG - refused: it hung up (x)\n")

    monkeypatch.setattr(nvflare, "start", listens)
    for _ in range(2):
        nvflare.start_coordinator(tmp_path)
        assert provisioning.refused(workspace) == ""
    listens(None)
    assert "2 handshakes failed" in provisioning.refused(workspace)
