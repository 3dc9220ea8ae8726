"""Intervals of standard deviations hold the truth as often as they say, also of few groups seen through much noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.special import chdtri

import coterie
from coterie.results.variance_intervals import variances


def interval(table, **options):
    fit = coterie.fit(table, "y ~ 1", client="c", method="hierarchical", splits=0, **options)
    return fit, variances(fit.model, 0.95).iloc[0]


def normal(seed, groups, rows, between, within):
    rng = np.random.default_rng([7, seed])
    c = np.repeat(np.arange(groups), rows)
    return pd.DataFrame({"y": rng.normal(0, between, groups)[c] + rng.normal(0, within, len(c)), "c": c.astype(str)})


@pytest.mark.soak("6-5-0.4-0.9")
@pytest.mark.parametrize(("groups", "rows", "between", "least"), [(6, 5, 0.4, 0.9), (20, 10, 1.0, 0.9)])
def test_intervals_hold_the_truth(groups, rows, between, least):
    found = [interval(normal(seed, groups, rows, between, 1.0))[1] for seed in range(50)]
    held = [found_one.lower <= between <= found_one.upper for found_one in found]
    assert np.mean(held) >= least
    assert np.mean([found_one.upper < between for found_one in found]) <= 0.06


def test_few_groups_have_their_degrees_of_freedom():
    """In a balanced table mean squares between groups are chi-squared: of the variance and the noise of a mean."""
    fit, found = interval(normal(1, 6, 5, 1.0, 1.0))
    noise = fit.model.sigma2 / 5
    ends = [(5 * (found.sd**2 + noise) / chdtri(5, tail) - noise) ** 0.5 for tail in (0.025, 0.975)]
    np.testing.assert_allclose([found.lower, found.upper], ends, rtol=0.1)


def test_four_groups_of_zeros_and_ones():
    held = []
    for seed in range(40):
        rng = np.random.default_rng([7, seed])
        c = np.repeat(np.arange(4), 100)
        y = (rng.random(400) < 1 / (1 + np.exp(0.3 - rng.normal(0, 1.3, 4)[c]))).astype(int)
        _, found = interval(pd.DataFrame({"y": y, "c": c.astype(str)}), family="binomial")
        held.append(found.lower <= 1.3 <= found.upper)
    assert np.mean(held) >= 0.88


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_where_a_shared_column_has_its_zero_says_nothing_of_how_clients_differ(family):
    """The noise through which clients are seen is their rows', not that of the shared coefficients."""
    table = normal(3, 30, 6, 0.7, 1.0)
    table["x"] = np.random.default_rng(5).normal(size=len(table))
    table["y"] = table["y"] if family == "gaussian" else np.random.default_rng(6).poisson(np.exp(table["y"]))
    ends = []
    for zero in (0.0, 2000.0):
        shifted = table.assign(x=table["x"] + zero)
        fit = coterie.fit(
            shifted, "y ~ x", client="c", shared="x", family=family, method="hierarchical", splits=0
        )  # fmt: skip
        ends.append(variances(fit.model, 0.95).iloc[0][["lower", "upper"]].to_numpy(float))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-4)
    assert 0.0 < ends[0][0] < ends[0][1] < 2.0
