"""FedBABU, LG-FedAvg, Per-FedAvg, FedDyn, FedALA: against loops written from the papers, and known limits."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedala import FedALA
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbabu import FedBABU
from coterie.methods.feddyn import FedDyn
from coterie.methods.per_fedavg import PerFedAvg
from tests.messages import names
from tests.methods.test_more_baselines import final, first, kept, pooled, quadratic, rows
from tests.reference import personalization_loop as loop
from tests.reference.test_local_training_twin import (
    COUNTS,
    M,
    by_rows,
    chosen,
    close,
    epochs,
    every,
    gradients,
    objective,
    run,
)


@every
@pytest.mark.parametrize("tunes", ["head", "body", "all"])
def test_fedbabu(kind, B, C, tunes):
    o = objective(kind)
    head = np.arange(o.dim) == o.dim - 1
    method = FedBABU(eta=0.1, B=B, C=C, E=2, finetune=3, tunes=tunes, personal=(str(o.dim - 1),), seed=9)
    state, models = run(method, o, first(o))
    part = {"head": head, "body": ~head, "all": np.ones(o.dim, dtype=bool)}[tunes]
    grads, tuning = gradients(o, B), gradients(o, B, "finetune rows")
    body, expected = loop.fedbabu(
        grads, tuning, by_rows(o), first(o), 0.1, epochs(o, 2, B), chosen(C, 9), head, 3, part
    )
    np.testing.assert_allclose(state["w"], body, **close)
    np.testing.assert_allclose(models, expected, **close)


@every
@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_per_fedavg(kind, B, C, delta):
    o = objective(kind)
    state, models = run(PerFedAvg(eta=0.1, B=B, C=C, E=2, alpha=0.2, delta=delta, seed=9), o, first(o))
    four = [gradients(o, B, stream) for stream in ("rows", "meta rows", "curvature rows", "finetune rows")]
    w, expected = loop.per_fedavg(*four, by_rows(o), first(o), 0.1, epochs(o, 2, B), chosen(C, 9), 0.2, delta)
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, expected, **close)


@every
def test_feddyn(kind, B, C):
    o = objective(kind)
    state, models = run(FedDyn(eta=0.1, B=B, C=C, E=3, alpha=0.4, seed=9), o, first(o))
    w, h, _ = loop.feddyn(gradients(o, B), by_rows(o), first(o), 0.1, epochs(o, 3, B), chosen(C, 9), 0.4)
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(state["h"], h, **close)
    np.testing.assert_allclose(models, np.tile(w, (M, 1)), **close)


@every
def test_fedala(kind, B, C):
    o = objective(kind)
    part = np.arange(o.dim) >= o.dim - 2
    names_of = tuple(map(str, np.flatnonzero(part)))
    method = FedALA(eta=0.1, B=B, C=C, E=2, layers=names_of, eta_w=0.7, share=0.6, warmup=3, seed=9)
    state, models = run(method, o, first(o))
    batches = [-(-int(n) // B) if B and kind != "quadratic" else 1 for n in COUNTS]
    learn, more = ([int(np.ceil(0.6 * passes * n)) for n in batches] for passes in (1, 3))
    grads, learning = gradients(o, B), gradients(o, B, "aggregation rows")
    w, expected, W = loop.fedala(
        grads, learning, by_rows(o), first(o), 0.1, epochs(o, 2, B), chosen(C, 9), part, 0.7, learn, more
    )
    assert not np.allclose(W, 1.0)
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, expected, **close)


# -- where they end


@pytest.mark.parametrize("C", [1.0, 0.5])
def test_feddyn_reaches_the_optimum_with_local_steps(C):
    """FedAvg with as many local steps ends elsewhere."""
    o, w = quadratic(), np.arange(1.0, 9.0)
    best = pooled(o, w)
    state = final(FedDyn(eta=0.2, E=12, alpha=1.0, C=C), InProcess(o, weights=w), 150)
    np.testing.assert_allclose(state["w"], best, rtol=1e-6)
    assert np.abs(final(FedAvg(eta=0.2, E=12, C=C), InProcess(o, weights=w), 100)["w"] - best).max() > 0.02


@pytest.mark.parametrize("delta", [0.0, 0.1])
def test_per_fedavg_ends_where_its_gradient_is_zero(delta):
    """Of quadratics: ``(I - alpha A) grad f(w - alpha grad f(w))`` with the Hessian, without the first factor else."""
    o, w, alpha = quadratic(), np.arange(1.0, 9.0), 0.1
    inner = np.eye(3) - alpha * o.A
    H = (inner if delta else np.eye(3)) @ o.A @ inner
    h = np.einsum("mij,mj->mi", (inner if delta else np.eye(3)) @ inner, o.b)
    best = np.linalg.solve(np.einsum("m,mij->ij", w, H), w @ h)
    state = final(PerFedAvg(eta=0.2, alpha=alpha, delta=delta), InProcess(o, weights=w), 300)
    np.testing.assert_allclose(state["w"], best, rtol=1e-8)


def test_fedala_that_meets_w_once_is_fedavg():
    o = rows()
    one = final(FedALA(eta=0.2, B=2), InProcess(o), 1)["w"]
    np.testing.assert_array_equal(one, final(FedAvg(eta=0.2, B=2), InProcess(o), 1)["w"])


def test_weights_of_fedala_stay_within_bounds():
    fed = InProcess(quadratic())
    final(FedALA(eta=0.2, eta_w=3.0, E=3), fed, 10)
    W = fed.ask(kept, names=["W"])["W"]
    assert W.min() >= 0.0 and W.max() <= 1.0 and len(np.unique(W)) > 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedBABU(eta=0.1), "FedBABU needs the layers that are personal"),
        (lambda: FedBABU(eta=0.1, personal=("0",), tunes="tail"), names("tunes head body all tail")),
        (lambda: PerFedAvg(eta=0.1, alpha=0.0), names("alpha number above 0")),
        (lambda: FedDyn(eta=0.1, alpha=0.1, up="qsgd:6"), "FedDyn needs exact changes, .*leave up and down out"),
        (lambda: FedALA(eta=0.1, share=0.0), names("share number above 0")),
        (lambda: final(FedALA(eta=0.1, layers=("head*",)), InProcess(rows()), 1), "'head\\*' matches no parameter"),
    ],
)
def test_what_cannot_be_is_named(make, sentence):
    with pytest.raises(CoterieError, match=sentence):
        make()
