"""Robust averages against loops over main clients, collaborators and coordinates."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from coterie.methods.aggregation.rules import Clipped, Received, Trimmed, lower_median, trimmed_mean, weighted_mean

COUNTS = (3, 0, 1, 6, 2, 11)
STARTS = np.concatenate([[0], np.cumsum(COUNTS)])
OF = np.repeat(np.arange(len(COUNTS)), COUNTS)


def drawn(seed=0, d=4):
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.1, 1.0, len(OF)) * (rng.random(len(OF)) < 0.8)
    return np.round(rng.normal(size=(len(OF), d)), 1), weights


def pairs(g, t=0):
    M, P = len(COUNTS), len(OF)
    return Received(OF, g, np.ones(P, bool), np.zeros(P, np.int64), np.zeros((M, g.shape[1])), t)


def twin_trimmed(g, weights, fraction):
    out = []
    for i in range(len(COUNTS)):
        here = [p for p in range(len(OF)) if OF[p] == i and weights[p] > 0]
        row = []
        for j in range(g.shape[1]):
            cut = min(math.ceil(fraction * len(here) - 1e-9), (len(here) - 1) // 2) if here else 0
            kept = sorted(here, key=lambda p, j=j: g[p, j])[cut : len(here) - cut]
            row.append(sum(weights[p] * g[p, j] for p in kept) / sum(weights[p] for p in kept) if kept else 0.0)
        out.append(row)
    return np.array(out)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.2, 0.5])
def test_trimmed_means(fraction):
    g, weights = drawn()
    found, _ = Trimmed(fraction)(pairs(g), weights, {})
    np.testing.assert_allclose(found, twin_trimmed(g, weights, fraction), atol=1e-14)
    if fraction == 0.0:
        np.testing.assert_allclose(found, weighted_mean(g, weights, STARTS), atol=1e-14)


def test_medians():
    g, _ = drawn(1)
    found = trimmed_mean(g, np.ones(len(OF)), STARTS, 0.5)
    for i in range(len(COUNTS)):
        if COUNTS[i]:
            np.testing.assert_allclose(found[i], np.median(g[i == OF], axis=0), atol=1e-15)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("radius", [None, 0.7])
def test_clipping_over_two_steps(radius, steps):
    rule = Clipped(radius, steps)
    state, v = rule.init(len(COUNTS), len(OF), 4), {}
    for t in range(3):
        g, weights = drawn(t)
        found, state = rule(pairs(g, t), weights, state)
        for i in range(len(COUNTS)):
            here = [p for p in range(len(OF)) if OF[p] == i and weights[p] > 0]
            if not here:
                np.testing.assert_array_equal(found[i], 0.0)
                continue
            v.setdefault(i, np.median(g[here], axis=0))
            for _ in range(steps):
                far = [math.dist(g[p], v[i]) for p in here]
                r = statistics.median_low(far) if radius is None else radius
                total = sum(weights[p] for p in here)
                v[i] = v[i] + sum(
                    weights[p] / total * min(1.0, r / f if f else 1.0) * (g[p] - v[i])
                    for p, f in zip(here, far, strict=True)
                )
            np.testing.assert_allclose(found[i], v[i], atol=1e-14)


def test_lower_medians():
    rng = np.random.default_rng(3)
    own, values, counted = rng.normal(size=len(COUNTS)), rng.normal(size=len(OF)), rng.random(len(OF)) < 0.7
    expected = [statistics.median_low([own[i], *values[(i == OF) & counted]]) for i in range(len(COUNTS))]
    np.testing.assert_array_equal(lower_median(own, values, OF, counted), expected)
