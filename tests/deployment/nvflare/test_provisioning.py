"""Provisioned workspaces: complete, strict about jobs, and left alone when made again."""

import json
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from coterie.deployment import toml_files
from coterie.deployment.federation_toml import Config
from coterie.deployment.nvflare import job, provisioning
from coterie.deployment.nvflare import operator_commands as nvflare
from coterie.errors import CoterieError
from tests.deployment.nvflare.deployed import free_port


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    config = Config("heart", "nvflare", port=free_port(), sites=("north", "south"))
    nvflare.init(folder, config)
    for home in (folder / "coordinator", folder / "sites" / "north", folder / "sites" / "south"):
        config.write(home)
    return folder


def read(path):
    return json.loads(path.read_text())


def test_every_member_has_a_folder_of_its_own_with_keys_that_others_cannot_read(place):
    for home in (place / "coordinator" / "nvflare", *(place / "sites" / n / "nvflare" for n in ("north", "south"))):
        assert (home / "startup" / "rootCA.pem").is_file() and (home / "startup" / "sub_start.sh").is_file()
        (key,) = (home / "startup").glob("*.key")
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((place / "authority").stat().st_mode) == 0o700
    assert not any(place.glob("sites/*/nvflare-admin")) and not any(place.glob("authority/heart/prod_*"))


def test_what_is_written_before_a_start_is_for_its_owner_alone_whatever_the_umask(place):
    workspace, before = place / "sites" / "north" / "nvflare", os.umask(0)
    try:
        provisioning.settle(workspace)
    finally:
        os.umask(before)
    made = [*(workspace / "local").glob("*.json"), workspace / "transfer"]
    assert len(made) == 4 and not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in made)


def test_a_site_that_joins_later_changes_nobodys_certificate(place):
    before = {p: p.read_bytes() for p in place.rglob("*.crt")}
    config = Config("heart", "nvflare", port=9001, sites=("north", "south", "west"))
    nvflare.init(place, config)
    assert all(path.read_bytes() == data for path, data in before.items())
    assert (place / "sites/west/nvflare/startup/client.crt").is_file()
    root = (place / "coordinator/nvflare/startup/rootCA.pem").read_bytes()
    assert (place / "sites/west/nvflare/startup/rootCA.pem").read_bytes() == root
    for name in ("north", "west"):  # all learn where the coordinator is now
        servers = read(place / f"sites/{name}/nvflare/startup/fed_client.json")["servers"]
        assert servers[0]["service"]["target"] == "127.0.0.1:9001"


def test_settings_keep_stores_here_and_logs_at_home_and_bring_no_code(place):
    server, site = place / "coordinator/nvflare", place / "sites/north/nvflare"
    provisioning.settle(server)
    provisioning.settle(site)
    settings = read(server / "local/resources.json")
    stores = [c["args"]["uri_root"] for c in settings["components"] if c["id"] == "job_manager"]
    stores.append(settings["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"])
    assert all(Path(store).is_relative_to(server) for store in stores)
    own = read(site / "local/resources.json")
    assert own["class_allow_list"] == ["nvflare.collab.runtime.", "coterie.deployment.nvflare.job."]
    assert own["class_list_enforcement_mode"] == "enforce" and own["allow_log_streaming"] is False
    assert "site_log_streamer" not in [c["id"] for c in own["components"]]
    rights = read(site / "local/authorization.json")["permissions"]
    assert rights["project_admin"]["byoc"] == rights["project_admin"]["shell_commands"] == "none"
    assert list(rights) == ["project_admin"]


def test_a_name_that_nvflare_refuses_is_said(tmp_path):
    with pytest.raises(CoterieError, match="could not make the certificates"):
        provisioning.provision(tmp_path, "heart", "127.0.0.1", 8002, ["a b"])


def test_provisioning_that_takes_too_long_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(provisioning, "_PATIENCE", 0.001)
    with pytest.raises(CoterieError, match=r"did not make the certificates in 0\.001 seconds: run again"):
        provisioning.provision(tmp_path, "heart", "127.0.0.1", 8002, ["a"])


def test_what_is_not_there_is_said(place, tmp_path):
    toml_files.write(place / "coordinator" / "runs" / "r" / "run.toml", {"program": "check"})
    with pytest.raises(CoterieError, match="No coordinator runs"):
        nvflare.run(place / "coordinator", "r", 5.0)
    assert nvflare.status(place / "coordinator") == {
        "running": False, "pid": None, "sites": {"north": "offline", "south": "offline"}, "jobs": [],
    }  # fmt: skip
    assert nvflare.status(place / "sites/north") == {"running": False, "pid": None}
    nvflare.stop(place / "coordinator")
    with pytest.raises(CoterieError, match=r"no sub_start\.sh"):
        nvflare.start(tmp_path / "nvflare")
    with pytest.raises(CoterieError, match="cannot be read"):
        nvflare.start_site(tmp_path)
    with pytest.raises(CoterieError, match="no coordinator's folder"):
        provisioning.console(tmp_path)


def test_one_process_at_a_time_holds_a_run(tmp_path):
    lock = tmp_path / "runs" / "lock"
    assert not job.held(lock)
    with job.sole(lock):
        assert job.held(lock)
        with pytest.raises(CoterieError, match="Another process holds"), job.sole(lock, wait=0.0):
            pass
    assert not job.held(lock)
    assert job.Outcome.read(tmp_path) is None
    job.Outcome("job", "failed", "BelowQuorum", "1 of 2").write(tmp_path)
    assert job.Outcome.read(tmp_path) == job.Outcome("job", "failed", "BelowQuorum", "1 of 2")
