"""Messages that no coordinator of this package sends: a site answers all of them, and logs each."""

from __future__ import annotations

import json

import numpy as np
import pytest

from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member
from coterie.engines import wire
from coterie.engines.message_checks import failed
from coterie.engines.privacy.gaussian_mechanism import clipped
from coterie.federation import PerCluster, PerRow, Ragged
from tests.deployment.sites import LENIENT, build, home, say, task

HUGE = 10**5000  # more digits than Python writes
NESTED: object = HUGE
for _ in range(50):
    NESTED = [NESTED]
VALUES = [
    *(None, True, -1, HUGE, -HUGE, 2**63, 1.5, float("nan"), "", "x" * 10_000, "\ud800", "\0", "../..", b"abc"),
    *([], [HUGE], [1, HUGE], [1, 1, 1], [[1, 1], [1, 1]], NESTED, {}, {"a": HUGE}, {"a": NESTED}, [None], ["a", "b"]),
    *(
        np.array(5),
        np.zeros(0),
        np.zeros((2, 2)),
        np.array(["a"]),
        np.arange(3),
        np.array([True]),
        np.uint64(2**64 - 1),
    ),
    *(Ragged.of([[1.0]]), PerRow(np.zeros(2)), PerCluster(np.zeros(1)), "coterie.cli.main:app", "coterie.:x"),
]
EXCHANGE = {"run": "r", "exchange": [1, 1], "counted": [0, 0], "rows": None, "by": None}
VIEW = EXCHANGE | {"work": "coterie.deployment.coordinator.identifiability:view", "message": {"p": 2}}
TERMS = {"form": "names", "bound": {"v": 1.0}, "noise": 1.0, "sampling": 1.0, "seed": None}
REQUESTS = {
    "open": {"run": "r", "seed": 0},
    "ask": VIEW,
    "total": VIEW,
    "private total": EXCHANGE | {"work": clipped.work_name, "message": {"inner": "a:b", "message": {}, **TERMS}},
    "mark": {"run": "r", "marks": ["t"], "counted": [0, 0]},
    "restore": {"run": "r", "tag": "t", "exchange": [1, 1]},
    "join": {"run": "r", "lives": {}},
    "unmask": {"run": "r", "round": {}, "answered": [], "shares": []},
    "about": {"run": "r"},
    "check": {"schema": None},
}


def shapes(request):
    """A request with each of its parts, and of the tables in it, replaced by everything, and left out."""
    for name, part in request.items():
        yield {n: p for n, p in request.items() if n != name}
        yield from (request | {name: value} for value in VALUES)
        if isinstance(part, dict):
            yield from (request | {name: part | {key: value}} for key in [*part, "strange"] for value in VALUES)


SUMS = ("ask", "total", "private total")  # what a guard looks at; it lets all else through as it is
TOLD = (("ask", True), ("total", False), ("private total", False))  # others of the three meet the same lines


@pytest.mark.parametrize(
    ("kind", "guarded"),
    [
        pytest.param(
            *(kind, guarded),
            id=f"{'guarded' if guarded else 'plain'}-{kind}",
            marks=pytest.mark.soak if (guarded and kind not in SUMS) or (kind, guarded) in TOLD else (),
        )
        for guarded in (False, True)
        for kind in REQUESTS
    ],
)
def test_every_part_of_a_message_may_be_anything(kind, guarded, tmp_path):
    build(tmp_path)
    own = home(tmp_path, "bern")
    if guarded:
        pytest.importorskip("dp_accounting")
        Member("bern", "data.csv", privacy={"clip": 1.0, "noise": 1.0, "epsilon": 5.0}, disclosure=LENIENT).write(own)
    host, opening = SiteReceiver(own), {"kind": "open", "run": "r", "task": task(tmp_path), "seed": 0}
    assert say(host, **opening)["done"] == "open"
    request = {"kind": kind.split()[-1], **REQUESTS[kind]} | ({"task": task(tmp_path)} if kind == "open" else {})
    asked = [*shapes(request), *VALUES] if kind == "about" else list(shapes(request))
    for strange in asked:
        assert wire.decode(host.receive(wire.encode(strange)))
    lines = (own / "log.jsonl").read_text().splitlines()
    assert all(map(json.loads, lines)) and len(lines) == 1 + len(asked)
    assert say(SiteReceiver(own), kind="about", run="r")["done"] == "about"


def test_an_error_that_cannot_be_written_is_an_answer_too():
    assert wire.decode(failed(KeyError(HUGE)))["failed"] == "KeyError: what is wrong cannot be written"
    assert wire.decode(failed(KeyError("a")))["failed"] == "KeyError: 'a'"
