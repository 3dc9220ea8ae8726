"""Who takes part in a job of NVFlare: a site that is not there when it begins cannot come to it later."""

from __future__ import annotations

import time

import pytest

from coterie.deployment import processes, toml_files
from coterie.deployment.federation_toml import Config
from coterie.deployment.nvflare import operator_commands as nvflare
from coterie.engines.retry_and_quorum import BelowQuorum
from coterie.errors import CoterieError
from tests.messages import names

NAMES = ("basel", "bern", "chur")


def gather(there, whole, patience=-1.0, refused=str):
    return processes.gathered(NAMES, lambda: there, patience, whole, refused, refused, 0.01)


def test_a_run_that_needs_all_sites_says_at_once_who_is_away():
    with pytest.raises(BelowQuorum, match=r"Not connected: bern, chur\. The run needs all sites"):
        gather(["basel"], True)
    assert gather(["basel", "bern", "other"], False) == ["basel", "bern"]
    assert gather(NAMES, True) == list(NAMES)
    with pytest.raises(CoterieError, match=names("No site connected start basel bern chur")):
        gather([], True)


@pytest.mark.parametrize(
    ("program", "policy", "needed", "patience"),
    [("pooled", {}, True, 60.0), ("pooled", {"min_clients": 2}, False, 60.0), ("check", {}, False, 15.0)],
)
def test_a_run_needs_all_sites_unless_its_policy_says_else(program, policy, needed, patience, tmp_path, monkeypatch):
    Config("heart", "nvflare", sites=NAMES, policy=policy).write(tmp_path)
    toml_files.write(tmp_path / "runs" / "r" / "run.toml", {"program": program})
    asked = []
    monkeypatch.setattr(nvflare, "carry_out", lambda *arguments: asked.append(arguments[-2:]))
    nvflare.run(tmp_path, "r", 1.0)
    assert asked == [(needed, patience)]


def test_a_site_that_is_refused_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.0)

    def refused():
        return "2 handshakes failed."

    began = time.monotonic()
    with pytest.raises(BelowQuorum, match=r"Not connected: bern, chur\. .* 2 handshakes failed"):
        gather(["basel"], True, 60.0, refused)
    assert gather(["basel"], False, 60.0, refused) == ["basel"]
    assert time.monotonic() - began < 10.0
