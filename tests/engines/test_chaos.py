"""Runs over secure sums while messages are lost, late, doubled and damaged, and sites and the coordinator die."""

import collections
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("cryptography")

from coterie.engines import wire
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.secure_sum import Secure, secure_sites
from coterie.engines.site_enrolment import Remote
from tests.contract.cases import quadratic
from tests.contract.test_faults import Full, add, read
from tests.engines.faults import MOMENTS, CrashError, Mortal
from tests.engines.sites import nodes

SITES = 3
SECURE = Secure(min_sites=2)
PATIENT = Policy(strict=False, min_clients="all", retries=1000)


class KilledError(BaseException):
    """The coordinator's process died."""


class Disturbed:
    """A transport to sites with folders, which are made again from them as often as they die.

    ``fault(transport, site, call, request)`` brings the reply, by :meth:`deliver` or otherwise; ``past`` are requests
    and replies of a site so far.
    """

    def __init__(self, problem, folder=None, fault=None):
        names = [f"site {s}" for s in range(SITES)]
        party = secure_sites(names, SECURE)
        parts = [np.arange(len(problem.ids))[s::SITES] for s in range(SITES)]
        self._new = lambda: nodes(problem, parts, folder, kind=Mortal, party=party)
        self._nodes, self.fault = self._new(), fault or (lambda self, site, call, data: self.deliver(site, data))
        self.sites, self.calls = names, collections.Counter()
        self.past = {name: ([], []) for name in names}

    def send(self, messages, timeout):
        answers = {}
        for site, data in messages.items():
            self.calls[site] += 1
            answers[site] = self.fault(self, site, self.calls[site], data)
        return answers

    def deliver(self, site, data):
        reply = self._nodes[site].receive(data)
        for kept, message in zip(self.past[site], (data, reply), strict=True):
            kept.append(message)
        return reply

    def die(self, site, data, moment):
        """The site dies on its way through a message, and comes back from its folder."""
        self._nodes[site].dying = moment
        with suppress(CrashError):
            self._nodes[site].receive(data)
        self._nodes[site] = self._new()[site]

    def close(self):
        pass


def flipped(data, place):
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 85]) + data[place + 1 :]


# -- one fault, at each place of an exchange


def steps(fed):
    """Every kind of request, some of them twice, over sums that show whether any work ran twice or not at all."""
    found = [fed.ask(read)["u"].tolist(), *(float(fed.total(add, x=x)["u"]) for x in (1.0, 10.0))]
    fed.mark("here")
    found.append(fed.ask(add, x=3.0)["u"].tolist())
    fed.restore("here")
    return [*found, float(fed.total(add, x=100.0)["u"]), fed.ask(read)["u"].tolist()]


EXPECTED = [[0.0] * 12, 12.0, 132.0, [14.0] * 12, 1332.0, [111.0] * 12]
REPLIES = {
    "the last again": lambda past, reply, other: past[-2] if len(past) > 1 else None,
    "the first again": lambda past, reply, other: past[0] if len(past) > 1 else None,
    "another site's": lambda past, reply, other: other[-1] if len(past) > 1 else None,
    "head": lambda past, reply, other: flipped(reply, 0),
    "middle": lambda past, reply, other: flipped(reply, len(reply) // 2),
    "end": lambda past, reply, other: flipped(reply, -1),
    "cut": lambda past, reply, other: reply[: len(reply) // 2],
    "empty": lambda past, reply, other: b"",
    "lost": lambda past, reply, other: None,
}
SHORT = ("the last again", "another site's", "middle")


@pytest.mark.parametrize(
    "change", [pytest.param(c, id=c, marks=[] if c in SHORT else pytest.mark.soak) for c in REPLIES]
)
def test_a_reply_that_is_damaged_or_answers_something_else_is_asked_for_again(change):
    for struck in range(1, 17):

        def fault(self, site, call, data, struck=struck):
            reply = self.deliver(site, data)
            if site != "site 1" or call != struck:
                return reply
            return REPLIES[change](self.past[site][1], reply, self.past["site 0"][1])

        transport = Disturbed(quadratic(12, k=1), fault=fault)
        fed = Remote(transport, policy=Policy(strict=False, retries=1), secure=SECURE)
        assert steps(fed) == EXPECTED, struck
        assert transport.calls["site 1"] == 17 and not fed.quarantined, "all of its calls, and one again"


# -- everything at once


class Chaos:
    """A fault that draws what happens to each message; each kind with the same ``rate``."""

    KINDS = (
        "request lost", "request damaged", "request twice", "old request before", "reply lost", "reply damaged",
        "reply replayed", "reply late", "site dies", "site's disk is full",
        "coordinator dies before", "coordinator dies after",
    )  # fmt: skip

    def __init__(self, seed, rate, kinds=KINDS):
        self.rng, self.rate, self.kinds = np.random.default_rng(seed), rate, kinds
        self.happened = collections.Counter()

    def __call__(self, transport, site, call, data):
        drawn = self.rng.random(len(self.KINDS)) < self.rate * np.where(["coord" in k for k in self.KINDS], 0.05, 1.0)
        now = {kind for kind, strikes in zip(self.KINDS, drawn, strict=True) if strikes} & set(self.kinds)
        self.happened.update(now)
        if "coordinator dies before" in now:
            raise KilledError
        if "old request before" in now and transport.past[site][0]:
            transport.deliver(site, self.any(transport.past[site][0]))
        if "request lost" in now:
            return None
        if "request damaged" in now:
            data = self.damaged(data)
        if "request twice" in now:
            transport.deliver(site, data)
        if "site dies" in now:
            return transport.die(site, data, MOMENTS[self.rng.integers(3)])
        before, node = list(transport.past[site][1]), transport._nodes[site]
        if "site's disk is full" in now:
            folder, node._folder = node._folder, Full()
            node.receive(data)
            node._folder = folder
        reply = transport.deliver(site, data)
        if "coordinator dies after" in now:
            raise KilledError
        if "reply lost" in now:
            return None
        if "reply late" in now and before:
            return before[-1]
        if "reply replayed" in now and before:
            return self.any(before)
        return self.damaged(reply) if "reply damaged" in now else reply

    def any(self, messages):
        return messages[self.rng.integers(len(messages))]

    def damaged(self, data):
        place = int(self.rng.integers(len(data)))
        return data[:place] if self.rng.random() < 0.3 else flipped(data, place)


def outcome(folder, fault=None):
    """What the steps give, whoever must start the coordinator again."""
    transport = Disturbed(quadratic(12, k=1), folder / "sites", fault)
    while True:
        try:
            return steps(Remote(transport, policy=PATIENT, journal=folder / "journal", secure=SECURE))
        except KilledError:
            pass


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 100))])
def test_whatever_happens_the_digits_are_those_of_an_undisturbed_run(seed, tmp_path):
    assert outcome(tmp_path, Chaos(seed, 0.1)) == EXPECTED


def test_a_masked_sum_is_sent_again_as_it_was_and_no_other_is_made_with_its_key(tmp_path):
    """Two of them over other numbers would tell the difference of what they hide."""
    said = []

    def fault(self, site, call, data):
        if site == "site 1" and call == 4:  # after it has said who is there, and joined twice
            said.append(self.deliver(site, data))
            self.die(site, b"", "received")
            said.append(self.deliver(site, data))
            request = wire.decode(data)
            said.append(self.deliver(site, wire.encode(request | {"number": request["number"] + 1})))
        return self.deliver(site, data)

    transport = Disturbed(quadratic(12, k=1), tmp_path, fault)
    fed = Remote(transport, policy=PATIENT, secure=SECURE)
    assert fed.total(add, x=1.0)["u"] == 12.0
    assert said[0] == said[1] and "words" in wire.decode(said[0])["values"]
    assert "does not hold the key" in wire.decode(said[2])["refused"]
