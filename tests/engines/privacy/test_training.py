"""Training in a private federation: updates are clipped, not models; rows; a configuration with [privacy]."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("dp_accounting")

from coterie.engines import InProcess, Loopback
from coterie.engines.privacy import Event, Private, epsilon
from coterie.errors import CoterieError
from coterie.methods.cfl import CFL
from coterie.methods.ditto import Ditto
from coterie.methods.dp_sgd import DPSGD
from coterie.methods.fedala import FedALA
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrep import FedRep
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.ifca import IFCA
from coterie.methods.per_fedavg import PerFedAvg
from coterie.methods.scaffold import Scaffold
from coterie.methods.tree.penalised_tree import prepare
from coterie.objectives.glm import GLM
from coterie.objectives.softmax import Softmax
from coterie.relations.clusters import ClusterTree
from coterie.runs.config import Config
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem
from tests.messages import names


def problem(m=8, n=20, p=4, K=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m * n, p))
    y = (X @ rng.normal(size=(p, K)) + rng.gumbel(size=(m * n, K))).argmax(axis=1)
    edges = np.arange(0, m * n + 1, n)
    return Softmax.of(X, y, edges[:-1], edges[1:], K)


def after(method, fed, T=3):
    *_, state = method.run(fed, [T])
    assert state["status"] == "running"
    return state["w"]


SAME = [
    FedAvg(eta=0.3, E=3),
    FedAvg(eta=0.3, C=0.5),
    FedProx(eta=0.3, mu=0.2),
    Ditto(eta=0.3, lam=0.1),
    FedRep(eta=0.3, personal=("0", "1", "2")),
    FedBABU(eta=0.3, personal=("0", "1", "2")),
    PerFedAvg(eta=0.3, alpha=0.1),
    FedALA(eta=0.3),
    GroupSGD(eta=0.3, tau=2),
]


@pytest.mark.parametrize("method", SAME, ids=lambda method: type(method).__name__)
def test_without_noise_and_a_wide_bound_nothing_changes(method):
    """Clients have as many rows each, so that weighing all alike is no difference."""
    clusters = np.repeat([0, 1], 4)
    plain = after(method, InProcess(problem(), clusters))
    fed = Private(InProcess(problem(), clusters), clip=1e6, noise=0.0)
    np.testing.assert_allclose(after(method, fed), plain, rtol=1e-9, atol=1e-12)
    over = Private(Loopback(problem(), clusters, sites=3), clip=1e6, noise=0.0)
    np.testing.assert_allclose(after(method, over), plain, rtol=1e-9, atol=1e-12)


def test_updates_are_clipped_and_not_models():
    start = np.full(12, 100.0)
    fed = Private(InProcess(problem()), clip=0.01, noise=0.0)
    *_, state = FedAvg(eta=0.5).run(fed, [1], FedAvg(eta=0.5).init(fed, start))
    assert 0.005 < np.linalg.norm(state["w"] - start) <= 0.01 + 1e-12


def test_the_noise_of_a_model_is_what_it_costs():
    """A step size of nearly zero leaves the noise alone: z C / m on the mean of m clients."""
    fed = Private(InProcess(problem(m=16, p=800)), clip=2.0, noise=0.5)
    w = after(FedAvg(eta=1e-12), fed, 1)
    assert np.std(w) == pytest.approx(0.5 * 2.0 / 16, rel=5 / np.sqrt(2 * 2400))
    half = Private(InProcess(problem(m=16, p=800)), clip=2.0, noise=0.5, sampling=0.5)
    assert np.std(after(FedAvg(eta=1e-12), half, 1)) == pytest.approx(0.5 * 2.0 / 8, rel=5 / np.sqrt(2 * 2400))


def test_broken_clients_add_nothing_and_are_not_named():
    whole = problem()
    X = whole.X.copy()
    X[20:40] = np.nan
    fed = Private(InProcess(replace(whole, X=X)), clip=1e6, noise=0.0)
    *_, state = FedAvg(eta=0.3).run(fed, [2])
    kept = after(FedAvg(eta=0.3), InProcess(whole.take(np.array([0, 2, 3, 4, 5, 6, 7]))), 1)
    *_, one = FedAvg(eta=0.3).run(Private(fed.fed, clip=1e6, noise=0.0), [1])
    np.testing.assert_allclose(one["w"], kept * 7 / 8, rtol=1e-9)  # they are in the mean, with no change
    assert not state["quarantined"].any()


REFUSED = [
    (Scaffold(eta=0.1), "scaffold:begin has no bound"),
    (IFCA(eta=0.1, k=2), "ifca:choose asks for clients' own replies"),
    (CFL(eta=0.1, eps1=1e6, eps2=1.0), "cfl:norms asks for clients' own replies"),
    (FedAvg(eta=0.1, up="qsgd"), "travel coded cannot be private"),
]


@pytest.mark.parametrize(("method", "message"), REFUSED, ids=lambda value: type(value).__name__)
def test_methods_that_tell_more_are_refused(method, message):
    with pytest.raises(CoterieError, match=message):
        after(method, Private(InProcess(problem()), clip=1.0, noise=1.0))


def test_sums_of_squares_are_refused():
    """The exact solver's Gram matrices grow with a client's rows, and a bound of updates says nothing of them."""
    edges = np.arange(0, 41, 10)
    X = np.random.default_rng(0).normal(size=(40, 2))
    rows = GLM(X, X[:, 0].copy(), np.zeros(40), np.ones(40), edges[:-1], edges[1:])
    with pytest.raises(CoterieError, match=names("no noise hide client sum give bound name")):
        prepare(Private(InProcess(rows), clip=1.0, noise=1.0), ClusterTree(), "gaussian", np.arange(2), None)


def test_steps_on_clipped_rows():
    whole, w = problem(), None
    plain = after(DPSGD(eta=1.0), InProcess(whole), 5)
    w = np.zeros(12)
    for _ in range(5):
        w = w - whole.gradient(w).sum(axis=0) / 160
    np.testing.assert_allclose(plain, w, rtol=1e-10)
    fed = Private(InProcess(whole), clip=1e6, noise=0.0, unit="row")
    np.testing.assert_allclose(after(DPSGD(eta=1.0), fed, 5), w, rtol=1e-10)
    with pytest.raises(CoterieError, match=names("not bound row adds reply train method dp-sgd")):
        after(FedAvg(eta=1.0), fed)


def test_a_row_moves_a_sum_by_the_bound_at_most():
    whole, options = problem(), {"clip": 0.3, "noise": 0.01, "unit": "row", "seed": 1}
    first = after(DPSGD(eta=1.0), Private(InProcess(whole), **options), 1)
    for value in (0.0, 1e9, -1e300, np.nan):
        X = whole.X.copy()
        X[33] = value
        other = after(DPSGD(eta=1.0), Private(InProcess(replace(whole, X=X)), **options), 1)
        assert np.linalg.norm(other - first) * 160 <= 2 * 0.3 + 1e-6  # one row out, another in


def test_rows_drawn_by_coins_cost_less():
    fed = Private(Loopback(problem(), sites=2), clip=1.0, noise=1.5, unit="row", sampling=0.2)
    after(DPSGD(eta=0.5, mu=0.5), fed, 4)
    assert fed.spent()[0] == epsilon({Event(1.5, 0.2): 4}, 1e-5) < epsilon({Event(1.5): 4}, 1e-5)
    assert fed.statement.startswith("The sums hide one row: epsilon ")


def config(**privacy):
    return Config.of(
        {
            "data": {"source": "digits", "clients": 10, "rows": 300},
            "run": {"rounds": 6, "evaluate_every": 3, "checkpoint_every": 2},
            "privacy": privacy,
        }
    )


def test_a_configuration_with_privacy(tmp_path):
    told = config(clip=1.0, epsilon=4.0, seed=2)
    training_problem = TrainingProblem.of(told, 0)
    run = train(training_problem, "fedavg", {"eta": 0.5}, folder=tmp_path)
    assert run.rounds == 6
    assert run.privacy["epsilon"] == pytest.approx(4.0, rel=1e-6)
    assert run.privacy["statement"].startswith("Not private: the noise was drawn with the seed 2")

    def cut(look):
        return look.round == 4

    class Cut:
        start = end = staticmethod(lambda *_: None)
        look = staticmethod(cut)

    other = tmp_path / "other"
    train(training_problem, "fedavg", {"eta": 0.5}, [Cut()], other)
    again = train(training_problem, "fedavg", {"eta": 0.5}, folder=other, resume=True)
    np.testing.assert_array_equal(again.theta, run.theta)
    assert again.privacy == run.privacy
    more = replace(training_problem.config, run=told.run | {"rounds": 9})
    longer = TrainingProblem(more, 0, training_problem.data)
    spent = train(longer, "fedavg", {"eta": 0.5}, folder=other, resume=True)
    assert (spent.status, spent.rounds, spent.trouble) == ("stopped", 6, "")


def test_baselines_that_send_nothing_have_no_noise():
    training_problem = TrainingProblem.of(config(clip=1.0, noise=1.0), 0)
    for name in ("local", "pooled"):
        assert not train(training_problem, name, {"eta": 0.5}).privacy


def test_dp_sgd_asks_for_the_privacy_of_rows():
    with pytest.raises(CoterieError, match=r"dp-sgd hides rows, not clients: say unit = 'row' in \[privacy\]"):
        train(TrainingProblem.of(config(clip=1.0, noise=1.0), 0), "dp-sgd", {"eta": 0.5})


def test_what_a_configuration_lacks():
    for privacy in ({}, {"clip": 1.0}, {"epsilon": 1.0}):
        with pytest.raises(CoterieError, match=r"\[privacy\] needs clip"):
            config(**privacy)
    assert Config.of({}).fingerprint() != config(clip=1.0, noise=1.0).fingerprint()
    assert "privacy" not in Config.of({}).document()
