"""Categories of many levels: one variance for all of their columns, in seconds; what takes longer is announced."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.methods.tree import variances


def table(levels):
    rng = np.random.default_rng(0)
    x = rng.integers(0, levels, 240).astype(str)
    return pd.DataFrame({"g": np.repeat(np.arange(20), 12), "y": rng.normal(size=240), "x": x})


def test_few_clients_learn_no_variance_of_each_level():
    fit = coterie.fit(table(60), "y ~ x", "g", splits=0)
    assert set(fit.settings["criterion"]) == {"isotropic", "two"}
    assert fit.settings["status"] == "converged"
    few = coterie.fit(table(5), "y ~ x", "g", splits=0)
    assert "diagonal" in few.settings["criterion"]


def test_a_long_search_is_announced_and_says_where_it_is(monkeypatch, caplog):
    monkeypatch.setattr(variances, "LONG", 0.0)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        coterie.fit(table(4), "y ~ x", "g", covariance="full", splits=0)
    said = [record.getMessage() for record in caplog.records]
    assert "'full' may take minutes" in said[0] and "covariance 'two'" in said[0]
    assert any("step 1, deviance" in line for line in said[1:])


@pytest.mark.parametrize(("parameters", "q", "long"), [(1, 60, False), (30, 30, False), (1830, 60, True)])
def test_how_long_a_search_takes_is_estimated(parameters, q, long):
    setup = SimpleNamespace(z=np.arange(q), p=q)
    assert (variances.expected_seconds(parameters, setup, 20) > variances.LONG) == long
