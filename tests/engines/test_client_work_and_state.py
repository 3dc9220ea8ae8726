"""State at a site: what an exchange writes is aside until it counts, and costs what it writes."""

import tracemalloc

import numpy as np
import pytest

from coterie.engines.client_work_and_state import Store
from coterie.federation import WRITTEN

M = 100_000


def written(store, rows, value, whole=False):
    store.write("x", rows, value, whole)
    store.close()


@pytest.fixture(params=[False, True], ids=["log", "copies"])
def store(request):
    """One whose clients have all written zeros but the last, which is yet to write."""
    store = Store(M, tentative=True, durable=request.param)
    written(store, slice(0, M - 1), np.zeros((M - 1, 8)))
    store.commit()
    return store


def test_what_is_written_is_aside_until_it_counts(store):
    before = store.arrays["x"]
    written(store, slice(2, 4), np.ones((2, 8)))
    assert store.arrays["x"] is before and not before.any()
    store.forget()
    store.commit()
    assert not store.arrays["x"].any()
    written(store, np.array([7, M - 1]), np.full((2, 8), 3.0))
    assert not store.arrays["x"].any() and not store.arrays[WRITTEN + "x"][-1]
    store.commit()
    assert np.flatnonzero(store.arrays["x"][:, 0]).tolist() == [7, M - 1] and store.arrays[WRITTEN + "x"].all()


def test_what_is_kept_stays_as_it_was(store):
    kept = store.keep()
    written(store, slice(0, M), np.ones((M, 8)), whole=True)
    store.commit()
    assert not kept["x"].any() and not kept[WRITTEN + "x"].all() and store.arrays["x"].all()
    store.replace(kept)
    assert not store.arrays["x"].any()


def test_a_few_clients_cost_no_copy_of_all():
    store = Store(M, tentative=True)
    written(store, slice(0, M), np.zeros((M, 8)), whole=True)
    store.commit()
    array = store.arrays["x"]
    tracemalloc.start()
    written(store, np.arange(0, M, 1000), np.ones((100, 8)))
    store.commit()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert store.arrays["x"] is array and array.sum() == 800
    assert most < array.nbytes / 10
