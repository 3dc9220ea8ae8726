"""Groups by restarts of IFCA, on rows and on torch models whose statistics stay with clients."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
from torch import nn

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.found_groups import FoundGroups
from coterie.methods.groups.evaluation import adapt, correctly_grouped
from coterie.methods.groups.find import by_restarts, draw, training_loss
from coterie.methods.ifca import IFCA
from coterie.methods.scaffold import Scaffold
from coterie.objectives.deep import Deep
from tests.messages import names
from tests.methods.groups.grouped_rows import federation

M = 6


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def modules():
    """Clients in two groups with opposite labels."""
    rng, stops = np.random.default_rng(0), 30 * np.arange(1, M + 1)
    X = rng.normal(size=(30 * M, 4))
    y = (X[:, 0] > 0).astype(np.int64) ^ np.repeat(np.arange(M) % 2, 30)
    objective = Deep.of(net, X, y, stops - 30, stops)
    return InProcess(objective), objective.start(0)


def test_restarts_judge_models_with_the_parts_that_stay_at_home():
    fed, w = modules()
    found = by_restarts(fed, IFCA(k=2, eta=0.3, tau=5), w, rounds=6, restarts=4, steps=30)
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert np.isfinite(found.score[2])
    with pytest.raises(CoterieError, match=names("group's model 68 numbers")):
        adapt(fed, found.about["w"])


def test_found_groups_by_restarts():
    fed, method = modules()[0], FoundGroups(by="restarts", k=2, eta=0.3, E=1, rounds=6, restarts=4, steps=30)
    state = method.step(fed, method.init(fed))
    assert state["group"].tolist() in ([0, 1] * 3, [1, 0] * 3)
    assert np.isfinite(method.models(fed, state)).all()


@pytest.mark.parametrize("method", [FedAvg(eta=0.1), FoundGroups(eta=0.1), IFCA(eta=0.1, k=2), Scaffold(eta=0.1)])
def test_too_many_first_models_are_refused_at_once(method):
    fed, w = modules()
    with pytest.raises(CoterieError, match=r"begin at .*: give .* first models?, not an array of shape"):
        method.init(fed, np.tile(w, (M, 1)))
    with pytest.raises(CoterieError, match=names("model 68 finite numbers")):
        method.init(fed, w[:3])


def test_restarts_find_the_groups_and_say_how_often():
    fed, known = federation(wrong=0.3)
    found = by_restarts(fed, IFCA(k=3, eta=0.5, tau=5), np.zeros(15), rounds=8, restarts=10)
    assert correctly_grouped(found.labels, known) == 18
    assert 0.0 < found.about["same"] <= 1.0 and len(found.about["losses"]) == 10
    assert found.score[3] == found.about["losses"].min()
    at = int(np.argmin(found.about["losses"]))
    np.testing.assert_array_equal(found.labels, found.about["labels"][at])
    assert training_loss(fed, found.about["w"]) == pytest.approx(found.score[3])


def test_first_clients_are_drawn_by_key():
    every = [tuple(draw(np.arange(12, dtype=np.uint64), 3, r, seed=1)) for r in range(20)]
    assert every == [tuple(draw(np.arange(12, dtype=np.uint64), 3, r, seed=1)) for r in range(20)]
    assert all(len(set(one)) == 3 for one in every) and len(set(every)) > 10
    with pytest.raises(CoterieError, match=names("18 clients 19 groups")):
        by_restarts(federation()[0], IFCA(k=19, eta=0.5), np.zeros(15), rounds=1)
