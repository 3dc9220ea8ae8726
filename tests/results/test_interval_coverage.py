"""90% intervals over simulated tables hold the truth about as often as they say."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

import coterie
from coterie.families import family_named

CLUSTERS, CLIENTS, ROWS = 8, 6, 10
TRUTH = {"gaussian": [1.0, 2.0], "binomial": [-0.5, 0.8], "poisson": [0.5, 0.4]}


def held(family, seed):
    """Shares of a table's intervals that hold: of means of clients seen, of new ones, of new clusters, and the root."""
    rng, about = np.random.default_rng(seed), family_named(family)
    root, few = np.array(TRUTH[family]), 0.7 if family == "poisson" else 1.0
    sd_client, sd_cluster = few * np.array([0.7, 0.4]), few * np.array([0.6, 0.3])
    cluster = np.repeat(np.arange(CLUSTERS), CLIENTS)
    centre = root + rng.normal(size=(CLUSTERS, 2)) * sd_cluster
    theta = centre[cluster] + rng.normal(size=(CLUSTERS * CLIENTS, 2)) * sd_client

    def rows(theta, client, cluster, count):
        at = np.repeat(np.arange(len(theta)), count)
        x = rng.normal(size=len(at))
        eta = theta[at, 0] + theta[at, 1] * x
        return pd.DataFrame({"client": client[at], "cluster": cluster[at], "x": x, "eta": eta})

    table = rows(theta, np.arange(len(theta)), cluster, ROWS)
    table["y"] = about.draw(rng, table["eta"].to_numpy(), np.ones(len(table)))
    fit = coterie.fit(table, "y ~ x", "client", "cluster", family=family, method="hierarchical", splits=0)
    beside = centre[cluster] + rng.normal(size=theta.shape) * sd_client
    new = root + rng.normal(size=(16, 2)) * sd_cluster + rng.normal(size=(16, 2)) * sd_client
    for frame in (
        table,
        rows(beside, 1000 + np.arange(len(beside)), cluster, 2),
        rows(new, 2000 + np.arange(16), 1000 + np.arange(16), 2),
    ):
        found = fit.predict(frame, interval=0.9, interval_of="mean")
        yield np.mean((about.mean(frame["eta"]) >= found["lower"]) & (about.mean(frame["eta"]) <= found["upper"]))
    known = fit.global_coefficients
    yield np.mean(np.abs(known["estimate"] - root) <= t.ppf(0.95, known["df"]) * known["std_error"])


@pytest.mark.soak("binomial-6")
@pytest.mark.parametrize("tables", [6, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("family", TRUTH)
def test_intervals_hold_as_often_as_they_say(family, tables):
    shares = np.array([list(held(family, seed)) for seed in range(tables)])
    mean, error = shares.mean(axis=0), np.maximum(shares.std(axis=0), 0.1) / tables**0.5
    assert (mean + 3.0 * error >= 0.87).all(), mean
    assert (mean - 3.0 * error <= 0.95).all(), mean
