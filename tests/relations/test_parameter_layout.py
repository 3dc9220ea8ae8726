"""theta = M x + N z for every kind of parameter, against the matrices written out."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.relations.parameter_layout import Layout
from tests.messages import names

NAMES = {"conv.weight": 3, "conv.bias": 1, "norm": 2, "head.weight": 2, "head.bias": 1, "copy": 3}


def every_kind():
    return Layout.of(
        NAMES, shared=["conv*"], personal=["head*"], both=["norm"], zero=["head.bias"][:0], tied={"copy": "conv.weight"}
    )


def test_every_kind_of_parameter():
    layout = Layout.of(["a", "b", "c", "d", "e"], shared=["a"], both=["c"], zero=["d"], tied={"e": "a"})
    np.testing.assert_array_equal(layout.M.toarray(), [[1, 0], [0, 0], [0, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(layout.N.toarray(), [[0, 0], [1, 0], [0, 1], [0, 0], [0, 0]])
    assert (layout.d, layout.d1, layout.d2) == (5, 2, 2)


def test_theta_and_the_adjoints_are_the_matrices():
    rng, layout = np.random.default_rng(0), every_kind()
    x, Z, g = rng.normal(size=layout.d1), rng.normal(size=(4, layout.d2)), rng.normal(size=(4, layout.d))
    M, N = layout.M.toarray(), layout.N.toarray()
    np.testing.assert_allclose(layout.theta(x, Z), x @ M.T + Z @ N.T)
    np.testing.assert_allclose(layout.to_shared(g), g @ M)
    np.testing.assert_allclose(layout.to_personal(g), g @ N)
    assert (np.count_nonzero(M, axis=1) <= 1).all() and (np.count_nonzero(N, axis=1) <= 1).all()


def test_split_returns_what_theta_was_made_of():
    rng, layout = np.random.default_rng(1), every_kind()
    x, Z = rng.normal(size=layout.d1), rng.normal(size=(4, layout.d2))
    both = layout.personal[(layout.shared >= 0) & (layout.personal >= 0)]
    Z[:, both] -= Z[:, both].mean(axis=0)  # otherwise x and z are not told apart
    back = layout.split(layout.theta(x, Z))
    np.testing.assert_allclose(back[0], x)
    np.testing.assert_allclose(back[1], Z)


def test_layers_keep_their_order_and_ties_follow_through():
    layout = Layout.of({"a": 2, "b": 2, "c": 2}, tied={"a": "b", "b": "c"})
    np.testing.assert_array_equal(layout.personal, [0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(layout.shared, [-1] * 6)


def test_columns():
    layout = Layout.columns(4, np.array([0, 2]))
    np.testing.assert_array_equal(layout.shared, [-1, 0, -1, 1])
    np.testing.assert_array_equal(layout.personal, [0, -1, 1, -1])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shared": ["convv*"]}, names("'convv*' matches parameter conv.weight")),
        ({"shared": ["conv*"], "zero": ["conv.bias"]}, names("'conv.bias' shared zero")),
        ({"rest": "own"}, names("rest shared personal zero 'own'")),
        ({"tied": {"copy": "norm"}}, names("'copy' 3 numbers 'norm' 2")),
        ({"tied": {"copy": "conv.weight", "conv.weight": "copy"}}, "in a circle"),
        ({"tied": {"copy": "nobody"}}, "'nobody' matches no parameter"),
        ({"tied": {"copy": "conv.weight"}, "personal": ["copy"]}, "cannot be personal by itself"),
    ],
)
def test_bad_layouts_say_what_to_do(options, says):
    with pytest.raises(CoterieError, match=says):
        Layout.of(NAMES, **options)


def test_of_many_names_the_first_are_listed():
    with pytest.raises(CoterieError, match=r"There are 0, 1, .* 11 and 638 more"):
        Layout.of({str(k): 1 for k in range(650)}, shared=["head*"])


@pytest.mark.parametrize(
    ("shared", "personal", "says"),
    [
        ([0, 2], [0, 1], "without a gap"),
        ([0, -2], [0, 1], "without a gap"),
        ([0.5, 1.0], [0, 1], "whole numbers"),
        ([0], [0, 1], "the same parameters"),
    ],
)
def test_bad_indices(shared, personal, says):
    with pytest.raises(CoterieError, match=says):
        Layout(np.array(shared), np.array(personal))
