"""Groups that are found on torch models whose statistics stay with clients."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
from torch import nn

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.found_groups import FoundGroups
from coterie.methods.groups.confidence import adapt
from coterie.methods.groups.restarts import by_restarts
from coterie.methods.ifca import IFCA
from coterie.methods.scaffold import Scaffold
from coterie.objectives.deep import Deep

M = 6


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def federation():
    """Clients in two groups with opposite labels."""
    rng, stops = np.random.default_rng(0), 30 * np.arange(1, M + 1)
    X = rng.normal(size=(30 * M, 4))
    y = (X[:, 0] > 0).astype(np.int64) ^ np.repeat(np.arange(M) % 2, 30)
    objective = Deep.of(net, X, y, stops - 30, stops)
    return InProcess(objective), objective.start(0)


def test_restarts_judge_models_with_the_parts_that_stay_at_home():
    fed, w = federation()
    found = by_restarts(fed, IFCA(k=2, eta=0.3, tau=5), w, rounds=6, restarts=4, steps=30)
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert np.isfinite(found.score[2])
    with pytest.raises(CoterieError, match="A group's model must be 68 numbers"):
        adapt(fed, found.about["w"])


def test_found_groups_by_restarts():
    fed, method = federation()[0], FoundGroups(by="restarts", k=2, eta=0.3, E=1, rounds=6, restarts=4, steps=30)
    state = method.step(fed, method.init(fed))
    assert state["group"].tolist() in ([0, 1] * 3, [1, 0] * 3)
    assert np.isfinite(method.models(fed, state)).all()


@pytest.mark.parametrize("method", [FedAvg(eta=0.1), FoundGroups(eta=0.1), IFCA(eta=0.1, k=2), Scaffold(eta=0.1)])
def test_too_many_first_models_are_refused_at_once(method):
    fed, w = federation()
    with pytest.raises(CoterieError, match=r"begin at .*: give .* first models?, not an array of shape"):
        method.init(fed, np.tile(w, (M, 1)))
    with pytest.raises(CoterieError, match="The first model must be 68 finite numbers"):
        method.init(fed, w[:3])
