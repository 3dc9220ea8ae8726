"""Rows made when clients take part: the same run as with rows that are held."""

from __future__ import annotations

import numpy as np

from benchmarks.devices import devices
from coterie.engines import InProcess
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg


def test_rows_that_are_made_are_rows_that_are_held():
    """Whichever clients are made together."""
    made = devices(40, 3, 4)
    held = made.made()
    theta = np.random.default_rng(0).normal(size=(40, 12))
    some = np.array([31, 4, 4, 17])
    for name in ("value", "gradient", "accuracy"):
        np.testing.assert_array_equal(getattr(made.take(some), name)(theta[some]), getattr(held, name)(theta)[some])
    np.testing.assert_array_equal(made.sizes(), held.sizes())
    for method in (FedAvg(eta=0.1, B=5, C=0.3), Ditto(eta=0.1, B=5, C=0.3, lam=0.1)):
        one, other = (InProcess(o, ids=made.ids, block=7) for o in (made, held))
        (state,), (kept,) = (method.run(fed, [3]) for fed in (one, other))
        assert state["w"].any()
        np.testing.assert_array_equal(state["w"], kept["w"])
        np.testing.assert_array_equal(method.models(one, state), method.models(other, kept))


def test_no_rows_are_made_of_those_who_take_no_part():
    seen = []
    made = devices(1000, 3, 4)
    watched = type(made)(lambda ids, counts: seen.append(ids) or made.make(ids, counts), made.ids, made.counts, 12)
    method = FedAvg(eta=0.1, C=0.02)
    (state,) = method.run(InProcess(watched), [2])
    assert sum(map(len, seen)) == 40 and len(method.models(InProcess(watched), state)) == 1000
