"""Every method over sites: it gives the numbers of one table, or says before a site is asked why it cannot."""

from __future__ import annotations

import numpy as np
import pytest

import coterie
from coterie.deployment.coordinator.run import run
from coterie.errors import CoterieError
from coterie.methods.registry import FITTED
from tests.cells import of_table, schools
from tests.deployment.hospitals import begin, folders, transport

TASK = {"formula": "y ~ x", "client": "school", "cluster": "district"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return folders(tmp_path_factory.mktemp("all"), schools(), "site", ["school", "district"], min_group=5)


KINDS = (
    *("pooled", "hierarchical", "given-strengths", "single-cluster", "james-stein", "similarity-network", "fedrep"),
    *("weighted-averaging", "bias-correction", "async-al2sgd", "group-sgd", "ditto", "scaffold", "cfl", "fedadam"),
)
"""One method of each kind of work at sites: behind a wire, tests/test_matrix.py runs them all."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.soak] * (n not in KINDS)) for n in FITTED])
def test_a_method_over_sites_is_that_of_one_table(name, place):
    coordinator, homes = place
    home = begin(coordinator, name, {"program": name, "task": TASK, "options": of_table(FITTED[name]), "seed": 3})
    run(transport(homes), coordinator, name)
    there = coterie.load(home / "result").model
    given = of_table(FITTED[name])
    if FITTED[name].rounds:
        given["rounds"] = {"seed": 3} | given.get("rounds", {})
    cluster = None if FITTED[name].flat and not FITTED[name].clustered else TASK["cluster"]
    here = coterie.fit(schools(), TASK["formula"], TASK["client"], cluster, method=name, splits=0, **given).model
    order = [np.argsort(model.labels) for model in (there, here)]
    np.testing.assert_array_equal(there.labels[order[0]], here.labels[order[1]])
    np.testing.assert_allclose(there.client[order[0]], here.client[order[1]], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(there.root, here.root, rtol=1e-10, atol=1e-10)


REFUSED = {
    "fedbn": ({}, "normalise"),
    "similarity-network": ({}, "Held-out rows choose lam of the network where all rows are together"),
    "bias-correction": ({"rounds": {"keep": "held-out"}}, "Held-out rows choose keep where all rows are together"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_rows_in_one_place_must_say_is_refused_before_a_site_is_asked(name, place):
    coordinator, _ = place
    given, said = REFUSED[name]
    begin(coordinator, f"no-{name}", {"program": name, "task": TASK, "options": given})

    def never(messages, timeout):
        raise AssertionError("a site was asked")

    to = transport(place[1])
    to.send = never
    with pytest.raises(CoterieError, match=said):
        run(to, coordinator, f"no-{name}")
