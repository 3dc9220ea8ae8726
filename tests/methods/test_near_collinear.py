"""Columns that nearly depend on each other are solved as if they were apart, or refused by name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError

RNG = np.random.default_rng(0)
G = np.repeat(np.arange(20), 12)
CM = (170 + 10 * RNG.normal(size=240)).round(1)
Y = 2 + RNG.normal(size=20)[G] * 1.5 + 0.1 * (CM - 170) + RNG.normal(size=240)


def tables(digits):
    """The same model in two parametrisations: inches that were rounded, and what rounding them changed."""
    inch = (CM / 2.54).round(digits)
    rest = (inch - CM / 2.54) * 10.0**digits
    count = np.random.default_rng(1).poisson(np.exp(np.minimum(Y - 4.0, 3.0)))
    df = pd.DataFrame({"g": G, "gaussian": Y, "poisson": count, "binomial": (Y > 2).astype(int)})
    return df.assign(cm=CM, inch=inch), df.assign(cm=CM - 170.0, inch=rest)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pooled", {}),
        ("own-intercept", {}),
        ("hierarchical", {"shared": ["cm", "inch"]}),
        ("hierarchical", {"shared": ["inch"], "covariance": "full"}),
        ("local", {}),
    ],
)
def test_near_multiples_are_solved_as_if_they_were_apart(family, method, options):
    if method == "local" and family != "gaussian":
        pytest.skip("its weak prior is one of the columns as they are")
    near, apart = (
        coterie.fit(df, f"{family} ~ cm + inch", "g", family=family, method=method, splits=0, **options)
        for df in tables(4)
    )
    slope = [
        f.global_coefficients.set_index("term").loc["inch", ["estimate", "std_error"]].astype(float).to_numpy()
        for f in (near, apart)
    ]
    np.testing.assert_allclose(slope[0], slope[1] * 1e4, rtol=1e-3)
    if np.isfinite(apart.log_likelihood):
        units = np.log(1e4) if apart.reml else 0.0  # restricted likelihoods are of parameters in their units
        assert near.log_likelihood - units == pytest.approx(apart.log_likelihood, abs=1e-5)
    bounds = [f.predict(df, interval=0.9)[["lower", "upper"]] for f, df in zip((near, apart), tables(4), strict=True)]
    np.testing.assert_allclose(*bounds, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("digits", [5, 6, 7, 8])
def test_nearer_ones_are_refused_by_name(digits):
    with pytest.raises(CoterieError, match=r"'inch' is a (multiple|combination) of .*'cm'"):
        coterie.fit(tables(digits)[0], "gaussian ~ cm + inch", "g", shared=["cm", "inch"], splits=0)


def test_a_network_sums_columns_as_they_are_and_refuses_more():
    with pytest.raises(CoterieError, match="'inch' is a combination"):
        coterie.fit(tables(4)[0], "gaussian ~ cm + inch", "g", method="similarity-network", network={"k": 3}, splits=0)


def test_powers_of_a_year():
    df = pd.DataFrame({"g": G, "year": 2000.0 + RNG.integers(0, 20, 240), "y": Y})
    one = coterie.fit(df, "y ~ year + I(year**2)", "g", shared=["year", "I(year ** 2)"], splits=0)
    two = coterie.fit(
        df.assign(year=df["year"] - 2010), "y ~ year + I(year**2)", "g", shared=["year", "I(year ** 2)"], splits=0
    )
    assert one.log_likelihood == pytest.approx(two.log_likelihood, abs=1e-6)
    np.testing.assert_allclose(
        one.global_coefficients.iloc[2, 1:].astype(float), two.global_coefficients.iloc[2, 1:].astype(float), rtol=1e-5
    )
