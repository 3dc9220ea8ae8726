"""Families against glmmTMB 1.1.5 on a simulated table: ``glmmtmb/simulate.py`` and ``fit.R`` made table and numbers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie

HERE = Path(__file__).parent / "glmmtmb"
OUTCOMES = {"binomial": "cbind(successes, trials - successes)", "negative-binomial": "count", "gamma": "amount"}
OUTCOMES["student-t(4)"] = "heavy"
NAMES = {"t": "student-t(4)", "t-found": "student-t"}
REFERENCES = [(path.stem, *path.stem.split("_")) for path in sorted(HERE.glob("*.json"))]


@pytest.mark.parametrize(("name", "family", "kind"), [(r[0], NAMES.get(r[1], r[1]), r[2]) for r in REFERENCES])
def test_estimates_and_likelihoods_are_those_of_glmmtmb(name, family, kind):
    table, known = pd.read_csv(HERE / "simulated.csv"), json.loads((HERE / f"{name}.json").read_text())
    how = {"shared": ["x"]} if kind == "intercept" else {}
    how |= {"covariance": "full", "quadrature": 1} if kind != "pooled" else {}
    how["method"] = "pooled" if kind == "pooled" else "hierarchical"
    fit = coterie.fit(table, f"{OUTCOMES.get(family, 'heavy')} ~ x", client="g", family=family, splits=0, **how)
    np.testing.assert_allclose(fit.model.root, known["fixef"], rtol=1e-3)
    assert fit.log_likelihood == pytest.approx(known["logLik"], abs=1e-3)
    wider = fit.global_coefficients["std_error"] / known["se"]  # by what variances are unsure of, where there are any
    assert np.all((wider > 0.995) & (wider < (1.001 if kind == "pooled" else 1.025)))
    if family == "negative-binomial":
        assert 1.0 / fit.model.sigma2 == pytest.approx(known["sigma"], rel=1e-3)
    if family == "gamma":
        assert fit.model.sigma2**0.5 == pytest.approx(known["sigma"], rel=1e-3)
    if family.startswith("student-t"):
        assert fit.model.sigma2**0.5 == pytest.approx(known["sigma"], rel=1e-3)
        assert fit.model.scattering.degrees == pytest.approx(known.get("degrees", 4.0), rel=1e-3)
    if kind != "pooled":
        D = np.asarray(known["D"])
        np.testing.assert_allclose(fit.model.D_client[0][: len(D), : len(D)], D, rtol=2e-3)
