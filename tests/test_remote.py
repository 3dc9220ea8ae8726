"""Places at a URL: an object store takes tables, results, reports, checkpoints and journals as a disk does."""

import json
import pickle
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie import files
from coterie.data.table_files import write_table
from coterie.engines.checkpoint_and_journal import Folder, Journal, load_checkpoint, save_checkpoint
from coterie.engines.local_engines import Loopback
from coterie.errors import CoterieError
from coterie.federation import PerRow, work
from coterie.remote import Url
from coterie.runs.config import Config
from tests.cli.harness import coterie as command
from tests.cli.harness import table
from tests.messages import names

pytest.importorskip("moto")


@pytest.fixture(scope="module")
def url():
    from tests.object_store import store

    with store() as url:
        yield url


class Rows:
    """An objective of four clients."""

    dim = 1

    def __len__(self):
        return 4

    def take(self, rows):
        return self


@work
def grow(site, by):
    site.state["x"] = site.state.get("x", np.zeros(len(site))) + by
    return {"x": site.state["x"]}


def test_a_url_is_taken_apart_as_a_path_is():
    place = files.place("s3://key:secret@bucket/a/rows.csv?region=x")
    assert isinstance(place, Url) and (place.name, place.suffix) == ("rows.csv", ".csv")
    assert str(place.parent / "b") == "s3://bucket/a/b?region=x" and f"{place}" == "s3://bucket/a/rows.csv"
    assert "secret" not in f"{place!r}{[place]}"
    assert files.place(place)[:] == place[:]
    assert pickle.loads(pickle.dumps(place))[:] == "s3://key:secret@bucket/a/rows.csv?region=x"  # noqa: S301


def test_a_file_url_is_a_path(tmp_path):
    write_table(table(), f"file://{tmp_path}/a b.csv".replace(" ", "%20"))
    assert files.place(f"file://{tmp_path}") == tmp_path and (tmp_path / "a b.csv").exists()


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "deep/t.parquet", "t.feather"])
def test_tables_are_written_and_read(url, name):
    write_table(table(), url(name))
    pd.testing.assert_frame_equal(coterie.read_table(url(name), ["school"]), table(), check_dtype=False)


def test_files_are_listed_replaced_and_removed(url):
    folder = files.place(url("list"))
    assert not folder.exists() and list(folder.glob("*")) == []
    for name in ("a-1", "a-2", "b"):
        files.write(folder / name, [b"x", memoryview(name.encode())])
    files.write(folder / "b", [b"new"])
    assert sorted(one.name for one in folder.glob("a-*")) == ["a-1", "a-2"] and folder.is_dir()
    assert files.content(folder / "a-2") == b"xa-2" and files.content(folder / "b") == b"new"
    (folder / "b").unlink()
    (folder / "b").unlink(missing_ok=True)
    files.clear(folder)
    assert list(folder.iterdir()) == []


def test_a_journal_goes_on_where_it_stood(url):
    folder = url("journal")
    first = Journal(folder)
    for n in range(3):
        first.add("ask", b"%d" % n, {"n": n})
    first.cut(2)
    first.add("ask", b"two", {"n": 22})
    second = Journal(folder)
    assert [second.next("ask", key)["n"] for key in (b"0", b"1", b"two")] == [0, 1, 22]
    assert second.next("ask", b"3") is None
    second.keep({"t": 3}, {"e": 1})
    second.add("ask", b"3", {"n": 3})
    third = Journal(folder)
    assert third.base["state"] == {"t": 3} and len(third) == 1
    entries = files.place(folder).glob("entries-*")
    assert [one.name for one in entries] == ["entries-1-000000000"]


def test_sites_and_their_coordinator_survive_their_process(url):
    options = {"sites": 2, "folder": url("sites"), "journal": url("coordinator")}
    first = Loopback(Rows(), [0, 0, 1, 1], **options)
    for step in range(3):
        first.ask(grow, by=PerRow(np.arange(4.0) + step))
    second = Loopback(Rows(), [0, 0, 1, 1], **options)
    replies = [second.ask(grow, by=PerRow(np.arange(4.0) + step)) for step in range(4)]
    np.testing.assert_array_equal(replies[-1]["x"], 4 * np.arange(4.0) + 6)
    assert len(list((files.place(url("sites")) / "site-0").iterdir())) <= 5  # what is no longer used is removed


def test_a_checkpoint_and_a_folder_of_state_come_back(url):
    fed = Loopback(Rows(), [0, 0, 1, 1])
    fed.ask(grow, by=1.0)
    save_checkpoint(url("checkpoint"), fed, {"t": 1})
    assert load_checkpoint(url("checkpoint"), fed) == {"t": 1}
    Folder(url("folder")).save({"a": 1}, {"state": {"x": np.arange(3)}})
    head, sets = Folder(url("folder")).load()
    assert head == {"a": 1} and sets["state"]["x"].tolist() == [0, 1, 2]


def test_a_training_goes_on_from_its_checkpoint(url):
    pytest.importorskip("torch")
    from coterie.evidence.training_comparison import compare

    def trained(rounds, **more):
        run = {"rounds": rounds, "seeds": [0], "checkpoint": url("run")}
        config = Config.of({"data": {"clients": 3, "rows": 30}, "run": run})
        return compare(config, ["local"], models=True, **more).runs["local"][0]

    first, again = trained(2), trained(3, resume=True)
    files.clear(files.place(url("run")))
    np.testing.assert_array_equal(again.theta, trained(3).theta)
    assert (again.theta != first.theta).any()


def test_the_keys_in_a_url_are_not_written_down(url):
    write_table(table(), rows := url("secret.csv", "key:hidden@"))
    found = coterie.fit(rows, "score ~ hours", "school", splits=0)
    assert found.config()["data"]["source"] == url("secret.csv")


def test_a_command_reads_and_writes_there(url):
    write_table(table(), url("rows.csv"))
    rows, model = url("rows.csv", "key:secret@"), url("model", "key:secret@")
    options = ["--formula", "score ~ hours", "--client", "school", "--splits", "0", "--out", model]
    ran = command("fit", rows, *options)
    assert "s3://bucket/model" in ran.out and "secret" not in ran.out + ran.err
    saved = files.content(files.place(model) / "model.json") + files.content(files.place(model) / "report.html")
    assert b"s3://bucket/rows.csv" in saved and b"secret" not in saved
    command("data", "fetch", "chem97", "--out", url("chem97.parquet"))
    assert len(coterie.read_table(url("chem97.parquet"))) > 1000
    command("predict", model, url("rows.csv"), "--out", url("answers.csv"))
    here = coterie.fit(table(), "score ~ hours", "school", splits=0)
    answers = coterie.read_table(url("answers.csv"))
    np.testing.assert_allclose(answers["prediction"], here.predict(table())["prediction"], rtol=1e-12)
    again = command("compare", rows, *options[:4], "--splits", "1", "--out", url("rows.csv"))
    assert "is the table itself" in again.message


def test_a_store_that_does_not_answer_is_named(monkeypatch):
    def silent(_):
        raise OSError("When getting information for key 'm' in bucket 'b': curlCode: 7, Could not connect to server")

    monkeypatch.setattr(Url, "opened", lambda _: (SimpleNamespace(get_file_info=silent), "b/m"))
    with pytest.raises(CoterieError, match=names("'s3://b/m/training.json' cannot be read: Could not connect")):
        coterie.load("s3://b/m?endpoint_override=127.0.0.1:9")


class GoogleMetadata(BaseHTTPRequestHandler):
    """A store that knows of one object of 17 bytes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        there = self.path.startswith("/storage/v1/b/bucket/o/rows.csv")
        about = {"kind": "storage#object", "name": "rows.csv", "bucket": "bucket", "size": "17", "generation": "1"}
        body = json.dumps(about if there else {"error": {"code": 404}}).encode()
        self.send_response(200 if there else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_gs_url_reaches_a_store_of_google():
    with ThreadingHTTPServer(("127.0.0.1", 0), GoogleMetadata) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        place = files.place(f"gs://anonymous@bucket/rows.csv?endpoint_override=127.0.0.1:{port}&scheme=http")
        assert place.is_file() and place.stat().st_size == 17
        assert not (place.parent / "none.csv").is_file()
        server.shutdown()
    assert f"{place}" == "gs://bucket/rows.csv"


def test_an_hdfs_url_reaches_pyarrows_file_system(monkeypatch):
    asked = []
    system = SimpleNamespace(from_uri=lambda root: (asked.append(root), ("system", "/"))[1])
    monkeypatch.setattr("pyarrow.fs.FileSystem", system)
    assert files.place("hdfs://node:9000/data/rows.csv").opened() == ("system", "/data/rows.csv")
    assert asked == ["hdfs://node:9000"]


NOBODY = "endpoint_override=127.0.0.1:9&scheme=http&retry_limit_seconds=1"
ABSENT = "s3://nobucket/x{}"


@pytest.mark.parametrize(
    ("does", "sentence"),
    [
        (lambda at: coterie.read_table(at(".csv")), "There is no file 's3://nobucket/x.csv'."),
        (lambda at: write_table(table(), at(".csv")), "'s3://nobucket/x.csv' cannot be written: The specified bucket"),
        (lambda at: Journal(at("")).add("ask", b"", {}), "cannot be written: The specified bucket does not exist"),
        (lambda at: coterie.load(at("")), "There is no coterie model in 's3://nobucket/x': it does not exist."),
        (lambda at: coterie.read_table("s3://b/x.csv?odd=1"), "'s3://b/x.csv' cannot be opened: Unexpected query"),
        (lambda at: coterie.read_table("https://b/x.csv"), "gs:// and hdfs://, and no other; fetch the file, and name"),
        (
            lambda at: coterie.read_table(f"gs://anonymous@b/x.csv?{NOBODY}"),
            "Could not connect to server (UNAVAILABLE).",
        ),
        (
            lambda at: coterie.read_table(Path("s3://b/x.csv")),
            "is a URL made a Path",
        ),
    ],
)
def test_what_cannot_be_opened_is_said_in_a_sentence(url, does, sentence):
    query = "?" + url("").partition("?")[2]
    with pytest.raises(CoterieError, match=names(sentence)):
        does(lambda end: ABSENT.format(end) + query)


def test_hdfs_without_hadoop_says_what_it_needs(monkeypatch):
    def missing(_):
        raise OSError("Unable to load libjvm: /usr/lib/jvm/libjvm.so: cannot open shared object file")

    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=missing))
    sentence = (
        "'hdfs://other:9000/x.csv' cannot be opened: Unable to load libjvm: .* needs Java and Hadoop here: set JAVA_"
    )
    with pytest.raises(CoterieError, match=sentence):
        coterie.read_table("hdfs://other:9000/x.csv")
