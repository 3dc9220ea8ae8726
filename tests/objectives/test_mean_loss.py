"""Nets that walk with two modules: models beside each other, and steps that look ahead; against single steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from coterie.objectives.deep import Deep
from coterie.objectives.gradient_steps import Ahead, Draws, Second, Walk
from coterie.objectives.mean_loss import walk_beside


def images(dtype: str, **how: float) -> Deep:
    """Three clients' rows and a net with convolutions, which runs one client after another, and dropout."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(48, 4)
    r = np.random.default_rng(0)
    X, y = r.normal(size=(30, 1, 6, 6)), r.integers(0, 4, 30)
    return Deep.of(nn.Sequential(*layers), X, y, [0, 12, 20], [12, 20, 30], dtype=dtype, **how)


@pytest.mark.parametrize(("dtype", "how"), [("float64", {"ridge": 0.1}), ("float32", {}), ("float64", {"clip": 0.5})])
def test_two_models_beside_each_other_are_single_steps_in_turn(dtype: str, how: dict[str, float]) -> None:
    """A clipped gradient makes it the loop of :mod:`mean_loss`; otherwise both move in place."""
    o, r = images(dtype, **how), np.random.default_rng(1)
    w, v = (r.normal(size=(3, o.dim)).astype(dtype) * 0.1 for _ in range(2))
    eta, steps, share, pace = (
        np.array([0.1, 0.2, 0.3]),
        np.array([4, 2, 0]),
        np.array([0.5, 0.0, 1.0]),
        np.ones(3) * 0.7,
    )
    draws = Draws(np.array([5, 6, 7], dtype=np.uint64), np.array([0, 3, 1]), 5)
    found = walk_beside(o, w, Walk(eta, steps, draws, plain=True), Second(v, share, pace))
    assert (len(o.walk_beside(w, Walk(eta, steps, draws), Second(v, share, pace))) == 0) == ("clip" in how)
    for i in range(3):
        a, b = w[i], v[i]
        for s in range(steps[i]):
            one = Walk(eta[[i]], np.array([1]), draws.of(np.array([i]), s), plain=True)
            mixture = (share[i] * b + (1.0 - share[i]) * a)[None].astype(dtype)
            end = o.take(np.array([i])).walk(mixture, one)
            b = b - pace[i] * (mixture - end)[0]
            a = o.take(np.array([i])).walk(a[None], one)[0]
        tolerance = 1e-12 if dtype == "float64" else 1e-6
        np.testing.assert_allclose(found[0][i], a, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(found[1][i], b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "delta"), [("float64", 0.01), ("float32", 0.0)])
def test_steps_that_look_ahead_are_single_steps_in_turn(dtype: str, delta: float) -> None:
    """Per-FedAvg's gradients, by single steps of size 1 on the rows of each; a clipped one is for those alone."""
    o, w = images(dtype, ridge=0.1), np.array([[0.0], [0.1], [-0.1]])
    eta, steps, keys = np.array([0.1, 0.2, 0.3]), np.array([4, 2, 0]), np.array([5, 6, 7], dtype=np.uint64)
    rows, meta, curvature = (Draws(keys + more, np.array([0, 3, 1]), 5) for more in np.array([0, 9, 20], np.uint64))
    w = (w + np.linspace(-0.2, 0.2, o.dim)).astype(dtype)
    by, ahead = Walk(eta, steps, rows, plain=True), Ahead(0.3, delta, (meta, curvature))
    assert len(images(dtype, clip=0.5).walk_ahead(w, by, ahead)) == 0
    found = o.walk_ahead(w, by, ahead)
    for i in range(3):
        at, one = w[[i]], o.take(np.array([i]))

        def g(at: np.ndarray, draws: Draws, s: int, one: Deep = one, i: int = i) -> np.ndarray:
            return at - one.walk(at, Walk(np.ones(1), np.ones(1, dtype=int), draws.of(np.array([i]), s), plain=True))

        for s in range(steps[i]):
            v = g(at - at.dtype.type(0.3) * g(at, rows, s), meta, s)
            ends = (at + delta * v, at - delta * v) if delta else (at, at)
            H = np.subtract(*(g(end, curvature, s) for end in ends)) / (2 * delta or 1.0)
            at = (at - eta[i] * (v - 0.3 * H)).astype(dtype)
        tolerance = 1e-11 if dtype == "float64" else 1e-6
        np.testing.assert_allclose(found[[i]], at, rtol=tolerance, atol=tolerance)
