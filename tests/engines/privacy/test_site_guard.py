"""A site that lets private sums through only, and remembers what they cost."""

import numpy as np
import pytest

pytest.importorskip("dp_accounting")

from coterie.engines import wire
from coterie.engines.privacy import Event, Guard, Private, epsilon
from coterie.engines.privacy.gaussian_mechanism import clipped, group_epsilon
from coterie.engines.secure_sum import Secure
from coterie.errors import CoterieError
from coterie.federation import PerRow
from coterie.methods.dp_sgd import DPSGD
from tests.engines.faults import Faults, Loopback
from tests.engines.privacy.test_training import problem
from tests.engines.privacy.works import Values, both, tell
from tests.messages import names

pytestmark = pytest.mark.usefixtures("in_full")

TERMS = {"clip": {"v": 1.0}, "noise": 2.0, "clients": 4, "epsilon": 5.0}


def guarded(objective=None, engine=None, **terms):
    fed = Loopback(Values(np.ones((4, 3))) if objective is None else objective, sites=2, **engine or {})
    guard = Guard(fed._nodes[0].answer, **TERMS | terms)
    fed._nodes[0] = guard
    return fed, guard


def test_agreed_sums_pass_and_are_charged():
    fed, guard = guarded()
    private = Private(fed, clip={"v": 1.0}, noise=2.0)
    for _ in range(3):
        assert private.total(tell).count == 4
    assert guard.spent == private.spent()[0] == epsilon({Event(2.0): 3}, 1e-5)


def test_what_runs_will_cost_is_known_before_and_is_what_they_cost():
    fed, guard = guarded(noise=8.0, epsilon=1.0)
    private = Private(fed, clip={"v": 1.0}, noise=8.0)
    private.total(tell)
    answered, spent = guard.ahead([(2, 1.0), (5, 1.0)], groups=[1, 3])
    assert guard.spent == spent[0][0] == epsilon({Event(8.0): 1}, 1e-5)  # nothing was charged by looking
    for _ in range(2):
        private.total(tell)
    assert guard.spent == spent[1][0]
    assert spent[1][1] == epsilon({Event(8.0 / 3.0): 3}, 1e-5)  # of three clients, a third of the noise
    fit = [epsilon({Event(8.0): n}, 1e-5) <= 1.0 for n in range(4, 9)]
    assert answered.tolist() == [2, sum(fit)] and 0 < sum(fit) < 5
    assert guard.ahead([(2, 0.01)])[1][1] == [epsilon({Event(8.0): 3, Event(8.0, 0.01): 2}, 1e-5)]
    # a run of which one exchange would be too much leaves what it does not spend to those after it
    assert guard.ahead([(50, 1.0), (2, 1e-6)])[0].tolist() == [sum(fit), 2]


def test_rows_of_one_person_are_a_mixture_where_each_is_in_a_sum_by_its_own_coin():
    # the same for two rows, by an integral over outcomes of one sum: delta = E max(0, mixture - exp(eps) plain)
    z, q, eps = 2.0, 0.3, 0.5
    x = np.linspace(-40.0, 60.0, 20001)
    density = [np.exp(-((x - k) ** 2) / (2.0 * z**2)) / (z * np.sqrt(2.0 * np.pi)) for k in range(3)]
    mixed = (1 - q) ** 2 * density[0] + 2 * q * (1 - q) * density[1] + q**2 * density[2]
    sides = ((mixed, density[0]), (density[0], mixed))
    delta = max(np.trapezoid(np.maximum(a - np.exp(eps) * b, 0.0), x) for a, b in sides)
    assert eps <= group_epsilon({Event(z, q): 1}, delta, 2) < eps + 2e-3
    assert eps < group_epsilon({Event(z): 1}, delta, 2)
    # sums that nobody was in, or that were never made, cost nothing
    assert group_epsilon({Event(z, 0.0): 9}, delta, 2) == 0.0
    assert group_epsilon({Event(z): 2, Event(z, q): 0}, delta, 2) == group_epsilon({Event(z): 2}, delta, 2)


BETTER = [{"clip": {"v": 1.5}}, {"noise": 1.9}, {"seed": 1}, {"clip": {"v": 1.0, "n": 1.0}, "work": both}]


@pytest.mark.parametrize("options", BETTER)
def test_what_was_not_agreed_is_refused(options):
    fed, guard = guarded()
    options = {"clip": {"v": 1.0}, "noise": 2.0} | options
    work = options.pop("work", tell)
    with pytest.raises(CoterieError, match="A sum was asked with"):
        Private(fed, **options).total(work)
    assert guard.spent == 0.0


@pytest.mark.parametrize("ask", [lambda fed: fed.ask(tell), lambda fed: fed.total(tell)])
def test_the_coordinator_cannot_go_round_it(ask):
    fed, _ = guarded()
    with pytest.raises(CoterieError, match=names("site gives private sums asked")):
        ask(fed)


def test_no_noise_for_some_clients_is_too_little():
    fed, _ = guarded()
    message = {"inner": tell.work_name, "message": {}, "form": "names", "bound": {"v": 1.0}, "sampling": 1.0}
    with pytest.raises(CoterieError, match=names("less noise share 1")):
        fed.total(clipped, **message, seed=None, noise=PerRow(np.array([1.0, 0.0, 1.0, 1.0])))


def test_the_budget_is_the_sites_own(tmp_path):
    limit = epsilon({Event(2.0): 3}, 1e-5)
    fed, guard = guarded(epsilon=limit, book=tmp_path / "book")
    for count in (1, 2, 3):
        Private(fed, clip={"v": 1.0}, noise=2.0).total(tell)
        assert Guard(fed._nodes[0]._answer, **TERMS, book=tmp_path / "book").spent == epsilon({Event(2.0): count}, 1e-5)
    again, _ = guarded(epsilon=limit, book=tmp_path / "book")
    for late in (fed, again):
        with pytest.raises(CoterieError, match=names("site's privacy budget spent")):
            Private(late, clip={"v": 1.0}, noise=2.0).total(tell)
    assert guard.spent <= limit


def test_a_repeat_is_free_and_another_run_is_not():
    lost = Faults(reply=lambda exchange, site: len(seen) < 4)
    seen = []
    fed, guard = guarded(engine={"faults": lost, "tap": lambda way, site, data: seen.append((way, site, data))})
    private = Private(fed, clip={"v": 1.0}, noise=2.0)
    fed.mark("before")
    seen.clear()
    private.total(tell)
    assert len([s for s in seen if s[:2] == ("up", 0)]) > 1
    assert guard.spent == epsilon({Event(2.0): 1}, 1e-5)
    first = next(data for way, site, data in seen if (way, site) == ("down", 0))
    one = guard.receive(first)
    assert guard.receive(first) == one
    assert guard.spent == epsilon({Event(2.0): 1}, 1e-5)
    fed.restore("before")  # the work would run again, with other noise
    assert "late" in wire.decode(guard.receive(first))
    assert guard.spent == epsilon({Event(2.0): 1}, 1e-5)
    guard.receive(wire.encode(wire.decode(first) | {"number": 100}))
    assert guard.spent == epsilon({Event(2.0): 2}, 1e-5)


def test_rows_are_guarded_too():
    fed, guard = guarded(problem(), clip=1.0, noise=1.0, clients=8, unit="row", epsilon=50.0)
    *_, state = DPSGD(eta=0.1).run(Private(fed, clip=1.0, noise=1.0, unit="row"), [2])
    assert state["t"] == 2
    assert guard.spent == epsilon({Event(1.0): 2}, 1e-5)


def test_secure_sums_carry_private_ones_exactly():
    options = {"clip": {"v": 1.0}, "noise": 2.0, "seed": 1}
    plain = Private(Loopback(Values(np.ones((6, 3))), sites=3), **options).total(tell)
    masked = Private(Loopback(Values(np.ones((6, 3))), sites=3, secure=Secure()), **options).total(tell)
    assert np.array_equal(masked["v"], plain["v"])


STRANGE = [
    {"exchange": [float("nan"), 1]},  # equals nothing, so that the site would work again and the guard not charge it
    {"rows": np.array([0, -4])},
    {"rows": np.array([0.0, 0.5])},
]


@pytest.mark.parametrize("strange", STRANGE, ids=["numbers of exchanges", "clients from the end", "parts of clients"])
def test_a_request_that_no_coordinator_makes_gets_nothing(strange):
    _, guard = guarded()
    how = {"form": "names", "bound": {"v": 1.0}, "noise": 1.0, "sampling": 1.0, "seed": None}
    request = {"kind": "total", "work": clipped.work_name, "by": None, "exchange": [1, 1], "counted": [0, 0]}
    request |= {"rows": None, "message": {"inner": tell.work_name, "message": {}, **how}} | strange
    replies = [wire.decode(guard.receive(wire.encode(request))) for _ in range(2)]
    assert all("as none does" in reply["refused"] for reply in replies)
    assert guard.spent == 0.0


def test_two_processes_of_a_site_keep_one_book(tmp_path):
    fed, _ = guarded(book=tmp_path / "book")
    other, _ = guarded(book=tmp_path / "book")
    for one in (fed, other, fed):
        Private(one, clip={"v": 1.0}, noise=2.0).total(tell)
    assert Guard(fed._nodes[0]._answer, **TERMS, book=tmp_path / "book").spent == epsilon({Event(2.0): 3}, 1e-5)


def test_what_cannot_be_booked_is_not_given(tmp_path, monkeypatch):
    fed, guard = guarded(book=tmp_path / "book")
    full = OSError(28, "No space left on device")

    def fail(*_):
        raise full

    monkeypatch.setattr("coterie.engines.privacy.site_guard.write_durable", fail)
    for _ in range(2):
        with pytest.raises(CoterieError, match="No space left"):
            Private(fed, clip={"v": 1.0}, noise=2.0).total(tell)
    assert guard.spent == 0.0


# -- noise of this site's own clients: what a Guard sees itself

OWN = {"clip": {"v": 1.0}, "noise": 2.0, "epsilon": 50.0}


def careful(k=2, m=8, sites=2, **terms):
    clusters = np.arange(m) % (m // sites) * k // (m // sites)
    order = np.argsort(clusters, kind="stable")
    where = [np.flatnonzero(order // (m // sites) == s) for s in range(sites)]
    fed = Loopback(Values(np.zeros((m, 400))), np.sort(clusters), sites=where, seed=1)
    fed._nodes = [Guard(node.answer, **OWN | terms) for node in fed._nodes]
    return fed, fed._nodes


BY = [None, "cluster", np.array([0, 1, 1, 0, 0, 1, 1, 1])]


@pytest.mark.parametrize("by", BY, ids=["all", "clusters", "groups"])
def test_a_careful_site_needs_the_noise_of_its_own_clients(by):
    fed, guards = careful()
    with pytest.raises(CoterieError, match=names("noise site's clients less 2")):
        Private(fed, clip={"v": 1.0}, noise=2.0).total(tell, by=by)
    private = Private(fed, clip={"v": 1.0}, noise=2.0, hide="site")
    sums = private.total(tell, by=by)
    np.testing.assert_allclose(np.std(sums["v"], axis=-1), 2.0 * np.sqrt(2.0), rtol=0.2)
    assert [guard.spent for guard in guards] == [private.spent()[0]] * 2
    alone = private.total(tell, to=fed.sites[0][:1])  # one client alone adds all of it
    np.testing.assert_allclose(np.std(alone["v"]), 2.0, rtol=0.2)


def test_each_sites_sum_has_all_of_the_noise_by_itself():
    seen = []
    fed, _ = careful()
    fed._tap = lambda way, site, data: seen.append(wire.decode(data)) if way == "up" else None
    Private(fed, clip={"v": 1.0}, noise=2.0, hide="site").total(tell)
    stds = [np.std(reply["values"]["v"]) for reply in seen]
    np.testing.assert_allclose(stds, [2.0, 2.0], rtol=0.2)


@pytest.mark.parametrize(
    ("rows", "by", "noise", "fine"),
    [
        (None, None, 1.0, True),  # four clients of half the noise each
        (None, None, 0.99, False),
        (np.array([1, 3]), None, np.sqrt(2.0), True),
        (np.array([1, 3]), None, 1.0, False),
        (np.array([True, False]), None, np.sqrt(2.0), True),  # clients of one cluster
        (np.array([True, False]), None, 1.0, False),
        (None, "cluster", 1.0, False),
        (None, np.array([0, 0, 0, 1]), PerRow(np.array([1.2, 1.2, 1.2, 2.0])), True),
        (None, np.array([0, 0, 0, 1]), PerRow(np.array([2.0, 2.0, 2.0, 1.9])), False),
        (None, None, PerRow(np.array([2.0, 0.0, 0.0, 2.0])), False),  # whose finer bits would shine through
        (None, None, PerRow(np.array([1.0, 1.0, 1.0, 1e9])), False),
        (None, None, -5.0, False),
        (None, None, np.nan, False),
    ],
)
def test_own_noise_is_counted_in_every_group_that_is_asked(rows, by, noise, fine):
    answer, guard = told(rows, by, noise)
    assert (answer == b"passed") == fine and (guard.spent > 0.0) == fine
    assert fine or "own clients is less than 2" in wire.decode(answer)["refused"]


def test_noise_that_does_not_go_with_its_clients_is_refused():
    rows = np.array([0, 2, 1, 3])  # work gets them in their own order, and what is not PerRow as it was sent
    answer, guard = told(rows, np.array([0, 0, 0, 1]), np.array([1.2, 1.2, 1.2, 2.0]))
    assert "does not say which client adds it" in wire.decode(answer)["refused"] and guard.spent == 0.0


def told(rows, by, noise):
    """What a careful site's guard answers to a sum, and the guard."""
    _, guards = careful()
    how = {"form": "names", "bound": {"v": 1.0}, "noise": noise, "sampling": 1.0, "seed": None}
    request = {"kind": "total", "work": clipped.work_name, "by": by, "exchange": [1, 1], "counted": [0, 0]}
    request |= {"rows": rows, "message": {"inner": tell.work_name, "message": {}, **how}}
    about = guards[0]._answer
    guards[0]._answer = lambda request, key: about(request, key) if request["kind"] == "about" else b"passed"
    return guards[0].receive(wire.encode(request)), guards[0]


def test_hide_is_one_of_two():
    with pytest.raises(CoterieError, match="hide must be all or site"):
        Private(Loopback(Values(np.ones((4, 3)))), clip=1.0, noise=1.0, hide="none")
