"""What the operator asks of a server, without one."""

from __future__ import annotations

from hashlib import blake2b

import pytest

pytest.importorskip("nvflare")

from coterie.deployment.nvflare.job import CoordinatorJob, SiteJob
from coterie.deployment.nvflare.server_session import ServerSession


def test_a_digest_in_a_job_is_not_warned_of_as_a_secret(tmp_path, monkeypatch, recwarn):
    session, digest = ServerSession(tmp_path), blake2b(b"run.toml", digest_size=16).hexdigest()
    monkeypatch.setattr(session, "_ask", lambda question: "job1")
    assert session.submit("r", CoordinatorJob("r", ["basel"], digest), SiteJob("r"), ["basel"]) == "job1"
    assert not [str(one.message) for one in recwarn if "secret" in str(one.message)]
