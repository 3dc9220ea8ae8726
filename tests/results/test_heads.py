"""Groups whose nets have other shapes, from one call: trained, compared, saved, adapted and written down."""

from __future__ import annotations

import numpy as np
import pytest

import coterie
from coterie.errors import CoterieError
from tests.messages import names

NET = {"args": {"sizes": [4, 6, 3]}, "heads": {"basel": {"sizes": [4, 6, 2]}}}
CALL = {"personal": ["head*"], "method": "group-sgd", "rounds": 3}


def rows():
    """Two groups of three clients: two classes in one, three in the other."""
    rng = np.random.default_rng(0)
    client = np.arange(120) % 6
    X = rng.normal(size=(120, 4)).astype(np.float32)
    y = np.where(client < 3, X[:, 0] > 0, (X[:, 1] > -0.4).astype(int) + (X[:, 1] > 0.4))
    return X, y, client, np.where(client < 3, "basel", "bern")


@pytest.fixture(scope="module")
def result():
    return coterie.fit(rows(), coterie.Torch("mlp", **NET), **CALL)


def test_every_client_has_a_model_of_its_groups_shape(result):
    assert [len(result.client(label)) for label in ("0", "5")] == [44, 51]
    assert result.module("0").head.out_features == 2 and result.module("5").head.out_features == 3
    np.testing.assert_array_equal(result.client("0")[:30], result.client("5")[:30])  # dense1 is shared
    X = rows()[0]
    assert result.predict(X, "0").max() <= 1 and len(result.predict(X, "5")) == len(X)
    assert result.theory["groups"].gradient.shape[1] == 2 and np.isfinite(result.comparison["accuracy"]).all()


def test_it_is_saved_reported_and_written_down(result, tmp_path):
    result.save(tmp_path / "nets")
    read = coterie.load(tmp_path / "nets")
    assert read.heads == result.heads
    for label in result.labels:
        np.testing.assert_array_equal(read.client(label), result.client(label))
    read.report(tmp_path / "report.html")
    assert result.config()["model"]["heads"] == NET["heads"]
    np.testing.assert_array_equal(coterie.fit(rows(), result.config()).theta, result.theta)


def test_behind_a_wire_the_numbers_are_the_same(result):
    there = coterie.fit(rows(), coterie.Torch("mlp", **NET), engine="loopback", **CALL)
    np.testing.assert_allclose(there.theta, result.theta, rtol=1e-6, atol=1e-6)


def test_a_new_client_says_of_which_group_it_is(result):
    X, y, *_ = rows()
    assert result.adapt(X, np.minimum(y, 1), group="basel").models.shape == (1, 44)
    for group in ({}, {"group": "bael"}):
        with pytest.raises(CoterieError, match=names("adapt group basel bern")):
            result.adapt(X, y, **group)


def test_only_methods_of_groups_are_compared():
    found = coterie.compare(rows(), coterie.Torch("mlp", **NET), personal=["head*"], rounds=1)
    assert set(found.index) == {"group-sgd", "group-models"}


@pytest.mark.parametrize(
    ("net", "call", "message"),
    [
        (NET, {"method": "fedavg", "personal": ()}, "fedavg one shape heads group-sgd group-models"),
        (NET, {"method": "local", "personal": ()}, "local heads group-models"),
        (NET, {"method": "group-sgd", "shared": ["*"], "personal": ()}, "head.weight 12 18 same size"),
        ({**NET, "heads": {"base": {}}}, {}, "heads base basel"),
        ({**NET, "heads": {"basel": 3}}, {}, "heads table"),
        ({**NET, "heads": {"basel": {"size": 3}}}, {}, "mlp argument size sizes"),
    ],
)
def test_what_cannot_be_is_refused(net, call, message):
    with pytest.raises(CoterieError, match=names(message)):
        coterie.fit(rows(), coterie.Torch("mlp", **net), **(CALL | call))


PASSES, STEPS = {"E": 1, "B": 4}, {"E": 0, "tau": 2, "B": 0}
OVER = [(PASSES, "loopback"), (STEPS, "auto")]
OVER += [pytest.param(*of, marks=pytest.mark.soak) for of in ((PASSES, "auto"), (STEPS, "loopback"))]


@pytest.mark.soak("rounds0-loopback")
@pytest.mark.parametrize(("rounds", "engine"), OVER)
def test_models_of_other_shapes_travel_compressed(rounds, engine):
    """A codec that loses nothing of float32 gives the numbers of none; others send fewer bytes, and train."""
    call = CALL | {"rounds": {"rounds": 3, **rounds}, "engine": engine}
    plain = coterie.fit(rows(), coterie.Torch("mlp", **NET), **call)
    for codecs in ({"up": "float32"}, {"up": "float32", "down": "float32"}):
        exact = coterie.fit(rows(), coterie.Torch("mlp", **NET), **call | {"rounds": call["rounds"] | codecs})
        for label in plain.labels:
            np.testing.assert_allclose(exact.client(label), plain.client(label), atol=2e-6)
    coded = coterie.fit(rows(), coterie.Torch("mlp", **NET), **call | {"rounds": call["rounds"] | {"up": "tv:2"}})
    assert coded.ledger["bytes_up"] < plain.ledger["bytes_up"] or engine == "auto"
    assert all(np.isfinite(coded.client(label)).all() for label in coded.labels)
    np.testing.assert_array_equal(coded.client("0")[:30], coded.client("5")[:30])
