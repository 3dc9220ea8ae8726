"""SCAFFOLD's control variates: the server's is the clients' mean, whoever is away, returns or is quarantined."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.federation import work
from coterie.methods.scaffold import Scaffold
from coterie.objectives.quadratic import Quadratic
from tests.engines.faults import Faults, Loopback
from tests.methods.test_more_baselines import N, final, pooled, quadratic, rows


@work
def variates(site):
    """What clients keep; c_i is zero, and takes no memory, at those that never took part."""
    return {"n": site.state["n"], "c": site.state.get("c", np.zeros((len(site), site.objective.dim)))}


def controls(fed):
    """``sum_i n_i c_i / sum_i n_i`` of what clients keep."""
    found = fed.ask(variates)
    return found["n"] @ found["c"] / found["n"].sum()


def test_the_servers_control_variate_is_the_clients_mean():
    fed = InProcess(rows((6, 2, 9, 1, 4, 4, 7, 3)), weights=np.arange(1.0, N + 1))
    state = final(Scaffold(eta=0.1, B=3, C=0.4, E=2), fed, 9)
    assert np.abs(state["c"]).max() > 1e-3
    np.testing.assert_allclose(state["c"], controls(fed), rtol=1e-10, atol=1e-14)


@pytest.mark.soak("0")
@pytest.mark.parametrize("first", [0, 4])
def test_clients_that_are_away_and_return_are_still_right(first):
    """Requests or replies of a site are lost for some rounds, the first among them or not."""

    def lost(exchange, site):
        return site == 1 and first <= exchange < first + 9

    o, w = quadratic(), np.arange(1.0, N + 1)
    for faults in (Faults(request=lost), Faults(reply=lost)):
        fed = Loopback(o, weights=w, sites=[[0, 1, 4, 6, 7], [2, 3, 5]], retries=0, faults=faults)
        state = final(Scaffold(eta=0.05, E=5), fed, 300)
        np.testing.assert_allclose(state["c"], controls(fed), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state["w"], pooled(o, w), rtol=1e-8)


def test_a_client_that_is_quarantined_takes_its_part_of_c_away():
    """Its row breaks after some rounds; the others go on to their own optimum."""
    o, w = quadratic(), np.arange(1.0, N + 1)
    fed, method = InProcess(o, weights=w), Scaffold(eta=0.05, E=5)
    state = final(method, fed, 10)
    o.b[3] = np.nan
    state = final(method, fed, 300, state)
    np.testing.assert_array_equal(np.flatnonzero(state["quarantined"]), [3])
    rest = np.delete(np.arange(N), 3)
    assert state["N"] == pytest.approx(w[rest].sum())
    np.testing.assert_allclose(state["w"], pooled(Quadratic(o.A[rest], o.b[rest]), w[rest]), rtol=1e-8)


def test_a_second_run_on_the_same_clients_starts_anew():
    o = quadratic()
    fed = InProcess(o)
    method = Scaffold(eta=0.05, E=3)
    first_run = final(method, fed, 7)
    np.testing.assert_array_equal(final(method, fed, 7)["w"], first_run["w"])


def test_a_step_of_size_zero_keeps_the_control_variates():
    method = Scaffold(eta=lambda t: 0.1 * (t % 2), E=2)
    state = final(method, InProcess(quadratic()), 6)
    assert np.isfinite(state["w"]).all() and np.isfinite(state["c"]).all()
