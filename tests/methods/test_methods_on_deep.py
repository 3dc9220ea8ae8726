"""A torch model of one linear layer is multinomial logistic regression: every method makes the same of both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.apfl import APFL
from coterie.methods.apple import APPLE
from coterie.methods.ditto import Ditto
from coterie.methods.fedala import FedALA
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbn import FedBN
from coterie.methods.feddyn import FedDyn
from coterie.methods.fedopt import FedAdam
from coterie.methods.fedprox import FedProx
from coterie.methods.ifca import IFCA
from coterie.methods.l2gd import L2GD
from coterie.methods.per_fedavg import PerFedAvg
from coterie.methods.pfedme import PFedMe
from coterie.methods.scaffold import Scaffold
from coterie.objectives.deep import Deep
from coterie.objectives.softmax import Softmax
from tests.messages import names

P, K, COUNTS = 4, 3, np.array([1, 5, 8, 3, 6])
ROWS = {"eta": 0.1, "B": 4, "C": 0.7, "seed": 3}
METHODS = [
    FedAvg(E=2, finetune=3, **ROWS),
    FedProx(E=2, mu=0.5, **ROWS),
    Scaffold(E=2, **ROWS),
    Scaffold(E=2, option=1, eta_g=1.2, **ROWS),
    APFL(E=2, adaptive=True, alpha=0.3, **ROWS),
    Ditto(lam=0.5, s=3, **ROWS),
    PFedMe(lam=2.0, alpha=0.1, K=3, R=2, **ROWS),
    IFCA(k=2, tau=3, **ROWS),
    L2GD(lam=1.0, tau=4, **ROWS),
]


def data(counts=COUNTS):
    rng, stops = np.random.default_rng(0), np.cumsum(counts)
    return rng.normal(size=(stops[-1], P)), rng.integers(0, K, stops[-1]), stops - counts, stops


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 2e-4)])
def test_a_linear_layer_is_softmax(method, dtype, tolerance):
    X, y, starts, stops = data()
    turned = np.arange(P * K).reshape(P, K).T.ravel()  # torch keeps a row for each class, Softmax a column
    shape = (2, P * K) if isinstance(method, IFCA) else (P * K,)
    w = np.random.default_rng(1).normal(size=shape)
    plain = InProcess(Softmax.of(X, y, starts, stops, K, ridge=0.01), seed=5)
    deep = InProcess(Deep.of(nn.Linear(P, K, bias=False), X, y, starts, stops, dtype=dtype, ridge=0.01), seed=5)
    (expected,) = method.run(plain, [4], method.init(plain, w))
    (state,) = method.run(deep, [4], method.init(deep, w[..., turned]))
    assert state["w"].dtype == dtype
    np.testing.assert_allclose(state["w"], expected["w"][..., turned], rtol=tolerance, atol=tolerance)
    models = method.models(deep, state)
    assert models.dtype == dtype
    np.testing.assert_allclose(models, method.models(plain, expected)[:, turned], rtol=tolerance, atol=tolerance)


class Normalised(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.add_module(name, nn.BatchNorm1d(P))
        self.name, self.head = name, nn.Linear(P, K)

    def forward(self, x):
        return self.head(getattr(self, self.name)(x))


@pytest.mark.parametrize("buffers", ["personal", "averaged"])
def test_fedbn_averages_all_but_what_normalises(buffers):
    """Scales, shifts and statistics differ between clients; the other layers are one, whatever the buffers' policy."""
    X, y, starts, stops = data(COUNTS + 1)  # BatchNorm trains on two rows or more
    fed = InProcess(Deep.of(Normalised("bn1"), X, y, starts, stops, dtype="float64", buffers=buffers))
    method = FedBN(eta=0.1, E=3)
    (state,) = method.run(fed, [5])
    models, own = method.models(fed, state), 4 * P  # torch keeps weight and bias of bn1, those of the head, statistics
    assert len(state["w"]) == models.shape[1] - own
    head = models[:, 2 * P : 2 * P + P * K + K]
    np.testing.assert_array_equal(head, np.tile(state["w"], (len(COUNTS), 1)))
    for part in (models[:, : 2 * P], models[:, -2 * P :]):
        assert len(np.unique(part, axis=0)) == len(COUNTS)


def test_fedbn_names_the_layers_where_none_normalises():
    X, y, starts, stops = data()
    fed = InProcess(Deep.of(nn.Linear(P, K), X, y, starts, stops))
    with pytest.raises(CoterieError, match=names("layer model normalises weight bias")):
        FedBN(eta=0.1).init(fed)


@pytest.mark.soak("10")
@pytest.mark.parametrize("steps", [10, pytest.param(25, marks=pytest.mark.soak)])
def test_scaffold_s_control_variates_are_gradients_with_momentum_too(steps):
    """They were the mean velocity, up to ten gradients long, and grew without end; now all ends at the optimum."""
    rng, m, n = np.random.default_rng(0), 5, 12
    X, beta = rng.normal(size=(m * n, 3)), rng.normal(size=(m, 3))
    y = np.einsum("rj,rj->r", X, np.repeat(beta, n, axis=0))
    lo = np.arange(m) * n
    net = nn.Linear(3, 1, bias=False)
    o = Deep.of(net, X, y, lo, lo + n, loss="mse", dtype="float64", momentum=0.9)
    state = list(Scaffold(eta=0.005, E=steps).run(InProcess(o), [120]))[-1]
    np.testing.assert_allclose(state["w"], np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-6)


def test_codecs_make_no_variance_negative():
    """BatchNorm's statistics may travel, coded; a root of a negative one was NaN."""
    rng = np.random.default_rng(0)
    X, y, lo = 0.1 * rng.normal(size=(60, 4)), rng.integers(0, 2, 60), np.arange(3) * 20
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    o = Deep.of(net, X, y, lo, lo + 20, buffers="averaged")
    state = list(FedAvg(eta=0.1, E=3, B=5, up="sign").run(InProcess(o), [8]))[-1]
    where = np.cumsum(list(o.names.values()))[list(o.names).index("1.running_var")] - 8
    assert state["w"][where : where + 8].min() < 0.0 and np.isfinite(o.value(state["w"])).all()


AVERAGED = [
    FedDyn(eta=0.1, E=9, alpha=0.1),
    Scaffold(eta=0.01, E=9, eta_g=3.0),
    FedAdam(eta=0.1, E=9, eta_g=0.5),
    PerFedAvg(eta=1e-3, alpha=300.0, delta=1e-2),
]


@pytest.mark.parametrize("method", AVERAGED, ids=lambda method: type(method).__name__)
def test_averaged_statistics_follow_rows_whatever_a_method_does_with_gradients(method):
    """After each round, clients' running means and variances lie between the first ones and those of their rows.

    They have no gradient: FedDyn's correction, a server's long step, and differences that stand for Hessians took
    variances below 0.
    """
    X, y, starts, stops = data(COUNTS + 1)
    X = 0.1 * X + 3.0
    o = Deep.of(Normalised("bn1"), X, y, starts, stops, dtype="float64", buffers="averaged")
    parts = [X[a:b] for a, b in zip(starts, stops, strict=True)]
    mean, var = ([np.asarray(f(part)) for part in parts] for f in (lambda x: x.mean(0), lambda x: x.var(0, ddof=1)))
    low = np.concatenate([np.min([*mean, np.zeros(P)], axis=0), np.min([*var, np.ones(P)], axis=0)])
    high = np.concatenate([np.max([*mean, np.zeros(P)], axis=0), np.max([*var, np.ones(P)], axis=0)])
    for state in method.run(InProcess(o), range(1, 4)):
        kept = state["w"][-2 * P :]
        assert (kept > low - 1e-12).all() and (kept < high + 1e-12).all()


def test_fedala_learns_no_weights_of_averaged_statistics():
    X, y, starts, stops = data(COUNTS + 1)
    o = Deep.of(Normalised("bn1"), 0.1 * X + 3.0, y, starts, stops, dtype="float64", buffers="averaged")
    found = []
    for layers in (("*",), ("bn1.weight", "bn1.bias", "head.*")):
        method, fed = FedALA(eta=0.1, E=3, eta_w=100.0, layers=layers), InProcess(o)
        (state,) = method.run(fed, [4])
        found.append(method.models(fed, state))
    np.testing.assert_array_equal(*found)


def test_apple_refuses_averaged_statistics():
    X, y, starts, stops = data(COUNTS + 1)
    o = Deep.of(Normalised("bn1"), X, y, starts, stops, buffers="averaged")
    with pytest.raises(CoterieError, match=names("APPLE weights BatchNorm statistics personal")):
        APPLE(eta=0.1).init(InProcess(o))
