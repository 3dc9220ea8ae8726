"""Messages that come twice, or late: whatever copies reach a site, and whenever, the run has the same numbers."""

import numpy as np
import pytest

from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import load_checkpoint, save_checkpoint
from coterie.engines.message_checks import TOLD
from coterie.engines.retry_and_quorum import Policy
from coterie.errors import CoterieError
from coterie.federation import work
from tests.contract.cases import quadratic
from tests.contract.test_faults import add, read
from tests.engines.faults import Faults, Loopback
from tests.messages import names

M, SITES = 9, 3


@work
def mixed(site, x):
    """Keeps something else after every exchange, and whatever their order was."""
    site.state["u"] = np.floor(0.5 * site.state.get("u", np.zeros(len(site)))) + x * (1.0 + site.ids % 7)
    site.count(gradients=len(site))
    return {"u": site.state["u"]}


class Late(Loopback):
    """Before and after each message to a site it gets copies of earlier ones, any of them, in any order."""

    copies = None

    def deliver(self, site, data, attempt):
        self.again(site)
        answer = super().deliver(site, data, attempt)
        self.sent[site].append(data)
        self.again(site)
        return answer

    def again(self, site):
        if self.copies is not None and self.sent[site]:
            for i in self.copies.integers(len(self.sent[site]), size=self.copies.integers(4)):
                self._nodes[site].receive(self.sent[site][i])


def begin(folder, sent, copies=None, loses=lambda exchange, site: False, **options):
    policy, problem = Policy(retries=1, strict=False, min_clients=1), quadratic(M, k=3)
    fed = Late(
        problem.objective, problem.clusters, sites=SITES, folder=folder, faults=Faults(request=loses, reply=loses),
        policy=policy, **options,
    )  # fmt: skip
    fed.copies, fed.sent = copies, sent
    return fed


def course(seed, length=25):
    """What a run does, drawn: exchanges of which some are lost on the way, marks, restores, deaths of either side."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["ask", "total", "mark", "restore", "die", "restart"], length, p=[0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    kinds[np.flatnonzero(kinds == "restore")[:1]] = "mark"
    first = np.argmax(kinds == "mark")
    kinds[:first][kinds[:first] == "restore"] = "ask"
    return [(str(kind), float(rng.integers(1, 9)), rng.random() < 0.3) for kind in kinds]


def run(steps, folder, copies=None, secure=None, at_once=False):
    """All that a run brings, step by step; marks travel with what comes next, or ``at_once``."""
    lossy, sent, done, found = [False], [[] for _ in range(SITES)], [], []

    def new():
        journal = None if secure else folder / "journal"  # the sites of this process hold their keys
        loses = lambda exchange, site: lossy[0] and (exchange + site) % 3 == 0  # noqa: E731
        return begin(folder / "sites", sent, copies, loses, journal=journal, secure=secure)

    def step(fed, kind, x, loses):
        if kind in ("mark", "restore"):
            return [getattr(fed, kind)("here").tolist(), at_once and fed.make_marks().tolist()][0]
        lossy[0] = loses
        replies = getattr(fed, kind)(mixed, x=x)
        lossy[0] = False
        return [replies["u"].tolist(), replies.missing.tolist()]

    fed = new()
    for kind, x, loses in steps:
        if kind == "die":
            fed.kill(int(x) % SITES)
            fed.revive(int(x) % SITES)
        elif kind == "restart":
            fed = fed if secure else new()
            assert secure or [step(fed, *past) for past in done] == found
        else:
            done.append((kind, x, loses and not secure))
            found.append(step(fed, *done[-1]))
    return found, fed.ask(read)["u"].tolist(), fed.ledger.gradient_calls


@pytest.mark.parametrize("seed", range(6))
def test_copies_of_earlier_messages_change_nothing(seed, tmp_path):
    steps = course(seed)
    plain = run(steps, tmp_path / "plain")
    assert run(steps, tmp_path / "late", np.random.default_rng(seed)) == plain
    if seed < 2:
        assert run(steps, tmp_path / "marked", at_once=True) == plain


def test_copies_change_no_secure_sum(tmp_path):
    secure = pytest.importorskip("coterie.engines.secure_sum").Secure()
    steps = course(3, 12)
    plain = run(steps, tmp_path / "plain", secure=secure)
    assert run(steps, tmp_path / "late", np.random.default_rng(3), secure) == plain


def test_another_coordinator_goes_on_from_a_checkpoint_whatever_comes_late(tmp_path):
    """It does not know how far its predecessor had numbered."""
    sent, copies = [[] for _ in range(SITES)], np.random.default_rng(5)
    fed = begin(tmp_path / "sites", sent, copies)
    fed.total(add, x=1.0)
    save_checkpoint(tmp_path / "c", fed, {})
    for _ in range(9):
        fed.total(add, x=1.0)
    again = begin(tmp_path / "sites", sent, copies)
    load_checkpoint(tmp_path / "c", again)
    assert [float(again.total(add, x=x)["u"]) for x in (10.0, 100.0)] == [11.0 * M, 111.0 * M]


@pytest.mark.usefixtures("in_full")
@pytest.mark.parametrize("kind", ["ask", "mark", "restore"])
def test_an_older_request_is_told_how_far_the_site_is(kind, tmp_path):
    sent = [[] for _ in range(SITES)]
    fed = begin(tmp_path / "sites", sent)
    fed.mark("here")
    if kind != "mark":
        fed.make_marks()
        getattr(fed, kind)(*((add,) if kind == "ask" else ("here",)), **({"x": 1.0} if kind == "ask" else {}))
    else:
        fed.ask(read)
        fed.mark("there")
        fed.make_marks()
    data, before = sent[0][-1], fed._nodes[0].receive(sent[0][-1])
    assert fed._nodes[0].receive(data) == before, "the last one again has the same answer"
    fed.ask(add, x=1.0)
    for node in (fed._nodes[0], fed._node(0)):  # the one that is there, and one that comes back from its folder
        assert wire.decode(node.receive(data))["late"] == 3
        same = wire.encode(wire.decode(data) | {"number": 3})
        assert wire.decode(node.receive(same))["late"] == 3, "the number of another request"


@pytest.mark.parametrize("number", [-1, 1.5, "1", True, 2**63, None, [1]])
def test_numbers_that_are_none_are_refused(number, tmp_path):
    sent = [[] for _ in range(SITES)]
    fed = begin(None, sent)
    fed.mark("here")
    fed.make_marks()
    answer = wire.decode(fed._nodes[0].receive(wire.encode(wire.decode(sent[0][0]) | {"number": number})))
    assert "as none does" in answer["failed"]


def late(data, number):
    return wire.encode({"late": number, "site": "site 1", "to": wire.digest(data)[:TOLD]})


@pytest.mark.parametrize("number", [0, -3, 2**48, "9", None])
def test_a_site_that_says_strange_numbers_is_broken(number):
    fed = Loopback(quadratic(M).objective, sites=SITES)
    fed._nodes[1].receive = lambda data: late(data, number)
    with pytest.raises(CoterieError, match=names("site 1 answer no")):
        fed.ask(add, x=1.0)


def test_a_site_that_is_always_further_is_missing():
    fed = Loopback(quadratic(M).objective, sites=SITES, policy=Policy(retries=2, strict=False))
    fed._nodes[1].receive = lambda data: late(data, wire.decode(data)["number"] + 1)
    assert fed.ask(add, x=1.0).missing.tolist() == fed.sites[1].tolist()
    assert "by another process of the coordinator" in fed.troubles["site 1"]
