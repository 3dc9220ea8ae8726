"""The surface of held-out losses over a grid is what fitting each of its points gives."""

import numpy as np
import pytest

from coterie.data import prepare
from coterie.data.simulate import tree
from coterie.methods.fitted import Problem
from coterie.relations.clusters import Tree
from coterie.results.compare import Splits, evaluate, run
from coterie.results.strengths import Surface, search, select


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("other", ["lam", "alpha", None])
def test_surface(family, other):
    df, truth = tree(12, 3, (4, 12), 1, family, sd_client=0.5, root=[0.2, 0.3], seed=8)
    clients, _ = prepare(df, truth["formula"], "client", "cluster", family)
    problem = Problem(Tree.of(clients), family, np.arange(2), 0)
    grid = {"gamma": [0.5, 4.0]} | ({other: [0.1, 0.5, 0.9]} if other else {})
    splits = Splits(2, 0.25, seed=3)
    surface = search(clients, problem, grid, splits)
    assert surface.loss.shape == (2, 3 if other else 1)
    lowest = np.inf
    for i, gamma in enumerate(grid["gamma"]):
        for j, value in enumerate(grid.get(other, [None])):
            options = {"gamma": gamma} | ({other: value} if other else {})
            fits = {"given": lambda c, o=options: run("given-strengths", c, problem, o)[0]}
            evidence = evaluate(clients, family, fits, splits)
            exact = evidence.losses["given"].sum() / evidence.weight.sum()
            assert surface.loss[i, j] == pytest.approx(exact, abs=1e-6)
            if exact < lowest:
                lowest, best = exact, options
    assert surface.chosen == best
    assert select(clients, problem, grid, Splits(2, 0.25, seed=2)) == best


def test_of_equals_the_first_is_chosen():
    surface = Surface({"gamma": [1.0, 2.0], "lam": [3.0, 4.0]}, np.array([[2.0, 1.0], [1.0, np.nan]]))
    assert surface.chosen == {"gamma": 1.0, "lam": 4.0}
    assert Surface({"gamma": [1.0, 2.0]}, np.array([[2.0], [1.0]])).chosen == {"gamma": 2.0}
