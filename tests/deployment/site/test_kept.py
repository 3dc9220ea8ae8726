"""Files in a site's folder that the site did not write: of other sites and runs, damaged, of another form."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from coterie.deployment.federation_toml import BOOK, RELEASES
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member
from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import write_durable
from coterie.errors import CoterieError
from coterie.federation import work
from coterie.methods.tree.penalised_tree import describe
from tests.deployment.sites import LENIENT, build, home, say, task

RUN = {"kind": "total", "run": "r", "rows": None, "by": None, "message": {}}
SAID = re.compile(r"\b(Type|Key|Value|Index|Attribute)Error|\bobject\b|unpack|NoneType")
WRONG = [None, [], {}, "x", -1, np.zeros(2), {"a": 1}]


@work
def kept_ages(site):
    """A state, of as many clients as there are."""
    site.state["age"] = np.asarray(site.objective.counts, dtype=np.float64)
    return {"rows": site.state["age"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two sites, each in the middle of a run, and of one over another formula."""
    folder = tmp_path_factory.mktemp("kept")
    build(folder, labels=("ward",))
    for name in ("basel", "bern"):
        Member(name, "data.csv", disclosure=LENIENT, allow=(__name__,)).write(home(folder, name))
        host = SiteReceiver(home(folder, name))
        for run, formula in (("r", "score ~ age"), ("q", "score ~ age + C(pain)")):
            assert say(host, kind="open", run=run, task=task(folder, formula), seed=0)["done"] == "open"
            for n, what in enumerate((describe.work_name, kept_ages.work_name)):
                assert "values" in say(host, **asked(n, what) | {"run": run}), what
    return folder


def asked(n, what):
    return RUN | {"work": what, "exchange": [1, n + 1], "counted": [1, n] if n else [0, 0], "number": n + 1}


def answers(folder, own):
    """What a process says that begins in a site's folder."""
    host = SiteReceiver(own)
    requests = [
        {"kind": "about", "run": "r"},
        {"kind": "open", "run": "r", "task": task(folder, "score ~ age"), "seed": 0},
        asked(2, kept_ages.work_name),
    ]
    for request in requests:
        said = say(host, **request)
        yield next((said[word] for word in ("refused", "failed") if word in said), "")


def damaged(data):
    """What is no message any more; then whole ones of another form, with one part of it or of its parts changed."""
    yield from (b"", data[: len(data) // 2], data[:-1], data + b"abc", b"\xff" * 99)
    yield from map(wire.encode, WRONG)
    whole = wire.decode(data)
    for key in whole if isinstance(whole, dict) else ():
        yield wire.encode({k: v for k, v in whole.items() if k != key})
        yield from (wire.encode(whole | {key: wrong}) for wrong in WRONG)
        if isinstance(part := whole[key], dict):
            yield from (wire.encode(whole | {key: part | {k: wrong}}) for k in part for wrong in WRONG[::3])


@pytest.mark.parametrize("name", ["runs/r/opened", "runs/r/head", "runs/r/array-0", RELEASES, "cache"])
def test_what_a_site_did_not_write_is_a_sentence_or_made_again(name, place, tmp_path):
    own = home(place, "bern")
    files = sorted((own / name).iterdir()) if name == "cache" else [own / name]
    sound, said = list(answers(place, shutil.copytree(own, tmp_path / "sound"))), []
    assert sound == ["", "", ""]
    copy = shutil.copytree(own, tmp_path / "copy")
    for file in files:
        for data in [*damaged(file.read_bytes()), *foreign(place, own, file)]:
            shutil.rmtree(copy)
            shutil.copytree(own, copy)
            (copy / file.relative_to(own)).write_bytes(data)
            said += answers(place, copy)
    assert [text for text in said if SAID.search(text)] == []
    assert (set(said) == {""}) == (name == "cache"), set(said)
    if name == RELEASES:
        assert all("has left" in text and repr(RELEASES) in text for text in said if text)


def foreign(place, own, file):
    """The same file of another site, and of another run."""
    other = home(place, "basel") / file.relative_to(own)
    if file.parent.name == "cache":
        return [p.read_bytes() for p in (*other.parent.iterdir(), *file.parent.iterdir()) if p.name != file.name]
    return [path.read_bytes() for path in (other,) if path.exists() and file.name != "array-0"]


def test_no_sentence_says_that_what_left_may_be_forgotten(place, tmp_path):
    """Who deletes the book of a guard, or the memory of sums, gives what they were to prevent."""
    pytest.importorskip("dp_accounting")
    own = shutil.copytree(home(place, "bern"), tmp_path / "own")
    (own / RELEASES).write_bytes(b"")
    (text,) = [text for text in answers(place, own) if text]
    assert "again without it" not in text and "nothing is answered" in text
    Member("bern", "data.csv", privacy={"clip": 1.0, "noise": 1.0, "epsilon": 5.0}, disclosure=LENIENT).write(own)
    write_durable(own / BOOK, [b"damaged"])
    with pytest.raises(CoterieError, match="without what it says was spent"):
        SiteReceiver(own)
