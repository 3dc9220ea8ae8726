"""The matrix of methods over engines that take long to begin: one Ray, and one NVFlare federation, for all of them."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest

import coterie
import tests.cells
from coterie.deployment import folders
from coterie.deployment.federation_toml import Config
from coterie.deployment.schema import propose
from coterie.engines.local_engines import ready
from coterie.methods.registry import FITTED, METHODS
from tests.cells import fitted, numbers, of_table, schools
from tests.test_matrix import MODELS, RUN

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def actors():
    """Ray, begun once, whose actors every cell takes again."""
    ray = pytest.importorskip("ray")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    ray.cloudpickle.register_pickle_by_value(tests.cells)
    with ready({"kind": "ray"}):
        yield


@pytest.mark.usefixtures("actors")
@pytest.mark.parametrize(("name", "model"), RUN)
def test_a_cell_runs_over_actors_as_in_one_process(name, model):
    here, there = fitted(METHODS[name], model), fitted(METHODS[name], model, engine="ray")
    np.testing.assert_allclose(numbers(there), numbers(here), rtol=MODELS[model], atol=MODELS[model])
    assert there.ledger["exchanges"] >= here.ledger["exchanges"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three sites of NVFlare with four schools each, started once."""
    pytest.importorskip("nvflare")
    from coterie.deployment.nvflare import operator_commands as nvflare

    root, table = tmp_path_factory.mktemp("flare"), schools()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = {}
    for name, own in table.groupby("site"):
        data[name] = str(root / f"{name}.csv")
        own.drop(columns="site").to_csv(data[name], index=False)
    schema, _ = propose(table.drop(columns="site"), labels=["school", "district"])
    place, rules = root / "schools", {"min_level": 1, "works": ["coterie.*"]}
    folders.init(place, Config("schools", "nvflare", port=port, sites=tuple(data)), data, schema, disclosure=rules)
    homes = [place / "coordinator", *(place / "sites" / name for name in data)]
    begun = []
    try:
        begun.append(nvflare.start_coordinator(homes[0]))
        begun += map(nvflare.start_site, homes[1:])
        yield place
    finally:
        for home in reversed(homes):
            nvflare.stop(home)
        for process in begun:
            process.wait(60.0)


@pytest.mark.parametrize("name", FITTED)
def test_a_method_over_nvflare_is_that_of_one_table(name, federation):
    method, given = FITTED[name], of_table(FITTED[name])
    if method.rounds:
        given["rounds"] = {"seed": 3} | given.get("rounds", {})
    cluster = None if method.flat and not method.clustered else "district"
    given |= {"method": name, "seed": 3}
    there = coterie.fit(federation, "y ~ x", "school", "district", engine={"timeout": 300}, **given).model
    here = coterie.fit(schools(), "y ~ x", "school", cluster, splits=0, **given).model
    order = [np.argsort(model.labels) for model in (there, here)]
    np.testing.assert_array_equal(there.labels[order[0]], here.labels[order[1]])
    np.testing.assert_allclose(there.client[order[0]], here.client[order[1]], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(there.root, here.root, rtol=1e-10, atol=1e-10)
