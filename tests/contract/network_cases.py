"""Rows of the registry for the exact solver of a similarity network (paper 003), and for its lambda path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from coterie.families import family_named
from coterie.methods.networks.objective import Prior
from coterie.methods.networks.optimum import optimum, path
from coterie.relations.parameter_layout import Layout
from tests.contract.similarity_cases import ring

LAYOUTS = {"personal": Layout.columns(2, np.arange(2)), "slope": Layout.columns(2, np.array([1]))}


def exact(
    fed: Any, family: str, lam: float, p: float = 2, layout: str = "personal", **options: Any
) -> Mapping[str, Any]:
    """The minimiser: all columns personal, or the intercept shared."""
    network = ring(fed)
    options = {"kkt": 1e-10} | options
    found = optimum(
        fed, network, lam, p, layout=LAYOUTS[layout], prior=Prior.of(network, family_named(family)), **options
    )
    return {"x": found.x, "Z": found.Z, "theta": found.theta, "value": np.array(found.value)}


def along(fed: Any, family: str) -> Mapping[str, Any]:
    """Three lambdas of a path."""
    network = ring(fed)
    prior = Prior.of(network, family_named(family))
    found = path(fed, network, layout=LAYOUTS["personal"], prior=prior, lam=[0.3, 0.03, 0.003], kkt=1e-10)
    return {"theta": found.at[-1].theta, "groups": found.labels.max(axis=1) + 1}


def row(run: Callable[..., Any], family: str, **options: Any) -> dict[str, Any]:
    """What a case needs beside its name; its problem is ``grouped`` of the family, its tolerance 1e-6."""
    per_client = ("theta", "Z") if run is exact else ("theta",)
    return {"run": partial(run, family=family, **options), "family": family, "per_client": per_client}


NETWORK_EXACT: dict[str, dict[str, Any]] = {
    "network-exact-gaussian": row(exact, "gaussian", lam=0.02),
    "network-exact-binomial": row(exact, "binomial", lam=0.01, p=1),
    "network-exact-poisson": row(exact, "poisson", lam=0.01, p=np.inf, layout="slope"),
    "network-exact-alone": row(exact, "binomial", lam=0.0),
    "network-exact-as-one": row(exact, "binomial", lam=np.inf),
    "network-exact-admm": row(exact, "binomial", lam=0.01, layout="slope", solver="admm", kkt=1e-5),
    "network-path": row(along, "binomial"),
}
