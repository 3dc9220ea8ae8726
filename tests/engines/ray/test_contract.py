"""The contract over actors: the tests of its parts, and its laws on every row of the registry."""

import inspect
from functools import partial

import numpy as np
import pytest

from coterie.engines.ray import Ray
from tests.contract import test_engines
from tests.contract.cases import make_federation
from tests.contract.conftest import fed  # noqa: F401 - a fixture
from tests.contract.registry import CASES
from tests.contract.test_laws import close, partitions, same

pytest.importorskip("ray")

# The tests of the parts that take a federation, with one whose sites are actors.
globals().update(
    {
        name: test
        for name, test in vars(test_engines).items()
        if name.startswith("test_") and "fed" in inspect.signature(test).parameters
    }
)

SHORT = {
    *("async-l2gd-rows", "async-al2sgd", "scaffold", "fedavg-coded", "similarity-network", "bias-correction"),
    *("exact-hierarchical-gaussian", "exact-hierarchical-binomial", "group-sgd", "ifca"),
}
every_case = pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=() if c.name in SHORT else pytest.mark.soak) for c in CASES],
)


def build(case, parts, engine, **options):
    """A federation of actors; torch models cannot travel, so that each actor makes its own."""
    if case.name.startswith("deep"):
        return Ray([partial(part_of, case.name, rows) for rows in parts], seed=7, **options)
    return make_federation(engine, case.problem(), parts, **options)


def part_of(name, rows):
    problem = next(c for c in CASES if c.name == name).problem()
    rows = np.sort(rows)
    return problem.objective.take(rows), problem.clusters[rows], problem.weights[rows], problem.ids[rows]


def test_the_short_form_names_rows_of_the_registry():
    assert {c.name for c in CASES} >= SHORT


@every_case
def test_any_partition_into_actors_gives_the_same_numbers(case, engine):
    problem = case.problem()
    parts = partitions(len(problem.ids), 0)
    if case.name.startswith("deep"):  # whose sites tell their clients in order of sites within clusters
        parts = np.array_split(np.arange(len(problem.ids)), 3)
    expected = case.run(make_federation("inprocess", problem))
    close(case.run(build(case, parts, engine)), expected, case.tolerance)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_same_seed_gives_the_same_run_to_the_bit(case, engine):
    parts = np.array_split(np.arange(len(case.problem().ids)), 2)
    same(case.run(build(case, parts, engine)), case.run(build(case, parts, engine)))
