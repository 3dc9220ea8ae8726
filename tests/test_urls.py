"""A URL is never taken for a path: what cannot be there is refused, and no folder of its name appears."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

import coterie
from coterie.data.images import fashion, read_folder, read_idx
from coterie.deployment import folders
from coterie.deployment.coordinator import run
from coterie.deployment.federation_toml import Config
from coterie.deployment.schema import Schema
from coterie.deployment.site.site_toml import Member
from coterie.engines.secure_sum import Identity
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.files import local
from coterie.runs import config
from coterie.runs.loop_and_callbacks import TensorBoard
from coterie.runs.training_problem import TrainingProblem
from tests.cli.harness import coterie as command
from tests.messages import names

URLS = ["s3://bucket/x", "gs://bucket/x", "hdfs://host:8020/x", "https://host/x.csv", " s3a://b/x"]
SETTING = {"data": {"clients": 2, "rows": 40}, "run": {"rounds": 1}}


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    yield
    assert not list(here.iterdir())


PYTHON = {
    "remote journal": lambda url: Remote(SimpleNamespace(sites=("a",)), journal=url),
    "identity load": lambda url: Identity.load(url),
    "identity save": lambda url: Identity.new().save(url),
    "config read": lambda url: Config.read(url),
    "config write": lambda url: Config("f", "flower", sites=("a",)).write(url),
    "member read": lambda url: Member.read(url),
    "member write": lambda url: Member("a").write(url),
    "member table": lambda url: Member("a", data=str(url)).table(Path.cwd()),
    "schema read": lambda url: Schema.read(url),
    "schema write": lambda url: Schema({}).write(url),
    "coordinator": lambda url: folders.coordinator(url),
    "site": lambda url: folders.site(url),
    "federation init": lambda url: folders.init(url, Config("f", "flower", sites=("a",))),
    "federation run": lambda url: run.run(SimpleNamespace(sites=("a",)), url, "r"),
    "training configuration": lambda url: config.read(url),
    "training modules": lambda url: coterie.load(".", url),
    "training data": lambda url: TrainingProblem.of(
        config.Config.of({"data": {"source": f"{url}.npz", "clients": 2}}), 0
    ),
    "tensorboard": lambda url: TensorBoard(url),
    "fashion": lambda url: fashion(url),
    "idx": lambda url: read_idx(url),
    "images": lambda url: read_folder(url),
}


@pytest.mark.parametrize("place", PYTHON)
def test_every_function_refuses_a_url(place):
    for url in URLS:
        with pytest.raises(CoterieError, match="' is a URL, where only a place of this machine"):
            PYTHON[place](url)


INIT = ["federation", "init", "URL", "--engine", "flower", "--site", "a"]
VERBS = ("start-coordinator", "start-site", "check", "status", "log", "stop", "schema", "identity", "watch", "service")
COMMANDS = [
    INIT,
    [*INIT[:2], "new", *INIT[3:], "--schema", "URL"],
    [*INIT[:2], "new", *INIT[3:], "--data", "a=URL"],
    ["federation", "schema", "rows.csv", "--out", "URL"],
    ["federation", "preview", "URL", "--method", "hierarchical"],
    ["federation", "budget", "URL", "--run", "30"],
    ["export", "model", "--to", "URL"],
    *(["federation", verb, "URL"] for verb in VERBS),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_refuses_a_url(words):
    ran = command(*(word.replace("URL", "s3://bucket/x") for word in words))
    assert "/bucket/x' is a URL, where only a place of this machine will do: name a local path." in ran.message


def test_the_example_refuses_a_url(monkeypatch):
    file = Path(__file__).parents[1] / "examples" / "hospitals.py"
    spec = importlib.util.spec_from_file_location("hospitals_for_urls", file)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr("sys.argv", ["hospitals.py", "--folder", "s3://bucket/x"])
    with pytest.raises(SystemExit) as stopped:
        example.main()
    assert stopped.value.code == 2


@pytest.mark.parametrize("path", ["x", "/srv/x", "C:/x", "a:b", "rows/s3:/x", Path("x"), "s3:x", "2026-01-01T10:00/x"])
def test_a_path_of_this_machine_is_taken_as_it_is(path):
    assert local(path) == Path(path)


def test_what_is_no_path_is_refused():
    with pytest.raises(CoterieError, match=names("path text not 5")):
        local(5)
