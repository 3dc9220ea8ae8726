"""Rows of a site that a task cannot use are left out by name, and what stands for them is an outcome of the family."""

import numpy as np
import pandas as pd
import pytest

from coterie.data.design import Design
from coterie.deployment.column_types import SchemaColumn
from coterie.deployment.schema import Schema
from coterie.deployment.site.table import usable_rows


def used(frame: pd.DataFrame, formula: str, family: str) -> tuple[pd.DataFrame, list[bool], str]:
    """Of a site whose columns are numbers: the columns, which rows are used, and what its owner is told."""
    own = Schema({name: SchemaColumn("number") for name in frame})
    columns, rows, told = usable_rows(
        frame, own, Design.fit(frame, formula), {"family": family, "weights": None, "offset": None}, 1
    )
    return columns, rows.tolist(), " ".join(told)


@pytest.mark.parametrize("formula", ["s | trials(n) ~ x", "cbind(s, n - s) ~ x"])
def test_trials_that_cannot_be_counted_are_left_out(formula: str) -> None:
    frame = pd.DataFrame({"s": [1.0, 9.0, 0.0, 0.5, 2.0, 2.0], "n": [4.0, 4.0, 0.0, 3.0, 2.5, 2.0], "x": range(6)})
    columns, rows, told = used(frame, formula, "binomial")
    assert rows == [True, False, False, False, False, True]
    assert "has no successes of trials" in told and "4 rows" in told
    np.testing.assert_array_equal(columns.loc[1:4, ["s", "n"]], [[0.0, 1.0]] * 4)


@pytest.mark.parametrize(("family", "stands"), [("gamma", 1.0), ("poisson", 0.0), ("negative-binomial", 0.0)])
def test_what_stands_for_an_outcome_is_one_of_the_family(family: str, stands: float) -> None:
    columns, rows, told = used(pd.DataFrame({"y": [2.0, -1.0, 3.0], "x": range(3)}), "y ~ x", family)
    assert rows == [True, False, True] and f"family {family}" in told
    assert columns["y"].tolist() == [2.0, stands, 3.0]
