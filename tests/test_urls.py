"""A URL is never taken for a path of this machine: it is refused, and no folder of its name appears."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import coterie
from coterie.data.images import fashion, read_folder, read_idx
from coterie.data.table_files import check_writable, write_table
from coterie.deployment import folders
from coterie.deployment.coordinator import run
from coterie.deployment.federation_toml import Config
from coterie.deployment.schema import Schema
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member
from coterie.engines.checkpoint_and_journal import Folder, Journal, load_checkpoint, save_checkpoint, write_durable
from coterie.engines.local_engines import InProcess, Loopback
from coterie.engines.ray import Ray
from coterie.engines.secure_sum import Identity
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.files import local
from coterie.report.fit_page import write_report
from coterie.runs import config, training
from coterie.runs.loop_and_callbacks import TensorBoard
from coterie.runs.training_problem import TrainingProblem
from tests.cli.harness import coterie as command
from tests.cli.harness import table
from tests.messages import names

URLS = ["s3://bucket/x", "gs://bucket/x", "hdfs://host:8020/x", "https://host/x.csv", "file:///tmp/x", " s3a://b/x"]
KINDS = [*URLS, Path("s3://bucket/x")]  # which a Path makes s3:/bucket/x
SETTING = {"data": {"clients": 2, "rows": 40}, "run": {"rounds": 1}}


class Rows:
    """An objective of two clients, enough for a federation to be made."""

    dim = 1

    def __len__(self):
        return 2


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    table().to_csv(folder / "rows.csv", index=False)
    result = coterie.fit(table(), "score ~ hours", client="school", splits=0)
    result.save(folder / "model")
    return folder, result


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    yield
    assert not list(here.iterdir())


def ray(**options):
    """A federation of Ray that begins nothing, since its folders are looked at first."""
    return Ray(Rows(), [0, 0], sites=1, **options)


def written_by_ray(url):
    """What ``Ray.write`` does before it asks any actor."""
    Ray.write(SimpleNamespace(problem=object()), url, None)


def fed():
    return InProcess(Rows(), [0, 0])


PYTHON = {
    "read_table": lambda url, _: coterie.read_table(url),
    "write_table": lambda url, _: write_table(pd.DataFrame({"a": [1]}), url),
    "check_writable": lambda url, _: check_writable(url),
    "load": lambda url, _: coterie.load(url),
    "save": lambda url, result: result.save(url),
    "report": lambda url, result: write_report(result, url),
    "checkpoint save": lambda url, _: save_checkpoint(url, fed(), {}),
    "checkpoint load": lambda url, _: load_checkpoint(url, fed()),
    "checkpoint write": lambda url, _: write_durable(url, []),
    "a site's state": lambda url, _: Folder(url),
    "journal": lambda url, _: Journal(url),
    "loopback folder": lambda url, _: Loopback(Rows(), [0, 0], folder=url),
    "loopback journal": lambda url, _: Loopback(Rows(), [0, 0], journal=url),
    "remote journal": lambda url, _: Remote(SimpleNamespace(sites=("a",)), journal=url),
    "ray write": lambda url, _: written_by_ray(url),
    "ray folder": lambda url, _: ray(folder=url),
    "ray journal": lambda url, _: ray(journal=url),
    "identity load": lambda url, _: Identity.load(url),
    "identity save": lambda url, _: Identity.new().save(url),
    "config read": lambda url, _: Config.read(url),
    "config write": lambda url, _: Config("f", "flower", sites=("a",)).write(url),
    "member read": lambda url, _: Member.read(url),
    "member write": lambda url, _: Member("a").write(url),
    "member table": lambda url, _: Member("a", data=str(url)).table(Path.cwd()),
    "schema read": lambda url, _: Schema.read(url),
    "schema write": lambda url, _: Schema({}).write(url),
    "coordinator": lambda url, _: folders.coordinator(url),
    "site": lambda url, _: folders.site(url),
    "federation init": lambda url, _: folders.init(url, Config("f", "flower", sites=("a",))),
    "federation run": lambda url, _: run.run(SimpleNamespace(sites=("a",)), url, "r"),
    "host": lambda url, _: SiteReceiver(url),
    "training configuration": lambda url, _: config.read(url),
    "training load": lambda url, _: coterie.load(url),
    "training modules": lambda url, _: coterie.load(".", url),
    "training checkpoints": lambda url, _: training.train(
        TrainingProblem.of(config.Config.of(SETTING), 0), "fedavg", {}, folder=url
    ),
    "training data": lambda url, _: TrainingProblem.of(
        config.Config.of({"data": {"source": f"{url}.npz", "clients": 2}}), 0
    ),
    "tensorboard": lambda url, _: TensorBoard(url),
    "fashion": lambda url, _: fashion(url),
    "idx": lambda url, _: read_idx(url),
    "images": lambda url, _: read_folder(url),
}


@pytest.mark.parametrize("place", PYTHON)
def test_every_function_refuses_a_url(place, made):
    for url in KINDS:
        with pytest.raises(CoterieError, match="' is a URL, and coterie reads and writes files of this machine: name"):
            PYTHON[place](url, made[1])


FIT = ["--formula", "score ~ hours", "--client", "school", "--splits", "0"]
INIT = ["federation", "init", "URL", "--engine", "flower", "--site", "a"]
COMMANDS = [
    ["fit", "URL", *FIT],
    ["fit", "ROWS", *FIT, "--out", "URL"],
    ["fit", "ROWS", *FIT, "--network", "edges=URL"],
    ["predict", "URL", "ROWS"],
    ["predict", "MODEL", "URL"],
    ["predict", "MODEL", "ROWS", "--out", "URL"],
    ["compare", "URL", *FIT],
    ["compare", "ROWS", *FIT, "--out", "URL"],
    ["compare", "CONFIG", "--report", "URL"],
    ["advise", "URL"],
    ["report", "URL"],
    ["report", "MODEL", "--out", "URL"],
    ["fit", "CONFIG", "--out", "URL"],
    ["fit", "CHECKPOINT"],
    ["data", "fetch", "chem97", "--out", "URL"],
    INIT,
    [*INIT[:2], "new", *INIT[3:], "--schema", "URL"],
    [*INIT[:2], "new", *INIT[3:], "--data", "a=URL"],
    ["federation", "schema", "URL"],
    ["federation", "schema", "ROWS", "--out", "URL"],
    *(["federation", verb, "URL"] for verb in ("start-coordinator", "start-site", "check", "status", "log", "stop")),
    ["federation", "preview", "URL", "--method", "hierarchical"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_refuses_a_url(words, made):
    folder, url = made[0], "s3://bucket/x.csv"
    (folder / "c.toml").write_text("[data]\nclients = 2\n")
    (folder / "k.toml").write_text(f'[data]\nclients = 2\n[run]\ncheckpoint = "{url}"\n')
    names = {"ROWS": "rows.csv", "MODEL": "model", "CONFIG": "c.toml", "CHECKPOINT": "k.toml"}
    there = {word: folder / name for word, name in names.items()}
    ran = command(*(there.get(word, str(word).replace("URL", url)) for word in words))
    assert f"'{url}' is a URL, and coterie reads and writes files of this machine: name a local path." in ran.message


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
