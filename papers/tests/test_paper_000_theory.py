"""The notes' claims, on losses that are smooth and not convex: gradient, variance, rate, and where groups disagree."""

import json

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.methods.group_sgd import GroupSGD
from coterie.numerics import keyed_random
from coterie.objectives.gradient_steps import Draws, Walk
from coterie.objectives.mean_loss import gradient, walk
from coterie.objectives.quadratic import Quadratic
from papers import outcome
from papers.outcome import Settings
from papers.paper_000 import convergence, theory, variance
from papers.paper_000.growth import group_bound, growth, noise, shared_bound
from papers.paper_000.monitor import monitored
from papers.paper_000.robust import made
from papers.registry import find

GROUP = np.repeat([0, 1], [3, 5])


def test_losses_have_their_gradients_and_no_more_curvature_than_said():
    o = made(GROUP, 2, 3, rows=6, apart=1.0)
    rng = np.random.default_rng(0)
    theta, h = rng.normal(size=(8, 5)), 1e-6
    slopes = [(o.value(theta + h * e) - o.value(theta - h * e)) / (2 * h) for e in np.eye(5)]
    np.testing.assert_allclose(o.gradient(theta), np.transpose(slopes), atol=1e-7)
    every = Draws(np.zeros(8, dtype=np.uint64), np.zeros(8, dtype=np.int64))
    np.testing.assert_allclose(gradient(o, theta, every), o.gradient(theta) / 6)
    other = theta + rng.normal(size=(200, 8, 5)) * rng.exponential(size=(200, 8, 1)) ** 3
    change = np.array([np.linalg.norm(o.gradient(at) - o.gradient(theta), axis=1) / 6 for at in other])
    assert (change <= o.smoothness() * np.linalg.norm(other - theta, axis=2)).all()
    assert (o.row_gradients(theta).var(axis=1).sum(axis=1) / 3 <= o.noise(3)).all()


def test_rows_are_drawn_by_key():
    o = made(GROUP, 2, 3, rows=6, apart=1.0)
    theta, keys = np.random.default_rng(0).normal(size=(8, 5)), keyed_random.starts(4, "rows", np.arange(8))
    drawn = (keyed_random.uniform(4, "rows", np.arange(8), 9, 3) * 6).astype(int)
    literal = [o.row_gradients(theta)[i, drawn[i]].mean(axis=0) for i in range(8)]
    draws = Draws(keys, np.full(8, 9), 3)
    np.testing.assert_allclose(gradient(o, theta, draws), literal, rtol=1e-12)
    steps, size = np.array([1, 2] * 4), np.full(8, 0.1)
    moved = walk(o, theta, Walk(size, steps, draws))
    once = theta - 0.1 * np.array(literal)
    np.testing.assert_allclose(moved[::2], once[::2], rtol=1e-12)
    again = once - 0.1 * gradient(o, once, Draws(keys, np.full(8, 10), 3))
    np.testing.assert_allclose(moved[1::2], again[1::2], rtol=1e-12)


@pytest.mark.soak
def test_the_formula_is_inside_the_interval_of_2000_repeats():
    for seed, (sizes, shared) in enumerate(variance.CASES.values()):
        inside, of = variance.measure(sizes, shared, 2_000, seed).inside()
        assert inside == of


def test_variance_falls_like_one_over_n():
    found = [variance.measure((n // 4, n - n // 4), ("body",), 400, seed=7) for n in (16, 256)]
    a, b = (m.whole[1] * m.sizes.sum() for m in found)
    assert a == pytest.approx(b, rel=0.25)  # clients' rows differ
    shrunk = found[0].whole[1] / found[1].whole[1]
    assert 12 < shrunk < 22


@pytest.mark.soak("64")
@pytest.mark.parametrize("n", [4, 64])
def test_gradients_stay_under_the_rate_that_is_promised(n):
    d = convergence.descend(n, 300, [0, 1])
    assert (d.mean <= d.promised).all()
    assert d.eta <= 1.0 / d.L
    tighter = 2 * d.L * d.gap / 300 + 2 * np.sqrt(2 * d.L * d.gap * d.sigma2 / 300)
    assert d.promised[-1] <= tighter * (1 + 1e-12)


def test_full_gradients_of_the_augmented_objective_descend_at_the_rate_of_its_l():
    o = made(GROUP, 2, 3, rows=6, apart=1.0)
    L = theory.smoothness(o.smoothness(), np.ones(8))
    gap, T = float(o.value(np.zeros(5)).mean() / 6), 200
    eta = theory.step_size(L, 0.0, gap, T)
    trace = convergence.trace(o, GROUP, GroupSGD(eta=eta, shared=("body",)), T)
    assert (np.cumsum(trace["norm"]) / np.arange(1, T + 1) <= theory.rate(L, 0.0, gap, np.arange(1, T + 1), eta)).all()


def test_averaging_in_groups_is_stable_at_the_step_that_its_l_allows():
    o = made(GROUP, 2, 3, rows=6, apart=1.0)
    L = theory.smoothness(o.smoothness(), np.ones(8), GROUP)
    share = np.bincount(GROUP) / 8

    def f(x):
        return float(np.mean(o.value(np.concatenate([np.tile(x[:2], (2, 1)), x[2:].reshape(2, 3)], axis=1)[GROUP])) / 6)

    fed, method = InProcess(o, GROUP), GroupSGD(eta=1 / L, shared=("body",), own="averaged")
    state = method.init(fed)
    for _ in range(100):
        before, x = f(state["w"]), state["w"]
        state = method.step(fed, state)
        scaled = np.r_[np.ones(2), np.repeat(1 / share, 3)]
        drop = np.sum((state["w"] - x) ** 2 / scaled) * L / 2  # descent lemma in the scaled coordinates
        assert f(state["w"]) <= before - drop + 1e-12


@pytest.mark.soak
def test_groups_that_cannot_share_are_named():
    alike, apart = (convergence.agree(gap, 800) for gap in convergence.PAIRS.values())
    assert not alike.stalled.any() and alike.M[-1].max() < 5
    assert apart.stalled.all() and apart.M[-1].max() > 1e4
    assert (np.diff(apart.pair) >= 0).all()
    for g in (alike, apart):
        assert (g.group_norm <= g.bound * (1 + 1e-9)).all()
        assert (g.group_norm <= g.bound_shared * (1 + 1e-9)).all()
    assert "Group 0's own gradient has not followed" in " ".join(apart.sentences())
    assert len(alike.sentences()) == 1


def test_a_run_tells_how_noisy_its_steps_are():
    o = made(GROUP, 2, 3, rows=6, apart=1.0)
    trace = convergence.trace(o, GROUP, GroupSGD(eta=0.01, shared=("body",), B=2), 300)
    found = noise(trace)
    np.testing.assert_allclose(found["empirical"], found["formula"], rtol=0.2)
    np.testing.assert_allclose(found["clients"], 8.0)


def test_gradients_of_groups_are_bounded_on_random_cases():
    rng = np.random.default_rng(0)
    tightest, tightest_shared = 0.0, 0.0
    for _ in range(4000):
        k, d = rng.integers(2, 6), rng.integers(1, 4)
        share = rng.dirichlet(np.ones(k)) + 1e-3
        share /= share.sum()
        s, own = rng.normal(size=(k, d)) * rng.exponential(size=(k, 1)), rng.normal(size=(k, 2)) * rng.exponential()
        mean = share @ s
        norm = mean @ mean + np.sum((share[:, None] * own) ** 2)
        group = np.sum(s**2, axis=1) + np.sum(own**2, axis=1)
        off = np.sum((s - mean) ** 2, axis=1)
        used = group / (group_bound(off / norm, share) * norm)
        used_shared = group / (shared_bound(off / (mean @ mean), share) * norm)
        assert (used <= 1 + 1e-12).all() and (used_shared <= 1 + 1e-12).all()
        tightest, tightest_shared = max(tightest, used.max()), max(tightest_shared, used_shared.max())
        if k == 2:
            pair = np.sum((s[0] - s[1]) ** 2) / norm
            notes = 2 + 2 * share[1] ** 2 * pair + 1 / share[0] ** 2
            np.testing.assert_allclose(group_bound(off / norm, share)[0], notes)
    assert tightest > 0.7 and tightest_shared > 0.7  # they are not idle


def test_a_small_group_that_shares_nothing_is_not_stalled():
    """Its gradient is n / |G| times as long as its block of f's, squared 400 times, and vanishes with it."""
    q = Quadratic(np.broadcast_to(np.eye(3), (20, 3, 3)), np.random.default_rng(0).normal(size=(20, 3)))
    fed = InProcess(q, np.array([0] + [1] * 19))
    seen = growth(monitored(fed, GroupSGD(eta=1.0), 40)[1])
    assert seen.norm[-1] < 1e-3 * seen.norm[0] and seen.group_norm[-1, 0] > 300 * seen.norm[-1]
    assert not seen.stalled.any() and len(seen.sentences()) == 1


@pytest.mark.soak("000/convergence")
@pytest.mark.parametrize("name", ["000/variance", "000/convergence"])
def test_the_experiments_run(name, tmp_path, monkeypatch):
    monkeypatch.setattr(variance, "COUNTS", (4, 16))
    monkeypatch.setattr(convergence, "COUNTS", (4, 16))
    monkeypatch.setattr(convergence, "QUICK_STEPS", 20)
    found = find(name).run(Settings(quick=True))
    files = outcome.write(name, found, 1.0, tmp_path)
    assert len(files) == 2 and all(len(table.rows) >= 2 for table in found.tables)
    assert json.loads(files[1].read_text())["experiment"] == name
