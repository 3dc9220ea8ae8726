"""Clients against a slow literal twin, for every kind of label, in any order of the table."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

from coterie.data.clients import Clients
from coterie.data.labels import encode, find_labels, label_ids, label_text
from coterie.data.prepare_table import prepare
from coterie.errors import CoterieError
from tests.messages import names


def twin(client, clusters, y):
    """Sorted rows, client labels and clusters by plain Python sorting."""
    n = len(client)
    coarse_first = list(zip(*reversed(clusters), strict=True)) if clusters else [()] * n
    rows = sorted(range(n), key=lambda i: (coarse_first[i], client[i], i))
    labels = list(dict.fromkeys(client[i] for i in rows))
    ends = [max(k for k, i in enumerate(rows) if client[i] == label) + 1 for label in labels]
    return rows, labels, ends, [y[i] for i in rows]


@pytest.fixture
def rows():
    rng = np.random.default_rng(11)
    n = 300
    client = rng.integers(0, 40, n)
    return {
        "client": client,
        "cluster": np.array([3, 1, 4, 1, 5])[client % 5] * 10 + (client % 5),
        "region": (client % 5) % 2,
        "x": rng.normal(size=n),
        "y": rng.normal(size=n),
    }


@pytest.mark.parametrize("names", [[], ["cluster"], ["cluster", "region"]], ids=["none", "one level", "two levels"])
def test_clients_are_the_twin_s(rows, names):
    clients, _ = prepare(pd.DataFrame(rows), "y ~ x", "client", names)
    order, labels, ends, y = twin(rows["client"], [rows[n] for n in names], rows["y"])
    assert clients.order.tolist() == order
    assert clients.labels.tolist() == labels
    assert clients.stops.tolist() == ends
    assert clients.starts.tolist() == [0, *ends[:-1]]
    assert clients.y.tolist() == y
    assert np.array_equal(clients.X, np.column_stack([np.ones(300), rows["x"][order]]))
    assert clients.X.flags.c_contiguous
    assert clients.X.dtype == np.float64
    codes = np.repeat(np.arange(len(clients)), clients.counts)
    assert np.array_equal(codes, clients.codes)
    place = clients.clusters
    assert np.all(np.diff(place) >= 0)
    for name, level in zip(names, clients.levels, strict=True):
        assert level.name == name
        assert np.array_equal(level.labels[place[codes]], rows[name][order])
        place = level.parent[place]
    assert not place.any()


@pytest.mark.parametrize("names", [[], ["cluster"], ["cluster", "region"]], ids=["none", "one level", "two levels"])
def test_arrays_give_the_same_clients_as_a_table(rows, names):
    table, _ = prepare(pd.DataFrame(rows), "y ~ x", "client", names)
    X = np.column_stack([np.ones(300), rows["x"]])
    clusters = np.column_stack([rows[n] for n in names]) if names else None
    arrays = Clients.from_arrays(X, rows["y"], rows["client"], clusters)
    for name in ("X", "y", "starts", "stops", "labels", "ids", "clusters", "order", "offset", "weights"):
        assert np.array_equal(getattr(table, name), getattr(arrays, name)), name
    assert [level.labels.tolist() for level in table.levels] == [level.labels.tolist() for level in arrays.levels]


def test_a_shuffled_table_gives_the_same_clients(rows):
    df = pd.DataFrame(rows)
    shuffled = df.sample(frac=1, random_state=3)
    a, _ = prepare(df, "y ~ x", "client", ["cluster", "region"])
    b, _ = prepare(shuffled, "y ~ x", "client", ["cluster", "region"])
    assert np.array_equal(a.labels, b.labels)
    assert np.array_equal(a.ids, b.ids)
    assert np.array_equal(a.starts, b.starts)
    for i in range(len(a)):
        at, bt = slice(a.starts[i], a.stops[i]), slice(b.starts[i], b.stops[i])
        assert sorted(a.y[at]) == sorted(b.y[bt])


def test_sorted_rows_are_not_copied():
    X = np.arange(12.0).reshape(6, 2)
    y = np.arange(6.0)
    clients = Clients.from_arrays(X, y, [1, 1, 2, 2, 2, 9], [0, 0, 0, 0, 0, 1])
    assert clients.X is X
    assert clients.y is y
    assert clients.order.tolist() == [0, 1, 2, 3, 4, 5]


def test_inputs_are_not_changed(rows):
    df = pd.DataFrame(rows)
    before = df.copy(deep=True)
    prepare(df, "y ~ x", "client", "cluster")
    pd.testing.assert_frame_equal(df, before)


LABELS = {
    "integers": ([3, 1, 3, 10], [1, 3, 10]),
    "negative": ([-3, 1, -3, 10], [-3, 1, 10]),
    "far apart": ([10**15, 1, -(10**15), 1], [-(10**15), 1, 10**15]),
    "64 bits": (np.array([2**63, 1, 2**64 - 1, 1], dtype=np.uint64), [1, 2**63, 2**64 - 1]),
    "text": (["b", "a", "B", "a"], ["B", "a", "b"]),
    "numbers as text": (["10", "9", "10", "2"], ["10", "2", "9"]),
    "spaces and accents": (["Åre south", "Zürich", "東京", "a b"], ["Zürich", "a b", "Åre south", "東京"]),
    "floats": ([1.5, -2.0, 1.5, 3.0], [-2.0, 1.5, 3.0]),
    "whole floats": ([2.0, 1.0, 2.0, 1.0], [1, 2]),
    "booleans": ([True, False, True, True], [False, True]),
    "mixed": ([1, "1", "a", 2.0], ["1", "2", "a"]),
    "dates": (pd.to_datetime(["2021-01-02", "2020-05-01", "2021-01-02", "2019-01-01"]),
              pd.to_datetime(["2019-01-01", "2020-05-01", "2021-01-02"]).tolist()),
    "python dates": ([datetime.date(2021, 1, 2), datetime.date(2020, 1, 1)] * 2, ["2020-01-01", "2021-01-02"]),
    "category": (pd.Categorical(["z", "a", "z", "m"], ["z", "m", "a", "never"]), ["a", "m", "z"]),
    "category of integers": (pd.Categorical([10, 9, 10, 2]), [2, 9, 10]),
    "nullable": (pd.array([5, 4, 5, 4], dtype="Int64"), [4, 5]),
    "arrow": (pd.array(["q", "p", "q", "p"], dtype="string[pyarrow]"), ["p", "q"]),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS)
def test_labels_stay_as_they_were(name):
    values, expected = LABELS[name]
    df = pd.DataFrame({"g": values, "y": [1.0, 2, 3, 5], "x": [0.5, 1, 2, 3]})
    clients, _ = prepare(df, "y ~ x", "g")
    got = clients.labels
    assert [pd.Timestamp(v) if got.dtype.kind == "M" else v for v in got.tolist() if got.dtype.kind != "M"] == (
        [] if got.dtype.kind == "M" else expected
    )
    if got.dtype.kind == "M":
        assert pd.to_datetime(got).tolist() == expected
    assert len(np.unique(clients.ids)) == len(expected)
    found = find_labels(clients.labels, df["g"])
    assert np.array_equal(found[clients.order], clients.codes)


def test_ids_depend_on_the_text_of_a_label_alone():
    ids = label_ids(np.array([1, 2, 30]))
    assert np.array_equal(ids, label_ids(np.array(["1", "2", "30"], dtype=object)))
    assert np.array_equal(ids, label_ids(np.array([1.0, 2.0, 30.0])))
    assert np.array_equal(ids[::-1], label_ids(np.array([30, 2, 1])))
    # pinned: random numbers of saved runs depend on them
    assert ids.tolist() == [15289156711003816966, 15865429583590377110, label_ids(np.array(["30"], dtype=object))[0]]


def test_unseen_labels_are_not_found():
    known = np.array(["a", "b"], dtype=object)
    assert find_labels(known, ["b", "c", None, "a"]).tolist() == [1, -1, -1, 0]
    assert find_labels(np.array([3, 5]), [5.0, np.nan, 4.0]).tolist() == [1, -1, -1]
    assert find_labels(np.array([3, 5]), ["5", "x"]).tolist() == [1, -1]
    assert find_labels(np.array([3, 5]), np.array([], dtype=np.int64)).tolist() == []


def test_label_text():
    assert [label_text(v) for v in (1, 1.0, "1", 1.5, True, np.float64(2.0))] == ["1", "1", "1", "1.5", "True", "2"]


@pytest.mark.parametrize("n", [1, 5, 1000])
@pytest.mark.parametrize("kind", ["sorted", "near", "far", "float", "text"])
def test_encode_against_numpy(n, kind):
    rng = np.random.default_rng(n)
    values = rng.integers(-5, 20, n)
    if kind == "sorted":
        values = np.sort(values)
    if kind == "far":
        values = values * 10**12 + 7
    if kind == "float":
        values = values / 2
    column = encode(values.astype(str).astype(object) if kind == "text" else values)
    labels, codes = np.unique(values.astype(str) if kind == "text" else values, return_inverse=True)
    assert np.array_equal(column.codes, codes)
    assert column.labels.tolist() == labels.tolist()


def test_coded_take_keeps_used_labels():
    column = encode(["c", "a", None, "b", "c"])
    assert column.missing.tolist() == [False, False, True, False, False]
    some = column.take(np.array([4, 3]))
    assert some.labels.tolist() == ["b", "c"]
    assert some.codes.tolist() == [1, 0]


def test_subset_keeps_clients_without_rows(rows):
    clients, _ = prepare(pd.DataFrame(rows), "y ~ x", "client", "cluster")
    mask = clients.codes % 3 == 0
    mask[clients.starts[3]] = False
    some = clients.subset(mask)
    assert len(some) == len(clients)
    assert some.labels is clients.labels
    assert some.counts.tolist() == [int(mask[a:b].sum()) for a, b in zip(clients.starts, clients.stops, strict=True)]
    assert np.array_equal(some.y, clients.y[mask])
    assert np.array_equal(some.order, clients.order[mask])
    for i in np.flatnonzero(some.counts):
        assert np.array_equal(
            some.X[some.starts[i] : some.stops[i]], clients.X[clients.codes == i][mask[clients.codes == i]]
        )
    with pytest.raises(ValueError, match=names("mask 2 entries")):
        clients.subset(np.array([True, False]))


def test_polars_gives_the_same_as_pandas(rows):
    a, da = prepare(pd.DataFrame(rows), "y ~ x", "client", "cluster")
    for frame in (pl.DataFrame(rows), pl.DataFrame(rows).lazy()):
        b, db = prepare(frame, "y ~ x", "client", "cluster")
        assert da == db
        assert np.array_equal(a.X, b.X)
        assert np.array_equal(a.labels, b.labels)


def test_offset_and_weights_follow_their_rows(rows):
    rows["w"] = np.arange(300) % 7
    rows["log_time"] = np.arange(300.0)
    clients, design = prepare(pd.DataFrame(rows), "y ~ .", "client", "cluster", offset="log_time", weights="w")
    assert np.array_equal(clients.offset, rows["log_time"][clients.order])
    np.testing.assert_allclose(clients.weights, rows["w"][clients.order] / rows["w"][rows["w"] > 0].mean())
    assert design.terms == ("(Intercept)", "region", "x")


def test_rows_of_weight_zero_are_no_light_rows():
    weights = np.array([1.0, 1.0, 0.0, 0.0, 1e9, 1e9, 1e9, 2e9])
    clients = Clients.from_arrays(np.eye(8, 2), np.arange(8.0), np.repeat([0, 1], 4), weights=weights)
    assert np.array_equal(clients.weights, weights)
    with pytest.raises(CoterieError, match=names("weights client weight")):
        Clients.from_arrays(np.eye(4, 2), np.arange(4.0), np.zeros(4), weights=[0.0, 1e9, 1.0, 1.0])


def test_a_design_fitted_before_is_used(rows):
    df = pd.DataFrame(rows)
    _, design = prepare(df, "y ~ center(x)", "client")
    clients, same = prepare(df[:50], "ignored", "client", design=design)
    assert same is design
    assert clients.X[:, 1] == pytest.approx(df["x"][clients.order] - df["x"].mean())


def test_huge_and_tiny_scales_stay_exact():
    df = pd.DataFrame({"g": ["a", "a", "b", "b"], "y": [1e8, 2e8, 3e8, 5e8], "x": [1e-3, 2e-3, 3e-3, 5e-3]})
    clients, _ = prepare(df, "y ~ x", "g")
    assert np.array_equal(clients.X[:, 1], df["x"])
    assert np.array_equal(clients.y, df["y"])
