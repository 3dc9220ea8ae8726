"""Clients that train at home: faults, broken data, divergence, limits that are known, and bad input."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.feddyn import FedDyn
from coterie.methods.ifca import IFCA
from coterie.methods.l2gd import L2GD
from coterie.methods.local_training.client_work import BROKEN, DIVERGED, GOOD
from coterie.methods.local_training.rounds import participants
from coterie.methods.pfedme import PFedMe
from coterie.numerics import keyed_random
from coterie.objectives.gradient_steps import Draws, descend
from coterie.objectives.quadratic import NoisyQuadratic, Quadratic
from coterie.objectives.softmax import Softmax
from tests.engines.faults import Faults, Loopback
from tests.messages import names
from tests.methods.layered import layered

M = 8
METHODS = [
    FedAvg(eta=0.2, finetune=2),
    Ditto(eta=0.2, lam=0.5, s=2),
    PFedMe(eta=0.5, lam=2.0, alpha=0.2),
    IFCA(eta=0.2, k=2, spread=2.0),
    L2GD(eta=0.2, lam=0.5, tau=3, seed=1),
]
every = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


def quadratic(m=M, seed=0):
    rng = np.random.default_rng(seed)
    A = np.eye(2) * rng.uniform(1.0, 3.0, (m, 1, 1))
    return Quadratic(A, rng.normal(size=(m, 2)) + 3.0 * (np.arange(m) % 2)[:, None])


def rows(m=M, n=6, seed=0):
    rng = np.random.default_rng(seed)
    stops = n * np.arange(1, m + 1)
    return Softmax.of(rng.normal(size=(m * n, 2)), rng.integers(0, 3, m * n), stops - n, stops, 3)


def last(method, fed, rounds, state=None):
    return list(method.run(fed, range(1, rounds + 1), state))[-1]


def without(o, k):
    """All clients but one."""
    return np.setdiff1d(np.arange(len(o)), k)


@every
def test_a_client_with_broken_data_is_named_and_left_out(method):
    o = quadratic()
    b = o.b.copy()
    b[3, 1] = np.nan
    fed = InProcess(Quadratic(o.A, b))
    state = last(method, fed, 10)
    assert state["status"] == "running" and state["t"] == 10
    np.testing.assert_array_equal(state["quarantined"], np.where(np.arange(M) == 3, 1, 0))
    np.testing.assert_array_equal(state["why"], np.where(np.arange(M) == 3, BROKEN, GOOD))
    models = method.models(fed, state)
    assert np.isfinite(models).all()
    rest = without(o, 3)
    ids = fed.clients.ids[rest]
    alone = InProcess(o.take(rest), ids=ids)
    expected = last(method, alone, 10)
    np.testing.assert_allclose(state["w"], expected["w"], rtol=1e-12)
    np.testing.assert_allclose(models[rest], method.models(alone, expected), rtol=1e-12)


@every
def test_broken_data_end_a_strict_run(method):
    o = quadratic()
    b = o.b.copy()
    b[3, 1] = np.nan
    fed, method = InProcess(Quadratic(o.A, b)), replace(method, strict=True)
    state = last(method, fed, 10)
    assert state["status"] == "ended by step 1: the data of some clients give no gradient" and state["t"] == 0
    np.testing.assert_array_equal(state["failed"], [3])


@every
def test_where_most_diverge_the_run_ends(method):
    o = quadratic()
    many = np.arange(M) < 5
    fed = InProcess(Quadratic(o.A * np.where(many, 1e90, 1.0)[:, None, None], o.b))
    state = last(method, fed, 10)
    assert state["status"] == f"diverged by step {state['t'] + 1}"
    np.testing.assert_array_equal(state["failed"], np.flatnonzero(many))


@every
def test_nobody_is_left(method):
    o = quadratic(2)
    fed = InProcess(Quadratic(o.A, np.full((2, 2), np.nan)))
    state = last(method, fed, 5)
    assert state["status"] == "ended by step 1: every client is quarantined"
    assert np.isfinite(state["w"]).all() and np.isfinite(method.models(fed, state)).all()


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(eta=2.0),
        Ditto(eta=2.0, lam=0.5),
        PFedMe(eta=0.5, lam=2.0, alpha=0.5, K=20),
        IFCA(eta=2.0, k=2, tau=4),
    ],
    ids=lambda m: type(m).__name__,
)
def test_who_diverges_is_left_out_or_ends_the_run(method):
    o = quadratic()
    steep = Quadratic(o.A * np.where(np.arange(M) == 5, 40.0, 0.1)[:, None, None], o.b)
    fed = InProcess(steep)
    state = last(method, fed, 250)
    assert state["status"] == "running" and state["t"] == 250
    np.testing.assert_array_equal(np.flatnonzero(state["quarantined"]), [5])
    np.testing.assert_array_equal(state["why"], np.where(np.arange(M) == 5, DIVERGED, GOOD))
    assert np.isfinite(state["w"]).all() and np.isfinite(method.models(fed, state)).all()
    method, fed = replace(method, strict=True), InProcess(steep)
    state = last(method, fed, 250)
    assert state["status"] == f"diverged by step {state['t'] + 1}" and 5 in state["failed"]
    assert not state["quarantined"].any() and np.isfinite(state["w"]).all()
    assert list(method.run(fed, [500], state)) == []
    assert np.isfinite(method.models(fed, state)).all()


@every
def test_who_does_not_answer_counts_for_nothing(method):
    """A site that is away in every exchange changes nothing; its clients get the shared model."""
    o = quadratic()
    away = Faults(request=lambda exchange, site: site == 0 and exchange > 1)
    fed = Loopback(o, sites=[[1, 6], [0, 2, 3, 4, 5, 7]], retries=0, faults=away)
    state = last(method, fed, 6)
    here = np.array([0, 2, 3, 4, 5, 7])
    alone = InProcess(o.take(here), ids=fed.clients.ids[here])
    expected = last(method, alone, 6)
    np.testing.assert_allclose(state["w"], expected["w"], rtol=1e-12)
    models = method.models(fed, state)
    np.testing.assert_allclose(models[here], method.models(alone, expected), rtol=1e-12)
    shared = state["w"][0] if isinstance(method, IFCA | L2GD) else state["w"]
    np.testing.assert_array_equal(models[[1, 6]], np.tile(shared, (2, 1)))


@every
def test_rounds_nobody_hears_change_nothing(method):
    fed = Loopback(quadratic(), sites=2, retries=0, faults=Faults(request=lambda exchange, site: exchange > 1))
    start = method.init(fed)
    state = last(method, fed, 3, start)
    assert state["t"] == 3 and state["status"] == "running"
    np.testing.assert_array_equal(state["w"], start["w"])


def test_nobody_says_how_many_parameters_there_are():
    fed = Loopback(quadratic(), sites=2, retries=0, faults=Faults(request=1.0))
    with pytest.raises(CoterieError, match=names("No client said how many parameters")):
        FedAvg(eta=0.1).init(fed)


def test_clients_of_other_shapes_are_refused():
    fed = Loopback(quadratic(), sites=2)
    with pytest.raises(CoterieError, match=names("model 2 finite numbers")):
        FedAvg(eta=0.1).init(fed, np.zeros(3))
    with pytest.raises(CoterieError, match=names("model 2 finite numbers")):
        FedAvg(eta=0.1).init(fed, np.array([0.0, np.nan]))


def test_one_client_is_sgd_at_home():
    o = rows(1, 12)
    fed = InProcess(o, seed=4)
    state = last(FedAvg(eta=0.3, B=5, E=2), fed, 4)
    draws = Draws(keyed_random.starts(4, "rows", fed.clients.ids), np.zeros(1, np.int64), 5)
    expected = descend(o, np.zeros((1, 6)), np.array([0.3 / 12]), np.array([4 * 2 * 3]), draws)
    np.testing.assert_allclose(state["w"], expected[0], rtol=1e-12)


def test_limits_of_ditto():
    """lambda = 0 is local training, and a large one is the shared model."""
    o = quadratic()
    fed = InProcess(o)
    method = Ditto(eta=0.2, lam=0.0, s=3)
    found = method.models(fed, last(method, fed, 40))
    np.testing.assert_allclose(found, o.b / o.A[:, [0, 1], [0, 1]], rtol=1e-9)
    fed = InProcess(o)
    method = Ditto(eta=1e-4, lam=5000.0, s=30)
    state = last(method, fed, 10)
    np.testing.assert_allclose(method.models(fed, state), np.tile(state["w"], (M, 1)), atol=1e-2)


def test_ifca_with_one_group_is_fedavg():
    o = rows()
    w = np.random.default_rng(0).normal(size=6)
    one = last(IFCA(eta=0.2, k=1, tau=2), fed := InProcess(o), 5, IFCA(eta=0.2, k=1).init(fed, w[None]))
    other = last(FedAvg(eta=0.2, E=2), fed, 5, FedAvg(eta=0.2).init(fed, w))
    np.testing.assert_allclose(one["w"][0], other["w"], rtol=1e-13)
    assert (one["group"] == 0).all()


def test_ifca_finds_hidden_groups():
    o = quadratic(20)
    o = Quadratic(o.A, o.b + 9.0 * (np.arange(20) % 2)[:, None])
    fed = InProcess(o)
    method = IFCA(eta=0.2, k=2)
    state = last(method, fed, 60, method.init(fed, np.array([[0.0, 0.0], [1.0, 1.0]])))
    truth = np.arange(20) % 2
    assert len(set(zip(state["group"], truth, strict=True))) == 2
    for j in range(2):
        mine = state["group"] == j
        expected = np.linalg.solve(o.A[mine].sum(axis=0), o.b[mine].sum(axis=0))
        np.testing.assert_allclose(state["w"][j], expected, rtol=1e-6)


def test_clients_without_rows_do_not_count():
    full, bare = rows(3), rows(3)
    bare.stops[1] = bare.starts[1]
    fed = InProcess(bare)
    method = FedAvg(eta=0.2, B=2, finetune=2)
    state = last(method, fed, 4)
    kept = InProcess(full.take(np.array([0, 2])), ids=fed.clients.ids[[0, 2]])
    np.testing.assert_allclose(state["w"], last(method, kept, 4)["w"], rtol=1e-12)
    np.testing.assert_array_equal(method.models(fed, state)[1], state["w"])


def test_participants_are_a_share_drawn_by_keys():
    ids = np.random.default_rng(0).integers(0, 2**64, 50, dtype=np.uint64)
    free = np.setdiff1d(np.arange(50), [3, 8])
    seen = np.zeros(50)
    for t in range(400):
        to = participants(ids, free, t, 0.25, 1)
        assert len(to) == 12 and np.all(np.diff(to) > 0)
        seen[to] += 1
    assert seen[[3, 8]].sum() == 0 and (np.abs(seen[free] - 100) < 45).all()
    order = np.random.default_rng(1).permutation(50)
    moved = np.sort(np.argsort(order)[participants(ids, np.arange(50), 5, 0.3, 1)])
    np.testing.assert_array_equal(participants(ids[order], np.arange(50), 5, 0.3, 1), moved)
    assert len(participants(ids, free, 0, 1e-9, 1)) == 1
    np.testing.assert_array_equal(participants(ids, free, 0, 1.0, 1), free)


def test_step_sizes_may_fall():
    o = NoisyQuadratic(np.eye(2)[None].repeat(M, axis=0), np.ones((M, 2)), 1.0)
    still, falls = (last(FedAvg(eta=eta, B=1), InProcess(o), 300)["w"] for eta in (0.5, lambda t: 1.0 / (t + 2)))
    assert np.linalg.norm(falls - 1.0) < 0.05 < np.linalg.norm(still - 1.0)


def test_gradients_are_counted():
    fed = InProcess(rows())
    last(FedAvg(eta=0.1, B=2, E=3), fed, 5)
    assert fed.ledger.gradient_calls == M * 5 * 3 * 3
    fed = InProcess(rows())
    last(PFedMe(eta=0.1, lam=1.0, alpha=0.1, K=4, R=2, C=0.5), fed, 5)
    assert fed.ledger.gradient_calls == 4 * 5 * 4 * 2


def test_there_are_no_rows_to_draw():
    with pytest.raises(CoterieError, match="no rows to draw from"):
        last(FedAvg(eta=0.1, B=2), InProcess(quadratic()), 1)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedAvg(eta=0.0), names("eta number above 0 function 0.0")),
        (lambda: FedAvg(eta=np.nan), names("eta number above 0 function nan")),
        (lambda: FedAvg(eta="a"), names("eta number above 0 function 'a'")),
        (lambda: FedAvg(eta=0.1, B=1.5), names("B whole number 0 1.5")),
        (lambda: FedAvg(eta=0.1, C=0.0), names("C number above 0 1 0.0")),
        (lambda: FedAvg(eta=0.1, C=1.1), names("C number above 0 1 1.1")),
        (lambda: FedAvg(eta=0.1, E=0), names("E whole number 1 0")),
        (lambda: FedAvg(eta=0.1, finetune=-1), names("finetune whole number 0")),
        (lambda: Ditto(eta=0.1, lam=-1.0), names("lam number from 0")),
        (lambda: Ditto(eta=0.1, lam=np.inf), names("lam number 0 inf")),
        (lambda: PFedMe(eta=0.1, lam=0.0, alpha=0.1), names("lam number above 0")),
        (lambda: PFedMe(eta=0.1, lam=1.0, alpha=0.1, R=0), names("R whole number 1")),
        (lambda: IFCA(eta=0.1, k=True), names("k whole number 1 True")),
        (lambda: last(FedAvg(eta=lambda t: -1.0), InProcess(quadratic()), 1), names("eta number from 0")),
        (lambda: IFCA(eta=0.1, k=2).init(InProcess(quadratic()), np.zeros(2)), "There are 2 groups"),
    ],
)
def test_what_cannot_be_is_named(make, sentence):
    with pytest.raises(CoterieError, match=sentence):
        make()


SCHEDULES = {
    "ConstantLR": ({"factor": 0.5, "total_iters": 2}, lambda t: 0.5 if t < 2 else 1.0),
    "LinearLR": ({"start_factor": 0.2, "total_iters": 4}, lambda t: 0.2 + 0.8 * min(t, 4) / 4),
    "PolynomialLR": ({"total_iters": 5, "power": 2.0}, lambda t: (1 - min(t, 5) / 5) ** 2),
    "ExponentialLR": ({"gamma": 0.8}, lambda t: 0.8**t),
    "StepLR": ({"step_size": 3, "gamma": 0.1}, lambda t: 0.1 ** (t // 3)),
    "MultiStepLR": ({"milestones": [2, 5], "gamma": 0.1}, lambda t: 0.1 ** ((t >= 2) + (t >= 5))),
    "CosineAnnealingLR": ({"T_max": 6}, lambda t: (1 + np.cos(np.pi * t / 6)) / 2),
    "CosineAnnealingWarmRestarts": ({"T_0": 3}, lambda t: (1 + np.cos(np.pi * (t % 3) / 3)) / 2),
    "OneCycleLR": (
        {"total_steps": 7, "pct_start": 0.5, "div_factor": 10.0, "final_div_factor": 2.0},  # up to eta, to eta / 20
        lambda t: 0.1 + 0.9 * half_cosine(t / 2.5) if t <= 2.5 else 1.0 - 0.95 * half_cosine((t - 2.5) / 3.5),
    ),
    "SequentialLR": (
        {
            "schedulers": [
                {"name": "LinearLR", "start_factor": 0.25, "total_iters": 2},
                {"name": "CosineAnnealingLR", "T_max": 4},
            ],
            "milestones": [2],
        },
        lambda t: 0.25 + 0.375 * t if t < 2 else 1.0 - half_cosine((t - 2) / 4),
    ),
    "ChainedScheduler": (
        {"schedulers": [{"name": "ExponentialLR", "gamma": 0.9}, {"name": "StepLR", "step_size": 2}]},
        lambda t: 0.9**t * 0.1 ** (t // 2),
    ),
}


def half_cosine(share):
    """From 0 to 1."""
    return (1 - np.cos(np.pi * share)) / 2


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_the_formulas_of_torchs_pages(name):
    """And a run by name is one by the same function, whatever round was asked for first."""
    args, share = SCHEDULES[name]
    method, plain = FedAvg(eta=0.3, schedule=name, schedule_args=args), FedAvg(eta=lambda t: 0.3 * share(t))
    np.testing.assert_allclose([method.rate(t) for t in (6, *range(7))], [0.3 * share(t) for t in (6, *range(7))])
    run = []
    for one in (method, plain):
        fed, o = InProcess(quadratic()), quadratic()
        *_, state = one.run(fed, [6], one.init(fed, np.ones(o.dim)))
        run.append(state["w"])
    np.testing.assert_allclose(*run, rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"schedule": "Cosine"}, "schedule must be ConstantLR, .* or ChainedScheduler, not 'Cosine'"),
        ({"schedule": "CosineAnnealingLR"}, "CosineAnnealingLR cannot be made of {}: .*T_max"),
        ({"schedule": "StepLR", "schedule_args": {"step": 3}}, "schedule_args of StepLR has no argument 'step'"),
        ({"schedule": "StepLR", "schedule_args": {"last_epoch": 3}}, "StepLR has no argument 'last_epoch'"),
        ({"schedule": "ConstantLR", "schedule_args": {"factor": 3.0}}, "ConstantLR cannot be made of .*factor"),
        (
            {"schedule": "SequentialLR", "schedule_args": {"schedulers": [{"T_max": 3}], "milestones": []}},
            "schedulers of SequentialLR must be tables with a name each",
        ),
        ({"schedule": "OneCycleLR"}, "OneCycleLR cannot be made of"),
        ({"schedule": "ConstantLR", "eta": lambda t: 0.1}, "eta is a function of the round already"),
    ],
)
def test_schedules_that_cannot_be_are_refused(given, says):
    with pytest.raises(CoterieError, match=says):
        FedAvg(**{"eta": 0.1} | given)
    with pytest.raises(CoterieError, match="schedule OneCycleLR ends after 4 rounds"):
        FedAvg(eta=0.1, schedule="OneCycleLR", schedule_args={"total_steps": 3}).rate(4)


@pytest.mark.parametrize("make", [partial(Ditto, s=2, lam=0.5), partial(FedDyn, alpha=0.1)], ids=["ditto", "feddyn"])
@pytest.mark.parametrize("engine", [InProcess, Loopback])
def test_a_run_of_other_layers_begins_anew_where_the_marked_state_is_restored(make, engine):
    """Without, ditto goes on from the run before, and feddyn ends in an error about shapes."""
    fed = engine(layered(4))
    fed.mark("empty")
    for personal in ("head", "body"):
        method = make(eta=0.05, B=0, personal=(personal,))
        fed.restore("empty")
        again, alone = (method.models(on, last(method, on, 2)) for on in (fed, engine(layered(4))))
        np.testing.assert_array_equal(again, alone)
