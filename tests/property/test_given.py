"""Functions over arrays refuse what is no array of numbers, in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.codecs import by_name
from coterie.errors import CoterieError
from coterie.numerics.network.prox import network_prox
from coterie.numerics.total_variation import pinned_tv

EDGE = [[0, 1]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: pinned_tv(["a", "b"], 1.0), "must be numbers"),
        (lambda: pinned_tv([[1.0], [1.0, 2.0]], 1.0), "must be numbers"),
        (lambda: pinned_tv([1.0], "much"), "must be numbers"),
        (lambda: network_prox([["a"], ["b"]], EDGE, 1.0), "V must be numbers"),
        (lambda: network_prox([[1.0], [2.0]], EDGE, "much"), "weight must be numbers"),
        (lambda: network_prox([[1.0], [2.0]], EDGE, 1.0, metric="unit"), "metric must be numbers"),
        (lambda: network_prox([[1e200], [2.0]], EDGE, 1.0), "Row 0 of V"),
        (lambda: network_prox([[1.0], [np.nan]], EDGE, 1.0), "Row 1 of V"),
        (lambda: network_prox([[1.0], [2.0]], EDGE, 1.0, gap=np.nan), "gap must be a number from 0"),
        (lambda: network_prox([[1.0], [2.0]], EDGE, 1.0, iterations=0), "iterations must be a whole number from 1"),
        (lambda: by_name("float32").encode([["a"]], [0], 0), "must be numbers"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(call, says):
    with pytest.raises(CoterieError, match=says):
        call()
