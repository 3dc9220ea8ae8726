"""Text that is a number with something around it: one sentence; names that begin with a number are categories."""

import numpy as np
import pandas as pd
import pytest

from coterie.data.columns import Column
from coterie.errors import CoterieError

NUMBERS = {
    "percent": "{}.5%",
    "unit": "0.{} kg",
    "unit without a space": "{}mm",
    "small unit": "{} µg",
    "ratio of units": "{}.5 mg/dl",
    "degrees": "{} °C",
    "square": "{} m²",
    "money before": "$1,{}0",
    "money after": "{},5 €",
    "currency": "USD {}",
    "currency after": "{} CHF",
    "thousands": "1'{}00",
    "decimal comma": "{},5",
    "spaces": "1 {}00",
    "negative in parentheses": "({}.0)",
    "typographic minus": "−{}",
    "less than": "<{}",
    "about": "~{}",
    "words": "{} years",
    "exponent": "{}e3 g",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_with_something_around_them_are_told(name):
    values = [NUMBERS[name].format(i) for i in range(12, 32)]
    with pytest.raises(CoterieError) as problem:
        Column(pd.Series(values).rename("w")).kind()
    assert "'w'" in str(problem.value)
    assert repr(values[0]) in str(problem.value)
    assert "C(w)" in str(problem.value)


def test_two_units_in_one_column_are_told_too():
    with pytest.raises(CoterieError, match="without signs or units"):
        Column(pd.Series([f"0.{i} kg" for i in range(10, 20)] + [f"{i} g" for i in range(10, 20)]).rename("w")).kind()


@pytest.mark.parametrize(
    "values",
    [
        ["1st", "2nd", "3rd"],
        ["3A", "4B", "5C", "6D", "7A"],
        ["3A", "3B", "4A", "4B"],
        ["10-20", "20-30", "30-40"],
        ["week 9", "week 10", "week 11"],
        ["2WD", "4WD"],
        ["A1", "A2", "B1"],
        ["a", "b", "c"],
        ["20 rue X", "3 rue Y", "4 rue Z"],
    ],
    ids=str,
)
def test_names_with_numbers_in_them_are_categories(values):
    assert Column(pd.Series(values * 5).rename("k")).kind() == "category"


def test_levels_left_in_some_rows_have_the_order_of_those():
    column = Column(pd.Series([10, "n/a", 9, 11, 9], dtype=object, name="v"))
    assert column.levels[1] == ("10", "11", "9", "n/a")  # as text
    assert column.levels_in(np.array([0, 2, 3, 4])) == ("9", "10", "11")
    assert column.levels_in(np.array([0, 1, 2, 3])) == column.levels[1]
