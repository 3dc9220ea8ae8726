"""Successes of trials: the fit of a table with a row for each trial, and what cannot be counted."""

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(12), 5)
    x, n = rng.normal(size=60), rng.integers(1, 8, 60)
    s = rng.binomial(n, 1.0 / (1.0 + np.exp(-(0.5 * x + rng.normal(size=12)[g]))))
    return pd.DataFrame({"g": g, "x": x, "n of": n, "s": s, "f": n - s, "share": s / n})


@pytest.fixture(scope="module")
def single(table):
    """A row for each trial."""
    rows = table.index.repeat(table["n of"])
    first = np.concatenate([np.arange(n) for n in table["n of"]])
    return table.loc[rows].assign(y=(first < table["s"][rows]).astype(int))


def fit(table, formula, method="hierarchical", **how):
    return coterie.fit(table, formula, client="g", **{"family": "binomial", "splits": 0, "method": method} | how)


@pytest.mark.parametrize("method", ["hierarchical", "pooled", "local", "ditto"])
@pytest.mark.parametrize("left", ["cbind(s, f)", "s | trials(`n of`)", "share * `n of` | trials(`n of`)"])
def test_shares_have_the_fit_of_single_trials(table, single, left, method):
    ours, each = fit(table, f"{left} ~ x", method), fit(single, "y ~ x", method)
    np.testing.assert_allclose(ours.model.client, each.model.client, rtol=0.0, atol=1e-9)
    if method in ("hierarchical", "pooled"):  # choose(n, s) sequences of trials have s successes
        from scipy.special import gammaln

        n, s, f = table["n of"], table["s"], table["f"]
        more = float(np.sum(gammaln(n + 1) - gammaln(s + 1) - gammaln(f + 1)))
        assert ours.log_likelihood == pytest.approx(each.log_likelihood + more, abs=1e-8)


def test_one_row_of_many_trials_tells_how_clients_differ(table):
    one = table.groupby("g")[["s", "f"]].sum().reset_index()
    assert fit(one, "cbind(s, f) ~ 1").variance_components["sd"][0] > 0.1


def test_held_out_losses_are_of_trials(table, single):
    compared = fit(table, "cbind(s, f) ~ x", splits=2)
    p = table["s"].sum() / table["n of"].sum()
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    assert 0.5 * entropy < compared.comparison["loss_rows"].min() < 1.2 * entropy


def test_intervals_of_outcomes_are_of_shares_of_the_trials_of_a_row(table):
    result = fit(table, "s | trials(`n of`) ~ x")
    new = table[["g", "x"]].assign(**{"n of": 20})
    mean, out = result.predict(new, interval=0.9), result.predict(new, interval=0.9, interval_of="outcome")
    assert (out["lower"] <= mean["lower"]).all() and (out["upper"] >= mean["upper"]).all()
    np.testing.assert_allclose(out[["lower", "upper"]] * 20, np.rint(out[["lower", "upper"]] * 20), atol=1e-9)
    with pytest.raises(CoterieError, match="'n of' is not in the table"):
        result.predict(new[["g", "x"]], interval=0.9, interval_of="outcome")


@pytest.mark.parametrize(
    ("formula", "how", "says"),
    [
        ("cbind(s) ~ x", {}, r"cbind\(successes, failures\)"),
        ("cbind(s, f, s) ~ x", {}, r"cbind\(successes, failures\)"),
        ("cbind(s - 1, f) ~ x", {}, r"from 0 to the trials.*rows"),
        ("`n of` | trials(s) ~ x", {}, r"from 0 to the trials.*rows"),
        ("share | trials(`n of`) ~ x", {}, r"whole numbers.*rows"),
        ("s | trials(12) ~ x", {}, "'12' in .* is no column"),
        ("cbind(s, f) ~ x", {"weights": "n of"}, "leave weights out"),
        ("cbind(s, f) ~ x", {"family": "poisson"}, "binomial, not poisson"),
        ("share ~ x", {}, r"cbind\(successes, failures\)"),
        ("y ~ cbind(s, f)", {}, r"left of the '~'"),
        ("s | g ~ x", {}, r"\(x \| group\)"),
    ],
)
def test_what_cannot_be_counted_is_said(table, formula, how, says):
    with pytest.raises(CoterieError, match=says):
        fit(table, formula, **how)


def test_text_is_not_counted(table):
    for left in ("cbind(s, kind)", "s | trials(kind)"):
        with pytest.raises(CoterieError, match="'kind' holds no numbers"):
            fit(table.assign(kind=table["s"].astype(str) + " of all"), f"{left} ~ x")
