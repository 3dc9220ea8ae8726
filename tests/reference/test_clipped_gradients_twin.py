"""Sums of clipped gradients of rows against one row at a time."""

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.families import FAMILIES, family_named
from coterie.objectives.clipped_gradients import clipped_gradients, row_by_row
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.softmax import Softmax

STARTS, STOPS = np.array([0, 7, 7, 16]), np.array([7, 7, 16, 30])  # one client without rows


def objectives():
    rng = np.random.default_rng(3)
    X, w = rng.normal(size=(30, 4)), rng.uniform(0.5, 2.0, 30)
    outcomes = rng.normal(size=30), 1.0 * (rng.uniform(size=30) < 0.5), 1.0 * rng.poisson(1.0, 30)
    outcomes = dict(zip(("gaussian", "binomial", "poisson"), outcomes, strict=True))
    for name, family in FAMILIES.items():
        y = outcomes.get(name, outcomes["poisson"] + 0.5 * (not family.counted))
        family = family_named("student-t(4)") if name == "student-t" else family
        yield GLM(X, y, 0.1 * X[:, 0], w, STARTS, STOPS, family.at(0.7) if family.unknown else family)
    yield Softmax(X, rng.integers(0, 3, 30), w, STARTS, STOPS, 3, ridge=0.2)


def twin(objective, theta, clip, chosen):
    """Every row alone, in plain Python."""
    out = np.zeros((len(objective), objective.dim))
    at = 0
    for i, (lo, hi) in enumerate(zip(STARTS, STOPS, strict=True)):
        for r in range(lo, hi):
            x = objective.X[r]
            if isinstance(objective, Softmax):
                z = x @ theta[i].reshape(4, 3)
                p = np.exp(z - z.max())
                g = np.outer(x, p / p.sum() - np.eye(3)[int(objective.y[r])]).ravel() + 0.2 * theta[i]
            else:
                eta = objective.offset[r] + x @ theta[i]
                up, y, d = np.exp(eta), objective.y[r], 0.7
                residuals = [eta - y, up / (1 + up) - y, up - y, (up - y) / (1 + d * up), (1 - y / up) / d]
                residuals.append(5 * (eta - y) / (4 * d + (eta - y) ** 2))
                g = residuals[objective.family.code] * x
            if chosen[at] and np.isfinite(g).all():
                out[i] += g * min(1.0, clip / max(np.linalg.norm(g), 1e-300))
            at += 1
    return out


@pytest.mark.parametrize("clip", [0.1, 1.0, np.inf])
@pytest.mark.parametrize("objective", list(objectives()), ids=[*FAMILIES, "softmax"])
def test_kernels_and_rows_as_clients_agree_with_the_twin(objective, clip):
    rng = np.random.default_rng(4)
    theta, chosen = rng.normal(size=(4, objective.dim)), rng.uniform(size=30) < 0.7
    expected = twin(objective, theta, clip, chosen)
    np.testing.assert_allclose(clipped_gradients(objective, theta, clip, chosen), expected, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(row_by_row(objective, theta, clip, chosen), expected, rtol=1e-7, atol=1e-12)
    if np.isinf(clip) and isinstance(objective, Softmax):
        one = Softmax(objective.X, objective.y, np.ones(30), STARTS, STOPS, 3, ridge=0.2)
        np.testing.assert_allclose(clipped_gradients(one, theta), one.gradient(theta), rtol=1e-9, atol=1e-12)


def test_rows_that_are_not_finite_add_nothing():
    for objective in objectives():
        theta = np.ones(objective.dim)
        keep = np.ones(30, dtype=bool)
        keep[[3, 20]] = False
        expected = clipped_gradients(objective, theta, 1.0, keep)
        objective.X[3], objective.X[20] = np.nan, np.inf
        np.testing.assert_array_equal(clipped_gradients(objective, theta, 1.0), expected)


def test_torch_models_have_rows_too():
    torch = pytest.importorskip("torch")
    from torch import nn

    from coterie.objectives.deep.objective import Deep

    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(30, 4)).astype(np.float32), rng.integers(0, 3, 30)
    deep = Deep.of(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), X, y, STARTS, STOPS)
    theta = deep.start(0)
    found = clipped_gradients(deep, theta, 0.5)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    nn.utils.vector_to_parameters(torch.tensor(theta), module.parameters())
    expected = np.zeros(deep.dim)
    for r in range(7):
        module.zero_grad()
        nn.functional.cross_entropy(module(torch.tensor(X[r : r + 1])), torch.tensor(y[r : r + 1])).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        expected += np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_objectives_without_rows_are_refused():
    with pytest.raises(CoterieError, match="need an objective over rows"):
        clipped_gradients(Quadratic(np.eye(2)[None], np.ones((1, 2))), np.zeros(2), 1.0)
