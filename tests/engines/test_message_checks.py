"""What a site makes of requests that no coordinator sends, and of clients that are asked more than once."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess, wire
from coterie.engines.message_checks import disagreeing
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.site import Node, covers
from coterie.errors import CoterieError
from coterie.federation import Clusters, PerCluster, Ragged, work
from tests.engines.faults import Loopback
from tests.engines.privacy.works import Values, tell
from tests.messages import names


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
    "a mark without a name": {"kind": "mark", "marks": [5], "counted": [0, 0]},
    "a mark that is no list": {"marks": "here"},
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
    assert "1 group was asked" in said(node().receive, rows=np.ones(1, bool), by=np.zeros(1, np.int64))["failed"]


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


pytestmark = pytest.mark.usefixtures("in_full")


@work
def sized(site, c):
    """Ones, whatever is sent."""
    return {"v": np.ones((len(site), 2))}


def told(instead, strict=False, **options):
    """A federation of two sites that answer ``instead`` of their sums."""
    fed = Loopback(Values(np.ones((4, 3))), sites=2, policy=Policy(strict=strict), **options)
    deliver = fed.deliver

    def swapped(site, data, attempt):
        reply = wire.decode(deliver(site, data, attempt))
        return wire.encode(reply | ({"values": {"v": instead}} if "values" in reply else {}))

    fed.deliver = swapped
    return fed


NO_SUMS = {
    "rows of different lengths": Ragged.of([[1.0, 2.0]]),
    "text": np.array("text"),
    "texts": np.array(["a"]),
    "bytes": np.array([b"a"]),
    "a list of texts": [np.array(["a"])],
    "no array": 1.0,
    "nothing": None,
}


@pytest.mark.parametrize("instead", NO_SUMS.values(), ids=NO_SUMS)
@pytest.mark.parametrize("by", [None, "cluster"])
def test_sums_that_are_no_numbers_are_refused_though_all_sites_send_them(instead, by):
    with pytest.raises(CoterieError, match=r"^At site 0, its 'v' is no sum of numbers$"):
        told(instead, strict=True).total(tell, by=by)
    fed = told(instead)
    assert len(fed.total(tell, by=by).missing) == 4
    assert fed.quarantined == dict.fromkeys(["site 0", "site 1"], "its 'v' is no sum of numbers")


@pytest.mark.parametrize("by", [None, "cluster"])
def test_lists_are_refused_where_shapes_are_equal(by):
    fed = told([np.ones(3)])
    assert len(fed.total(tell, by=by).missing) == 4
    assert fed.quarantined == dict.fromkeys(["site 0", "site 1"], "its 'v' is no array")
    fed = told([np.ones(3), np.ones(3)])
    assert len(fed.ask(tell).missing) == 4 and "no array" in fed.quarantined["site 0"]


def test_rows_of_unequal_shapes_are_numbers_or_text_and_not_both():
    lists = [np.ones(2), np.ones(3)]
    found = {0: lists, 1: [np.ones(2, np.int64)] * 2, 2: np.ones((2, 2)), 3: [np.array(["a"])] * 2, 4: Ragged.of(lists)}
    wrong = disagreeing({s: {"values": {"v": v}} for s, v in found.items()}, dict.fromkeys(found, 2), True)
    assert wrong == {
        3: "it answers v (rows U) where most answer v (rows numbers)",
        4: "it answers v (Ragged numbers ()) where most answer v (rows numbers)",
    }


def test_sums_of_unequal_clusters_are_of_one_kind():
    sizes = PerCluster([np.ones(1), np.ones(2)])
    fed = Loopback(Values(np.ones((4, 3))), [0, 0, 1, 1], sites=[[0, 2], [1, 3]], policy=Policy(strict=False))
    deliver = fed.deliver

    def other(site, data, attempt):
        reply = wire.decode(deliver(site, data, attempt))
        return wire.encode(reply | {"values": {"v": [np.ones(1, complex if site else float)] * 2}})

    fed.deliver = other
    with pytest.raises(CoterieError, match=names("'v' float64 clients complex128 others")):
        fed.total(sized, by="cluster", c=sizes)
