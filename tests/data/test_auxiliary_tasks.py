"""Several outcomes of a table as tasks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from coterie.data.auxiliary_tasks import stack_tasks
from coterie.errors import CoterieError
from tests.messages import names


def table(n=30):
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    noise = rng.normal(size=(3, n))
    frame = pd.DataFrame({"x": x, "a": 5 + 2 * x + noise[0], "b": 1 - x + 0.1 * noise[1], "c": 10 * x + noise[2]})
    frame.loc[3, "b"] = np.nan
    return frame


def test_each_outcome_is_a_task_in_units_that_compare():
    df = table()
    out = stack_tasks(df, "a", ["b", "c"])
    assert list(out.columns) == ["x", "task", "outcome", "row"]
    assert out["task"].value_counts().to_dict() == {"a": 30, "c": 30, "b": 29}
    units = out.attrs["tasks"]
    assert units["b"]["scale"] < 0.0 < units["a"]["scale"]
    for name, rows in out.groupby("task"):
        value = rows["outcome"].to_numpy() * units[name]["scale"] + units[name]["location"]
        np.testing.assert_allclose(value, df[name].to_numpy()[rows["row"]])
        assert rows["outcome"].mean() == pytest.approx(0.0, abs=1e-12)
        assert np.corrcoef(rows["outcome"], rows["x"])[0, 1] > 0.5
        assert (rows["x"].to_numpy() == df["x"].to_numpy()[rows["row"]]).all()


def test_outcomes_may_stay_as_they_are():
    df = table()
    out = stack_tasks(df, "a", "c", standardise=False)
    assert out["outcome"].tolist() == [*df["a"], *df["c"]]
    assert list(out.columns) == ["x", "b", "task", "outcome", "row"]


@pytest.mark.parametrize(
    ("change", "main", "auxiliary", "said"),
    [
        ({}, "a", [], "There are no auxiliary tasks"),
        ({}, "a", ["a"], "named twice"),
        ({}, "nowhere", ["a"], "nowhere"),
        ({}, ["a", "b"], ["c"], "main must be the name of one column"),
        ({"a": [1.0] + 29 * [np.nan]}, "a", ["b"], "'a' does not vary"),
        ({"b": "text"}, "a", ["b"], "holds no numbers"),
        ({"b": 1.0}, "a", ["b"], "does not vary"),
        ({"b": np.nan}, "a", ["b"], "does not vary"),
        ({"b": np.inf}, "a", ["b"], "infinite"),
        ({"row": 1}, "a", ["b"], "has a column 'row' already"),
    ],
)
def test_bad_input(change, main, auxiliary, said):
    with pytest.raises(CoterieError, match=said):
        stack_tasks(table().assign(**change), main, auxiliary)


def test_standardise_is_yes_or_no():
    with pytest.raises(CoterieError, match=names("standardise true false not 'no'")):
        stack_tasks(table(), "a", "b", standardise="no")
