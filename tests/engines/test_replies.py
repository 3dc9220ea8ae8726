"""Answers that are no sums, or no rows that go together: the sites that send them are named."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import Loopback, wire
from coterie.engines.policy import Policy
from coterie.engines.replies import disagreeing
from coterie.errors import CoterieError
from coterie.federation import PerCluster, Ragged, work
from tests.engines.privacy.works import Values, tell
from tests.messages import names

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
