"""Terms by formulaic: arithmetic that is none gets a note, and splines are empty outside their range."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import CoterieError
from tests.data.test_formula_expressions import fit, table

POWERS = {
    "x + x^2": ["'x^2' is 'x'", "I(x**2)"],
    "x**3": ["'x**3' is 'x'", "I(x**3)"],
    "(x)^2": ["'x^2' is 'x'", "I(x**2)"],
    "x:x": ["'x:x' is 'x'", "I(x**2)"],
    "x*x": ["'x*x' is 'x'", "I(x**2)"],
    "x:z:x": ["'x:x' is 'x'", "I(x**2)"],
    "x*z*x*x": ["'x*x*x' is 'x'", "I(x**3)"],
    "`a b`^2": ["I(`a b`**2)"],
    "log(x)^2": ["I(log(x)**2)"],
    "(x + z)^2": [],
    "x*z": [],
    "k^2": [],
    "k*k": [],
    "I(x**2)": [],
    "{x**2}": [],
    "x^1": [],
}


@pytest.mark.parametrize(("right", "words"), POWERS.items(), ids=POWERS)
def test_powers_that_vanish_get_a_note(right, words):
    notes = [n for n in fit(right).notes if "in a formula" in n]
    assert len(notes) == bool(words)
    for word in words:
        assert word in notes[0]


@pytest.mark.parametrize(
    "right",
    ["bs(x, df=4)", "z + bs(x, df=4):k", "bs(x, degree=0, knots=[5])", "cc(x, df=4, extrapolation='raise') - 1"],
)
def test_a_row_outside_a_spline_s_range_empties_that_row_only(right):
    model = fit(right)
    new = table().head(6)
    before = model.predict(new).prediction
    new.loc[[2, 4], "x"] = [20.0, -1.0]
    after = model.predict(new, missing="empty")
    np.testing.assert_array_equal(np.flatnonzero(after.prediction.isna()), [2, 4])
    np.testing.assert_allclose(after.prediction[[0, 1, 3, 5]], before[[0, 1, 3, 5]], rtol=1e-12)
    assert after.source[2].startswith("none: a value outside the range of ")
    with pytest.raises(CoterieError, match=r"data rows 3, 5\): its values extend beyond the range of"):
        model.predict(new)


def test_a_spline_that_is_told_to_extend_does():
    new = table().head(3).assign(x=[20.0, 5.0, -1.0])
    for right in ("bs(x, df=4, extrapolation='extend')", "cr(x, df=4) - 1"):
        assert np.isfinite(fit(right).predict(new).prediction).all()


def test_bounds_that_do_not_hold_the_fitted_table_name_its_rows():
    with pytest.raises(CoterieError, match=r"in \d+ rows \(data rows .*extend beyond the range of 'bs\(x"):
        fit("bs(x, df=4, lower_bound=2, upper_bound=5)")


SIGNS = {
    "1/x": ["'1/x' is 'x'", "I(1 / x)"],
    "x/z": ["'x/z' is 'x + x:z'", "I(x / z)"],
    "`a b`/z": ["I(`a b` / z)"],
    "k/x": [],
    "x/k": [],
    "x - z": ["'- z' leaves out a term that the formula does not have", "I(x - z)"],
    "-x": ["I(-x) would be"],
    "x + z - z": [],
    "x - 1": [],
    "(x + z):x": ["'x:x' is 'x'"],
    "(x + z)*x": ["'x*x' is 'x'"],
    "(x + k):k": [],
}


@pytest.mark.parametrize(("right", "words"), SIGNS.items(), ids=SIGNS)
def test_arithmetic_that_a_formula_takes_for_terms_gets_a_note(right, words):
    notes = [n for n in fit(right).notes if "arithmetic" in n]
    assert len(notes) == bool(words)
    assert all(word in notes[0] for word in words)
