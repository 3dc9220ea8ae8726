"""Every law of the federation contract on every registered method."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from coterie.engines.checkpoint_and_journal import load_checkpoint, save_checkpoint
from coterie.errors import CoterieError
from tests.contract.cases import last, make_federation
from tests.contract.registry import CASES
from tests.engines.faults import Faults

soak = pytest.mark.soak
SEEDS = [0, pytest.param(1, marks=soak), pytest.param(2, marks=soak)]


def engines(*usual):
    """Engines that differ in what a law says; the others repeat it on code that these and other laws have tried."""
    names = ("inprocess", "blocks", "loopback")
    return pytest.mark.parametrize("engine", [e if e in usual else pytest.param(e, marks=soak) for e in names])


def close(a, b, tolerance):
    assert a.keys() == b.keys()
    for name in a:
        x, y = np.asarray(a[name]), np.asarray(b[name])
        assert x.shape == y.shape and x.dtype == y.dtype, name
        np.testing.assert_allclose(
            x, y, rtol=tolerance, atol=tolerance * max(1.0, np.abs(y).max(initial=0)), err_msg=name
        )


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(np.asarray(a[name]), np.asarray(b[name]), err_msg=name, strict=True)


def partitions(m, seed):
    """Random parts, in random order, with clients of a part in random order."""
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, 5, m)
    parts = [rng.permutation(np.flatnonzero(owner == s)) for s in rng.permutation(5)]
    return [p for p in parts if len(p)]


@functools.cache
def undisturbed(case, layout="inprocess", number=0):
    """A run to hold others against: in one block, in "blocks" of a number of clients, or over "sites" by a seed."""
    problem, sent = case.problem(), []
    before = [np.array(a) for a in arrays(problem)]
    if layout == "sites":
        parts = partitions(len(problem.ids), number)
        fed = make_federation("loopback", problem, parts, tap=lambda *message: sent.append(message[0]))
    else:
        fed = make_federation("inprocess", problem, **({"block": number, "threads": 1} if layout == "blocks" else {}))
    result, counted = case.run(fed), fed.ledger
    return SimpleNamespace(
        result=result,
        exchanges=counted.exchanges,
        gradient_calls=counted.gradient_calls,
        messages=len(sent),
        inputs=(before, arrays(problem)),
    )


@functools.cache
def lossy(case):
    """A run whose messages get lost and damaged, held to several laws."""
    problem, sent = case.problem(), {"down": 0, "up": 0}

    def tap(direction, site, data):
        sent[direction] += len(data)

    parts = partitions(len(problem.ids), 0)
    faults = Faults(request=0.3, reply=0.3, damage=0.2, seed=3)
    fed = make_federation("loopback", problem, parts, faults=faults, retries=100, tap=tap)
    return SimpleNamespace(result=case.run(fed), ledger=fed.ledger, sent=sent)


@engines("inprocess")  # threads, and sites that lose messages, are held to the same bits below
def test_same_seed_gives_the_same_run_and_another_seed_another(case, engine):
    problem = case.problem()
    first = undisturbed(case).result if engine == "inprocess" else case.run(make_federation(engine, problem, 3))
    same(first, case.run(make_federation(engine, problem, 3)))
    other = case.run(make_federation(engine, problem, 3, seed=8))
    if case.random:
        assert any(not np.array_equal(first[n], other[n]) for n in first)
    else:
        same(first, other)


@pytest.mark.parametrize("block", [2, *(pytest.param(b, marks=soak) for b in (1, 5, 11))])
def test_work_is_separable_over_blocks(case, block):
    close(undisturbed(case, "blocks", block).result, undisturbed(case).result, case.tolerance)


def test_threads_change_nothing(case):
    threads = case.run(make_federation("inprocess", case.problem(), block=2, threads=4))
    same(threads, undisturbed(case, "blocks", 2).result)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_partition_into_sites_gives_the_same_numbers(case, seed):
    close(undisturbed(case, "sites", seed).result, undisturbed(case).result, case.tolerance)


@pytest.mark.soak(*(case.name for case in CASES if case.name.startswith(("deep", "found", "exact-hier"))))
def test_a_site_for_every_client_gives_the_same_numbers(case):
    problem = case.problem(m=6)
    alone = [[i] for i in np.random.default_rng(0).permutation(len(problem.ids))]
    together = case.run(make_federation("inprocess", problem))
    close(case.run(make_federation("loopback", problem, alone, block=1)), together, case.tolerance)


def test_client_order_is_irrelevant(case):
    problem = case.problem()
    order = np.lexsort((np.random.default_rng(1).random(len(problem.ids)), problem.clusters))
    expected = dict(undisturbed(case).result)
    for name in case.per_client:
        expected[name] = np.asarray(expected[name])[order]
    close(case.run(make_federation("inprocess", problem.permuted(order))), expected, case.tolerance)


def test_lost_and_damaged_messages_with_retries_change_nothing(case):
    same(lossy(case).result, undisturbed(case, "sites").result)


def test_sites_that_die_at_any_moment_change_nothing(case, state_folder):
    problem = case.problem()
    parts = partitions(len(problem.ids), 0)
    faults = Faults(crash=0.3, reply=0.2, seed=5)
    disturbed = make_federation("loopback", problem, parts, faults=faults, folder=state_folder, retries=100)
    same(case.run(disturbed), undisturbed(case, "sites").result)


def test_a_site_that_misses_exchanges_ends_no_run(case):
    fed = make_federation("loopback", case.problem(), 4, retries=0, faults=Faults(reply=lambda e, s: s == e % 4))
    try:
        result = case.run(fed)
    except CoterieError:
        return  # a method may need everyone, if it says so
    assert all(np.all(np.isfinite(np.asarray(value))) for value in result.values())


def test_an_exchange_nobody_answers_ends_no_run(case):
    fed = make_federation("loopback", case.problem(), 4, retries=0, faults=Faults(request=lambda e, s: e % 3 == 0))
    try:
        result = case.run(fed)
    except CoterieError:
        return
    assert all(np.all(np.isfinite(np.asarray(value))) for value in result.values())


def test_inputs_are_unchanged(case):
    for run in (undisturbed(case), undisturbed(case, "sites", 0)):
        for old, new in zip(*run.inputs, strict=True):
            np.testing.assert_array_equal(old, new)


def arrays(problem):
    values = [*vars(problem.objective).values(), problem.clusters, problem.weights, problem.ids]
    return [v for v in values if isinstance(v, np.ndarray)]


def test_one_client_is_enough(case):
    result = case.run(make_federation("inprocess", case.problem(m=1)))
    assert all(np.all(np.isfinite(np.asarray(value))) for value in result.values())
    close(case.run(make_federation("loopback", case.problem(m=1))), result, case.tolerance)


@engines("inprocess")  # blocks and sites give these numbers, as laws above say
@pytest.mark.parametrize("case", [c for c in CASES if c.optimum], ids=lambda case: case.name)
def test_known_optimum_is_reached(case, engine):
    problem = case.problem()
    result = (case.reach or case.run)(make_federation(engine, problem, 3))
    for name, value in case.optimum(problem).items():
        np.testing.assert_allclose(result[name], value, rtol=1e-6, atol=1e-6)


def test_counted_bytes_are_sent_bytes(case):
    counted, sent = lossy(case).ledger, lossy(case).sent
    assert sent["down"] > 0 and sent["up"] > 0
    assert (counted.bytes_down, counted.bytes_up) == (sent["down"], sent["up"])


def test_gradients_are_counted_once_whatever_is_lost(case):
    assert lossy(case).ledger.gradient_calls == undisturbed(case).gradient_calls
    assert lossy(case).ledger.exchanges == undisturbed(case).exchanges


@engines("blocks")  # sites that resume are asked for more below
@pytest.mark.parametrize("stop", [3, pytest.param(1, marks=soak)])
@pytest.mark.parametrize("case", [c for c in CASES if c.stream], ids=lambda case: case.name)
def test_resumed_is_straight(case, engine, stop, state_folder):
    problem = case.problem()
    folders = {"folder": state_folder / "sites"} if engine == "loopback" else {}
    plain = make_federation(engine, problem, 3)
    straight = case.run(plain)
    fed = make_federation(engine, problem, 3, **folders)
    for steps, state in enumerate(case.stream(fed), start=1):
        if steps == stop:
            save_checkpoint(state_folder / "run", fed, state)
        if steps == stop + 1:  # a step that the checkpoint does not know
            break
    again = make_federation(engine, problem, 3, **folders)
    state = last(case.stream(again, load_checkpoint(state_folder / "run", again)))
    same(case.finish(again, state), straight)
    assert again.ledger.exchanges == plain.ledger.exchanges


class KilledError(BaseException):
    """The coordinator dies."""


@pytest.mark.parametrize("often", [False, pytest.param(True, marks=soak)], ids=["seldom", "often"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", [c for c in CASES if c.stream], ids=lambda case: case.name)
def test_a_coordinator_that_dies_at_any_message_goes_on_undisturbed(case, seed, often, state_folder):
    problem, file = case.problem(), state_folder / "run"
    parts = partitions(len(problem.ids), seed)
    plain = undisturbed(case, "sites", seed)
    rng = np.random.default_rng(seed)
    shortest, saved = [45 if often else max(45, plain.messages // 5)], [0]

    def life():
        left = [int(rng.integers(shortest[0], 2 * shortest[0]))]

        def tap(direction, site, data):
            left[0] -= 1
            if left[0] == 0:
                raise KilledError

        faults = Faults(crash=0.1, reply=0.1, seed=int(rng.integers(1000)))
        fed = make_federation(
            "loopback", problem, parts, folder=state_folder / "sites", faults=faults, retries=50, tap=tap
        )
        state = start = load_checkpoint(file, fed) if file.exists() else begin(fed, file)
        for state in case.stream(fed, start):
            save_checkpoint(file, fed, state)
            saved[0] += 1
        return case.finish(fed, state), fed.ledger.exchanges

    deaths = 0
    while deaths < 500:
        before = saved[0]
        try:
            result, exchanges = life()
            break
        except KilledError:
            deaths += 1
            shortest[0] += (saved[0] == before) * shortest[0] // 2  # a life must be long enough for one step
    same(result, plain.result)
    assert deaths > 0
    assert exchanges == plain.exchanges


def begin(fed, file):
    """A checkpoint before the first step: a run that dies within it must not meet its own half-made exchanges."""
    save_checkpoint(file, fed, {})
    return {}
