"""Private sums: noise, bounds, quorum, what is refused, and an audit that tries to tell two inputs apart."""

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("dp_accounting")

from coterie.engines import InProcess
from coterie.engines.privacy import BudgetSpent, Event, Private, epsilon
from coterie.engines.privacy.gaussian_mechanism import BROKEN, normal, shortened
from coterie.engines.retry_and_quorum import BelowQuorum
from coterie.errors import CoterieError
from coterie.federation import work
from tests.engines.faults import Faults, Loopback
from tests.engines.privacy.works import Values, both, tell
from tests.messages import names


@work
def silent(site):
    return {"n": np.asarray(site.state.get(BROKEN, np.zeros(len(site), dtype=np.int64)))}


def sums(v, groups=None, **options):
    """Sums of groups of four clients that would add v (m, d)."""
    fed = Private(InProcess(Values(v)), **{"clip": {"v": 1.0}, "noise": 1.0} | options)
    by = None if groups is None else np.arange(len(v)) // 4
    return fed.total(tell, by=by, groups=groups)["v"], fed


@pytest.mark.parametrize(("quorum", "variance"), [(1.0, 1.0), (0.5, 2.0)])
def test_sums_have_the_noise_that_they_need(quorum, variance):
    found, _ = sums(np.zeros((80_000, 1)), 20_000, quorum=quorum, clip={"v": 3.0}, noise=0.7)
    noise = found[:, 0] / (2.1 * np.sqrt(variance))
    assert abs(noise.var() - 1.0) < 5 * np.sqrt(2 / 20_000)
    assert stats.kstest(noise, "norm").pvalue > 1e-4
    step = 2.0 ** np.floor(np.log2(2.1 / np.sqrt(4 * quorum))) * 2.0**-20
    assert np.array_equal(found, np.round(found / step) * step)  # nothing is left of the low bits


@pytest.mark.parametrize(("byte", "ends"), [(b"\0", 12.5), (b"\xff", 0.0)])
def test_the_tails_of_the_noise(byte, ends, monkeypatch):
    """All bits zero are the far end; the last bit is the sign, and all others set are the middle."""
    monkeypatch.setattr("os.urandom", lambda n: byte * n)
    assert np.allclose(normal([0, 1], "v", None, 3), ends, atol=0.05)


def test_names_share_the_noise():
    fed = Private(InProcess(Values(np.zeros((20_000, 1)))), clip={"v": 1.0, "n": 5.0}, noise=2.0)
    found = fed.total(both, by=np.arange(20_000))
    for name, bound in {"v": 1.0, "n": 5.0}.items():
        assert np.std(found[name]) == pytest.approx(2.0 * bound * np.sqrt(2), rel=0.03)
    assert fed.spent()[0] == epsilon({Event(2.0): 1}, 1e-5)


def lower_bound(there, gone, delta):
    """The largest epsilon that a threshold test proves with 99.9% confidence (Clopper and Pearson)."""
    n, best = len(there), 0.0
    for t in np.quantile(gone, 1.0 - np.geomspace(2e-4, 0.3, 12)):
        hits, alarms = (there > t).sum(), (gone > t).sum()
        power, size = stats.beta.ppf(5e-4, hits, n - hits + 1), stats.beta.ppf(1 - 5e-4, alarms + 1, n - alarms)
        best = max(best, np.log(max((power - delta) / size, 1e-9)))
    return best


def test_an_audit_stays_below_epsilon():
    """One client of four adds all it may, or nothing: 100,000 sums of each."""
    v = np.zeros((400_000, 1))
    gone = sums(v, 100_000)[0][:, 0]
    v[::4] = 1e6
    there, fed = sums(v, 100_000)
    allowed = fed.spent()[0]
    assert allowed == pytest.approx(4.377, abs=1e-3)
    assert 0.5 * allowed < lower_bound(there[:, 0], gone, 1e-5) < allowed
    half = [sums(x, 100_000, noise=0.5)[0][:, 0] for x in (v, 0 * v)]
    assert lower_bound(*half, 1e-5) > allowed  # with too little noise the audit says so


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308, -1e300, 1e-320])
@pytest.mark.parametrize("engine", [InProcess, Loopback])
def test_no_client_moves_a_sum_by_more_than_the_bound(bad, engine):
    v = np.random.default_rng(0).normal(size=(9, 7))
    options = {"clip": {"v": 0.5}, "noise": 1e-3, "seed": 1}
    others = np.where(np.arange(9)[:, None] == 4, 0.0, v)
    without = Private(engine(Values(others)), **options).total(tell)
    for where in (slice(None), slice(2, 3)):
        v[4, where] = bad
        fed = Private(engine(Values(v)), **options)
        found = fed.total(tell)
        assert np.linalg.norm(found["v"] - without["v"]) <= 0.5 + 1e-6
        assert found.count == 9
        assert fed.fed.ask(silent)["n"].tolist() == [0] * 4 + [int(not np.isfinite(bad))] + [0] * 4


def test_rows_are_only_ever_shortened():
    rng = np.random.default_rng(1)
    for scale in (1e-300, 1e-5, 1.0, 1e5, 1e300):
        rows = rng.normal(size=(50, 2, 3)) * scale
        short = shortened(rows, 0.7)
        assert np.all(np.linalg.norm(short.reshape(50, 6), axis=1) <= 0.7)
        inside = np.linalg.norm((rows / scale).reshape(50, 6), axis=1) * scale < 0.69
        assert np.array_equal(short[inside], rows[inside])
        cosine = np.einsum("mij,mij->m", short / np.abs(short).max(), rows / scale)
        assert np.all(cosine >= 0.0)


def test_only_a_seed_repeats_noise():
    v = np.ones((8, 3))
    assert not np.array_equal(sums(v)[0], sums(v)[0])
    found, fed = sums(v, seed=5)
    assert np.array_equal(found, sums(v, seed=5)[0])
    assert not np.array_equal(found, sums(v, seed=6)[0])
    assert not np.array_equal(found, fed.total(tell)["v"])  # every exchange has its own
    assert fed.statement.startswith("Not private: the noise was drawn with the seed 5")
    for blocks in ({"block": 3, "threads": 2}, {"block": 1}):
        options = {"clip": {"v": 1.0}, "noise": 1.0, "seed": 5}
        assert np.array_equal(found, Private(InProcess(Values(v), **blocks), **options).total(tell)["v"])
    assert np.array_equal(found, Private(Loopback(Values(v), sites=3), **options).total(tell)["v"])


def test_coins_leave_clients_out():
    fed = Private(InProcess(Values(np.ones((4000, 1)))), clip={"v": 1.0}, noise=1e-6, sampling=0.25)
    assert fed.total(tell)["v"][0] * 0.25 == pytest.approx(1000, abs=5 * np.sqrt(4000 * 0.25 * 0.75))
    assert not np.array_equal(fed.total(tell)["v"], fed.total(tell)["v"])
    assert fed.event == Event(1e-6, 0.25)


def test_every_client_pays_for_what_it_took_part_in():
    fed = Private(InProcess(Values(np.ones((6, 2)))), clip={"v": 1.0}, noise=2.0)
    for to in ([0, 1], [2, 3], [4, 5], [0]):
        fed.total(tell, to=to)
    assert fed.account.counts[fed.event].tolist() == [2, 1, 1, 1, 1, 1]
    assert fed.spent() == (epsilon({Event(2.0): 2}, 1e-5), 1e-5)


def test_a_budget_is_kept():
    fed = Private(InProcess(Values(np.ones((3, 2)))), clip={"v": 1.0}, epsilon=1.0, rounds=5)
    for _ in range(5):
        fed.total(tell)
    before = fed.ledger.exchanges
    with pytest.raises(BudgetSpent, match=r"another exchange would cost an epsilon of 1\.\d+, and 1 is allowed"):
        fed.total(tell)
    assert fed.ledger.exchanges == before
    assert 0.999 < fed.spent()[0] <= 1.0 + 1e-9
    capped = Private(InProcess(Values(np.ones((3, 2)))), clip={"v": 1.0}, noise=10.0, epsilon=1.0)
    with pytest.raises(BudgetSpent):
        for _ in range(1000):
            capped.total(tell)
    assert capped.spent()[0] <= 1.0 < capped.account.epsilon(capped.event, [0])


def test_lost_replies_cost_nothing_more_and_bring_no_new_noise():
    seen = []
    faults = Faults(reply=lambda exchange, site: site == 0 and len(seen) < 2)
    fed = Loopback(
        Values(np.ones((4, 3))), sites=2, faults=faults, tap=lambda way, site, data: way == "up" and seen.append(data)
    )
    private = Private(fed, clip={"v": 1.0}, noise=1.0)
    assert private.total(tell).count == 4
    again = [data for data in seen if data == seen[0]]
    assert len(again) > 1
    assert private.account.most(private.event) == 1


@pytest.mark.parametrize(("quorum", "enough"), [(1.0, False), (0.5, True)])
def test_too_few_answers_are_not_shown(quorum, enough):
    faults = Faults(request=lambda exchange, site: site == 1)
    fed = Loopback(Values(np.ones((4, 3))), sites=2, faults=faults, retries=1)
    private = Private(fed, clip={"v": 1.0}, noise=1.0, quorum=quorum)
    if enough:
        assert private.total(tell).count == 2
    else:
        with pytest.raises(BelowQuorum, match=names("2 clients answered 4 whose noise hide")):
            private.total(tell)
    assert private.account.most(private.event) == 1


def test_a_resumed_run_remembers_what_it_spent():
    options = {"clip": {"v": 1.0}, "noise": 1.0, "seed": 3}
    fed = Private(InProcess(Values(np.ones((4, 3)))), **options)
    fed.total(tell)
    kept = fed.snapshot("a")
    expected = fed.total(tell)["v"]
    later = Private(InProcess(Values(np.ones((4, 3)))), **options)
    later.resume(kept)
    assert np.array_equal(later.total(tell)["v"], expected)
    assert later.spent() == fed.spent()
    with pytest.raises(CoterieError, match="a run without privacy"):
        later.resume(InProcess(Values(np.ones((4, 3)))).snapshot("b"))


def test_a_coordinator_that_was_killed_finds_the_sums_it_had(tmp_path):
    def begin():
        fed = Loopback(Values(np.ones((4, 3))), sites=2, folder=tmp_path / "sites", journal=tmp_path / "journal")
        return Private(fed, clip={"v": 1.0}, noise=1.0)

    first = begin()
    had = [first.total(tell)["v"] for _ in range(3)]
    second = begin()
    again = [second.total(tell)["v"] for _ in range(3)]
    assert np.array_equal(had, again)  # the noise that was drawn, and not more of it
    assert second.spent() == first.spent()
    second.keep({"t": 3})
    third = begin()
    assert third.kept == {"t": 3}
    assert third.spent() == first.spent()
    assert third.total(tell).count == 4
    assert begin().kept == {"t": 3}


REFUSED = [
    (lambda fed: fed.total(both), "'n' in the replies of .* has no bound"),
    (lambda fed: fed.ask(tell), "asks for clients' own replies, which no sum hides"),
    (lambda fed: fed.total(tell, to=[0, 0]), "asks a client twice"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_no_noise_hides_is_refused(call, message):
    fed = Private(InProcess(Values(np.ones((3, 2)))), clip={"v": 1.0}, noise=1.0)
    with pytest.raises(CoterieError, match=message) as found:
        call(fed)
    assert "\n" not in str(found.value)


WRONG = [
    ({"clip": 0.0, "noise": 1.0}, "clip must be a bound above 0"),
    ({"clip": {}, "noise": 1.0}, "clip must be a bound above 0"),
    ({"clip": 1.0}, "Give noise"),
    ({"clip": 1.0, "epsilon": 1.0}, "An epsilon needs rounds"),
    ({"clip": 1.0, "noise": -1.0}, "noise must be"),
    ({"clip": 1.0, "epsilon": -1.0, "rounds": 3}, "epsilon must be"),
    ({"clip": 1.0, "noise": 1.0, "delta": 1.0}, "delta must be"),
    ({"clip": 1.0, "noise": 1.0, "quorum": 0.0}, "quorum must be"),
    ({"clip": 1.0, "noise": 1.0, "sampling": 1.5}, "sampling must be"),
    ({"clip": 1.0, "noise": 1.0, "unit": "site"}, "unit must be"),
    ({"clip": {"v": 1.0}, "noise": 1.0, "unit": "row"}, "clip is one number"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_have_a_sentence(options, message):
    with pytest.raises(CoterieError, match=message):
        Private(InProcess(Values(np.ones((3, 2)))), **options)


def test_whose_word_it_is_that_replies_are_public():
    fed = Private(InProcess(Values(np.ones((3, 2)))), clip={"v": 1.0}, noise=1.0, public=(tell,))
    assert np.array_equal(fed.ask(tell)["v"], np.ones((3, 2)))
    assert fed.spent()[0] == 0.0
