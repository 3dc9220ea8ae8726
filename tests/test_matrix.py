"""Methods x {table, net} x {in process, loop-back}: each cell runs, or is refused for a reason of mathematics."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.families import family_named
from coterie.methods.registry import METHODS
from tests.cells import fitted, numbers
from tests.contract.registry import CASES
from tests.reference.test_glmmtmb import HERE, OUTCOMES

MODELS = {"table": 1e-10, "torch": 1e-6}
CELLS = [(name, model) for name in METHODS for model in MODELS]
RUN = [(name, model) for name, model in CELLS if METHODS[name].why_not(model) is None]
REFUSED = [cell for cell in CELLS if cell not in RUN]
DEEP = {case.name.removeprefix("deep-") for case in CASES if case.name.startswith("deep-")} - {"fedavg", "fedbn"}
"""Methods whose nets are put behind a wire by the laws of the contract: the front calls them all alike."""
SHOWN = [pytest.param(*cell, marks=[pytest.mark.soak] * (cell[0] in DEEP and cell[1] == "torch")) for cell in RUN]


@pytest.mark.parametrize(("name", "model"), SHOWN)
def test_a_cell_runs_behind_a_wire_as_in_one_process(name, model):
    here = fitted(METHODS[name], model)
    there = fitted(METHODS[name], model, engine="loopback")
    tolerance = MODELS[model]
    assert np.isfinite(numbers(here)).all() and len(np.unique(numbers(here))) > 1
    np.testing.assert_allclose(numbers(there), numbers(here), rtol=tolerance, atol=tolerance)
    assert there.config()["engine"] == {"kind": "loopback"}
    assert there.ledger["exchanges"] >= here.ledger["exchanges"]


@pytest.mark.parametrize("engine", ["inprocess", "loopback"])
@pytest.mark.parametrize(("name", "model"), REFUSED)
def test_a_cell_is_refused_for_a_reason_that_names_what_to_use(name, model, engine):
    with pytest.raises(CoterieError) as refused:
        fitted(METHODS[name], model, engine=engine)
    said = str(refused.value)
    assert said == METHODS[name].why_not(model)
    assert not re.search(r"\b(yet|support\w*|implement\w*)\b", said)
    named = re.findall(r"'([\w-]+)'", said)
    assert named[0] == name and METHODS[named[-1]].why_not(model) is None


FAMILIES = [(name, family) for name in ("local", "pooled", "hierarchical") for family in OUTCOMES]
OTHERS = ("similarity-network", "weighted-averaging", "ditto")
FAMILIES += [(name, family) for name, family in zip((*OTHERS, "ditto"), OUTCOMES, strict=True)]
REST = [(name, family) for name in OTHERS for family in OUTCOMES if (name, family) not in FAMILIES]
REST = [(name, family) for name, family in REST if family_named(family).convex or not METHODS[name].convex]


@pytest.mark.soak(
    "weighted-averaging-negative-binomial", "ditto-gamma", "local-negative-binomial", "ditto-student-t(4)"
)
@pytest.mark.parametrize(
    ("name", "family"), [*FAMILIES, *(pytest.param(*pair, marks=pytest.mark.soak) for pair in REST)]
)
def test_a_family_runs_behind_a_wire_as_in_one_process(name, family):
    table = pd.read_csv(HERE / "simulated.csv").query("g < 15")
    how = {"network": {"space": "model", "lam": 1.0}} if name == "similarity-network" else {}
    how |= {"rounds": 5} if name == "ditto" else {}
    here, there = (
        coterie.fit(
            table, f"{OUTCOMES[family]} ~ x", client="g", family=family, method=name, splits=0, engine=engine, **how
        )
        for engine in ("inprocess", "loopback")
    )
    np.testing.assert_allclose(there.model.client, here.model.client, rtol=1e-10, atol=1e-10)
    assert there.model.sigma2 == pytest.approx(here.model.sigma2, rel=1e-10)
