"""Tables in memory: any frame is one, and its fingerprint is that of its values."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from coterie.data.table import Table, to_pandas
from coterie.errors import CoterieError
from tests.data.test_table_files import frame


@pytest.fixture
def df():
    return frame()


def test_to_pandas():
    df = pd.DataFrame({"a": [1]})
    assert to_pandas(df) is df
    assert to_pandas({"a": [1]}).equals(df)
    assert to_pandas(pl.DataFrame({"a": [1]})).equals(df)
    assert to_pandas(pl.LazyFrame({"a": [1]})).equals(df)
    assert list(to_pandas(pd.DataFrame({0: [1]})).columns) == ["0"]
    with pytest.raises(CoterieError, match="not ndarray"):
        to_pandas(np.zeros(3))
    with pytest.raises(CoterieError, match="same length"):
        to_pandas({"a": [1], "b": [1, 2]})


def test_fingerprint_sees_everything(df):
    seen = {Table.of(df).fingerprint()}
    others = [
        df.rename(columns={"n": "m"}),
        df[["n", "school", "x", "ok", "größe, in m"]],
        df.iloc[::-1],
        df.iloc[:3],
        df.astype({"n": float}),
        df.assign(n=[1, 2, 3, 5]),
        df.assign(x=[0.1, -2.5, 0.0, 1e-300]),
        df.assign(school=["Åre", "b c", "b c", "東 京"]),
        df.assign(ok=[True, False, True, False]),
        df.assign(when=pd.to_datetime("2020-01-01")),
        df.assign(when=pd.to_datetime("2020-01-02")),
    ]
    for other in others:
        seen.add(Table.of(other).fingerprint())
    assert len(seen) == 1 + len(others)
    assert all(len(s) == 64 for s in seen)


def test_fingerprint_does_not_see_how_a_table_is_stored(df):
    same = [
        df.copy(),
        df.set_axis([7, 3, 9, 1], axis=0),
        df.astype({"school": object}),
        df.astype({"school": "category"}),
        df.astype({"n": "int32"}),
        df.astype({"n": "Int64"}),
        df.convert_dtypes(dtype_backend="pyarrow"),
        pl.from_pandas(df),
    ]
    assert {Table.of(d).fingerprint() for d in same} == {Table.of(df).fingerprint()}
