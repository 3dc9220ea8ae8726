"""Weighted averaging and bias correction under fire: garbage, absence, damage, interruption, odd shapes, and noise."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.engines.checkpoint_and_journal import load_checkpoint, save_checkpoint
from coterie.errors import CoterieError
from coterie.federation import PerRow, work
from coterie.methods.aggregation.quarantine_and_memory import Guarded, one_by_one
from coterie.methods.aggregation.rules import Aggregator
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.collaboration.optimisers import SGD, Adam, Momentum
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import NoisyQuadratic, Quadratic
from tests.engines.faults import Faults, Loopback
from tests.messages import names

M, D = 5, 3
LISTENING = [{}, {"aggregator": Aggregator()}, {"remember": True}]


def quadratics(seed=0, m=M, d=D):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(m, d, d))
    return root @ root.transpose(0, 2, 1) / d + np.eye(d), rng.normal(size=(m, d))


def weights(seed=1, m=M):
    W = np.random.default_rng(seed).uniform(size=(m, m))
    np.fill_diagonal(W, 0.0)
    return W / W.sum(axis=1, keepdims=True)


def correcting(who, d=D, *, batch=0, metric=None, listening=None, **options):
    exchange = dict(pairs=who, metric=metric or Metric.plain(d), batch=batch, **listening or {})
    return BiasCorrection(**exchange, **({"alpha": 0.5, "eta": 0.1, "beta": 0.3} | options))


def last(method, fed, steps, state=None):
    *_, state = method.run(fed, [steps], state)
    return state


def loop(gradient, W, x0, steps, alpha, eta, beta, *, answers=None, remember=False, first="sample", bad=None):
    """Algorithm 3 for every client, with ``answers(t)`` (M,) bool and clients in quarantine from step ``bad[k]`` on."""
    M, d = x0.shape
    x, c, seen, memory = x0.copy(), np.zeros((M, d)), np.full(M, first == "zero"), {}
    for t in range(steps):
        here = np.ones(M, dtype=bool) if answers is None else answers(t)
        out = {k for k, since in (bad or {}).items() if t >= since}
        new = x.copy()
        for i in range(M):
            for k in range(M):
                if here[k] and k not in out and i not in out and k != i and W[i, k] > 0:
                    memory[i, k] = (t, gradient(k, x[i]))
            if not here[i] or i in out:
                continue
            heard = [
                (W[i, k], g)
                for k in range(M)
                if k not in out
                for at, g in [memory.get((i, k), (-1, None))]
                if at == t or (remember and at >= 0)
            ]
            own = gradient(i, x[i])
            if not heard:
                new[i] = x[i] - eta * own
                continue
            average = sum(w * g for w, g in heard) / sum(w for w, _ in heard)
            b = average - own
            if not seen[i]:
                c[i], seen[i] = b, True
            new[i] = x[i] - eta * ((1 - alpha) * own + alpha * (average - c[i]))
            c[i] = (1 - beta) * c[i] + beta * b
        x = new
    return x, c


def of(A, b):
    return lambda k, x: A[k] @ x - b[k]


class Sender(Quadratic):
    """Quadratics whose gradients go through ``sends(clients, x, g)`` first."""

    def __init__(self, A, b, sends):
        super().__init__(A, b)
        self.sends = sends

    def take(self, rows):
        out = object.__new__(Sender)
        out.__dict__.update(super().take(rows).__dict__)
        out.sends = self.sends
        return out

    def gradient(self, x):
        g = super().gradient(x)
        return self.sends(np.arange(len(self.b))[self._rows], np.broadcast_to(x, g.shape), g)


def always(value):
    return lambda who, x, g: np.where((who == 2)[:, None], value, g)


# Who is to blame


@work
def sent(site, theta, weight=None):
    """``theta - k`` of client k, and a column too many of client 2."""
    g = np.ones((len(site), D + 1)) if 2 in site.ids else theta - site.ids[:, None].astype(float)
    return {"g": one_by_one(g)} if weight is None else {"g": weight[:, None] * g, "weight": weight}


@pytest.mark.parametrize("remember", [False, True])
@pytest.mark.parametrize("sites", [[[0, 1], [2], [3, 4]], [[0], [1], [2], [3], [4]]])
def test_a_site_that_sends_other_columns_is_left_out_of_any_method_s_sums(sites, remember):
    A, b = quadratics()
    guarded = Guarded(Loopback(Quadratic(A, b), sites=sites), {"t": 6}, {"theta": np.zeros(D)}, remember=remember)
    by, theta, weight = np.minimum(np.arange(M), 1), PerRow(np.zeros((M, D))), PerRow(np.full(M, 0.5))
    sums = guarded.total(sent, by=by, groups=2, theta=theta, weight=weight)
    assert sums.rows.tolist() == [0, 1, 3, 4]
    assert sums.missing.tolist() == [2]
    assert sums.count.tolist() == [1, 3]
    assert guarded.state["quarantined"].tolist() == [0, 0, 7, 0, 0]
    g = sums["g"] / sums["weight"][:, None]
    np.testing.assert_allclose(g, np.array([[0.0], [-(1 + 3 + 4) / 3]]) * np.ones(D), atol=1e-15)


@pytest.mark.parametrize("listening", LISTENING)
@pytest.mark.parametrize("value", [1e200, 1.5e308, -1e160])
@pytest.mark.parametrize("optimiser", [SGD(), Adam()])
def test_numbers_that_overflow_when_used_are_no_gradient(listening, value, optimiser):
    A, b = quadratics()
    method = correcting(Collaborators.of_all(weights()), listening=listening, optimiser=optimiser)
    state = last(method, InProcess(Sender(A, b, always(value))), 12)
    assert state["status"] == "running"
    assert state["quarantined"].tolist() == [0, 0, 1, 0, 0]
    if isinstance(optimiser, SGD):
        x, c = loop(of(A, b), weights(), np.zeros((M, D)), 12, 0.5, 0.1, 0.3, bad={2: 0})
        np.testing.assert_allclose(state["x"], x, rtol=1e-11)
        np.testing.assert_allclose(state["c"], c, rtol=1e-10)


@pytest.mark.parametrize("listening", LISTENING)
def test_two_that_overflow_only_when_added_up_are_both_named(listening):
    A, b = quadratics()
    sends = lambda who, x, g: np.where(np.isin(who, [1, 3])[:, None], 1.7e308, g)  # noqa: E731
    state = last(correcting(Collaborators.of_one(0, M), listening=listening), InProcess(Sender(A, b, sends)), 5)
    assert np.flatnonzero(state["quarantined"]).tolist() == [1, 3]


@pytest.mark.parametrize("listening", LISTENING)
def test_garbage_that_depends_on_where_it_is_asked_is_found_at_whatever_model_it_was_sent_to(listening):
    """Client 2 answers the first main client well, and another one with NaN, late in the run."""
    A, b = quadratics()
    sends = lambda who, x, g: np.where(((who == 2) & (x[:, 0] > 0.2))[:, None], np.nan, g)  # noqa: E731
    state = last(correcting(Collaborators.of_all(weights()), listening=listening), InProcess(Sender(A, b, sends)), 30)
    clean = last(correcting(Collaborators.of_all(weights())), InProcess(Quadratic(A, b)), 30)
    assert clean["x"][0, 0] < 0.0 < 0.2 < clean["x"][:, 0].max()
    since = state["quarantined"]
    assert np.flatnonzero(since).tolist() == [2]
    assert since[2] > 1
    x, c = loop(of(A, b), weights(), np.zeros((M, D)), 30, 0.5, 0.1, 0.3, bad={2: since[2] - 1})
    np.testing.assert_allclose(state["x"], x, rtol=1e-11)
    np.testing.assert_allclose(state["c"], c, rtol=1e-10)


def poisson(seed=0, m=M, n=40, d=2):
    rng = np.random.default_rng(seed)
    starts = np.arange(0, m * n, n)
    y = rng.poisson(2.0, m * n).astype(float)
    return GLM(rng.normal(size=(m * n, d)), y, np.zeros(m * n), np.ones(m * n), starts, starts + n, "poisson")


@pytest.mark.parametrize("listening", LISTENING)
def test_a_model_that_went_too_far_blames_nobody(listening):
    """At client 2's model every mean overflows; all gradients there are infinite, and none is its sender's fault."""
    eta = np.array([0.05, 0.05, 500.0, 0.05, 0.05])
    method = correcting(Collaborators.of_all(weights()), 2, listening=listening, eta=eta)
    state = last(method, InProcess(poisson()), 20)
    assert state["status"] == "diverged by step 2"
    assert not state["quarantined"].any()
    assert np.isfinite(state["x"]).all()


def test_a_main_client_alone_that_goes_too_far_has_diverged_and_one_without_a_gradient_anywhere_is_named():
    who = Collaborators(np.arange(M), [], [], [])
    state = last(correcting(who, 2, eta=500.0), InProcess(poisson()), 20)
    assert state["status"].startswith("diverged")
    A, b = quadratics()
    state = last(correcting(who), InProcess(Sender(A, b, always(np.nan))), 20)
    assert state["status"] == "running"
    assert np.flatnonzero(state["quarantined"]).tolist() == [2]


@pytest.mark.parametrize("listening", LISTENING)
@pytest.mark.parametrize("kind", ["complex", "text", "objects", "one axis", "three axes", "float32", "whole numbers"])
def test_gradients_of_another_type_or_shape(listening, kind):
    A, b = quadratics()
    send = {
        "complex": lambda g: g + 1j,
        "text": lambda g: g.astype(str),
        "objects": lambda g: g.astype(object),
        "one axis": lambda g: g[:, 0],
        "three axes": lambda g: g[:, None],
        "float32": lambda g: g.astype(np.float32),
        "whole numbers": lambda g: np.rint(g).astype(np.int64),
    }[kind]
    sends = lambda who, x, g: send(g) if 2 in who else g  # noqa: E731
    fed = Loopback(Sender(A, b, sends), sites=[[0, 1], [2], [3, 4]])
    state = last(correcting(Collaborators.of_all(weights()), listening=listening), fed, 5)
    right = kind in ("three axes", "float32", "whole numbers")
    assert np.flatnonzero(state["quarantined"]).tolist() == ([] if right else [2])
    assert state["t"] == 5


@pytest.mark.parametrize("listening", LISTENING)
def test_a_collaborator_that_turns_bad_in_step_7(listening):
    A, b = quadratics()
    asked = {"n": 0}

    def sends(who, x, g):
        asked["n"] += 1
        return np.where(((who == 2) & (asked["n"] > 7))[:, None], np.nan, g)

    method = correcting(Collaborators.of_all(weights()), listening=listening)
    state = last(method, InProcess(Sender(A, b, sends)), 15)
    assert state["quarantined"].tolist() == [0, 0, 8, 0, 0]
    x, c = loop(of(A, b), weights(), np.zeros((M, D)), 15, 0.5, 0.1, 0.3, bad={2: 7})
    np.testing.assert_allclose(state["x"], x, rtol=1e-11)
    np.testing.assert_allclose(state["c"], c, rtol=1e-10)


@pytest.mark.parametrize("listening", LISTENING)
def test_when_all_collaborators_are_in_quarantine_the_main_client_goes_on_alone(listening):
    A, b = quadratics()
    sends = lambda who, x, g: np.where((who > 0)[:, None], np.inf, g)  # noqa: E731
    state = last(correcting(Collaborators.of_one(0, M), listening=listening), InProcess(Sender(A, b, sends)), 400)
    np.testing.assert_allclose(state["x"][0], np.linalg.solve(A[0], b[0]), rtol=1e-9)
    assert state["quarantined"].tolist() == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("listening", LISTENING)
def test_nobody_is_asked_on_behalf_of_a_main_client_in_quarantine(listening):
    A, b = quadratics()
    fed = InProcess(Sender(A, b, always(np.nan)))
    method = correcting(Collaborators.of_all(weights()), listening=listening)
    state = last(method, fed, 2)
    before = fed.ledger.gradient_calls
    last(method, fed, 3, state)
    assert fed.ledger.gradient_calls - before == 4 + 4 * 3


@pytest.mark.parametrize("listening", LISTENING)
def test_a_first_bias_from_samples_is_put_together_by_the_rules_and_leaves_out_garbage(listening):
    A, b = quadratics()
    method = correcting(Collaborators.of_one(0, M), listening=listening, first=5)
    state = method.init(InProcess(Sender(A, b, always(np.nan))))
    np.testing.assert_allclose(state["c"][0], b[0] - b[[1, 3, 4]].mean(axis=0), rtol=1e-12)
    assert state["quarantined"].tolist() == [0, 0, 1, 0, 0]
    assert state["t"] == 0
    if listening:
        assert "known" not in state


# Who does not answer


def silent(rule):
    """Messages to site s are lost in step t where ``rule(t, s)``; exchange 1 asks for columns."""
    return Faults(request=lambda exchange, site: exchange > 1 and rule(exchange - 2, site))


ABSENCES = {
    "some, at times": lambda t, s: (3 * t + 5 * s) % 7 < 2,
    "all helpers at first": lambda t, s: t < 3 and s > 0,
    "main clients at first": lambda t, s: t < 2 and s < 3,
    "everybody at times": lambda t, s: t % 3 == 1,
    "one for ever": lambda t, s: s == 3,
}


@pytest.mark.parametrize("first", ["zero", "sample"])
@pytest.mark.parametrize("listening", LISTENING)
@pytest.mark.parametrize("rule", ABSENCES.values(), ids=ABSENCES)
def test_sites_that_do_not_answer_are_left_out_or_keep_their_place(rule, listening, first):
    A, b = quadratics()
    fed = Loopback(Quadratic(A, b), sites=M, faults=silent(rule), retries=0)
    state = last(correcting(Collaborators.of_all(weights()), listening=listening, first=first), fed, 14)
    answers = lambda t: np.array([not rule(t, s) for s in range(M)])  # noqa: E731
    x, c = loop(
        of(A, b), weights(), np.zeros((M, D)), 14, 0.5, 0.1, 0.3,
        answers=answers, remember=bool(listening), first=first,
    )  # fmt: skip
    np.testing.assert_allclose(state["x"], x, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(state["c"], c, rtol=1e-10, atol=1e-15)


def test_whoever_is_absent_at_the_start_is_not_waited_for():
    A, b = quadratics()
    lost = Faults(request=lambda exchange, site: exchange <= 4 and site == 2)
    fed = Loopback(Quadratic(A, b), sites=M, faults=lost, retries=0)
    state = last(correcting(Collaborators.of_all(weights())), fed, 9)
    answers = lambda t: (np.arange(M) != 2) | (t >= 3)  # noqa: E731
    x, _ = loop(of(A, b), weights(), np.zeros((M, D)), 9, 0.5, 0.1, 0.3, answers=answers)
    np.testing.assert_allclose(state["x"], x, rtol=1e-11)


def test_whoever_comes_late_with_other_columns_is_found():
    class Mixed(Quadratic):
        """The last client has more columns."""

        def take(self, rows):
            rows = np.arange(M)[rows]
            if (rows == M - 1).any():
                return Quadratic(np.eye(D + 1)[None], np.ones((1, D + 1)))
            return super().take(rows)

    A, b = quadratics()
    lost = Faults(request=lambda exchange, site: exchange == 1 and site == M - 1)
    fed = Loopback(Mixed(A, b), sites=M, faults=lost, retries=0)
    state = last(correcting(Collaborators.of_one(0, M)), fed, 4)
    assert state["quarantined"].tolist() == [0, 0, 0, 0, 1]
    assert state["t"] == 4


def test_a_client_that_is_absent_when_c_0_is_drawn_observes_its_first_bias_later():
    A, b = quadratics()
    fed = Loopback(Quadratic(A, b), sites=M, faults=silent(lambda t, s: t == 0 and s == 1), retries=0)
    method = correcting(Collaborators.of_all(weights()), first=4)
    state = method.init(fed)
    assert state["observed"].tolist() == [True, False, True, True, True]
    state = method.step(fed, state)
    np.testing.assert_allclose(state["x"][1], 0.1 * b[1], rtol=1e-13)


@pytest.mark.parametrize("listening", LISTENING)
def test_lost_and_damaged_messages_that_are_sent_again_change_nothing(listening):
    A, b = quadratics()
    objective, who = NoisyQuadratic(A, b, 1.0), Collaborators.of_all(weights())
    faults = Faults(request=0.2, reply=0.2, damage=0.2, seed=4)
    method = correcting(who, batch=1, listening=listening | {"local": 2})
    found = last(method, Loopback(objective, sites=3, faults=faults, retries=50, seed=7), 10)
    np.testing.assert_allclose(found["x"], last(method, InProcess(objective, seed=7), 10)["x"], rtol=1e-12)


def test_garbage_is_found_though_messages_are_lost_for_good():
    A, b = quadratics()
    faults = Faults(request=0.3, reply=0.2, damage=0.1, seed=1)
    fed = Loopback(Sender(A, b, always(np.nan)), sites=M, faults=faults, retries=0)
    state = last(correcting(Collaborators.of_all(weights())), fed, 60)
    assert np.flatnonzero(state["quarantined"]).tolist() == [2]
    assert state["t"] == 60
    assert np.isfinite(state["x"]).all()


def test_nobody_takes_part():
    A, b = quadratics()
    fed, who = InProcess(Quadratic(A, b)), Collaborators.of_all(weights())
    state = last(correcting(who, listening={"participation": 0.0}), fed, 9)
    alone = last(WeightedAveraging(pairs=who, metric=Metric.plain(D), batch=0, alpha=0.0, eta=0.1), fed, 9)
    np.testing.assert_array_equal(state["x"], alone["x"])
    assert (state["age"] == 9).all()


# The same run, however it is cut


OPTIONS = [{}, {"optimiser": Momentum()}, {"optimiser": Adam()}, {"first": 3}]
HEARING = [{}, {"local": 3}, {"remember": True}, {"participation": 0.5, "seed": 2}, {"aggregator": Aggregator()}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("listening", HEARING)
def test_a_run_resumed_from_a_checkpoint_at_any_step_is_the_straight_run(tmp_path, options, listening):
    A, b = quadratics()
    objective = Sender(A, b, always(np.nan))
    method = correcting(Collaborators.of_all(weights()), listening=listening, **options)
    straight = last(method, InProcess(objective, seed=3), 6)
    for at in range(6):
        fed = InProcess(objective, seed=3)
        state = last(method, fed, at) if at else method.init(fed)
        save_checkpoint(tmp_path / "run", fed, state)
        other = InProcess(objective, seed=3)
        found = last(method, other, 6, load_checkpoint(tmp_path / "run", other))
        assert found.keys() == straight.keys()
        for name, value in straight.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
            assert np.asarray(found[name]).dtype == np.asarray(value).dtype


@pytest.mark.parametrize("listening", HEARING)
@pytest.mark.parametrize("engine", [{"block": 3}, {"block": 1, "threads": 3}, {"sites": [[4, 0], [3], [1, 2]]}])
def test_blocks_threads_and_sites_do_not_matter(engine, listening):
    A, b = quadratics()
    objective = NoisyQuadratic(A, b, 1.0)
    method = correcting(Collaborators.of_all(weights()), batch=1, listening=listening, first=2)
    make = Loopback if "sites" in engine else InProcess
    found = last(method, make(objective, seed=3, **engine), 8)
    np.testing.assert_allclose(found["x"], last(method, InProcess(objective, seed=3), 8)["x"], rtol=1e-12)


def test_the_order_of_clients_and_of_collaborators_does_not_matter():
    A, b = quadratics()
    W, order, ids = weights(), np.array([3, 0, 4, 2, 1]), np.array([11, 5, 2**63, 7, 9], dtype=np.uint64)
    method = correcting(Collaborators.of_all(W), batch=1)
    straight = last(method, InProcess(NoisyQuadratic(A, b, 1.0), ids=ids, seed=1), 8)
    other = correcting(Collaborators.of_all(W[np.ix_(order, order)]), batch=1)
    found = last(other, InProcess(NoisyQuadratic(A[order], b[order], 1.0), ids=ids[order], seed=1), 8)
    np.testing.assert_allclose(found["x"], straight["x"][order], rtol=1e-12)
    one = correcting(Collaborators(np.array([3]), np.zeros(4, int), [4, 0, 2, 1], W[3, [4, 0, 2, 1]]), batch=1)
    found = last(one, InProcess(NoisyQuadratic(A, b, 1.0), ids=ids, seed=1), 8)
    np.testing.assert_allclose(found["x"][0], straight["x"][3], rtol=1e-12)


# Edges


@pytest.mark.parametrize("listening", LISTENING)
def test_one_client_alone_and_alpha_of_one_without_helpers(listening):
    A, b = quadratics(m=1)
    for who in (Collaborators([0], [], [], []), Collaborators.of_all(np.zeros((1, 1)))):
        state = last(correcting(who, alpha=1.0, listening=listening), InProcess(Quadratic(A, b)), 400)
        np.testing.assert_allclose(state["x"], np.linalg.solve(A, b[:, :, None])[:, :, 0], rtol=1e-9)


@pytest.mark.parametrize("listening", LISTENING)
def test_a_weight_of_zero_is_no_collaborator(listening):
    A, b = quadratics()
    with_zero = Collaborators.of_one(0, M, tau=[0.5, 0.0, 0.5, 0.0])
    without = Collaborators.of_one(0, M, [1, 3], [0.5, 0.5])
    fed = InProcess(Sender(A, b, always(np.nan)))
    found = last(correcting(with_zero, listening=listening), fed, 7)
    np.testing.assert_array_equal(found["x"], last(correcting(without, listening=listening), fed, 7)["x"])
    assert not found["quarantined"].any()


def test_numbers_of_another_length_are_refused_in_a_sentence():
    A, b = quadratics()
    fed, who = InProcess(Quadratic(A, b)), Collaborators.of_all(weights())
    for options in ({"alpha": [0.5, 0.5]}, {"eta": np.ones((M, 1)) * 0.1}, {"beta": lambda t: [0.1] * 3}):
        with pytest.raises(CoterieError, match=names("number main client")):
            last(correcting(who, **options), fed, 1)
    with pytest.raises(CoterieError, match=names("eta step 0 number")):
        last(correcting(who, eta=lambda t: -0.1), fed, 1)
    with pytest.raises(CoterieError, match=names("Clients numbered 0 4")):
        correcting(Collaborators([0], [0], [7], [1.0])).init(fed)
