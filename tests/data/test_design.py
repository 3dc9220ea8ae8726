"""Designs: NumPy and formulaic agree, round trips are exact, and later tables get the same columns."""

import subprocess
import sys

import formulaic
import numpy as np
import pandas as pd
import pytest

from coterie.data.design import Design
from coterie.data.formula import parse
from coterie.errors import CoterieError

N = 400


@pytest.fixture(scope="module")
def df():
    rng = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "y": rng.normal(size=N),
            "x": rng.normal(size=N),
            "z": rng.integers(0, 90, N).astype("int8"),
            "b": rng.random(N) < 0.4,
            "f": rng.random(N).astype("float32"),
            "big": rng.normal(size=N) * 1e8,
            "nullable": pd.array(rng.integers(0, 5, N), dtype="Int64"),
            "my var": rng.random(N) + 1,
            "my_var": rng.random(N) + 2,
            "log.x": rng.random(N),
            "größe π": rng.random(N),
            "g": rng.choice(["low", "mid", "high"], N),
            "c": pd.Categorical(rng.choice(["s", "m", "l"], N), ["s", "m", "l", "xl"]),
            "code": rng.integers(1, 5, N),
            "h h": rng.choice(["u v", "w"], N),
        }
    )


SIMPLE = [
    "y ~ 1",
    "y ~ x",
    "y ~ x + z",
    "y ~ z+x-1",
    "y ~ 0 + x + big",
    "y ~ x + b + f + nullable",
    "y ~ `my var` + log.x + `größe π`",
    "y ~ größe + x",
    "y ~ x + x + 1",
    "y~-1+x",
]


@pytest.mark.parametrize("formula", SIMPLE)
def test_numpy_and_formulaic_agree_exactly(df, formula):
    df = df.rename(columns={"größe π": "größe"}) if "größe +" in formula else df
    design = Design.fit(df, formula)
    assert design.parsed.simple is not None
    X, y = design.matrix(df), design.read_outcome(df)
    right = formulaic.model_matrix(formula.split("~")[1].strip(), df.astype({"nullable": float}))
    assert design.terms == tuple("(Intercept)" if c == "Intercept" else c for c in right.columns)
    assert np.array_equal(X, right.to_numpy(dtype=float))
    assert np.array_equal(y, df["y"])
    assert X.flags.c_contiguous


GENERAL = [
    "y ~ x * z",
    "y ~ g",
    "y ~ 0 + g",
    "y ~ c * x",
    "y ~ C(code)",
    "y ~ C(code, contr.sum) + x",
    "y ~ C(g, contr.treatment('mid'))",
    "y ~ center(x) + scale(z)",
    "y ~ poly(x, 3)",
    "y ~ bs(x, df=5)",
    "y ~ cr(x, df=4)",
    "y ~ center(`my var`) + center(my_var)",
    "y ~ I(`my var` * center(`my var`))",
    "y ~ `h h` : `my var`",
    "y ~ log(f + 1) + np.sqrt(f) + sqrt(f) + abs(x)",
    "y ~ I(z**2)",
    "y ~ (x + z + f)**2",
    "y ~ x:g + log.x",
    "y ~ I(g == 'low')",
    "y ~ np.where(x > 0, x, 0)",
    "y ~ scale(center(x))",
    "log(f) ~ x",
    "z >= 30 ~ x",
    "I(z >= 30) ~ g",
    "{z + x} ~ f",
    "g == 'low' ~ x",
    "y ~ . - g",
]


@pytest.mark.parametrize("formula", GENERAL)
def test_json_round_trip_and_later_tables(df, formula):
    design = Design.fit(df, formula)
    again = Design.from_json(design.to_json())
    assert again == design
    assert again.to_json() == design.to_json()
    X, y = design.matrix(df), design.read_outcome(df)
    assert X.shape == (N, len(design.terms))
    rows = np.random.default_rng(0).permutation(N)[:30]
    Xr, yr = again.matrix(df, rows=rows), again.read_outcome(df, rows)
    assert np.array_equal(Xr, X[rows])
    assert np.array_equal(yr, y[rows])
    few = again.matrix(df.iloc[rows[:2]][list(reversed(df.columns))])
    assert np.array_equal(few, X[rows[:2]])


TRANSFORMED = [
    "x * z",
    "g",
    "0 + g",
    "C(code)",
    "center(x) + scale(f)",
    "poly(x, 3)",
    "bs(x, df=5)",
    "cr(x, df=4)",
    "C(g, contr.treatment('mid')):x",
]


@pytest.mark.parametrize("formula", TRANSFORMED)
def test_columns_are_formulaic_s(df, formula):
    design = Design.fit(df, f"y ~ {formula}")
    right = formulaic.model_matrix(formula, df.astype({"z": float, "f": float}))
    assert design.terms[1:] == tuple(right.columns)[1:]
    assert design.matrix(df) == pytest.approx(right.to_numpy(dtype=float), rel=1e-13, abs=1e-13)


def test_blocks_do_not_show(df, monkeypatch):
    design = Design.fit(df, "y ~ x * g + poly(z, 2)")
    whole = design.matrix(df)
    monkeypatch.setattr("coterie.data.design._FORMULAIC_BLOCK", 7)
    assert np.array_equal(design.matrix(df), whole)
    design = Design.fit(df, "y ~ x + z")
    whole = design.matrix(df)
    monkeypatch.setattr("coterie.data.design._BLOCK", 7)
    assert np.array_equal(design.matrix(df), whole)


def test_small_integers_do_not_overflow(df):
    assert Design.fit(df, "y ~ I(z**2)").matrix(df)[:, 1].tolist() == (df["z"].astype(float) ** 2).tolist()


def test_levels_keep_the_order_of_a_category_and_drop_unused_ones(df):
    assert Design.fit(df, "y ~ c").levels == {"c": ("s", "m", "l")}
    assert Design.fit(df, "y ~ g").levels == {"g": ("high", "low", "mid")}
    assert Design.fit(df, "y ~ C(code)").levels == {"code": ("1", "2", "3", "4")}


def test_levels_match_by_text_so_that_integers_may_come_as_floats_or_text(df):
    design = Design.fit(df, "y ~ C(code)")
    X = design.matrix(df)
    assert np.array_equal(design.matrix(df.astype({"code": float})), X)
    assert np.array_equal(design.matrix(df.astype({"code": str})), X)


def test_rows_that_cannot_be_computed_are_nan_on_request(df):
    other = df.copy()
    other.loc[3, "g"] = "new"
    other.loc[5, "x"] = np.nan
    other["f"] = other["f"].astype(float)
    other.loc[7, "f"] = 0.0
    design = Design.fit(df, "y ~ x * g + bs(z, df=4) + log(f)")
    X = design.matrix(other, on_unseen="nan", on_missing="nan")
    assert np.flatnonzero(np.isnan(X).any(axis=1)).tolist() == [3, 5, 7]
    assert np.isnan(X[[3, 5, 7]]).all()
    good = np.setdiff1d(np.arange(N), [3, 5, 7])
    assert np.array_equal(X[good], design.matrix(df)[good])
    with pytest.raises(CoterieError, match="levels that the fitted table did not have: 'new'"):
        design.matrix(other, on_missing="nan")
    with pytest.raises(CoterieError, match="'x' has missing values"):
        design.matrix(other, on_unseen="nan")
    with pytest.raises(CoterieError, match=r"'log\(f\)' is not a finite number in 1 row \(data row 8\)"):
        design.matrix(other, rows=np.array([7, 6, 1]), on_unseen="nan")
    assert np.isfinite(design.matrix(other, rows=np.array([1, 2, 4]))).all()


def test_simple_rows_that_cannot_be_computed_are_nan_on_request(df):
    other = df.copy()
    other.loc[5, "x"] = np.inf
    design = Design.fit(df, "y ~ x + z")
    X = design.matrix(other, on_missing="nan", rows=np.array([4, 5, 6]))
    assert np.isnan(X).tolist() == [[False] * 3, [True] * 3, [False] * 3]


def test_splines_do_not_extrapolate_silently(df):
    design = Design.fit(df, "y ~ bs(x, df=4)")
    with pytest.raises(CoterieError, match="extend beyond"):
        design.matrix(df.assign(x=99.0))


def test_missing_outcome_at_prediction_is_nan(df):
    other = df.copy()
    other.loc[2, "f"] = np.nan
    y = Design.fit(df, "f >= 0.5 ~ x").read_outcome(other)
    assert np.flatnonzero(np.isnan(y)).tolist() == [2]


def test_dot_leaves_out_what_it_is_told(df):
    few = df[["y", "x", "z", "my var"]]
    design = Design.fit(few, parse("y ~ .", few.columns, exclude=("z",)).formula)
    assert design.terms == ("(Intercept)", "x", "my var")
    assert design.formula == "y ~ `x` + `my var`"


def test_text_that_is_mostly_numbers_is_a_category_only_where_it_is_said(df):
    other = df.assign(age=["1", "2", "3", "4+"] * (N // 4))
    with pytest.raises(CoterieError, match=r"'4\+'.*write C\(age\)"):
        Design.fit(other, "y ~ age").matrix(other)
    assert Design.fit(other, "y ~ C(age)").levels == {"age": ("1", "2", "3", "4+")}


def test_damaged_and_newer_json_is_refused(df):
    text = Design.fit(df, "y ~ x").to_json()
    with pytest.raises(CoterieError, match="damaged"):
        Design.from_json(text[:-5])
    with pytest.raises(CoterieError, match="damaged"):
        Design.from_json("{}")
    with pytest.raises(CoterieError, match="newer"):
        Design.from_json(text.replace('"version": 1', '"version": 2'))


def test_parse_needs_no_table():
    parsed = parse("log(a) ~ b * C(c)")
    assert parsed.outcome == "log(a)"
    assert parsed.outcome_columns == ("a",)
    assert parsed.columns == ("b", "c")
    assert parsed.categories == {"c"}


def test_a_simple_formula_does_not_import_formulaic():
    code = (
        "import sys, pandas as pd; from coterie.data.prepare_table import prepare;"
        "prepare(pd.DataFrame({'g': [1, 1, 2], 'y': [1.0, 2, 4], 'x': [1.0, 2, 3]}), 'y ~ x', 'g');"
        "sys.exit('formulaic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
