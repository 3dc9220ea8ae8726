"""What a site makes of requests that no coordinator sends, and of clients that are asked more than once."""

import numpy as np
import pytest

from coterie.engines import wire
from coterie.engines.node import Node
from coterie.engines.requests import covers
from tests.engines.privacy.works import Values, tell


def node(m=4, min_group=0):
    clusters, ids = np.zeros(m, np.int64), np.arange(m, dtype=np.uint64)
    return Node("here", Values(np.ones((m, 2))), clusters, np.ones(m), ids, min_group=min_group)


def said(receive, **request):
    whole = {"kind": "total", "work": tell.work_name, "by": None, "exchange": [1, 1], "counted": [0, 0]}
    return wire.decode(receive(wire.encode(whole | {"rows": None, "message": {}} | request)))


@pytest.mark.parametrize("rows", [[0, 0, 0], [2, 1, 2, 1, 2]])
def test_a_client_that_is_asked_often_is_no_larger_group(rows):
    asked = np.array(rows, dtype=np.uint8)
    assert "does not answer about" in said(node(min_group=3).receive, rows=asked)["refused"]
    assert said(node(min_group=3).receive, rows=np.arange(3))["values"]["v"].tolist() == [3.0, 3.0]


def test_rows_of_groups_are_those_of_different_clients():
    counts, rows, labels = np.array([4, 1, 2]), np.array([0, 1, 1, 2, 1]), np.array([0, 1, 1, 1, 0])
    assert covers(counts, rows, labels).tolist() == [5, 3]
    assert covers(counts, None, np.array([3, 0, 3])).tolist() == [1, 6]


STRANGE = {
    "an exchange that is not itself": {"exchange": [float("nan"), 1]},
    "an exchange without a life": {"exchange": 1},
    "an exchange of arrays": {"counted": np.zeros(2, np.int64)},
    "clients from the end": {"rows": np.array([0, -4])},
    "parts of clients": {"rows": np.array([0.0, 0.5])},
    "clients beyond all numbers": {"rows": np.array([0, 2**64 - 4], np.uint64)},
    "a table of clients": {"rows": np.zeros((2, 1), np.int64)},
    "a group far away": {"by": np.array([0, 0, 0, 2**40])},
    "a group below": {"by": np.array([0, 0, 0, -1])},
    "too few labels": {"rows": np.arange(3), "by": np.zeros(2, np.int64)},
    "another grouping": {"by": "site"},
}


@pytest.mark.parametrize("request_", STRANGE.values(), ids=STRANGE)
def test_what_no_coordinator_asks_is_not_answered(request_):
    answer = said(node().receive, **request_)
    assert "A request names exchanges, clients or groups as none does" in answer["failed"]
