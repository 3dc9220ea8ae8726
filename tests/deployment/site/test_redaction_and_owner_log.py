"""What a site says tells no path of its files; its own log has the whole text."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from coterie.deployment.federation_toml import SITE
from coterie.deployment.flower import app
from coterie.deployment.site import prepared_data
from coterie.deployment.site.receiver import SiteReceiver, receiver
from coterie.deployment.site.redaction_and_owner_log import redact, redact_paths
from coterie.deployment.site.site_toml import Member
from coterie.engines import wire
from coterie.errors import LONGEST, CoterieError
from coterie.federation import work, work_name
from tests.deployment.sites import build, home, hosts, say, task


@work
def looks_for_a_file(site):
    """Fails as work does that reads a file of its own."""
    Path("/srv/hospital/of bern/private.csv").read_bytes()


def opened(folder):
    return {"kind": "open", "run": "r", "task": task(folder), "seed": 0}


def exchange(kind="ask", name="rows"):
    asked = {"kind": kind, "run": "r", "work": name, "exchange": [1, 1], "counted": [0, 0], "rows": None}
    return asked | {"by": None, "message": {}}


def logged(site):
    return (site / "log.jsonl").read_text()


def no_path(answer, folder):
    text = json.dumps(answer, default=str)
    return str(folder) not in text and "/srv" not in text and "/secret" not in text


@pytest.mark.parametrize("kind", ["open", "check"])
def test_a_table_that_is_not_there(kind, tmp_path):
    build(tmp_path)
    site = home(tmp_path, "bern")
    Member("bern", "/srv/secret people/patients.csv").write(site)
    said = say(SiteReceiver(site), **(opened(tmp_path) if kind == "open" else {"kind": "check"}))
    words = said["refused"] if kind == "open" else said["problems"][0]
    assert words.endswith("There is no file (a path at the site): correct data in 'site.toml'" + "." * (kind == "open"))
    assert no_path(said, tmp_path) and "/srv/secret people/patients.csv" in logged(site)


def test_a_table_that_may_not_be_read(tmp_path, monkeypatch):
    build(tmp_path)
    site, reading = home(tmp_path, "bern"), Path.open

    def closed(path, *rest, **more):
        if path.name == "data.csv":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return reading(path, *rest, **more)

    monkeypatch.setattr(Path, "open", closed)
    said = say(SiteReceiver(site), **opened(tmp_path))
    assert "permission denied" in said["failed"] and no_path(said, tmp_path)


def test_a_schema_that_cannot_be_read(tmp_path):
    build(tmp_path)
    site = home(tmp_path, "bern")
    (site / "schema.toml").write_text("[columns.age]\ntype = 3\n")
    for request in ({"kind": "check"}, opened(tmp_path)):
        said = say(SiteReceiver(site), **request)
        words = said.get("refused") or said["problems"][0]
        assert "type of column 'age' of 'schema.toml' must be number" in words and no_path(said, tmp_path)


def test_a_full_disk_and_work_that_fails(tmp_path, monkeypatch):
    build(tmp_path)
    host = hosts(tmp_path)["bern"]
    say(host, **opened(tmp_path))
    said = say(host, **exchange(name=work_name(looks_for_a_file)))
    assert "by the rules of its owner it says no more" in said["failed"] and no_path(said, tmp_path)
    assert "/srv/hospital/of bern/private.csv" in (home(tmp_path, "bern") / prepared_data.PROBLEM).read_text()

    def full(path, parts, **options):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("coterie.files.write", full)
    said = say(host, kind="mark", run="r", marks=["t"], counted=[0, 0])
    assert said == {"busy": "its state cannot be written (no space left on device)"}

    def unnamed(path, parts, **options):
        raise OSError(f"cannot write {path}")

    monkeypatch.setattr("coterie.files.write", unnamed)
    said = say(host, kind="mark", run="r", marks=["t"], counted=[0, 0])
    assert "its state cannot be written (cannot write" in said["busy"] and no_path(said, tmp_path)


def test_a_site_whose_folder_is_wrong_says_so_without_paths(tmp_path, monkeypatch):
    build(tmp_path)
    site = home(tmp_path, "bern")
    (site / "federation.toml").unlink()
    said = wire.decode(receiver(site)(b""))
    assert said["refused"].startswith("The site cannot take part") and no_path(said, tmp_path)
    (site / SITE).write_text("name = 3")
    monkeypatch.setenv("COTERIE_FOLDER", str(site))
    with pytest.raises(CoterieError, match=r"'site.toml'") as problem:
        app.site(None)
    assert no_path(str(problem.value), tmp_path)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("[Errno 13] Permission denied: '/srv/o name/x.csv'", "[Errno 13] Permission denied: (a path at the site)"),
        ('In "/srv/it\'s/x.csv" it is', "In (a path at the site) it is"),
        ("see /srv/site/runs/r/log.jsonl, line 3", "see (a path at the site), line 3"),
        ("write data into '/srv/site/site.toml'.", "write data into 'site.toml'."),
        ("put it into '/srv/site'", "put it into the site's folder"),
        ("/srv/site2/a is another", "(a path at the site) is another"),
        (r"'C:\Users\me\x.csv' and C:\data\y.csv", "(a path at the site) and (a path at the site)"),
        ("~/data/x.csv or '~/x.csv'", "(a path at the site) or (a path at the site)"),
        (
            "column 'a/b' in kg/m/s, 1/2/3, see https://a.org/b/c",
            "column 'a/b' in kg/m/s, 1/2/3, see https://a.org/b/c",
        ),
        ("The formula 'y ~ a / b + a/b' is", "The formula 'y ~ a / b + a/b' is"),
    ],
)
def test_paths_are_taken_out_of_a_text(text, left):
    assert redact_paths(text, Path("/srv/site")) == left


def test_a_folder_named_from_here_and_long_texts():
    assert redact_paths("There is no 'sites/bern/site.toml'", Path("sites/bern")) == "There is no 'site.toml'"
    assert len(redact_paths("x" * 100_000, Path("/srv/site"))) <= LONGEST


def test_numbers_and_names_stay_as_they_are():
    reply = wire.encode({"done": "open", "labels": np.array(["/srv/a/b"]), "info": {"notes": ["fine"]}})
    assert redact(reply, Path("/srv/site")) is reply
    values = wire.encode({"exchange": [1, 1], "values": {"refused": np.zeros(3)}, "gradients": 0})
    assert redact(values, Path("/srv/site")) is values
