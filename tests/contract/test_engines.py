"""The parts of the contract one by one: addresses, messages, groups, state, errors, on every engine."""

import numpy as np
import pytest

from coterie.engines import InProcess, Loopback
from coterie.engines.reduction import Gather
from coterie.errors import CoterieError
from coterie.federation import Clusters, PerCluster, PerRow, Ragged, find_work, work
from coterie.objectives.quadratic import Quadratic
from tests.contract.cases import make_federation, quadratic
from tests.contract.conftest import K, M


@work
def nothing(site):
    return {}


@work
def who(site):
    return {"id": site.ids, "weight": site.weights}


@work
def echo(site, x):
    return {"x": np.broadcast_to(x, (len(site), *np.shape(x)[1:]))}


@work
def cluster_row(site, x):
    assert np.all(np.diff(site.clusters) >= 0) and set(site.clusters) == set(range(len(x)))
    return {"x": x[site.clusters]}


@work
def ones(site):
    return {"n": np.ones(len(site)), "whole": np.ones(len(site), np.int32), "narrow": np.ones(len(site), np.float32)}


@work
def write(site, u):
    old = site.state.get("u", np.full(u.shape, -1.0))
    site.state["u"] = u
    return {"old": old, "new": site.state["u"]}


@work
def read(site):
    return dict(site.state)


@work
def wrong_length(site):
    return {"x": np.ones(len(site) + 1)}


@work
def wrong_type(site):
    return [1]


@work
def scalar(site):
    return {"x": 1.0}


@work
def text(site):
    return {"x": np.full(len(site), "a")}


@work
def write_input(site, x):
    x += 1
    return {}


@work
def fail_late(site, at):
    site.state["u"] = np.full(len(site), 9.0)
    if np.any(site.ids == at):
        raise RuntimeError("no such luck")
    return {}


@work
def uneven(site):
    return {"x": np.ones((len(site), 1 + int(site.ids[0] % 7)))}


def unmarked(site):
    return {}


# -- addresses


@pytest.mark.parametrize(
    "to",
    [
        None,
        [4],
        3,
        [20, 3, 3, 11, 0],
        np.arange(M)[::-1],
        np.arange(M) % 3 == 1,
        Clusters(np.array([True, False, True, False, True])),
        np.uint8([1, 2]),
        [],
    ],
    ids=["all", "one", "scalar", "repeats", "reversed", "mask", "clusters", "uint8", "nobody"],
)
def test_a_row_for_each_request_in_its_order(fed, to):
    index = to.mask[fed.clients.clusters] if isinstance(to, Clusters) else slice(None) if to is None else to
    rows = np.arange(M)[index] if not isinstance(to, list) or to else np.empty(0, int)
    rows = np.atleast_1d(rows)
    replies = fed.ask(who, to=to)
    np.testing.assert_array_equal(replies.to, rows)
    np.testing.assert_array_equal(replies.rows, np.arange(len(rows)))
    assert len(replies.missing) == 0
    if len(rows):
        np.testing.assert_array_equal(replies["id"], fed.clients.ids[rows])
    else:
        assert not replies


@pytest.mark.parametrize(
    ("to", "sentence"),
    [
        ([M], "outside 0..22"),
        ([-1], "outside 0..22"),
        ([1.5], "must be None"),
        (np.ones(3, bool), "A mask needs"),
        (Clusters(np.ones(3, bool)), "mask over 5 clusters"),
    ],
)
def test_a_wrong_address_is_named(fed, to, sentence):
    with pytest.raises(CoterieError, match=sentence):
        fed.ask(who, to=to)


# -- messages


def test_rows_follow_their_requests(fed):
    to = np.random.default_rng(0).integers(0, M, 40)
    x = np.random.default_rng(1).normal(size=(40, 2))
    np.testing.assert_array_equal(fed.ask(echo, to=to, x=PerRow(x))["x"], x)
    np.testing.assert_array_equal(fed.ask(echo, x=PerRow(x[:M]))["x"], x[:M])


def test_ragged_rows_follow_their_requests(fed):
    to = np.random.default_rng(0).integers(0, M, 40)
    rows = [bytes(range(i % 4)) for i in range(40)]
    replies = fed.ask(echo_ragged, to=to, x=PerRow(Ragged.of(rows)))
    assert [bytes(replies["x"][i]) for i in range(40)] == rows
    assert [bytes(replies["shared"][i]) for i in range(40)] == [b"ab"] * 40


@work
def echo_ragged(site, x):
    return {"x": x, "shared": Ragged.of([b"ab"] * len(site))}


def test_clusters_arrive_unexpanded(fed):
    W = np.random.default_rng(0).normal(size=(K, 2))
    for to in (None, [22, 0, 5], Clusters(np.arange(K) == 3)):
        replies = fed.ask(cluster_row, to=to, x=PerCluster(W))
        np.testing.assert_array_equal(replies["x"], W[fed.clients.clusters[replies.to]])


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"x": PerRow(np.ones(3))}, "one row for each request \\(23\\)"),
        ({"x": PerCluster(np.ones(3))}, "one row for each cluster \\(5\\)"),
        ({"x": PerCluster([np.ones(1), np.ones(2)])}, "one row for each cluster \\(5\\)"),
        ({"x": PerRow(1.0)}, "one row for each request"),
        ({"x": object()}, "cannot hold a object"),
        ({"x": np.array([None])}, "cannot travel"),
    ],
)
def test_a_wrong_message_is_named(fed, message, sentence):
    with pytest.raises(CoterieError, match=sentence):
        fed.ask(echo, **message)


def test_messages_are_read_only(fed):
    with pytest.raises((ValueError, CoterieError), match="read-only"):
        fed.ask(write_input, x=PerRow(np.ones(M)))
    with pytest.raises((ValueError, CoterieError), match="read-only"):
        fed.ask(write_input, x=np.ones(M))


# -- groups


def test_sums_in_all_by_cluster_and_by_label(fed):
    sizes = np.bincount(fed.clients.clusters)
    whole = fed.total(ones)
    assert whole["n"] == M and whole.count == M and whole["n"].shape == ()
    by = fed.total(ones, by="cluster")
    np.testing.assert_array_equal(by["n"], sizes)
    np.testing.assert_array_equal(by.count, sizes)
    to = np.random.default_rng(0).integers(0, M, 50)
    labels = np.random.default_rng(1).integers(0, 6, 50)
    mixed = fed.total(ones, to=to, by=labels, groups=9)
    np.testing.assert_array_equal(mixed["n"], np.bincount(labels, minlength=9))
    np.testing.assert_array_equal(mixed.count, np.bincount(labels, minlength=9))


def test_groups_nobody_answered_are_zero_with_count_zero(fed):
    one = Clusters(np.arange(K) == 2)
    sums = fed.total(ones, to=one, by="cluster")
    np.testing.assert_array_equal(sums["n"] > 0, np.arange(K) == 2)
    np.testing.assert_array_equal(sums.count > 0, np.arange(K) == 2)
    nobody = fed.total(ones, to=[], by="cluster")
    assert not nobody
    np.testing.assert_array_equal(nobody.count, np.zeros(K))
    assert fed.total(ones, to=[]).count == 0


def test_the_same_clients_in_other_groups_are_not_taken_for_the_last(fed):
    for labels in (np.arange(M) % 2, np.arange(M) % 3, np.arange(M) % 2):
        np.testing.assert_array_equal(fed.total(ones, by=labels)["n"], np.bincount(labels))


def test_the_precision_of_sums(fed):
    sums = fed.total(ones, by="cluster")
    assert [sums[n].dtype for n in ("n", "whole", "narrow")] == [np.float64, np.int64, np.float32]
    many = InProcess(Quadratic(np.ones((20_000, 1, 1)), np.ones((20_000, 1))))
    tenth = many.total(echo, x=PerRow(np.full(20_000, 0.1, np.float32)))["x"]
    assert tenth == np.float32(20_000 * np.float64(np.float32(0.1)))  # added in double precision


def test_sums_of_sites_in_single_precision_are_added_in_double():
    fed = make_federation("loopback", quadratic(3, k=1), 3)
    x = np.array([2**24, 1, 1], np.float32)
    assert fed.total(echo, x=PerRow(x))["x"] == np.float32(2**24 + 2)
    by = fed.total(echo, by="cluster", x=PerRow(x))["x"]
    assert by == np.float32(2**24 + 2) and by.dtype == np.float32


@pytest.mark.parametrize(
    ("by", "groups", "sentence"),
    [
        ("school", None, "'school'"),
        (np.zeros(3, int), None, "each of 23 requests"),
        (np.zeros(M), None, "integer label"),
        (np.full(M, -1), None, "negative"),
        (np.full(M, 7), 7, "outside 7 groups"),
    ],
)
def test_wrong_groups_are_named(fed, by, groups, sentence):
    with pytest.raises(CoterieError, match=sentence):
        fed.total(ones, by=by, groups=groups)


@work
def head(site, h):
    assert len(h) == 1 and set(site.clusters) == {0}
    return {
        "h": h[site.clusters] * site.weights[:, None],
        "size": np.full(len(site), h.shape[1]),
        "n": np.ones(len(site)),
    }


def test_clusters_with_unequal_shapes(fed):
    heads = [np.arange(1.0, j + 2) for j in range(K)]
    weights = np.array([quadratic(M, k=K).weights[fed.clients.clusters == j].sum() for j in range(K)])
    sums = fed.total(head, by="cluster", h=PerCluster(heads))
    for j in range(K):
        np.testing.assert_allclose(sums["h"][j], weights[j] * heads[j], rtol=1e-12)
    part = fed.total(head, to=Clusters(np.arange(K) == 1), by="cluster", h=PerCluster(heads))
    assert part["h"][1].shape == (2,) and part["h"][0].shape == () and part["h"][0] == 0
    replies = fed.ask(head, to=[22, 0, 9], h=PerCluster(heads))
    assert [len(row) for row in replies["h"]] == list(replies["size"])
    with pytest.raises(CoterieError, match="shapes"):
        fed.total(head, h=PerCluster(heads))
    assert fed.total(only_n, h=PerCluster(heads))["n"] == M


@work
def only_n(site, h):
    return {"n": np.ones(len(site))}


# -- work


def test_only_marked_work_runs(fed):
    with pytest.raises(CoterieError, match="mark it with @work"):
        fed.ask(unmarked)
    with pytest.raises(CoterieError, match="top level"):
        work(lambda site: {})
    for name in ("os:system", "coterie.nowhere:f", "coterie.federation:work", f"{__name__}:unmarked"):
        with pytest.raises(CoterieError, match="not known here"):
            find_work(name)
    assert find_work(f"{__name__}:nothing") is nothing


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (wrong_length, "'x' with one row for each of"),
        (wrong_type, "must return a dict, not list"),
        (scalar, "'x' with one row for each of"),
        (uneven, "'x' as float64"),
    ],
    ids=["length", "type", "scalar", "uneven"],
)
def test_a_wrong_reply_names_the_work(job, sentence):
    problem = quadratic(M, k=K)
    for engine, options in (("inprocess", {"block": 4}), ("loopback", {"block": 4})):
        with pytest.raises(CoterieError, match=sentence):
            make_federation(engine, problem, **options).ask(job)


def test_what_cannot_be_added_is_named(fed):
    with pytest.raises(CoterieError, match="cannot be added up"):
        fed.total(text)
    with pytest.raises(CoterieError, match="cannot be added up"):
        fed.total(echo_ragged, x=PerRow(Ragged.of([b""] * M)))
    assert fed.ask(text)["x"][0] == "a"


def test_failing_work_is_reported_and_the_federation_goes_on(fed):
    with pytest.raises((RuntimeError, CoterieError), match="no such luck"):
        fed.ask(fail_late, at=int(fed.clients.ids[10]))
    fed.ask(write, u=PerRow(np.ones(M)))
    np.testing.assert_array_equal(fed.ask(read)["u"], 1)


def test_results_are_read_only_and_do_not_change_later(fed):
    fed.ask(write, u=PerRow(np.ones(M)))
    seen = fed.ask(read)["u"]
    fed.ask(write, u=PerRow(np.zeros(M)))
    np.testing.assert_array_equal(seen, 1)
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 2


def test_errors_of_numpy_follow_the_caller_into_threads():
    fed = make_federation("blocks", quadratic(M, k=K))
    with np.errstate(divide="ignore"):
        assert np.all(np.isinf(fed.ask(divide)["x"]))
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        fed.ask(divide)


@work
def divide(site):
    return {"x": np.ones(len(site)) / np.zeros(len(site))}


# -- building a federation


@pytest.mark.parametrize("make", [InProcess, Loopback])
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"clusters": [1, 0]}, "sorted integers"),
        ({"clusters": [0.0, 1.0]}, "sorted integers"),
        ({"clusters": [-1, 0]}, "sorted integers"),
        ({"clusters": [0]}, "each of 2 clients"),
        ({"ids": [3, 3]}, "same id"),
        ({"weights": [1.0]}, "each of 2 clients"),
    ],
)
def test_wrong_clients_are_named(make, fields, sentence):
    with pytest.raises(CoterieError, match=sentence):
        make(Quadratic(np.ones((2, 1, 1)), np.ones((2, 1))), **fields)


@pytest.mark.parametrize("sites", [[[0]], [[0, 1], [1]], [[0, 5]], []], ids=["part", "twice", "strange", "none"])
def test_a_partition_holds_every_client_once(sites):
    with pytest.raises(CoterieError, match="exactly once"):
        Loopback(Quadratic(np.ones((2, 1, 1)), np.ones((2, 1))), sites=sites)


def test_defaults_are_one_cluster_unit_weights_and_positions_as_ids(engine):
    make = Loopback if engine == "loopback" else InProcess
    fed = make(Quadratic(np.ones((2, 1, 1)), np.ones((2, 1))))
    replies = fed.ask(who)
    np.testing.assert_array_equal(replies["id"], [0, 1])
    np.testing.assert_array_equal(replies["weight"], 1)
    assert fed.clients.k == 1 and len(fed.clients) == 2


def test_no_clients_at_all(engine):
    make = Loopback if engine == "loopback" else InProcess
    fed = make(Quadratic(np.ones((0, 1, 1)), np.ones((0, 1))))
    assert not fed.ask(who) and fed.total(ones).count == 0 and fed.clients.k == 0


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1]])
def test_ragged_rows_stand_where_their_requests_do(order):
    gather = Gather(3)
    gather.add(np.array(order), {"g": Ragged.of([[float(i)] * (i + 1) for i in order])})
    assert [list(gather.result()["g"][i]) for i in range(3)] == [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]
