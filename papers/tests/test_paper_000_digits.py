"""The study of digits in groups, made small: what it compares, and that groups are found and worth their layers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need the extra torch")

from coterie.methods.groups.evaluation import correctly_grouped
from papers.paper_000 import digits
from papers.paper_000.digits import by_first_models, by_silhouette, group_models, methods, rows
from papers.paper_003.study import Chosen, Gridded, Scores


@pytest.fixture(scope="module")
def small():
    return rows(0, 16)


def one(method: Gridded, eta: float = 1.0, rounds: int = 25) -> Gridded:
    """One setting alone."""
    setting = next(s for s in method.settings if s["eta"] == eta)
    return Gridded(method.fits, [setting | {"rounds": rounds}])


def test_losses_and_accuracies_are_those_of_the_rows(small):
    train, test, known = small
    theta = np.tile(train.start, (16, 1))
    assert train.loss(theta) == pytest.approx(np.log(10), abs=0.2) and 0.0 < test.accuracy(theta) < 0.3
    parts = train.split(1)
    assert [type(p) for p in parts] == [type(train)] * 2 and parts[0].seed == train.seed
    assert sum(len(p.clients.y) for p in parts) == len(train.clients.y)
    assert np.bincount(known).tolist() == [4, 4, 4, 4]


def test_groups_are_found_and_their_layers_are_worth_it(small):
    train, test, known = small
    found = by_silhouette(train)
    assert found.k == 4 and correctly_grouped(found.labels, known) == 16
    every = methods(known)
    scores = {
        name: test.accuracy(one(every[name]).choose(train, 1, 0).theta)
        for name in ("pooled", "local", digits.HEADS, digits.FIRSTS, digits.MODELS)
    }
    for name in (digits.HEADS, digits.FIRSTS, digits.MODELS):
        assert scores[name] > scores["pooled"] + 0.01 and scores[name] > scores["local"] + 0.05
    again = one(group_models(found.labels)).choose(train, 1, 0).theta
    np.testing.assert_allclose(test.accuracy(again), scores[digits.MODELS])


@pytest.mark.soak
def test_restarts_find_the_groups_too(small):
    train, _, known = small
    found = by_first_models(train, rounds=6, restarts=8)
    assert found.k == 4 and correctly_grouped(found.labels, known) >= 15
    assert set(found.score) == {4} and len(found.about["labels"]) == 8


def test_tables_and_figure():
    names = tuple(methods(np.arange(40) % 4))
    rng = np.random.default_rng(0)
    about = {"k": 4, "right": 40, "score": {}, "each": [40, 30]}
    chosen = [[Chosen({"eta": 1.0, "rounds": 50}, np.zeros(1), about) for _ in names] for _ in range(2)]
    scores = Scores(names, rng.random((2, len(names))), rng.random((2, len(names))), chosen)
    table = digits.found_table(scores)
    assert table.rows[1][1:] == ("4 4", "40 40", "0.50")
    assert digits.draw(scores).axes
