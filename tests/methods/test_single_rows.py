"""One row for each client: only what cannot be identified is left out, and it is said."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError

N = 160
RNG = np.random.default_rng(2)
SITE = np.arange(N) // 16
X = RNG.normal(size=N)
ETA = 0.5 + 0.3 * X + 0.8 * RNG.normal(size=10)[SITE]
DF = pd.DataFrame({"id": np.arange(N), "site": SITE, "region": SITE // 3, "x": X})
DF["gaussian"] = 2.0 * ETA + RNG.normal(size=N)
DF["binomial"] = (RNG.random(N) < 1.0 / (1.0 + np.exp(-2.0 * ETA))).astype(int)
DF["poisson"] = RNG.poisson(np.exp(ETA + 0.7 * RNG.normal(size=N)))


def fit(df, family, client="id", cluster=None, **options):
    options = {"splits": 0, **options}
    return coterie.fit(df, f"{family} ~ x", client=client, cluster=cluster, family=family, **options)


@pytest.mark.parametrize("cluster", ["site", ["site", "region"], None])
def test_counts_tell_clients_from_noise(cluster):
    """An empty row more for each client (no exposure: its likelihood is 1) says nothing, but makes it two."""
    empty = DF.assign(poisson=0, o=-30.0, x=DF["x"] + 1e-3)
    known = fit(pd.concat([DF.assign(o=0.0), empty]), "poisson", cluster=cluster, shared="x", offset="o")
    found = fit(DF, "poisson", cluster=cluster, shared="x")
    assert found.method == "hierarchical"
    assert found.log_likelihood == pytest.approx(known.log_likelihood, abs=1e-6)
    np.testing.assert_allclose(found.variance_components["sd"], known.variance_components["sd"], atol=1e-4)
    assert any("learned of their intercepts" in note for note in found.notes)


@pytest.mark.parametrize("shared", [(), "x"])
@pytest.mark.parametrize("coarser", [[], ["region"]])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_clusters_stay_where_clients_are_not_identified(family, coarser, shared):
    """As with the finest clusters for clients: the same likelihood, variances of clusters and predictions."""
    laplace = {} if family == "gaussian" else {"quadrature": 1}  # clients of their own, alone, would have 25 points
    found = fit(DF, family, cluster=["site", *coarser], shared=shared, **laplace)
    known = fit(DF, family, client="site", cluster=coarser, shared=shared, **laplace)
    assert found.log_likelihood == pytest.approx(known.log_likelihood, abs=1e-7)
    spread = found.variance_components
    assert "client" not in set(spread["level"])
    np.testing.assert_allclose(spread["sd"], known.variance_components["sd"], atol=1e-5)
    here, there = (f.predict(DF, interval=0.9)[["prediction", "lower", "upper"]] for f in (found, known))
    np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-6)
    assert any("Every client (id) has one row" in note and "the model of its site" in note for note in found.notes)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_without_clusters_one_model_serves_all(family):
    found = fit(DF, family, splits=2)
    assert found.method == "pooled"
    assert any("one row" in note and "one model serves all" in note for note in found.notes)
    with pytest.raises(CoterieError, match="Use --method pooled"):
        fit(DF, family, method="hierarchical")


def test_a_residual_variance_for_each_of_them_is_refused():
    with pytest.raises(CoterieError, match="more than one row"):
        fit(DF, "gaussian", cluster="site", residual="by-client")
