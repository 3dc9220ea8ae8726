"""Fixtures of the contract suite: every law gets every row of the registry."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.contract.cases import make_federation, quadratic
from tests.contract.registry import CASES

M, K = 23, 5  # clients and clusters of the federation `fed`


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(params=["inprocess", "blocks", "loopback"])
def engine(request):
    return request.param


@pytest.fixture
def fed(engine):
    """A federation of quadratics, with sites of unequal size where there are sites."""
    return make_federation(engine, quadratic(M, k=K), [[22, 3, 8], list(range(9, 22)), [0, 1, 2, 4, 5, 6, 7]])


@pytest.fixture
def state_folder():
    """A folder in memory where the machine has one: every exchange of every site renames and removes files in it."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


FAULTS = (
    *("test_lost_and_damaged_messages", "test_sites_that_die", "test_a_site_that_misses", "test_an_exchange_nobody"),
    *("test_counted_bytes", "test_gradients_are_counted", "test_resumed_is_straight", "test_a_coordinator_that_dies"),
)
ALIKE = {
    *("exact-local-binomial", "exact-given-poisson", "network-exact-gaussian", "network-exact-poisson"),
    *("network-exact-alone", "network-exact-as-one", "async-l2gd-steps", "async-l2gd-rows", "async-al2sgd-rows"),
    *("async-l2gd-nested", "async-al2sgd-nested"),
    *("weighted-averaging-rows", "bias-correction-local", "found-by-updates-rows", "cfl-rows", "group-penalty-rows"),
    *("ditto-rows", "pfedme-rows", "ifca-rows", "fedprox-rows", "apfl-rows", "fedper-rows", "fedrep-rows"),
    *("scaffold-part", "scaffold-personal", "l2gd-rows", "l2gd-clusters", "l2gd-coded", "l2gd-personal"),
    *("fedavg-head", "fedavg-head-coded", "pfedme-head", "pfedme-coded", "ifca-head-coded"),
    *("group-sgd-own", "group-sgd-given", "group-sgd-coded", "similarity-network-rows", "similarity-network-part"),
    *("similarity-network-phases", "similarity-network-bytes"),
    *("fedbabu-rows", "per-fedavg-rows", "feddyn-rows", "fedala-coded"),
    *("heurfedamp-rows", "pfedgraph-personal", "pfedgraph-coded", "fedsoft-rows"),
}
"""Rows whose options (drawn rows, a head, codes) meet faults in another row of their method, or of one like it."""
KEPT = ("deep-fedavg", "deep-fedbn")
TIRING = ("test_lost_and_damaged_messages", "test_sites_that_die", "test_a_coordinator_that_dies", *FAULTS[4:6])
KINDS = {
    *("pooled", "main-clients", "packed", "stochastic", "exact-search", "async-l2gd"),
    *("bias-correction-memory", "fedavg-coded", "ditto-head-coded", "pfedme", "ifca", "cfl", "found-by-updates"),
    *("scaffold", "deep-fedbn", "group-sgd-heads", "similarity-network-ef21"),
}
"""Rows that take the laws of ``TIRING``: one for each way of addressing, of keeping state at sites and at the
coordinator, and of coding what travels. That the state of a method is all that it needs is resumed for each row."""
DIVIDED = ("test_a_site_for_every_client", "test_threads_change_nothing", "test_one_client_is_enough")
DIVIDED += ("test_work_is_separable", "test_client_order_is_irrelevant")
WHOLE = (*KEPT, "deep-group-sgd", "deep-async-l2gd", "deep-bias-correction", "deep-similarity-network")
"""Nets that take the laws of ``DIVIDED``: one row for local steps, statistics of layers, clusters, heads of groups,
clients asked more than once, and a network. Methods of the other rows take these laws without a net, methods of rows
that are ``ALIKE`` on their plain row, and all rows the partitions at random, in which some sites have one client."""


def row_of(item):
    case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
    return getattr(case, "name", "")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """All laws of a row stand together, as they share runs of it.

    What faults do to a method is tried on its plain row without torch, and on few with: the others are for soak.
    """
    rows = {case.name: number for number, case in enumerate(CASES)}
    assert rows.keys() >= ALIKE | KINDS | {*WHOLE}
    items.sort(key=lambda item: rows[row_of(item)] if item.path.name == "test_laws.py" else -1)
    for item in items:
        name = row_of(item)
        alike = name in ALIKE or (name.startswith("deep-") and name not in KEPT)
        tired = item.name.startswith(TIRING) and name and name not in KINDS
        divided = name in ALIKE or (name.startswith("deep-") and name not in WHOLE)
        if tired or (alike and item.name.startswith(FAULTS)) or (divided and item.name.startswith(DIVIDED)):
            item.add_marker(pytest.mark.soak)
