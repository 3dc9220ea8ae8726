"""Which interval is given: of means and of outcomes, by literal loops over rows and counts."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import coterie
from coterie.errors import CoterieError
from coterie.families import family_named
from coterie.methods.tree.variance_posterior import Uncertainty
from coterie.numerics.arrays import full
from coterie.results.predict import outcome_interval, predict_rows
from tests.messages import names
from tests.results import factory


def unsure(model, seed=0):
    """The model with variances that are not quite known."""
    rng = np.random.default_rng(seed)

    def directions():
        G = rng.normal(size=(3, 2, 2)) * 0.1
        return G @ G.transpose(0, 2, 1)

    levels = tuple(directions() for _ in range(1 + len(model.D_levels)))
    more = tuple(directions()[:1] for _ in levels)
    nodes = tuple(rng.uniform(0.0, 0.3, len(n)) for n in model.nodes)
    return replace(
        model,
        uncertainty=Uncertainty(directions(), levels, more, nodes, rng.uniform(0.0, 0.3, len(model.labels)), 0.02),
    )


def one_row(model, x, client, sector, interval, outcome):
    """The literal twin: one row, whole matrices."""
    u = model.uncertainty
    client_at, sector_at = np.flatnonzero(model.labels == client), np.flatnonzero(model.levels[0].labels == sector)
    D = [model.D_client[0] + u.more[0][0], model.D_levels[0] + u.more[1][0]]
    if len(client_at):
        theta, V, below, ways = model.client[client_at[0]], full(model.client_cov[client_at[0]]), 0.0, []
        doubt = u.client[client_at[0]] ** 0.5
    elif len(sector_at):
        theta, V = model.nodes[0][sector_at[0]], full(model.node_cov[0][sector_at[0]])
        below, ways, doubt = D[0], u.levels[0], u.nodes[0][sector_at[0]] ** 0.5
    else:
        theta, V, below, ways, doubt = model.root, model.root_cov, D[0] + D[1], u.root + sum(u.levels), 0.0
    variance = x @ (V + below) @ x
    sd = (x @ V @ x) * doubt + sum((x @ G @ x) ** 2 for G in ways) ** 0.5
    if outcome:
        mean = model.sigma2 * stats.t(4 + 2 / u.residual).var()
        variance, sd = variance + mean, sd + mean * u.residual**0.5
    df = 4 + 2 / (sd / variance) ** 2
    half = stats.t.ppf(0.5 + interval / 2, df) * np.sqrt(variance * (df - 2) / df)
    return x @ theta - half, x @ theta + half


@pytest.mark.parametrize("outcome", [False, True])
def test_uncertain_variances_make_students_intervals(outcome):
    model = unsure(factory.model(levels=(3,))[0])
    rng = np.random.default_rng(1)
    n = 30
    X = np.column_stack([np.ones(n), rng.normal(size=n)])
    clients = np.where(np.arange(n) % 3 == 0, model.labels[np.arange(n) % 12], -1)
    sectors = np.where(np.arange(n) % 3 == 1, model.levels[0].labels[np.arange(n) % 3], "nowhere")
    found = predict_rows(model, X, clients, {model.levels[0].name: sectors}, interval=0.8, outcome=outcome)
    expected = [one_row(model, x, c, s, 0.8, outcome) for x, c, s in zip(X, clients, sectors, strict=True)]
    np.testing.assert_allclose(np.column_stack([found.lower, found.upper]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mean", "sd"), [(0.05, 0.2), (1.3, 0.0), (1.3, 0.7), (6.0, 0.4), (80.0, 0.1)])
@pytest.mark.parametrize("probability", [0.5, 0.9, 0.99])
def test_counts_have_the_shortest_interval_that_holds_enough(mean, sd, probability):
    t = np.linspace(-6, 6, 1201)
    weights = stats.norm.pdf(t) / stats.norm.pdf(t).sum()
    k = np.arange(int(mean * np.exp(6 * sd) + 20 * (mean + 1) ** 0.5))
    mass = np.concatenate([[0], np.cumsum(weights @ stats.poisson.pmf(k, mean * np.exp(sd * t)[:, None]))])
    low, high = outcome_interval(family_named("poisson"), np.log([mean]), np.array([sd**2]), probability)
    low, high = int(low[0]), int(high[0])
    assert mass[high + 1] - mass[low] > probability - 2e-3
    length = high - low  # none shorter holds enough
    assert length == 0 or (mass[length:] - mass[:-length]).max() < probability + 2e-3


def test_many_counts_are_as_good_as_continuous():
    family, probability = family_named("poisson"), 0.9
    rng = np.random.default_rng(0)
    for mean, sd in ((3e4, 0.1), (1e6, 0.001), (1e9, 0.0), (40.0, 1.0)):
        low, high = outcome_interval(family, np.log([mean]), np.array([sd**2]), probability)
        y = rng.poisson(mean * np.exp(sd * rng.normal(size=100_000)))
        assert np.mean((y >= low) & (y <= high)) == pytest.approx(probability, abs=0.01)


def test_classes_have_one_value_where_it_is_likely_enough():
    eta = np.array([-4.0, 0.0, 4.0, 2.0, 2.0, np.nan])
    variance = np.array([0.0, 1.0, 0.0, 0.0, 9.0, 1.0])
    low, high = outcome_interval(family_named("binomial"), eta, variance, 0.85)
    np.testing.assert_array_equal(low, [0, 0, 1, 1, 0, np.nan])
    np.testing.assert_array_equal(high, [0, 1, 1, 1, 1, np.nan])


def test_an_interval_of_outcomes_is_wider_and_is_said():
    for family in ("gaussian", "poisson"):
        world = factory.world(family=family)
        of = {what: world.result.predict(world.table, 0.9, interval_of=what) for what in ("auto", "mean", "outcome")}
        wide, narrow = ((of[what]["upper"] - of[what]["lower"]).mean() for what in ("outcome", "mean"))
        assert wide > narrow
        usual = "outcome" if family == "gaussian" else "mean"
        assert of["auto"].equals(of[usual])
        assert any("mean" in note for note in of["mean"].attrs["notes"])
        assert not any("mean" in note for note in of["outcome"].attrs["notes"])


def test_counts_have_no_interval_on_the_scale_of_the_link():
    world = factory.world(family="poisson")
    with pytest.raises(CoterieError, match=names("poisson link interval_of")):
        world.result.predict(world.table, 0.9, type="link", interval_of="outcome")
    with pytest.raises(CoterieError, match=names("interval_of outcome")):
        world.result.predict(world.table, 0.9, interval_of="means")
    with pytest.raises(CoterieError, match=names("interval_of interval 0.9")):
        world.result.predict(world.table, interval_of="mean")


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_a_saved_model_keeps_what_its_intervals_need(family, tmp_path):
    rng = np.random.default_rng(0)
    world = factory.world()
    table = world.table.assign(y=rng.integers(0, 2, len(world.table)).astype(float))
    fit = coterie.fit(table, "y ~ x", client="school", cluster="sector", family=family, method="hierarchical", splits=0)
    fit.save(tmp_path)
    back, new = coterie.load(tmp_path), table.assign(school="nobody")
    for frame in (table, new):
        for what in ("mean", "outcome"):
            assert back.predict(frame, 0.9, interval_of=what).equals(fit.predict(frame, 0.9, interval_of=what))
    assert back.global_coefficients.equals(fit.global_coefficients)
    assert np.isfinite(fit.global_coefficients["df"]).all()


def test_shares_of_trials_leave_as_much_on_either_side_at_most():
    """Over normal log odds by a grid of 20,001 points, count by count."""
    grid = np.linspace(-8.0, 8.0, 20_001)
    mass = stats.norm.pdf(grid) / stats.norm.pdf(grid).sum()
    for eta, sd, n in ((0.3, 0.5, 12), (-2.0, 1.0, 40), (1.0, 1e-9, 5)):
        below = np.array([mass @ stats.binom.cdf(k, n, expit(eta + sd * grid)) for k in range(n + 1)])
        known = [np.searchsorted(below, goal) / n for goal in (0.05, 0.95)]
        found = outcome_interval(
            family_named("binomial"), np.array([eta]), np.array([sd**2]), 0.9, np.array([float(n)])
        )
        np.testing.assert_allclose(np.ravel(found), known, atol=1e-12)


@pytest.mark.parametrize("unit", [1e-15, 1.0, 1e13, 1e90])
def test_amounts_have_quantiles_in_whatever_unit(unit):
    family = family_named("gamma").at(0.5)
    found = outcome_interval(family, np.log([unit]), np.zeros(1), 0.9)
    expected = stats.gamma(2.0, scale=0.5 * unit).ppf([0.05, 0.95])
    np.testing.assert_allclose(np.ravel(found), expected, rtol=1e-9)


def test_counts_of_any_size_have_quantiles():
    mean, shape = 1e15, 2.0  # where a negative binomial is a gamma distribution
    found = outcome_interval(family_named("negative-binomial").at(1.0 / shape), np.log([mean]), np.zeros(1), 0.9)
    np.testing.assert_allclose(np.ravel(found), stats.gamma(shape, scale=mean / shape).ppf([0.05, 0.95]), rtol=1e-6)
