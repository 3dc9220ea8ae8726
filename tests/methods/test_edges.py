"""Data at the edge: no variance, separation, huge scales, empty and single clients, big counts, weights."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.methods import clusterwise, given_strengths, hierarchical, local, own_intercept, pooled
from coterie.methods.tree import marginal_likelihood
from coterie.methods.tree.penalised_tree import prepare
from coterie.methods.tree.sweep_up_and_down import zero_deviations
from tests.methods import dense
from tests.methods.dense import table

FAMILIES = ["gaussian", "binomial", "poisson"]
METHODS = [local, pooled, own_intercept, clusterwise, hierarchical]
ONE, TWO = ([0, 0, 1, 1, 2, 2],), ([0, 0, 1, 1, 2, 2], [0, 0, 1])


def methods(test):
    return pytest.mark.parametrize("method", METHODS, ids=[m.__name__.split(".")[-1] for m in METHODS])(test)


def finite(f):
    arrays = [f.root, f.root_cov, *f.nodes, *f.node_cov, f.client, f.client_cov, f.D_client, *f.D_levels, f.sigma2]
    return all(np.all(np.isfinite(a)) for a in arrays if a is not None)


def fitted_values(t, f):
    return t.off + np.sum(t.X * f.client[t.codes[0]], axis=1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("covariance", ["isotropic", "two", "diagonal", "auto"])
@pytest.mark.parametrize("parents", [(), ONE], ids=["0", "1"])
def test_clients_that_do_not_differ_have_variance_zero(family, covariance, parents):
    """Client means balanced exactly: the estimate is on the boundary, and it is exactly zero."""
    rng = np.random.default_rng(61)
    x = np.tile(rng.normal(size=8), 6)
    noise = np.tile(np.tile([0.0, 1.0], 4), 6) if family != "gaussian" else np.tile(rng.normal(size=8), 6)
    codes = [np.repeat(np.arange(6), 8)]
    for parent in parents:
        codes.append(np.asarray(parent)[codes[-1]])
    t = dense.Table(np.c_[np.ones(48), x], noise, codes, family)
    f = hierarchical.fit(*t.setting(), covariance)
    assert np.all(f.D_client == 0.0)
    assert all(np.all(D == 0.0) for D in f.D_levels)
    np.testing.assert_allclose(f.client, np.tile(f.root, (6, 1)), rtol=1e-10)
    np.testing.assert_allclose(f.root, pooled.fit(*t.setting()).root, atol=1e-5)
    assert f.info["status"] == "converged"


def test_one_variance_of_two_is_zero():
    rng = np.random.default_rng(62)
    x = np.tile(np.array([-1.0, 1.0, -1.0, 1.0, 0.5, -0.5]), 12)
    noise = np.tile(rng.normal(size=6), 12)
    t = dense.Table(
        np.c_[np.ones(72), x], np.repeat(rng.normal(size=12) * 2, 6) + 0.3 * x + noise, [np.repeat(range(12), 6)]
    )
    for covariance in ("diagonal", "full", "auto"):
        D = hierarchical.fit(*t.setting(), covariance).D_client[0]
        assert D[0, 0] > 1.0
        assert abs(D[1, 1]) < 1e-9 if covariance == "full" else D[1, 1] == 0.0


@methods
@pytest.mark.parametrize("parents", [(), ONE, TWO], ids=["0", "1", "2"])
def test_perfect_separation_stays_finite(method, parents):
    t = table(63, "binomial", counts=(6, 8, 5, 7, 9, 6), parents=parents)
    f = method.fit(*dense.replace(t, y=(t.X[:, 1] > 0).astype(float)).setting())
    assert finite(f)
    assert np.abs(f.client).max() < 1e4
    assert f.root[1] > 1.0


@methods
def test_clients_of_one_class_stay_finite(method):
    t = table(64, "binomial", counts=(3,) * 30, p=2, parents=(np.repeat(np.arange(5), 6),))
    f = method.fit(*dense.replace(t, y=(t.codes[0] % 2).astype(float)).setting())
    assert finite(f)


@methods
def test_one_class_everywhere_stays_finite(method):
    t = table(65, "binomial", parents=ONE)
    f = method.fit(*dense.replace(t, y=np.ones(len(t.y))).setting())
    assert finite(f)
    assert f.root[0] > 2.0


@methods
def test_no_counts_at_all_stay_finite(method):
    t = table(66, "poisson", parents=ONE)
    f = method.fit(*dense.replace(t, y=np.zeros(len(t.y))).setting())
    assert finite(f)


@methods
@pytest.mark.parametrize("family", FAMILIES)
def test_fits_do_not_depend_on_the_units_of_columns(method, family):
    """1e8 next to 1e-3: fitted values agree to 1e-8 of their spread."""
    t = table(67, family, counts=(9, 8, 12, 7, 9, 10), p=3, parents=ONE)
    scale = np.array([1.0, 1e8, 1e-3])
    a, b = method.fit(*t.setting()), method.fit(*dense.replace(t, X=t.X * scale).setting())
    plain = fitted_values(t, a)
    other = fitted_values(dense.replace(t, X=t.X * scale), b)
    tolerance = 1e-8 if method is not hierarchical else 1e-6  # variances are where the search stopped
    assert np.abs(plain - other).max() <= tolerance * np.abs(plain).max()
    np.testing.assert_allclose(a.root, b.root * scale, rtol=tolerance, atol=tolerance)
    if method is not own_intercept:  # a free intercept leaves the root's open
        np.testing.assert_allclose(a.root_cov, b.root_cov * np.outer(scale, scale), rtol=1e-5, atol=1e-12)
    if a.log_likelihood is not None:
        assert a.log_likelihood - b.log_likelihood == pytest.approx(
            0.0 if method is not hierarchical or family != "gaussian" else -np.log(scale).sum() * -1, abs=1e-5
        )


@methods
def test_an_outcome_far_from_zero(method):
    t = table(68, counts=(9, 8, 12, 7, 9, 10), p=2, parents=ONE)
    y = np.round(t.y * 2**10) / 2**10  # so that adding 1e9 loses nothing
    a, b = method.fit(*dense.replace(t, y=y).setting()), method.fit(*dense.replace(t, y=y + 2.0**30).setting())
    np.testing.assert_allclose(b.client - [2.0**30, 0.0], a.client, atol=2e-6)
    assert b.sigma2 == pytest.approx(a.sigma2, rel=1e-6)
    np.testing.assert_allclose(b.D_client, a.D_client, rtol=1e-5, atol=1e-9)


@methods
@pytest.mark.parametrize("family", FAMILIES)
def test_an_uncentred_column(method, family):
    """Years around 2000: the same fitted values as years from 0 where the intercept is not tied to them."""
    t = table(69, family, counts=(9, 8, 12, 7, 9, 10), p=2, z=(0,), parents=ONE)
    far = dense.replace(t, X=t.X + np.array([0.0, 2000.0]))
    a, b = method.fit(*t.setting()), method.fit(*far.setting())
    np.testing.assert_allclose(fitted_values(far, b), fitted_values(t, a), atol=2e-4)


@methods
@pytest.mark.parametrize("family", FAMILIES)
def test_clients_with_one_row_and_with_none(method, family):
    t = table(70, family, counts=(1, 6, 9, 1, 8, 7), p=2, parents=ONE)
    c = t.clients()
    mask = np.ones(len(t.y), dtype=bool)
    mask[t.codes[0] == 2] = False
    fed, problem = t.setting()
    few = c.subset(mask)
    glm = type(fed._run.site.objective)(few.X, few.y, few.offset, few.weights, few.starts, few.stops, family)
    f = method.fit(type(fed)(glm, few.clusters, ids=few.ids), problem)
    assert finite(f)
    if method is hierarchical:  # nothing is known of it but its cluster
        np.testing.assert_allclose(f.client[2], f.nodes[0][1], rtol=1e-9)
    rest = dense.replace(t, X=t.X[mask], y=t.y[mask], codes=[k[mask] for k in t.codes])
    g = method.fit(*rest.setting())
    kept = [0, 1, 3, 4, 5]
    tolerance = 1e-4 if method is hierarchical else 1e-7  # variances are where the search stopped
    np.testing.assert_allclose(f.client[kept], g.client, atol=tolerance)


@methods
@pytest.mark.parametrize("family", FAMILIES)
def test_one_client_one_cluster_one_row_each(method, family):
    for t in (
        table(71, family, counts=(20,), p=2),
        table(72, family, counts=(20,), p=2, parents=([0],)),
        table(73, family, counts=(9, 8, 7), p=2, parents=([0, 0, 0],)),
        table(74, family, counts=(9, 8, 7), p=2, parents=([0, 1, 2],)),
        table(75, family, counts=(9, 8, 7), p=2, parents=([0, 1, 1], [0, 0])),
        table(76, family, counts=(1,) * 12, p=2),
    ):
        f = method.fit(*t.setting())
        assert finite(f)
        if method is hierarchical and len(t.codes) > 1 and t.codes[-1].max() == 0:
            assert np.all(f.D_levels[-1] == 0.0)
            np.testing.assert_allclose(f.nodes[-1][0], f.root, rtol=1e-12)


def test_one_cluster_is_no_cluster():
    t = table(77, counts=(9, 8, 7, 6, 9), p=2, parents=([0, 0, 0, 0, 0],))
    a, b = hierarchical.fit(*t.setting()), hierarchical.fit(*dense.replace(t, codes=t.codes[:1]).setting())
    np.testing.assert_allclose(a.client, b.client, rtol=1e-8)
    assert a.log_likelihood == pytest.approx(b.log_likelihood, abs=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_personal_is_the_pooled_model(family):
    t = table(78, family, counts=(9, 8, 12, 7, 9, 10), p=3, parents=ONE)
    fed, problem = t.setting()
    nobody = type(problem)(problem.tree, family, np.empty(0, dtype=np.int64), 0)
    a = hierarchical.fit(fed, nobody, "diagonal", reml=False)
    b = pooled.fit(*t.setting())
    np.testing.assert_allclose(a.root, b.root, rtol=1e-6, atol=1e-8)
    assert a.log_likelihood == pytest.approx(b.log_likelihood, abs=1e-6)
    assert given_strengths.given(fed, nobody, 1.0, 1.0).client == pytest.approx(b.client, rel=1e-6)


@methods
def test_no_intercept(method):
    t = table(79, counts=(9, 8, 12, 7, 9, 10), p=2, parents=ONE)
    t = dense.replace(t, X=t.X[:, 1:] + 0.5, z=[0], intercept=None)
    if method is own_intercept:
        pytest.skip("there is no intercept to be a client's own")
    assert finite(method.fit(*t.setting()))


@methods
@pytest.mark.parametrize("mean", [1e3, 1e6, 1e9])
def test_large_counts_with_offsets(method, mean):
    rng = np.random.default_rng(80)
    t = table(80, "poisson", counts=(9, 8, 12, 7, 9, 10), p=2, parents=ONE)
    off = rng.normal(size=len(t.y))
    effect = 0.2 * rng.normal(size=6)[t.codes[0]]
    y = rng.poisson(mean * np.exp(off + effect + 0.3 * t.X[:, 1])).astype(float)
    f = method.fit(*dense.replace(t, y=y, offset=off).setting())
    assert finite(f)
    assert f.root[1] == pytest.approx(0.3, abs=0.3)
    if method is hierarchical or method is own_intercept:
        np.testing.assert_allclose(
            fitted_values(dense.replace(t, offset=off), f), np.log(mean) + off + effect + 0.3 * t.X[:, 1], atol=0.3
        )


@methods
@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_row_weights_are_replicated_rows(method, family):
    t = table(81, family, counts=(9, 8, 12, 7, 9, 10), p=2, parents=ONE, weights=True, offset=True)
    a, b = method.fit(*t.setting()), method.fit(*dense.replicate(t).setting())
    np.testing.assert_allclose(a.client, b.client, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(a.root, b.root, rtol=1e-6, atol=1e-7)
    if a.log_likelihood is not None:
        assert a.log_likelihood == pytest.approx(b.log_likelihood, abs=1e-6)


@methods
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_weight_zero_are_as_if_absent(method, family):
    t = table(82, family, counts=(9, 8, 12, 7, 9, 10), p=2, parents=ONE)
    w = np.ones(len(t.y))
    w[::5] = 0.0
    kept = w > 0
    a = method.fit(*dense.replace(t, weights=w).setting())
    b = method.fit(*dense.replace(t, X=t.X[kept], y=t.y[kept], codes=[c[kept] for c in t.codes]).setting())
    np.testing.assert_allclose(a.client, b.client, rtol=1e-7, atol=1e-8)
    assert a.sigma2 == pytest.approx(b.sigma2, rel=1e-8)
    if a.log_likelihood is not None:
        assert a.log_likelihood == pytest.approx(b.log_likelihood, abs=1e-7)


@methods
@pytest.mark.parametrize("family", FAMILIES)
def test_the_order_of_rows_does_not_matter(method, family):
    t = table(83, family, counts=(9, 8, 12, 7, 9, 10), p=2, parents=TWO)
    order = np.random.default_rng(1).permutation(len(t.y))
    a = method.fit(*t.setting())
    b = method.fit(*dense.replace(t, X=t.X[order], y=t.y[order], codes=[c[order] for c in t.codes]).setting())
    np.testing.assert_allclose(a.client, b.client, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("eta", [300.0, 600.0, 705.0, 709.7, 800.0])
@pytest.mark.parametrize("parents", [(), ONE], ids=["0", "1"])
def test_a_trial_far_outside_is_bad_and_ends_nothing(eta, parents):
    """The search then goes back; curvatures overflow before the likelihood itself does."""
    t = table(85, "poisson", parents=parents, scale=np.array([1.0, 1e3]))
    fed, problem = t.setting()
    setup = prepare(fed, problem.tree, "poisson", problem.personal, 0)
    L = [np.eye(2)[None] * sd for sd in (1e-3, 1e-3)][: len(t.codes)]
    u = zero_deviations(setup.tree, 2)
    assert marginal_likelihood.laplace(fed, setup, L, np.array([eta, 0.0]), u)[0] > 1e6
    assert np.isfinite(marginal_likelihood.laplace(fed, setup, L, np.zeros(2), u)[0])


def test_an_offset_that_overflows_is_said():
    t = table(84, "poisson", parents=ONE)
    with pytest.raises(CoterieError, match="logarithm"):
        pooled.fit(*dense.replace(t, offset=np.full(len(t.y), 800.0)).setting())


ENDED_BY_A_TOLERANCE: dict[str, dict[str, Any]] = {
    "weighted-averaging": {},
    "similarity-network": {"network": {"k": 2, "lam": 0.05}},
    "similarity-network, by ADMM": {"network": {"k": 2, "lam": 0.05, "solver": "admm"}},
}


@pytest.mark.parametrize("scale", [1e-9, 1e-18])
@pytest.mark.parametrize("method", ENDED_BY_A_TOLERANCE)
def test_what_is_solved_to_a_tolerance_does_not_depend_on_the_unit_of_the_outcome(method, scale):
    rng = np.random.default_rng(0)
    client, x = np.repeat(np.arange(8), 10), rng.normal(size=80)
    df = pd.DataFrame({"y": rng.normal(size=8)[client] * (1 + x) + rng.normal(size=80), "x": x, "client": client})

    def predictions(unit):
        options = dict(ENDED_BY_A_TOLERANCE[method])
        if "network" in options:  # lam is in units of the outcome: the loss is its square, the penalty a length
            options["network"] = options["network"] | {"lam": options["network"]["lam"] * unit}
        name = method.split(",")[0]
        fit = coterie.fit(df.assign(y=unit * df["y"]), "y ~ x", "client", method=name, splits=0, **options)
        return fit.predict(df)["prediction"] / unit

    np.testing.assert_allclose(predictions(scale), predictions(1.0), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("covariance", ["auto", "diagonal", "full"])
@pytest.mark.parametrize("left", [1e-5, 1e-7, 0.0])
def test_clients_differ_as_they_do_where_rows_are_given_exactly(covariance, left):
    """Such as an outcome that is measured once for each client."""
    rng = np.random.default_rng(1)
    client, x = np.repeat(np.arange(12), 8), rng.normal(size=96)
    mean, noise = 2.0 * rng.normal(size=12), rng.normal(size=96)
    df = pd.DataFrame({"y": 5.0 + mean[client] + 2.0 * x + left * noise, "x": x, "client": client})
    fit = coterie.fit(df, "y ~ x", "client", method="hierarchical", covariance=covariance, splits=0)
    intercepts, slopes = fit.variance_components["sd"].to_numpy()[:2]
    assert intercepts == pytest.approx(mean.std(ddof=1), rel=0.15)  # a note says that it may be rounding
    assert any("may be rounding" in note for note in fit.notes) == (left < 1e-6)
    assert slopes < 1e-5
    assert fit.global_coefficients["std_error"].to_numpy()[1] < 1e-5
