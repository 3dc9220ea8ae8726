"""Every family over sites that keep their rows: the numbers of one table."""

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.deployment.coordinator.run import run
from tests.deployment.hospitals import begin, folders, transport
from tests.reference.test_glmmtmb import HERE, OUTCOMES

TABLE = pd.read_csv(HERE / "simulated.csv").assign(site=lambda d: np.where(d["g"] < 17, "basel", "bern"))
THREE = TABLE.assign(site=lambda d: "site" + (d["g"] % 3).astype(str))
FORMULAS = {"binomial": "successes | trials(trials) ~ x"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return folders(tmp_path_factory.mktemp("all"), TABLE, "site", ["g"], min_group=1)


@pytest.mark.soak("hierarchical-student-t(4)", "hierarchical-gamma", "pooled-gamma", "pooled-student-t(4)")
@pytest.mark.parametrize("family", OUTCOMES)
@pytest.mark.parametrize("method", ["hierarchical", "pooled"])
def test_a_family_over_sites_is_that_of_one_table(family, method, place):
    coordinator, homes = place
    formula, name = FORMULAS.get(family, f"{OUTCOMES[family]} ~ x"), f"{method}-{family.partition('(')[0]}"
    asked = {"program": method, "task": {"formula": formula, "client": "g", "family": family}}
    home = begin(coordinator, name, asked)
    run(transport(homes), coordinator, name)
    there = coterie.load(home / "result")
    here = coterie.fit(TABLE, formula, client="g", family=family, method=method, splits=0)
    order = [np.argsort(fit.model.labels) for fit in (there, here)]
    np.testing.assert_allclose(there.model.client[order[0]], here.model.client[order[1]], rtol=1e-10, atol=1e-10)
    assert there.model.sigma2 == pytest.approx(here.model.sigma2, rel=1e-10)
    assert there.log_likelihood == pytest.approx(here.log_likelihood, rel=1e-10)


AMOUNTS = pytest.param("gamma", "amount", marks=pytest.mark.soak)


@pytest.mark.parametrize(("family", "outcome"), [("gaussian", "heavy"), ("poisson", "count"), AMOUNTS])
def test_criteria_and_tests_of_nested_fits_over_three_sites_are_those_of_one_table(family, outcome, tmp_path):
    coordinator, homes = folders(tmp_path, THREE, "site", ["g"], min_group=1)
    there, here = [], []
    for name, right, method in (("one", "1", "pooled"), ("two", "x", "pooled"), ("three", "x", "hierarchical")):
        task = {"formula": f"{outcome} ~ {right}", "client": "g", "family": family}
        options = {"reml": False} if family == "gaussian" else {}
        options |= {"shared": ["x"]} if name == "three" else {}
        home = begin(coordinator, name, {"program": method, "task": task, "options": options})
        run(transport(homes), coordinator, name)
        there.append(coterie.load(home / "result"))
        here.append(coterie.fit(THREE, task["formula"], client="g", family=family, method=method, splits=0, **options))
    for a, b in zip(there, here, strict=True):
        found, known = ([fit.log_likelihood, fit.aic, fit.bic, fit.parameters] for fit in (a, b))
        np.testing.assert_allclose(found, known, rtol=1e-10)
        tables = (fit.summary().coefficients for fit in (a, b))
        pd.testing.assert_frame_equal(*tables, rtol=1e-8 if b is here[2] else 1e-10)
    pd.testing.assert_frame_equal(*(coterie.compare_fits(*fits) for fits in (there, here)), rtol=1e-10, atol=1e-10)
