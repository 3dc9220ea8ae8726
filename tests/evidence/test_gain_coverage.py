"""95% intervals of gains hold the gain that other tables of the same kind have, whatever is true of the clients."""

import numpy as np
import pandas as pd
import pytest

import coterie

CLUSTERS, CLIENTS = 8, 6
KINDS = {
    # standard deviations of clients and of clusters, and what hierarchical gains over pooled and over local models:
    # means over 200 tables of true losses in every split, (theta - truth)^2 for an intercept and a standard normal x
    ("pooled", False): (0.0, 0.0, -0.0029, 0.3430),
    ("pooled", True): (0.0, 0.0, -0.0040, 0.3419),
    ("local", False): (2.0, 0.0, 7.708, 0.0237),
    ("clustered", True): (0.0, 1.0, 1.802, 0.3069),
    ("tree", True): (0.6, 0.6, 1.161, 0.1210),
}

FEW = [("pooled", False), ("local", False), ("tree", True)]
WITH_SOAK = [*FEW, *(pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS if kind not in FEW)]


def table(sd_client, sd_cluster, seed):
    rng = np.random.default_rng(90_000 + seed)
    cluster = np.repeat(np.arange(CLUSTERS), CLIENTS)
    theta = np.array([1.0, 2.0]) + (sd_cluster * rng.normal(size=(CLUSTERS, 2)))[cluster]
    theta += sd_client * rng.normal(size=theta.shape)
    client = np.repeat(np.arange(len(theta)), rng.integers(8, 16, len(theta)))
    x = rng.normal(size=len(client))
    y = theta[client, 0] + theta[client, 1] * x + rng.normal(size=len(x))
    return pd.DataFrame({"y": y, "x": x, "client": client, "cluster": cluster[client]})


@pytest.mark.parametrize("tables", [3, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", WITH_SOAK, ids=lambda kind: f"{kind[0]}, {'clusters' if kind[1] else 'no clusters'}")
def test_intervals_of_gains_hold_as_often_as_they_say(kind, tables):
    sd_client, sd_cluster, *gains = KINDS[kind]
    held, named = np.zeros(2), 0
    for seed in range(tables):
        cluster = "cluster" if kind[1] else None
        found = coterie.fit(table(sd_client, sd_cluster, seed), "y ~ x", "client", cluster, seed=seed)
        row = found.comparison.loc["hierarchical"]
        for k, other in enumerate(("pooled", "local")):
            held[k] += row[f"gain_over_{other}_low"] <= gains[k] <= row[f"gain_over_{other}_high"]
        named += found.client_gains[["worse_than_local", "worse_than_pooled"]].any(axis=None)
    assert (held / tables + 3.0 * np.sqrt(0.92 * 0.08 / tables) >= 0.92).all(), held
    assert named <= 0.05 * tables + 3.0 * np.sqrt(0.05 * tables)  # tables that name a client as losing
