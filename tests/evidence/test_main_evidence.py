"""Where main clients are named, the evidence is about them: others only lend their rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.report.tables import comparison_table
from tests.messages import names


def table():
    rng = np.random.default_rng(0)
    client = np.repeat(list("abcd"), 30)
    x = rng.normal(size=120)
    slope = np.repeat([1.0, 1.1, 0.9, -5.0], 30)
    return pd.DataFrame({"client": client, "x": x, "y": slope * x + rng.normal(size=120)})


def fit(main, method="bias-correction", splits=3):
    return coterie.fit(table(), "y ~ x", "client", method=method, splits=splits, rounds={"main": main})


def test_only_main_clients_count():
    """Bias correction ends where the main client would alone; others, with the pooled model, do not count."""
    result = fit("d")
    losses = result.comparison["loss_rows"]
    assert losses["bias-correction"] == pytest.approx(losses["local"], rel=1e-4)
    assert losses["pooled"] > 2.0 * losses["local"]
    assert result.client_gains["test_rows"].gt(0).to_dict() == {"a": False, "b": False, "c": False, "d": True}
    assert np.isfinite(result.client_gains.loc["d", "loss_local"])
    assert "With 1 client, intervals" in result.reason
    everyone = coterie.fit(table(), "y ~ x", "client", method="bias-correction", splits=3)
    assert everyone.client_gains["test_rows"].gt(0).all()
    np.testing.assert_allclose(everyone.client_gains.loc["d", "loss_local"], result.client_gains.loc["d", "loss_local"])


def test_a_gain_without_an_interval_keeps_its_digits():
    shown = comparison_table(fit("d", "weighted-averaging", splits=1))
    gains = {row[0]: row[3] for row in shown.rows}
    assert gains["pooled"].startswith("−") and "." in gains["pooled"] and "(" not in gains["pooled"]


def test_several_and_none():
    assert fit(["a", "b"]).client_gains["test_rows"].gt(0).sum() == 2
    with pytest.raises(CoterieError, match=names("main names no client name least")):
        fit([])
