"""The front over actors: engine="ray" gives the numbers of one process, for a table and for a net."""

import sys

import numpy as np
import pytest

import coterie
from coterie.engines.ray import Ray, actors
from coterie.errors import CoterieError
from coterie.methods.registry import METHODS
from tests.cells import fitted, numbers, schools
from tests.contract.cases import quadratic

ray = pytest.importorskip("ray")


CELLS = [
    ("hierarchical", "table", 1e-10),
    pytest.param("ditto", "torch", 1e-6, marks=pytest.mark.soak),  # actors import torch
]


@pytest.mark.parametrize(("name", "model", "tolerance"), CELLS)
def test_a_fit_over_actors_is_that_of_one_process(name, model, tolerance, pool):
    here, there = (fitted(METHODS[name], model, engine=engine) for engine in ("auto", {"kind": "ray", "sites": 2}))
    np.testing.assert_allclose(numbers(there), numbers(here), rtol=tolerance, atol=tolerance)
    assert there.config()["engine"] == {"kind": "ray"} | ({"sites": 2} if model == "table" else {})
    assert there.ledger["bytes_up"] > 0


@pytest.mark.soak
def test_a_comparison_takes_the_same_actors_for_all_fits(monkeypatch):
    begun = []
    start = actors.ActorSlots._start
    monkeypatch.setattr(actors.ActorSlots, "_start", lambda slots: begun.append(slots._free) or start(slots))
    given = (schools(), "y ~ x", "school", "district")
    here, there = (coterie.compare(*given, splits=2, engine=engine) for engine in ("auto", "ray"))
    columns = [name for name in here if name != "seconds"]
    np.testing.assert_allclose(there[columns], here[columns], rtol=1e-9, atol=1e-10)
    assert len(begun) > 2 and len({id(free) for free in begun}) == 1 and actors._FREE.get() is None


def test_without_ray_the_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CoterieError, match=r"coterie\[ray\]"):
        coterie.fit(schools(), "y ~ x", "school", engine="ray", splits=0)


def test_actors_that_find_no_cpu_end_in_a_sentence(monkeypatch, caplog):
    problem = quadratic(6)
    monkeypatch.setattr(actors, "_TOLD", 0.2)
    monkeypatch.setattr(actors, "_NODES", 0.4)
    with pytest.raises(CoterieError, match=r"\d of 3 actors did not begin in 0.4 s: each asks for 2 CPU, and Ray has"):
        Ray(problem.objective, problem.clusters, ids=problem.ids, sites=3, actor={"num_cpus": 2})
    assert any("actors wait for 2 CPU each" in record.getMessage() for record in caplog.records)
    monkeypatch.undo()
    with Ray(problem.objective, problem.clusters, ids=problem.ids, sites=2):  # what was asked for is free again
        assert ray.available_resources().get("CPU", 0.0) == 0.0
