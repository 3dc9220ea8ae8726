"""How models travel in local training: parts that stay with clients, precision, codecs both ways, and lost messages."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from coterie.codecs.compression import CompressedFederation, Compression
from coterie.engines import InProcess, wire
from coterie.errors import CoterieError
from coterie.federation import PerCluster, PerRow, work
from coterie.methods.cfl import CFL
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.ifca import IFCA
from coterie.methods.l2gd import L2GD
from coterie.methods.local_training.client_work import make_reply, received
from coterie.methods.pfedme import PFedMe
from coterie.objectives.quadratic import Quadratic
from tests.engines.faults import Faults, Loopback
from tests.messages import names
from tests.methods.layered import layered
from tests.methods.local_training.test_rounds import METHODS, every, last, quadratic

pytestmark = pytest.mark.usefixtures("in_full")

M = 8
HEAD = np.arange(7) >= 5


@work
def held(site):
    return {"held": site.state["held"]}


@every
def test_own_parts_never_leave(method):
    """A tap on the wire sees no numbers but those of the shared part."""
    method, o = replace(method, personal=("head",)), layered(M)
    sent_up = []
    fed = Loopback(o, sites=3, tap=lambda direction, site, data: direction == "up" and sent_up.append(data))
    state = method.init(fed)
    sent_up.clear()
    state = last(method, fed, 5, state)
    seen = [np.shape(v)[-1:] for data in sent_up for v in wire.decode(data)["values"].values()]
    assert state["w"].shape[-1] == 5 and {s[-1] for s in seen if s and s[-1] > 3} == {5}
    models = method.models(fed, state)
    assert models.shape == (M, 7) and len(np.unique(models[:, 6])) == M
    if not isinstance(method, IFCA | Ditto | PFedMe | L2GD):
        np.testing.assert_array_equal(models[:, :5] == state["w"], method.finetune == 0)


def test_fedavg_with_own_heads_by_hand():
    """Two rounds of two steps, client after client."""
    o = layered(M)
    method = FedAvg(eta=0.1, E=2, personal=("head",), seed=3)
    fed = InProcess(o)
    state = last(method, fed, 2)
    theta = np.tile(o.start(3).astype(np.float32), (M, 1))
    for _ in range(2):
        for i in range(M):
            for _ in range(2):
                theta[i] -= 0.1 * (o.A[i] @ theta[i] - o.b[i])
        theta[:, ~HEAD] = theta[:, ~HEAD].mean(axis=0)
    np.testing.assert_allclose(state["w"], theta[0, ~HEAD], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(method.models(fed, state), theta, rtol=1e-5, atol=1e-6)


def test_what_the_objective_keeps_stays_without_being_named():
    o = replace(layered(M), kept=("scale",))
    fed = InProcess(o)
    state = last(FedAvg(eta=0.1), fed, 3)
    assert state["w"].shape == (6,)
    assert last(FedAvg(eta=0.1, personal=("head",)), InProcess(o), 3)["w"].shape == (4,)


def test_where_all_parts_are_own_clients_are_alone():
    o = layered(M)
    method = FedAvg(eta=0.1, personal=("*",))
    fed = InProcess(o)
    state = last(method, fed, 300)
    assert state["w"].shape == (0,)
    np.testing.assert_allclose(method.models(fed, state), np.linalg.solve(o.A, o.b[..., None])[..., 0], rtol=1e-3)
    with pytest.raises(CoterieError, match="All parameters stay with their clients"):
        replace(method, up="sign").init(fed)


@every
def test_single_precision_stays_single(method):
    for own in ((), ("head",)):
        fed, method = InProcess(layered(M)), replace(method, personal=own)
        state = last(method, fed, 3)
        assert state["w"].dtype == np.float32 and method.models(fed, state).dtype == np.float32


@every
def test_a_first_model_may_be_whole_or_shared(method):
    method, o, w = replace(method, personal=("head",), C=0.5), layered(M), np.arange(7.0)
    many = (lambda a: np.stack([a, a + 1])) if isinstance(method, IFCA) else (lambda a: a)
    fed = InProcess(o)
    state = method.init(fed, many(w))
    np.testing.assert_array_equal(state["w"], np.broadcast_to(many(w)[..., :5], state["w"].shape))
    assert state["w"].dtype == np.float32
    found = last(method, fed, 1, state)
    silent = np.setdiff1d(np.arange(M), fed.ask(reveal_touched)["who"].nonzero()[0])
    np.testing.assert_array_equal(fed.ask(reveal_own)["own"][silent], np.tile(w[5:], (len(silent), 1)))
    assert len(silent) == 4
    state = method.init(fed := InProcess(o), many(w[:5]))
    np.testing.assert_array_equal(state["w"], found["w"] * 0 + many(w[:5]))
    own = fed.ask(reveal_own)["own"]
    np.testing.assert_array_equal(own, np.tile(o.start(method.seed)[5:].astype(np.float32), (M, 1)))
    with pytest.raises(CoterieError, match=names("7 finite numbers 5 share")):
        method.init(fed, many(w[:6]))


@work
def reveal_own(site):
    return {"own": site.state["personal"]}


@work
def reveal_touched(site):
    return {"who": site.state.written("verdict")}


def test_first_models_are_the_objective_s():
    o = layered(M)
    np.testing.assert_array_equal(FedAvg(eta=0.1, seed=4).init(InProcess(o))["w"], o.start(4).astype(np.float32))
    w = IFCA(eta=0.1, k=3).init(InProcess(o))["w"]
    assert w.shape == (3, 7) and len(np.unique(w)) == 21 and np.abs(w).max() < 1.0


def test_the_first_client_need_not_answer():
    away = Faults(request=lambda exchange, site: site == 0)
    fed = Loopback(layered(M), sites=[[0, 1], [2, 3, 4, 5, 6, 7]], retries=0, faults=away)
    method = FedAvg(eta=0.1, personal=("head",))
    state = last(method, fed, 3)
    models = method.models(fed, state)
    np.testing.assert_array_equal(models[0, :5], state["w"])
    np.testing.assert_array_equal(models[0, 5:], layered(M).start(0)[5:].astype(np.float32))


CODECS = [("none", "none"), ("float64", "none"), ("none", "float64"), ("float64", "float64")]


@every
@pytest.mark.parametrize("codecs", CODECS[1:])
def test_codecs_that_lose_nothing_change_nothing(method, codecs):
    o = quadratic()
    for C in (1.0, 0.4):
        plain = replace(method, C=C)
        coded = replace(plain, up=codecs[0], down=codecs[1])
        expected, found = (last(m, InProcess(o), 12) for m in (plain, coded))
        np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-12)


def falling(method, up, down):
    """Eighty rounds of a method by steps that fall, over two codecs."""
    method = replace(method, eta=(lambda t: 2.0 / (t + 10)), up=up, down=down)
    if isinstance(method, PFedMe):
        method = replace(method, lam=1.0)
    start = np.array([[0.0, 0.0], [3.0, 3.0]]) if isinstance(method, IFCA) else None
    fed = InProcess(quadratic())
    return last(method, fed, 80, method.init(fed, start))["w"]


@cache
def uncoded(kind):
    return falling(next(m for m in METHODS if isinstance(m, kind)), "none", "none")


@pytest.mark.soak(
    "codecs0-Ditto",
    "codecs0-PFedMe",
    "codecs1-Ditto",
    "codecs1-PFedMe",
    "codecs1-IFCA",
    "codecs2-Ditto",
    "codecs2-PFedMe",
    "codecs2-IFCA",
)
@every
@pytest.mark.parametrize("codecs", [("topk:0.5", "none"), ("none", "tv:4"), ("sign", "float16"), ("tv:2", "tv:4")])
def test_what_codecs_lose_is_made_up_for(method, codecs):
    """With steps that fall, errors that are remembered vanish."""
    if isinstance(method, L2GD) and codecs[0] != "none":
        with pytest.raises(CoterieError, match="would lose the same part of them in every round"):
            replace(method, up=codecs[0])
        return
    np.testing.assert_allclose(falling(method, *codecs), uncoded(type(method)), atol=0.05)


@every
def test_lost_messages_are_caught_up_with(method):
    """Clients that miss rounds, or whose replies are lost, hold what the server thinks they hold."""
    method = replace(method, C=0.7, up="float64", down="qsgd:4", personal=("head",))
    faults = Faults(request=0.2, reply=0.2, seed=4)
    fed = Loopback(layered(M), sites=[[i] for i in range(M)], retries=0, faults=faults)
    state = method.init(InProcess(layered(M)))
    for _ in range(15):
        state = method.step(fed, state)
        holds = state["holds"] == 0
        if holds.any():
            replies = fed.ask(held, to=np.flatnonzero(holds))
            if replies:
                rows = replies["held"].reshape(len(replies.rows), *state["reference"].shape)
                np.testing.assert_array_equal(rows, np.broadcast_to(state["reference"], rows.shape))
    assert state["t"] == 15 and np.isfinite(state["w"]).all()


def test_bytes_fall_as_codecs_say():
    """On long vectors; all clients take part, so that the reference goes down once only."""
    d, m, T = 800, 3, 10
    rng = np.random.default_rng(0)
    o = Quadratic(np.broadcast_to(np.eye(d), (m, d, d)), rng.normal(size=(m, d)))
    sent = {}
    for codec in ("none", "qsgd:4", "tv:2"):
        fed = InProcess(o)
        last(FedAvg(eta=0.1, up=codec, down=codec), fed, T)
        sent[codec] = fed.ledger.bytes_up, fed.ledger.bytes_down
    up, down = np.array(sent["none"]) / (m * T * d)
    assert 8.0 < up < 8.5 and 8.0 < down < 8.5
    up, down = np.array(sent["qsgd:4"]) / (m * T * d)
    assert 0.5 < up < 0.6 and 1.3 < down < 1.5
    up, down = np.array(sent["tv:2"]) / (m * T * d)
    assert up < 0.2 and down < 1.0


def test_a_client_that_no_codec_can_hold_is_left_out():
    o = quadratic()
    steep = Quadratic(o.A, o.b * np.where(np.arange(M) == 2, 1e60, 1.0)[:, None])
    state = last(FedAvg(eta=0.1, up="tv:2"), InProcess(steep), 5)
    np.testing.assert_array_equal(np.flatnonzero(state["quarantined"]), [2])
    assert state["status"] == "running" and np.abs(state["w"]).max() < 1e3


def test_groups_models_travel_coded_too():
    """CFL sends every client its group's: the references follow when a group splits."""
    o = quadratic(12)
    o = Quadratic(o.A, o.b + 30.0 * (np.arange(12) % 2)[:, None])
    plain = CFL(eta=0.2, eps1=1e3, eps2=1e-3)
    fed, expected = InProcess(o), last(plain, InProcess(o), 25)
    found = last(replace(plain, up="float64", down="float64"), fed, 25)
    assert expected["group"].max() >= 1 and len(found["reference"]) == len(found["w"])
    np.testing.assert_array_equal(found["group"], expected["group"])
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-10)
    np.testing.assert_array_equal(found["holds"], found["group"])


@work
def echo(site, w, transport):
    return {"x": received(site, w, transport)}


@pytest.mark.parametrize("by", [None, np.array([1, 0, 1, 1])])
def test_each_client_may_be_sent_a_model_of_its_own(by):
    rng, fed = np.random.default_rng(0), InProcess(quadratic(6))
    state, to = {}, np.array([0, 2, 3, 5])
    for _ in range(4):
        models = rng.normal(size=(4, 2))
        models = models if by is None else models[by]
        coded = CompressedFederation(fed, state, Compression("none", "qsgd:8"))
        kwargs = {} if by is None else {"by": by, "groups": 2}
        sums = coded.total(echo, to=to, w=PerRow(models), transport={}, **kwargs)
        state = coded.state
        np.testing.assert_allclose(np.sum(sums["x"], axis=0 if by is not None else ()), models.sum(axis=0), atol=0.3)
    assert (state["holds"][[1, 4]] == -1).all()
    np.testing.assert_array_equal(state["holds"][to], to if by is None else by)


@work
def unchanged(site, w, transport):
    """Sends the model back as it came."""
    theta = received(site, w, transport)
    return make_reply(site, theta, transport, np.ones(len(site), dtype=bool), 1.0 + site.ids)


@pytest.mark.parametrize("up", ["none", "float64"])
@pytest.mark.parametrize("by", [None, np.array([1, 0, 1, 1])])
def test_what_a_biased_codec_loses_on_the_way_down_is_not_lost(up, by):
    """Clients that change nothing leave the server's model as it is, however little of it they were told."""
    rng, fed, state = np.random.default_rng(0), InProcess(Quadratic(np.tile(np.eye(9), (6, 1, 1)), np.ones((6, 9)))), {}
    to = np.array([0, 2, 3, 5])
    for _ in range(4):
        models = rng.normal(size=(1 if by is None else 2, 9))
        w, how = (models[0], {}) if by is None else (PerRow(models[by]), {"by": by, "groups": 2})
        coded = CompressedFederation(fed, state, Compression(up, "topk:1"))
        sums = coded.total(unchanged, to=to, w=w, transport={}, **how)
        state = coded.state
        found = np.atleast_2d(sums["x"]) / np.reshape(sums["w"], (-1, 1))
        np.testing.assert_allclose(found, models, atol=1e-12)
    assert np.abs(state["reference"] - models).max() > 0.1


def test_a_group_that_comes_late_is_sent_its_model_whole():
    """Nobody holds anything of it: the first message is no code of the model itself."""
    o = Quadratic(np.tile(np.eye(6), (8, 1, 1)), np.tile(np.arange(1.0, 7.0), (8, 1)))
    method = GroupSGD(eta=0.1, group=np.repeat(np.arange(4), 2), own="averaged", C=0.25, down="topk:0.2", seed=1)
    w = np.tile(np.arange(1.0, 7.0), 4)
    for state in method.run(InProcess(o), range(1, 7), method.init(InProcess(o), w)):
        assert state["share"].min() == 0.0
        np.testing.assert_allclose(state["w"], w, atol=1e-12)


def test_clients_of_a_group_are_sent_one_model():
    coded = CompressedFederation(InProcess(quadratic(2)), {}, Compression("sign", "none"))
    with pytest.raises(CoterieError, match=names("clients group sent model")):
        coded.total(echo, to=[0, 1], w=PerRow(np.eye(2)), transport={}, by=np.array([0, 0]))
    with pytest.raises(CoterieError, match=names("Models go clusters travel compressed")):
        coded.total(echo, w=PerCluster(np.ones((1, 2))), transport={})


def test_patterns_and_codecs_are_looked_at():
    for fed in (InProcess(layered(M)), Loopback(layered(M), sites=2)):
        with pytest.raises(CoterieError, match=names("'heat' matches parameter body scale head")):
            FedAvg(eta=0.1, personal=("heat",)).init(fed)
    with pytest.raises(CoterieError, match=names("personal parameters patterns head")):
        FedAvg(eta=0.1, personal=(3,))
    assert FedAvg(eta=0.1, personal="head").personal == ("head",)
    with pytest.raises(CoterieError, match=names("no codec 'tiny'")):
        FedAvg(eta=0.1, up="tiny")
