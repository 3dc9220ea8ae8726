"""What objectives say of their parameters, and what holds where they say nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.objectives import parameters
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.softmax import Softmax
from tests.messages import names
from tests.methods.layered import layered


def test_defaults():
    o = Quadratic(np.eye(3)[None].repeat(2, axis=0), np.array([[1.0, 2.0, 3.0], [0.0, np.nan, 0.0]]))
    assert parameters.layer_sizes(o) == {"0": 1, "1": 1, "2": 1}
    assert parameters.precision(o) == np.float64
    np.testing.assert_array_equal(parameters.initial_parameters(o, 5), np.zeros(3))
    np.testing.assert_array_equal(parameters.parameter_mask(o), [False, False, False])
    np.testing.assert_array_equal(parameters.parameter_mask(o, ("1",)), [False, True, False])
    np.testing.assert_array_equal(parameters.has_finite_gradient(o), [True, False])


def test_what_is_said_counts():
    o = layered(3)
    assert parameters.layer_sizes(o) == {"body": 4, "scale": 1, "head": 2} and parameters.precision(o) == np.float32
    assert parameters.initial_parameters(o, 1).dtype == np.float32 and not np.array_equal(
        parameters.initial_parameters(o, 1), parameters.initial_parameters(o, 2)
    )
    np.testing.assert_array_equal(parameters.parameter_mask(o, ("he*",)), np.arange(7) >= 5)
    kept = replace(o, kept=("scale",))
    np.testing.assert_array_equal(parameters.parameter_mask(kept), np.arange(7) == 4)
    np.testing.assert_array_equal(parameters.parameter_mask(kept, ("head",)), np.arange(7) >= 4)


def test_an_objective_may_look_at_its_data_itself():
    class Judge(Quadratic):
        def has_finite_gradient(self):
            return np.arange(len(self)) == 0

    np.testing.assert_array_equal(
        parameters.has_finite_gradient(Judge(np.zeros((2, 1, 1)), np.zeros((2, 1)))), [True, False]
    )


def test_a_pattern_that_matches_nothing_lists_the_names():
    with pytest.raises(CoterieError, match=names("'heat' matches parameter head body scale")):
        parameters.parameter_mask(layered(2), ("heat",))
    with pytest.raises(CoterieError, match="'9' matches no parameter"):
        parameters.parameter_mask(Softmax.of([[1.0, 2.0]], [0], [0], [1], 2), ("9",))
