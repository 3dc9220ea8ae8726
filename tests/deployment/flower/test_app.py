"""The transport over Flower's own messages and apps: all methods give what they give in process; nodes may fail."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from coterie.deployment import processes
from coterie.deployment.flower.app import FlowerTransport
from coterie.engines.retry_and_quorum import BelowQuorum, Policy
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.federation import work
from tests.contract.cases import CASES, make_federation, quadratic
from tests.deployment.flower.grid import MemoryGrid, transport
from tests.engines.sites import nodes
from tests.messages import names

PARTS = [[22, 3, 8], list(range(9, 22)), [0, 1, 2, 4, 5, 6, 7]]
BOTH = {"b": lambda data: data + b" b", "a": lambda data: data + b" a"}


@work
def gradient(site, x):
    return {"g": site.objective.gradient(np.broadcast_to(x, (len(site), 3))), "n": np.ones(len(site))}


def remote(problem, parts, fault=lambda name, call: "", policy=None, **options):
    receivers = {name: node.receive for name, node in nodes(problem, parts).items()}
    return Remote(transport(receivers, fault, **options), policy=policy)


CARRIED = {"pooled", "clusterwise", "heads", "packed", "stochastic", "async-l2gd", "bias-correction-memory"}
"""Cases whose messages have all that messages may have: rows of clients and clusters, ragged arrays, state, text."""


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=[pytest.mark.soak] * (c.name not in CARRIED)) for c in CASES]
)
def test_every_method_gives_what_it_gives_in_process(case):
    problem = case.problem()
    found = case.run(remote(problem, PARTS))
    expected = case.run(make_federation("inprocess", problem))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value = np.asarray(value)
        atol = case.tolerance * max(1.0, np.abs(value).max(initial=0))
        np.testing.assert_allclose(np.asarray(found[name]), value, rtol=case.tolerance, atol=atol, err_msg=name)


def test_faults_of_every_kind_change_nothing_where_messages_are_repeated():
    problem = quadratic()
    expected = CASES[0].run(make_federation("inprocess", problem))
    faults = ["error", "", "late", "", "lost", "", "anew", ""]

    def fault(name, call):
        return faults[call % len(faults)] if name == "site 1" and call > 3 else ""

    fed = remote(problem, PARTS, fault, Policy(deadline=60.0, retries=8), look=0.001)
    fed._transport.send = short(fed._transport.send)
    found = CASES[0].run(fed)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)
    assert fed.quarantined == {}


def short(send):
    """Waiting is short, however long the policy would wait."""
    return lambda messages, timeout: send(messages, min(timeout, 0.02))


def test_replies_by_name_in_the_order_of_names():
    both = transport(BOTH)
    assert both.sites == ["a", "b"]
    assert both.send({"a": b"to", "b": b"too"}, 5.0) == {"a": b"to a", "b": b"too b"}
    assert both.send({"b": b"only"}, 5.0) == {"b": b"only b"}
    assert both.send({}, 5.0) == {}


def test_a_site_whose_process_fails_is_none_and_named():
    one = transport(BOTH, lambda name, call: "error" if name == "a" else "")
    assert one.send({"a": b"x", "b": b"x"}, 5.0) == {"a": None, "b": b"x b"}
    assert one.refused == {"a": "the client process ended (code 1)"}


@pytest.mark.parametrize("fault", ["left", "anew"])
def test_a_node_that_leaves_or_begins_anew_is_none_at_once(fault):
    one = transport(BOTH, lambda name, call: fault if name == "a" and call == 1 else "")
    assert one.send({"a": b"x", "b": b"x"}, float("inf")) == {"a": None, "b": b"x b"}
    after = {"a": None if fault == "left" else b"x a"}
    assert one.send({"a": b"x"}, float("inf")) == after


def test_a_site_that_never_came_is_none_at_once():
    assert transport(BOTH, sites=["a", "b", "c"]).send({"a": b"x", "c": b"x"}, float("inf")) == {"a": b"x a", "c": None}


def test_a_run_that_a_quorum_is_enough_for_does_not_wait_for_sites_that_never_came():
    problem, began = quadratic(), time.monotonic()
    receivers = {name: node.receive for name, node in nodes(problem, PARTS).items()}
    policy = Policy(deadline=60.0, retries=10**6, pause=0.01, min_clients=2, strict=False)
    fed = Remote(transport(receivers, sites=[*receivers, "site 3"]), policy=policy)
    assert fed.away == {"site 3": "it was not there when the run began"} and len(fed.names) == 3
    assert time.monotonic() - began < 30.0


def test_a_reply_that_comes_late_is_never_taken_for_the_next():
    one = transport(BOTH, lambda name, call: "late" if call == 1 else "lost" if call == 2 else "")
    assert one.send({"a": b"first"}, 0.02) == {"a": None}
    assert one.send({"a": b"second"}, 0.02) == {"a": None}
    assert one.send({"a": b"third"}, 5.0) == {"a": b"third a"}


def test_the_same_bytes_again_are_another_message():
    one = transport(BOTH, lambda name, call: "late" if call == 1 else "lost" if call == 2 else "")
    assert [one.send({"a": b"same"}, 0.02)["a"] for _ in range(2)] == [None, None]


def test_a_site_cannot_answer_under_another_name():
    grid = MemoryGrid(BOTH)
    grid.apps["a"], grid.apps["b"] = grid.apps["b"], grid.apps["a"]  # folders that were mixed up
    mixed = transport(BOTH)
    mixed._grid = grid
    assert mixed.send({"a": b"x", "b": b"x"}, 5.0) == {"a": None, "b": None}
    assert "is site 'b', and the message is for 'a'" in mixed.refused["a"]


def test_a_run_that_needs_all_sites_does_not_wait_for_one_that_is_refused(monkeypatch):
    grid, said = MemoryGrid(BOTH), "2 calls with an unknown key were refused."
    monkeypatch.setattr(processes, "GRACE", 0.0)
    with pytest.raises(BelowQuorum, match=r"Not connected: c\. .* 2 calls with an unknown key"):
        FlowerTransport(grid, ["a", "b", "c"], join=60.0, poll=0.01, whole=True, strangers=lambda: said)
    here = FlowerTransport(grid, ["a", "b", "c"], join=60.0, poll=0.01, strangers=lambda: said)
    assert here.sites == ["a", "b", "c"]


def test_two_nodes_of_one_name_are_one_clear_error(monkeypatch):
    two = [SimpleNamespace(node_id=n, name="a", last_activated_at="now") for n in (100, 101)]
    monkeypatch.setattr(MemoryGrid, "get_nodes", lambda self: two)
    with pytest.raises(CoterieError, match=names("Two nodes registered site 'a'")):
        transport(BOTH)


def test_nobody_is_an_error():
    with pytest.raises(CoterieError, match=names("No site connected start")):
        transport({})


def test_payloads_travel_as_they_are_with_few_bytes_beside():
    one = transport(BOTH)
    one.send({"a": bytes(100_000)}, 5.0)
    _, message, reply = one._grid.carried[0]
    for sent, size in ((message, 100_000), (reply, 100_002)):
        (record,) = sent.content.children.values()
        assert size < len(record.deflate()) < size + 64
