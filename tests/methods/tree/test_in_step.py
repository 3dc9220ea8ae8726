"""Calculations in step give what they give one by one, in as many exchanges as the longest has."""

from functools import partial
from threading import active_count

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.federation import PerCluster, work
from coterie.methods.tree.in_step import in_step, release
from tests.methods.dense import table


@work
def start(site):
    site.state["x"] = np.arange(len(site), dtype=float)
    return {}


@work
def add(site, more):
    site.state["x"] = site.state["x"] + more[site.clusters]
    return {"x": site.state["x"]}


@work
def look(site):
    return {"x": site.state["x"]}


@work
def leave(site):
    release(site)
    return {}


def run(fed, more, times):
    """Every sum over clients, by cluster, after so many steps."""
    return [fed.total(add, by="cluster", more=PerCluster(np.full(2, more)))["x"].copy() for _ in range(times)]


@pytest.fixture
def fed():
    fed, _ = table(0, counts=(2, 3, 2, 4), parents=([0, 0, 1, 1],)).setting()
    fed.total(start)
    return fed


def test_each_has_its_own_state_and_all_share_exchanges(fed):
    before = fed.ledger.exchanges
    found = in_step(fed, {"a": partial(run, more=1.0, times=3), "b": partial(run, more=10.0, times=1)})
    assert fed.ledger.exchanges - before == 3
    np.testing.assert_array_equal(found["a"], [[3.0, 7.0], [5.0, 9.0], [7.0, 11.0]])
    np.testing.assert_array_equal(found["b"], [[21.0, 25.0]])
    again = in_step(fed, {"b": partial(run, more=1.0, times=1)})  # begins where clients are, not where b was
    np.testing.assert_array_equal(again["b"], [[3.0, 7.0]])
    np.testing.assert_array_equal(run(fed, 0.0, 1), [[1.0, 5.0]])


def test_nothing_is_left_of_an_earlier_calculation_of_the_same_name(fed):
    def looks(fed):
        return [fed.total(look, by="cluster")["x"].copy() for _ in range(2)]

    in_step(fed, {"a": partial(run, more=1.0, times=2), "b": partial(run, more=2.0, times=1)})
    np.testing.assert_array_equal(in_step(fed, {"a": looks})["a"], [[1.0, 5.0]] * 2)
    fed.total(leave)
    assert [fed._run.store.arrays[f"{name}:x"].size for name in "ab"] == [0, 0]
    np.testing.assert_array_equal(run(fed, 0.0, 1), [[1.0, 5.0]])


def test_one_that_fails_ends_all(fed):
    def fails(fed):
        run(fed, 1.0, 1)
        raise CoterieError("No.")

    threads = active_count()
    with pytest.raises(CoterieError, match=r"No\."):
        in_step(fed, {"a": partial(run, more=1.0, times=5), "b": fails})
    assert active_count() <= threads + 1  # the other is ending
