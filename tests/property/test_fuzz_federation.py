"""Requests and replies that nobody should send: a site answers all of them, and a coordinator ends no other way."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import wire
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from tests.contract.cases import cluster_steps, last, personal_step, quadratic, tied
from tests.engines.sites import nodes, transport
from tests.property.fuzzing import disturbed

pytestmark = pytest.mark.usefixtures("in_full")

M, D = 8, 3
PARTS = [np.arange(3), np.arange(3, 5), np.arange(5, M)]
MESSAGE = {"x": np.zeros(D), "eta": 0.2, "gamma": 0.5}
STEP, STEPS = personal_step.work_name, cluster_steps.work_name
ASK = {"kind": "ask", "work": STEP, "exchange": [9, 1], "counted": [0, 0], "rows": None, "message": MESSAGE}
REQUESTS = [
    ASK,
    ASK | {"rows": np.array([2, 0], np.uint8)},
    ASK | {"kind": "total", "by": None},
    ASK | {"kind": "total", "by": np.array([0, 1, 0], np.uint8)},
    ASK | {"kind": "total", "by": "cluster"},
    {"kind": "mark", "marks": ["a"], "counted": [0, 0]},
    {"kind": "restore", "tag": "a", "exchange": [0, 0]},
    {"kind": "about", "run": "r"},
]
HOSTILE = {
    "rows that are not here": ASK | {"rows": np.array([3])},
    "rows from the end": ASK | {"rows": np.array([-1])},
    "rows that are no numbers": ASK | {"rows": np.array([0.5])},
    "rows of rows": ASK | {"rows": np.zeros((2, 2), np.uint8)},
    "a group far away": ASK | {"kind": "total", "by": np.array([0, 1, 2**50])},
    "a group before the first": ASK | {"kind": "total", "by": np.array([0, -1, 0])},
    "too few groups": ASK | {"kind": "total", "by": np.array([0], np.uint8)},
    "clusters by another name": ASK | {"kind": "total", "by": "clusters"},
    "work that is none": ASK | {"work": "coterie.errors:CoterieError"},
    "work of others": ASK | {"work": "os:system"},
    "no kind": {"work": STEP},
    "no dict": [1, 2],
}


def site(**options):
    return nodes(quadratic(M, d=D, k=2), PARTS, **options)["site 0"]


def answer(node, request):
    return wire.decode(node.receive(wire.encode(request)))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("min_group", [0, 1])
def test_a_site_refuses_what_it_cannot_answer_and_goes_on(name, min_group):
    node = site(min_group=min_group)
    assert set(answer(node, HOSTILE[name])) in ({"refused"}, {"failed"})
    expected = answer(site(), ASK)
    assert wire.encode(answer(node, ASK)) == wire.encode(expected)


@pytest.mark.parametrize("many", [150, pytest.param(500, marks=pytest.mark.soak)])
def test_a_site_answers_whatever_it_is_asked(many):
    rng, node = np.random.default_rng(2), site()
    kinds = {"refused": 0, "failed": 0, "garbled": 0, "done": 0, "exchange": 0}
    for turn in range(many):
        reply = answer(node, disturbed(rng, REQUESTS[turn % len(REQUESTS)]))
        (kind,) = kinds.keys() & reply.keys()
        kinds[kind] += 1
        if turn % 20 == 19:
            node = site()
    assert kinds["refused"] and kinds["failed"] and kinds["exchange"] and kinds["done"]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("many", [60, pytest.param(500, marks=pytest.mark.soak)])
def test_a_coordinator_ends_with_numbers_or_with_a_sentence(many, strict):
    rng, problem = np.random.default_rng(1), quadratic(M, d=D, k=2)
    ended = named = 0
    for _ in range(many):
        bad, when = f"site {rng.integers(3)}", int(rng.integers(1, 6))

        def fault(name, call, reply, bad=bad, when=when):
            whole = reply is None or name != bad or call != when
            return reply if whole else wire.encode(disturbed(rng, wire.decode(reply, writable=True)))

        policy = Policy(deadline=5.0, retries=1, min_clients=1, strict=strict)
        try:
            with Remote(transport(problem, PARTS, fault=fault), policy=policy) as fed:
                state = last(tied(fed, steps=3))
        except CoterieError:
            ended += 1
            continue
        assert state["x"].shape == (D,)
        named += set(fed.quarantined) | set(fed.away) == {bad}
    assert ended + named > many // 4
