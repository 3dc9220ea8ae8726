"""What a site makes of requests that no coordinator sends, and of clients that are asked more than once."""

import numpy as np
import pytest

from coterie.engines import InProcess, wire
from coterie.engines.requests import covers
from coterie.engines.site import Node
from coterie.federation import Clusters, work
from tests.engines.faults import Loopback
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
    "an exchange that no log can hold": {"exchange": [1, 10**5000]},
    "an exchange before the first": {"counted": [0, -1]},
    "a mark after no exchange": {"kind": "mark", "tag": "t", "counted": None},
    "a mark without a name": {"kind": "mark", "tag": 5},
    "a restore to no exchange": {"kind": "restore", "tag": "t", "exchange": [1, 2**63]},
    "clients from the end": {"rows": np.array([0, -4])},
    "parts of clients": {"rows": np.array([0.0, 0.5])},
    "clients beyond all numbers": {"rows": np.array([0, 2**64 - 4], np.uint64)},
    "a table of clients": {"rows": np.zeros((2, 1), np.int64)},
    "a group far away": {"by": np.array([0, 0, 0, 2**40])},
    "a group below": {"by": np.array([0, 0, 0, -1])},
    "a table of clusters": {"rows": np.ones((1, 1), bool)},
    "too few labels": {"rows": np.arange(3), "by": np.zeros(2, np.int64)},
    "another grouping": {"by": "site"},
}


@pytest.mark.parametrize("request_", STRANGE.values(), ids=STRANGE)
def test_what_no_coordinator_asks_is_not_answered(request_):
    answer = said(node().receive, **request_)
    assert "A request names exchanges, clients or groups as none does" in answer["failed"]


def test_a_mask_over_other_clusters_is_refused():
    assert "names 3 clusters" in said(node().receive, rows=np.ones(3, bool))["failed"]
    assert said(node().receive, rows=np.ones(1, bool))["values"]["v"].tolist() == [4.0, 4.0]
    assert "1 groups was asked" in said(node().receive, rows=np.ones(1, bool), by=np.zeros(1, np.int64))["failed"]


@work
def about(site):
    return {"id": site.ids.astype(np.float64), "one": np.ones(len(site))}


@pytest.mark.parametrize("sites", [1, 3, "mixed"])
def test_clusters_are_asked_by_their_names_and_not_by_all_their_clients(sites):
    m, k = 3000, 30
    clusters, sent = np.sort(np.arange(m) % k), []
    where = [np.arange(s, m, 3) for s in range(3)] if sites == "mixed" else sites
    objective = Values(np.ones((m, 2)))
    fed = Loopback(objective, clusters, sites=where, tap=lambda direction, site, data: sent.append((direction, data)))
    here = InProcess(objective, clusters)
    for chosen in (np.arange(k) % 2 == 0, np.arange(k) == 7, np.arange(k) > 20, np.ones(k, bool), np.zeros(k, bool)):
        for by in (None, "cluster", np.arange(100 * chosen.sum()) % 3):
            one, other = (f.total(about, to=Clusters(chosen), by=by) for f in (fed, here))
            assert one.keys() == other.keys() or not chosen.any()
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])
            np.testing.assert_array_equal(one.count, other.count)
        one, other = (f.ask(about, to=Clusters(chosen)) for f in (fed, here))
        np.testing.assert_array_equal(one["id"] if chosen.any() else [], other["id"] if chosen.any() else [])
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.to, other.to)
    named = [data for direction, data in sent if direction == "down" and b"cluster" in data]
    assert named and max(map(len, named)) < 300
