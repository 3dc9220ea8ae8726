"""What a run cost, as the engine counted it."""

import numpy as np

from coterie.federation import PerRow, work
from tests.contract.cases import make_federation, quadratic
from tests.contract.conftest import K, M


@work
def counted(site, x, w):
    site.count(gradients=2 * len(site))
    return {"g": np.ones((len(site), 3))}


def test_bytes_in_process_are_those_of_a_site_for_every_client():
    fed = make_federation("blocks", quadratic(M, k=K))
    fed.total(counted, x=np.ones(3), w=PerRow(np.ones((M, 2))))
    assert fed.ledger.bytes_down == M * 3 * 8 + M * 2 * 8
    assert fed.ledger.bytes_up == M * 3 * 8
    assert fed.ledger.gradient_calls == 2 * M and fed.ledger.exchanges == 1 and fed.ledger.seconds > 0
    assert set(fed.ledger.as_dict()) == {"exchanges", "bytes_down", "bytes_up", "gradient_calls", "seconds"}


def test_a_sum_costs_bytes_of_groups_not_of_clients():
    problem = quadratic(400, k=4)
    fed = make_federation("loopback", problem)
    fed.total(counted, x=np.ones(3), w=PerRow(np.ones((400, 2))))
    assert fed.ledger.bytes_up < 300
