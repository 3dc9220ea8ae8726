"""The surface of held-out losses over a grid is what fitting each of its points gives."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.data.identifiability import orthogonal_columns
from coterie.data.prepare_table import prepare
from coterie.data.splits import Splits
from coterie.errors import CoterieError
from coterie.evidence.table_comparison import all_splits, each_split
from coterie.evidence.table_selection import Surface, search, select
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree.penalised_tree import Basis
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import run
from papers.simulate import tree
from tests.messages import names


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("other", ["lam", "alpha", None])
def test_surface(family, other):
    df, truth = tree(12, 3, (4, 12), 1, family, sd_client=0.5, root=[0.2, 0.3], seed=8)
    clients, _ = prepare(df, truth["formula"], "client", "cluster", family)
    problem = GroupedProblem(ClusterTree.of(clients), family, np.arange(2), 0)
    grid = {"gamma": [0.5, 4.0]} | ({other: [0.1, 0.5, 0.9]} if other else {})
    splits = Splits(2, 0.25, seed=3)
    surface = search(clients, problem, grid, splits)
    assert surface.loss.shape == (2, 3 if other else 1)
    lowest = np.inf
    for i, gamma in enumerate(grid["gamma"]):
        for j, value in enumerate(grid.get(other, [None])):
            options = {"gamma": gamma} | ({other: value} if other else {})
            fits = {"given": lambda c, o=options: run("given-strengths", c, problem, o)[0]}
            evidence = all_splits(each_split(clients, family, fits, splits))
            exact = evidence.losses["given"].sum() / evidence.weight.sum()
            assert surface.loss[i, j] == pytest.approx(exact, abs=1e-6)
            if exact < lowest:
                lowest, best = exact, options
    assert surface.chosen == best
    assert select(clients, problem, grid, Splits(2, 0.25, seed=2)) == best


def test_surface_in_orthogonal_columns():
    """Of a column far from zero: losses at each point are those of its fits."""
    df, truth = tree(12, 3, (4, 12), 1, "binomial", sd_client=0.5, root=[0.2, 0.3], seed=8)
    clients, _ = prepare(df, truth["formula"], "client", "cluster", "binomial")
    clients = replace(clients, X=clients.X + np.array([0.0, 1e5]))
    basis = Basis.of(clients.X, clients.weights, orthogonal_columns(clients, np.arange(2)), 0)
    problem = GroupedProblem(ClusterTree.of(clients), "binomial", np.arange(2), 0, basis=basis)
    splits, options = Splits(1, 0.25, seed=3), {"gamma": 4.0, "lam": 9.0}
    surface = search(clients, problem, {name: [value] for name, value in options.items()}, splits)
    fits = {"given": lambda c: run("given-strengths", c, problem, options)[0]}
    evidence = all_splits(each_split(clients, "binomial", fits, splits))
    assert surface.loss[0, 0] == pytest.approx(evidence.losses["given"].sum() / evidence.weight.sum(), abs=1e-6)


LEVELS = pd.DataFrame({"g": np.repeat(np.arange(12), 6)}).assign(
    own=lambda d: "o" + d["g"].astype(str),  # one client each
    site=lambda d: d["g"] // 3,
    twin=lambda d: "t" + (d["g"] // 3).astype(str),  # one site each
    region=lambda d: d["g"] // 6,
    all=1,
)
LEVELS = LEVELS.assign(x=np.random.default_rng(3).normal(size=72), y=np.random.default_rng(4).normal(size=72))


def dense(levels, gamma, lam):
    """The minimiser of (2.3) over all clients' and clusters' parameters and the root, as it stands: (clients, 2)."""
    of = [np.unique(LEVELS.groupby("g")[c].first(), return_inverse=True)[1] for c in levels]
    of = [np.arange(12), *of, np.zeros(12, dtype=int)]
    start = np.cumsum([0, *(c.max() + 1 for c in of)])
    H, b = np.zeros((2 * start[-1],) * 2), np.zeros(2 * start[-1])
    for i in range(12):
        X = np.c_[np.ones(6), LEVELS["x"][LEVELS["g"] == i]]
        H[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] += X.T @ X
        b[2 * i : 2 * i + 2] = X.T @ LEVELS["y"][LEVELS["g"] == i]
    for k, strength in enumerate([gamma, *lam]):
        for node in range(of[k].max() + 1):
            parent = of[k + 1][np.flatnonzero(of[k] == node)[0]]
            tie = np.zeros((2, len(b)))
            tie[:, 2 * (start[k] + node) :][:, :2] = np.eye(2)
            tie[:, 2 * (start[k + 1] + parent) :][:, :2] -= np.eye(2)
            H += (strength if np.ndim(strength) == 0 else strength[node]) * tie.T @ tie
    return np.linalg.solve(H, b)[:24].reshape(12, 2)


@pytest.mark.parametrize(
    ("levels", "lam", "each"),
    [
        (["own"], 0.5, [0.5]),
        (["own"], {f"o{i}": 1.0 + i for i in range(12)}, [1.0 + np.array([0, 1, 10, 11, *range(2, 10)])]),  # by label
        (["own", "site"], 0.5, [0.5, 0.5]),
        (["site", "twin"], {"site": 0.5, "twin": 3.0}, [0.5, 3.0]),
        (["site", "twin", "region"], {"site": 0.5, "twin": 3.0, "region": 0.2}, [0.5, 3.0, 0.2]),
        (["own", "site", "region", "all"], {"own": 4.0, "site": 0.5, "region": 0.2}, [4.0, 0.5, 0.2, 1.0]),
        (["site", "all"], 0.7, [0.7, 0.7]),
        (["site", "region"], {"site": {0: 1.0, 1: 2.0, 2: 0.3, 3: 0.1}, "region": 2.0}, [[1.0, 2.0, 0.3, 0.1], 2.0]),
    ],
)
def test_given_strengths_are_those_of_the_objective_at_any_depth(levels, lam, each):
    """Levels that hold one of the level below in each cluster are ties in series; one cluster of all ties nothing."""
    found = coterie.fit(LEVELS, "y ~ x", "g", levels, gamma=2.0, lam=lam, method="given-strengths", splits=0)
    np.testing.assert_allclose(found.client_coefficients, dense(levels, 2.0, each), rtol=1e-7, atol=1e-9)


def test_alpha_of_clusters_of_one_goes_to_the_network():
    found = coterie.fit(LEVELS, "y ~ x", "g", "own", gamma=2.0, alpha=0.25, method="given-strengths", splits=0)
    np.testing.assert_allclose(found.client_coefficients, dense([], 0.5, []), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("lam", "sentence"),
    [
        ({"site": 1.0}, names("entry level 'region'")),
        ({"site": 1.0, "regoin": 2.0}, names("level 'regoin' mean 'region'")),
        ({0: 1.0, 1: 2.0}, "must say which level"),
        ({"site": "a", "region": 1.0}, "not negative"),
    ],
)
def test_levels_that_are_not_there_get_a_sentence(lam, sentence):
    with pytest.raises(CoterieError, match=sentence):
        coterie.fit(LEVELS, "y ~ x", "g", ["site", "region"], gamma=2.0, lam=lam, splits=0)


def test_of_equals_the_first_is_chosen():
    surface = Surface({"gamma": [1.0, 2.0], "lam": [3.0, 4.0]}, np.array([[2.0, 1.0], [1.0, np.nan]]))
    assert surface.chosen == {"gamma": 1.0, "lam": 4.0}
    assert Surface({"gamma": [1.0, 2.0]}, np.array([[2.0], [1.0]])).chosen == {"gamma": 2.0}


PEOPLE = 72


@pytest.fixture(scope="module")
def people():
    """12 clients of 6 people with 6 rows each, who differ, while clients do not: rows of a person tell its others."""
    rng = np.random.default_rng(0)
    one = pd.DataFrame(rng.normal(size=(PEOPLE, 4)), columns=["a", "b", "d", "u"])
    one = one.assign(person=range(PEOPLE), client=np.arange(PEOPLE) // 6)
    df = one.loc[np.repeat(np.arange(PEOPLE), 6)].reset_index(drop=True)
    return df.assign(
        y=1.0 + 0.3 * df["a"] + df["u"] + 0.05 * rng.normal(size=len(df)),
        time=100 * df["person"] + np.arange(len(df)) % 6,
    ).sample(frac=1.0, random_state=1)


@pytest.mark.soak("bias-correction-options2-<lambda>")
@pytest.mark.parametrize(
    "method, options, chosen",
    [
        ("given-strengths", {"gamma": [1e-4, 1.0, 100.0]}, lambda s: s["strengths"]["gamma"]),
        ("weighted-averaging", {"rounds": {"alpha": "held-out"}}, lambda s: np.max(s["collaboration"]["alpha"])),
        ("bias-correction", {"rounds": {"keep": "held-out"}}, lambda s: s["collaboration"]["keep"]),
        ("similarity-network", {"network": {"k": 3}}, lambda s: s["network"]["lam"]),
    ],
)
def test_choices_inside_of_training_rows_keep_people_and_times_together(people, method, options, chosen):
    """Drawn row by row, held-out rows of a person are known, and clients look best alone; by person they are not."""
    found = [
        chosen(coterie.fit(people, "y ~ a + b + d", client="client", method=method, splits=2, **options, **by).settings)
        for by in ({}, {"split_by": "person"}, {"order_by": "time"})
    ]
    assert 3.0 * found[0] < min(found[1:])


def test_inner_splits_are_those_of_the_rows_that_are_there(people):
    clients, _ = prepare(people, "y ~ a", "client", (), "gaussian")
    person = people["person"].iloc[clients.order]
    outer = Splits(2, 0.25, 3, groups=person)
    for train, _ in outer.parts(clients):
        inner = outer.inside(clients, train).inner(1)
        assert inner.groups.tolist() == people["person"].iloc[train.order].tolist()
        ((rest, held),) = inner.parts(train)
        who = [set(people["person"].iloc[part.order]) for part in (rest, held)]
        assert who[1] and not who[0] & who[1]


def test_a_grid_of_which_no_row_can_choose_is_refused():
    df = pd.DataFrame({"c": range(30), "k": np.arange(30) // 5, "x": np.arange(30.0) % 7, "y": np.arange(30.0) % 4})
    with pytest.raises(CoterieError, match=names("No client row to spare strengths")):
        coterie.fit(df, "y ~ x", "c", "k", method="given-strengths", gamma=[0.1, 1.0], splits=2)
