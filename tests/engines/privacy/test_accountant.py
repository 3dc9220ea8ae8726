"""Epsilon against published numbers, and against Renyi divergences written down from their definition."""

import math

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

pytest.importorskip("dp_accounting")

from coterie.engines.privacy import Accountant, Event, epsilon, noise_for
from coterie.errors import CoterieError


def renyi(q, z, order):
    """Renyi divergence of a Poisson-sampled Gaussian at a whole order (Mironov, Talwar, Zhang 2019, section 3.3)."""
    k = np.arange(order + 1)
    binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = binomial + (order - k) * math.log1p(-q) + k * math.log(q) + (k * k - k) / (2 * z * z)
    return logsumexp(terms) / (order - 1)


def by_renyi(q, z, T, delta):
    """Mironov 2017, Proposition 3."""
    return min(T * renyi(q, z, a) + math.log(1 / delta) / (a - 1) for a in range(2, 257))


def delta_of(epsilon, z):
    """Balle and Wang 2018, Theorem 8, of one Gaussian."""
    return norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z)


# Abadi et al. 2016, section 5.1: q = 0.01, sigma = 4, delta = 1e-5 have 1.26 after 100 epochs.
# The tutorials of TensorFlow Privacy: 60,000 rows, batches of 250 (256), sigma = 1.3 (1.1), 15 (60) epochs.
PUBLISHED = [(0.01, 4.0, 10_000, 1.26), (250 / 60_000, 1.3, 3600, 1.18), (256 / 60_000, 1.1, 14_062, 3.01)]


@pytest.mark.parametrize(("q", "z", "T", "published"), PUBLISHED)
def test_published_values(q, z, T, published):
    own = by_renyi(q, z, T, 1e-5)
    assert own == pytest.approx(published, abs=5e-3)
    ours = epsilon({Event(z, q): T}, 1e-5)
    assert 0.6 * own < ours < own  # loss distributions are sharper than moments, and not by much


@pytest.mark.parametrize(("z", "T"), [(1.0, 1), (0.5, 3), (8.0, 40), (30.0, 1000)])
def test_gaussians_compose_exactly(z, T):
    found = epsilon({Event(z): T}, 1e-6)
    assert delta_of(found, z / math.sqrt(T)) == pytest.approx(1e-6, rel=1e-6)
    assert epsilon({Event(z): 1, Event(2 * z): 4 * (T - 1)}, 1e-6) == pytest.approx(found, rel=1e-9)
    assert found < min(T * a / (2 * z * z) + math.log(1e6) / (a - 1) for a in np.linspace(1.01, 400, 4000))


def test_kinds_of_events_compose():
    mixed = {Event(5.0): 5, Event(2.0, 0.05): 20}
    alone = [epsilon({event: count}, 1e-5) for event, count in mixed.items()]
    assert max(alone) < epsilon(mixed, 1e-5) < sum(alone)
    assert epsilon({Event(3.0, 0.5): 10}, 1e-5) < epsilon({Event(3.0): 10}, 1e-5)
    assert epsilon({}, 1e-5) == epsilon({Event(1.0): 0}, 1e-5) == 0.0
    assert epsilon({Event(0.0): 1}, 1e-5) == math.inf


@pytest.mark.parametrize(("target", "rounds", "sampling"), [(0.5, 10, 1.0), (8.0, 100, 1.0), (2.0, 20, 0.1)])
def test_noise_is_the_least_that_lasts(target, rounds, sampling):
    z = noise_for(target, 1e-5, rounds, sampling)
    assert 0.98 * target < epsilon({Event(z, sampling): rounds}, 1e-5) <= target * (1 + 1e-9)
    assert epsilon({Event(0.99 * z, sampling): rounds}, 1e-5) > target


def test_published_noise():
    """Balle and Wang's calibration: epsilon 1 at delta 1e-5 takes 3.7306."""
    assert noise_for(1.0, 1e-5, 1) == pytest.approx(3.7306, abs=5e-5)


def test_an_account_is_the_worst_clients():
    account, one, other = Accountant(4, 1e-5), Event(2.0), Event(1.0)
    for clients in ([0, 1], [0], [2]):
        account.add(one, clients)
    account.add(other, [2])
    account.add(other, [3])
    histories = [{one: 2}, {one: 1}, {one: 1, other: 1}, {other: 1}]
    assert account.epsilon() == max(epsilon(h, 1e-5) for h in histories) == epsilon(histories[2], 1e-5)
    assert account.epsilon(one, [2]) == epsilon({one: 2, other: 1}, 1e-5)
    copy = Accountant(4, 1e-5)
    copy.load(account.as_list())
    assert copy.epsilon() == account.epsilon()
    assert Accountant(3, 1e-5).epsilon() == 0.0


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting.pld", None)
    with pytest.raises(CoterieError, match=r"pip install 'coterie\[privacy\]'"):
        epsilon({Event(1.0): 1}, 1e-5)
