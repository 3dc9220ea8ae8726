"""Dispersions that a search finds: where there is none, what finding one costs, and outcomes in other units."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy.special import polygamma

import coterie
from coterie.methods.tree.dispersion import zero_of


@cache
def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    client, x = np.repeat(np.arange(12), 10), rng.normal(size=120)
    mean = np.exp(1.0 + 0.3 * x + 0.3 * rng.normal(size=12)[client])
    frame = {"client": client, "cluster": client % 3, "x": x, "amount": mean * rng.gamma(2.0, 0.5, 120)}
    return pd.DataFrame(frame | {"count": rng.poisson(frame["amount"])})


def fit(outcome: str, family: str, frame: pd.DataFrame | None = None, **how: object) -> coterie.FitResult:
    how = {"client": "client", "method": "pooled", "splits": 0} | how
    return coterie.fit(table() if frame is None else frame, f"{outcome} ~ x", family=family, **how)


@pytest.mark.parametrize(
    ("family", "outcome", "says"), [("negative-binomial", "few", "poisson"), ("gamma", "line", "too large")]
)
def test_no_dispersion_is_said(family: str, outcome: str, says: str) -> None:
    frame = table().assign(few=lambda f: 3 + (f.index % 5 == 0), line=lambda f: np.exp(f["x"]))
    found = fit(outcome, family, frame)
    assert found.model.sigma2 == pytest.approx(1e-6, rel=1e-3)
    assert [note for note in found.notes if "1e-06" in note and says in note]
    assert not [note for note in fit("count", "negative-binomial").notes if "1e-06" in note]


@pytest.mark.parametrize("method", ["given-strengths", "similarity-network"])
def test_what_finding_a_dispersion_costs_is_in_the_ledger(method: str) -> None:
    how = {"gamma": [1.0], "lam": [1.0]} if method == "given-strengths" else {"network": {"lam": 1.0}}
    first = fit("count", "negative-binomial", method="hierarchical", cluster="cluster")
    found = fit("count", "negative-binomial", method=method, cluster="cluster", **how)
    assert found.model.sigma2 == first.model.sigma2
    assert found.ledger["exchanges"] > 0.5 * first.ledger["exchanges"]  # which fits by it, and has intervals
    assert found.ledger["bytes_up"] > 0.4 * first.ledger["bytes_up"]


def test_what_cannot_be_chosen_is_refused_before_a_dispersion_is_searched_for(monkeypatch) -> None:
    from coterie.methods.tree import dispersion

    monkeypatch.setattr(dispersion, "with_dispersion", lambda *_, **__: pytest.fail("searched"))
    with pytest.raises(coterie.CoterieError, match="lam of the network is to be chosen"):
        fit("count", "negative-binomial", method="similarity-network")


def test_methods_that_are_compared_share_a_dispersion(monkeypatch) -> None:
    from coterie.methods.tree import dispersion

    calls, search = [], dispersion.with_dispersion
    monkeypatch.setattr(dispersion, "with_dispersion", lambda *a, **k: calls.append(1) or search(*a, **k))
    fit("count", "negative-binomial", method="hierarchical", cluster="cluster", splits=2)
    assert len(calls) == 2 * 3 + 1  # one model for all, with clusters, and without; then of all rows


@pytest.mark.parametrize("unit", [1e-90, 1e60])
def test_amounts_in_other_units_have_the_same_dispersion(unit: float) -> None:
    one = fit("amount", "gamma", method="hierarchical")
    other = fit("amount", "gamma", table().assign(amount=lambda f: unit * f["amount"]), method="hierarchical")
    assert other.model.sigma2 == pytest.approx(one.model.sigma2, rel=1e-6)
    np.testing.assert_allclose(other.model.root - [np.log(unit), 0.0], one.model.root, rtol=1e-5)


def test_a_dispersion_is_no_standard_deviation() -> None:
    found = fit("count", "negative-binomial", method="hierarchical")
    row = found.variance_components.set_index("level").loc["dispersion"]
    assert np.isnan(row["sd"])
    assert row["cov"] == found.model.sigma2
    boot = coterie.bootstrap(found, n=2)
    assert boot.observed["dispersion"] == found.model.sigma2
    assert boot.observed.notna().all()


@pytest.mark.soak("8", "5")
@pytest.mark.parametrize("seed", [5, 6, 8])
def test_few_rows_take_the_higher_of_two_optima(seed: int) -> None:
    """Without a dispersion (seeds 5 and 6: .52 and .08 above the other) or with one (seed 8: .32 above)."""
    r = np.random.default_rng(seed)
    client, x = np.repeat(np.arange(60), 2), r.normal(size=120)
    eta = 1.0 + 0.4 * x + 0.8 * r.normal(size=60)[client]
    counts = r.poisson(np.exp(eta) * r.gamma(10.0, 0.1, size=120))
    frame = pd.DataFrame({"client": client, "x": x, "count": counts})
    found, poisson = (fit("count", family, frame, method="hierarchical") for family in ("negative-binomial", "poisson"))
    assert (found.model.sigma2 < 1e-5) == (seed != 8)
    assert found.log_likelihood > poisson.log_likelihood - 1e-3


def test_how_unsure_the_dispersion_is_is_in_standard_errors() -> None:
    rng = np.random.default_rng(2)
    client, x = np.repeat(np.arange(12), 30), rng.normal(size=360)
    mean = np.exp(1.0 + 0.3 * x + 0.5 * rng.normal(size=12)[client])
    frame = pd.DataFrame({"client": client, "x": x, "amount": mean * rng.gamma(2.0, 0.5, 360)})
    found = fit("amount", "gamma", frame, method="hierarchical", shared=["x"])
    # A slope that all share has a variance in proportion to the dispersion, whose shape k has the information
    # n (k^2 trigamma(k) - k) of its logarithm; the degrees of freedom are those of that variance.
    k = 1.0 / found.model.sigma2
    relative = 1.0 / (360.0 * (k**2 * polygamma(1, k) - k))
    assert found.global_coefficients["df"][1] == pytest.approx(4.0 + 2.0 / relative, rel=0.1)


@pytest.mark.parametrize("start", [1.0, 1.0 + 1e-7, 1.0 - 1e-7, 3.0])
def test_how_steep_a_slope_is_is_that_near_its_zero(start: float) -> None:
    """Also of a search that begins at the zero, as where clients do not differ: a step away it is 1 or 19."""
    zero, rise = zero_of(lambda d: d**3 - 1.0, start)
    assert (zero, rise) == (pytest.approx(1.0, rel=1e-4), pytest.approx(3.0, rel=0.05))
