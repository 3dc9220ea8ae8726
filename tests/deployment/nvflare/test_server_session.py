"""What the operator asks of a server, without one."""

from __future__ import annotations

import time
from hashlib import blake2b
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from coterie.deployment.federation_toml import Config
from coterie.deployment.nvflare import operator_commands, provisioning
from coterie.deployment.nvflare.job import CoordinatorJob, SiteJob
from coterie.deployment.nvflare.server_session import ServerSession


def test_a_digest_in_a_job_is_not_warned_of_as_a_secret(tmp_path, monkeypatch, recwarn):
    session, digest = ServerSession(tmp_path), blake2b(b"run.toml", digest_size=16).hexdigest()
    monkeypatch.setattr(session, "_ask", lambda question: "job1")
    assert session.submit("r", CoordinatorJob("r", ["basel"], digest), SiteJob("r"), ["basel"]) == "job1"
    assert not [str(one.message) for one in recwarn if "secret" in str(one.message)]


def test_a_killed_site_that_nvflare_still_calls_connected_is_not_online(tmp_path, monkeypatch):
    heard, sites = time.time() - 30.0, ("basel", "bern", "chur", "davos")
    said = {"basel": {"error": "not authorized"}, "bern": {"error": "No replies"}, "chur": {"version": "2.9"}}
    connected = [SimpleNamespace(name=name, last_connect_time=heard) for name in said]
    limits: list[float] = []
    session = SimpleNamespace(
        get_system_info=lambda: SimpleNamespace(client_info=connected),
        report_version=lambda kind, names: {name: said[name] for name in names},
        list_jobs=lambda **_: [],
        set_timeout=limits.append,
        unset_timeout=lambda: limits.append(0.0),
        close=lambda: None,
    )
    monkeypatch.setattr(ServerSession, "_connect", lambda self: session)
    assert ServerSession(tmp_path).answering() == {"basel", "chur"}
    assert limits[0] < 10.0 and limits[1:] == [0.0]
    Config("heart", "nvflare", sites=sites).write(tmp_path)
    (tmp_path / provisioning.CONSOLE).mkdir()
    monkeypatch.setattr(operator_commands, "parent", lambda workspace: 1)
    monkeypatch.setattr(provisioning, "console", lambda folder: folder)
    found = operator_commands.status(tmp_path)["sites"]
    assert {name: found[name] for name in ("basel", "chur", "davos")} == {
        "basel": "online", "chur": "online", "davos": "offline"
    }  # fmt: skip
    assert found["bern"].startswith("does not answer, last heard of 3") and found["bern"].endswith(" s ago")
