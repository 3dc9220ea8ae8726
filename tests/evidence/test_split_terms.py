"""Terms that remember rows, such as scale(x) and bs(x), learn them from the training rows of each split alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.data.prepare_table import prepare
from coterie.data.splits import split_rows

N = 200
TERMS = ["scale(x)", "center(x)", "standardize(x)", "bs(x, df=5)", "cr(x, df=4) - 1", "poly(x, 2)", "scale(log(x)):k"]


def table():
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"c": np.arange(N) % 8, "x": rng.uniform(1.0, 9.0, N), "k": np.resize(["a", "b"], N)})
    return df.assign(y=df.x + rng.normal(size=N))


@pytest.mark.parametrize("right", TERMS)
def test_held_out_rows_change_nothing_of_what_is_trained_on(right):
    df = table()
    clients = prepare(df, f"y ~ {right}", "c")[0]
    test = split_rows(clients, 0.25, 0)
    train, held = clients.split(test)
    there = clients.order[test]
    middle = np.median(df.x[np.setdiff1d(np.arange(N), there)])
    other = df.copy()
    other.loc[there, "x"] = middle
    again = prepare(other, f"y ~ {right}", "c")[0].split(test)[0]
    np.testing.assert_array_equal(train.X, again.X)
    expected = prepare(df.drop(index=there), f"y ~ {right}", "c")[0]  # the training rows as a table of their own
    np.testing.assert_allclose(train.X, expected.X, rtol=1e-12, atol=1e-12)
    assert np.isfinite(held.X).all()
    assert not np.allclose(train.X, clients.X[~test])


def test_held_out_rows_outside_of_a_spline_s_range_are_not_tested():
    df = table()
    clients = prepare(df, "y ~ bs(x, df=4)", "c")[0]
    test = split_rows(clients, 0.25, 0)
    test[np.argmax(df.x.to_numpy()[clients.order])] = True
    train, held = clients.split(test)
    x = df.x.to_numpy()
    assert len(held.y) < test.sum()
    assert x[held.order].max() <= x[train.order].max()
    assert held.stops[-1] == len(held.y)
    result = coterie.fit(df, "y ~ bs(x, df=4)", "c", splits=6)
    assert np.isfinite(result.comparison.loss_rows).all()
    assert sum("not tested" in note for note in result.notes) == 1


def test_terms_without_memory_are_not_computed_again():
    assert prepare(table(), "y ~ log(x) + I(x**2)", "c")[0].relearn is None
