"""What messages carry beside their numbers, and that leaving out what both ends know changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.codecs import by_name
from coterie.engines import wire
from coterie.engines.header_compression import LONGEST, PAIRS, CoordinatorLink, SiteLink
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.site_enrolment import Remote
from coterie.federation import PerRow, Ragged, work
from coterie.objectives.quadratic import Quadratic
from tests.contract.cases import last, quadratic, tied
from tests.engines.faults import Loopback
from tests.engines.sites import Local, nodes, transport

D, N = 57, 3
MOST = 40  # bytes of a message beside its numbers
PARTS = [np.arange(3), np.arange(3, 5), np.arange(5, 8)]


@work
def coded(site, x, t, codec):
    """What a client sends of a step: a row in a codec, or as it is."""
    if codec == "none":
        return {"g": np.asarray(x)}
    sent = by_name(codec).encode(np.asarray(x), keys=site.ids, step=t).payload
    return {"payload": sent, "sound": np.ones(len(site), dtype=bool)}


def sizes(codec, steps=4):
    """Bytes of a step's numbers, and of the messages that carry them to a site with one client and back."""
    seen = {"down": 0, "up": 0}
    fed = Loopback(
        Quadratic(np.tile(np.eye(D), (N, 1, 1)), np.zeros((N, D))), sites=N,
        tap=lambda way, site, data: seen.update({way: len(data)}),
    )  # fmt: skip
    rows = np.random.default_rng(0).normal(size=(N, D))
    for t in range(steps):
        replies = fed.ask(coded, x=PerRow(rows), t=t, codec=codec)
    numbers = [replies[name] for name in replies]
    up = sum(len(a.values) if isinstance(a, Ragged) else a.nbytes for a in numbers) // N
    return {"down": rows[:1].nbytes, "up": up}, seen


@pytest.mark.parametrize("codec", ["none", "float32", "topk:0.1", "tv:2"])
def test_a_message_carries_few_bytes_beside_its_numbers(codec):
    numbers, sent = sizes(codec)
    for way in ("down", "up"):
        assert 0 < sent[way] - numbers[way] <= MOST


def test_a_step_of_two_values_is_a_fifth_of_single_precision_on_the_link():
    assert 5 * sizes("tv:2")[1]["up"] <= sizes("float32")[1]["up"]


@pytest.mark.parametrize("kind", ["ask", "total"])
def test_sites_that_are_elsewhere_carry_no_more(kind):
    """The name of the run, of the work and of its parameters are known from the first time."""
    carried = transport(quadratic(8, d=D, k=2), PARTS)
    fed, seen = Remote(carried, run="a-run-with-quite-a-long-name"), []
    carried.fault = lambda name, call, reply: seen.append(len(reply)) or reply
    for t in range(3):
        carried.sent.clear()
        seen.clear()
        getattr(fed, kind)(coded, x=PerRow(np.zeros((8, D))), t=t, codec="none")
    for (_, data), part in zip(carried.sent, PARTS, strict=True):
        assert 0 < len(data) - 8 * D * len(part) <= MOST
    assert all(
        0 < up - 8 * D * (len(part) if kind == "ask" else 1) <= MOST for up, part in zip(seen, PARTS, strict=True)
    )
    assert fed.ledger.bytes_up > sum(seen)


class Damaging(Local):
    """Changes a byte of many messages on the way, either way."""

    def __init__(self, receivers, seed):
        super().__init__(receivers)
        self.rng, self.damaged = np.random.default_rng(seed), 0

    def send(self, messages, timeout):
        answers = super().send({name: self.spoilt(data) for name, data in messages.items()}, timeout)
        return {name: self.spoilt(data) for name, data in answers.items()}

    def spoilt(self, data):
        if self.rng.random() < 0.7:
            return data
        self.damaged += 1
        place, value = int(self.rng.integers(len(data))), int(self.rng.integers(1, 256))
        return data[:place] + bytes([data[place] ^ value]) + data[place + 1 :]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.soak) for s in range(2, 60))])
def test_whatever_byte_changes_the_numbers_are_the_same(seed):
    problem, policy = quadratic(8, d=3, k=2), Policy(retries=200, strict=True)
    expected = last(tied(Remote(transport(problem, PARTS)), steps=6))
    place = Damaging({name: node.receive for name, node in nodes(problem, PARTS).items()}, seed)
    found = last(tied(Remote(place, policy=policy), steps=6))
    assert place.damaged > 0
    for name, value in expected.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(value), err_msg=name)


def test_a_site_that_forgets_is_sent_all_again_at_once():
    fed = Loopback(quadratic(8, d=3).objective, sites=2, retries=0)
    first = fed.ask(coded, x=PerRow(np.ones((8, 3))), t=0, codec="none")
    for node in fed._nodes:
        node._link = CoordinatorLink()
    again = fed.ask(coded, x=PerRow(np.ones((8, 3))), t=1, codec="none")
    assert not len(again.missing)
    np.testing.assert_array_equal(first["g"], again["g"])


def exchange(site, end, request, reply):
    """One request over a link, and whether it went without its form; the answer in full, as it was sent."""
    short = site.shortened(request)
    answer = end.answered(short or request, lambda read, key: reply)
    whole = answer if short is None else site.lengthened(request, answer)
    if whole is not None:
        site.learn(request, whole)
    return short is not None, whole, len(answer)


def test_an_answer_of_another_form_comes_in_full():
    site, end = SiteLink(), CoordinatorLink()
    one, other = wire.encode({"values": np.ones(3)}), wire.encode({"refused": "not today"})
    ask = [wire.encode({"kind": "ask", "number": n}) for n in range(4)]
    assert exchange(site, end, ask[0], one) == (False, one, len(one))
    assert exchange(site, end, ask[1], one)[:2] == (True, one)
    assert exchange(site, end, ask[2], other) == (True, other, len(other))
    short, whole, size = exchange(site, end, ask[3], other)
    assert (short, whole) == (True, other) and size < len(other)


def test_forms_outlive_a_process_of_the_site(tmp_path):
    site, answers = SiteLink(), wire.encode({"values": np.ones(3)})
    for n in range(3):
        end = CoordinatorLink(tmp_path / "forms")
        assert exchange(site, end, wire.encode({"kind": "ask", "number": n}), answers)[:2] == (n > 0, answers)
    (tmp_path / "forms").write_bytes(b"junk")
    request = wire.encode({"kind": "ask", "number": 9})
    assert exchange(site, CoordinatorLink(tmp_path / "forms"), request, answers)[:2] == (True, None)
    assert exchange(site, CoordinatorLink(tmp_path / "forms"), request, answers)[:2] == (False, answers)


def test_what_is_remembered_has_an_end(tmp_path):
    site, end = SiteLink(), CoordinatorLink(tmp_path / "forms")
    for n in range(PAIRS + 9):
        exchange(site, end, wire.encode({f"name {n}": 1}), wire.encode({"n": n}))
    assert len(site._known) == len(end._pairs) == PAIRS
    long = wire.encode({"x" * LONGEST: 1})
    for _ in range(2):
        assert not exchange(site, end, long, wire.encode(1))[0]


@pytest.mark.parametrize("data", [b"", b"\xb0", b"\xb0abcd", b"\xb0abcdef", b"\xb1", b"\xc3", b"\xc3\xff"])
def test_a_site_answers_whatever_comes(data):
    answer = CoordinatorLink().answered(data, lambda request, key: pytest.fail("it was read"))
    assert answer == b"\xb1" or "garbled" in wire.decode(answer)
