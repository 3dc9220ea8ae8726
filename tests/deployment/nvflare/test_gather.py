"""Who takes part in a job of NVFlare: a site that is not there when it begins cannot come to it later."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coterie.deployment import toml_files
from coterie.deployment.federation_toml import Config
from coterie.deployment.nvflare import processes_and_runs as nvflare
from coterie.engines.policy import BelowQuorum
from coterie.errors import CoterieError
from tests.messages import names

NAMES = ("basel", "bern", "chur")


def gather(there, whole, monkeypatch):
    monkeypatch.setattr(nvflare, "PATIENCE", -1.0)
    return nvflare._wait_for_sites(SimpleNamespace(answering=lambda: set(there)), NAMES, float("inf"), whole)


def test_a_run_that_needs_all_sites_says_at_once_who_is_away(monkeypatch):
    with pytest.raises(BelowQuorum, match=r"Not connected: bern, chur\. The run needs all sites"):
        gather(["basel"], True, monkeypatch)
    assert gather(["basel", "bern", "other"], False, monkeypatch) == ["basel", "bern"]
    assert gather(NAMES, True, monkeypatch) == list(NAMES)
    with pytest.raises(CoterieError, match=names("No site connected start basel bern chur")):
        gather([], True, monkeypatch)


@pytest.mark.parametrize(
    ("program", "policy", "needed"),
    [("pooled", {}, True), ("pooled", {"min_clients": 2}, False), ("check", {}, False)],
)
def test_a_run_needs_all_sites_unless_its_policy_says_else(program, policy, needed, tmp_path, monkeypatch):
    Config("heart", "nvflare", sites=NAMES, policy=policy).write(tmp_path)
    toml_files.write(tmp_path / "runs" / "r" / "run.toml", {"program": program})
    asked = []
    monkeypatch.setattr(nvflare, "carry_out", lambda *arguments: asked.append(arguments[-1]))
    nvflare.run(tmp_path, "r", 1.0)
    assert asked == [needed]
