"""What sites agree on: designs made without rows, levels united, and who differs in what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coterie.data.design import Design
from coterie.data.table_files import read_table
from coterie.deployment.column_types import SchemaColumn
from coterie.deployment.schema import Schema, disagreements, propose, unite
from coterie.errors import CoterieError
from tests.deployment.sites import FORMULA, table, tables

AGREED = Schema(
    {
        "age": SchemaColumn("number", "years", low=18, high=110, center=54, scale=9),
        "pain": SchemaColumn("category", levels=("1", "2", "3", "4")),
        "ill": SchemaColumn("category", levels=("no", "yes")),
        "hospital": SchemaColumn("label"),
        "a b": SchemaColumn("number"),
    }
)


def test_a_schema_is_read_as_it_was_written(tmp_path):
    AGREED.write(tmp_path / "schema.toml")
    assert Schema.read(tmp_path / "schema.toml") == AGREED
    assert Schema.of(AGREED.plain()) == AGREED


def test_what_a_site_states_has_no_number():
    assert AGREED.statement()["age"] == {"type": "number", "unit": "years"}


def test_a_design_has_all_levels_whatever_rows_a_site_has():
    design = AGREED.design("ill ~ age + pain")
    assert design.terms == ("(Intercept)", "age", "pain[T.2]", "pain[T.3]", "pain[T.4]")
    assert design.outcome_levels == ("no", "yes")
    rows = pd.DataFrame({"pain": [3, 3], "ill": ["yes", "no"], "age": [60.0, 50.0]})
    X, y = design.matrix(rows), design.read_outcome(rows)
    assert X.tolist() == [[1, 60, 0, 1, 0], [1, 50, 0, 1, 0]]
    assert y.tolist() == [1, 0]


def test_a_design_is_the_one_that_all_rows_together_give():
    frames = tables()
    united, _ = unite({name: propose(f, ["ward", "kind"], ["pain"])[0] for name, f in frames.items()})
    every = pd.concat(frames.values(), ignore_index=True)
    assert united.design(FORMULA) == Design.fit(every, FORMULA)


def test_a_center_of_zero_has_no_sign_and_a_label_keeps_no_numbers():
    table = pd.DataFrame({"x": np.tile([-1.0, 1.0], 20) - 1e-9})
    first, _ = propose(table)
    assert str(first.columns["x"].center) == "0.0" and first.columns["x"].scale == 1.0
    label, _ = propose(table, ["x"], known=first)
    assert label.columns["x"] == SchemaColumn("label")


def test_a_dot_leaves_labels_out():
    assert AGREED.design("age ~ .").parsed.columns == ("pain", "ill", "a b")


@pytest.mark.parametrize("term", ["scale(age)", "standardize(age)"])
def test_scaling_takes_the_numbers_of_the_schema(term):
    X = AGREED.design(f"`a b` ~ {term}").matrix(pd.DataFrame({"age": [54.0, 63.0]}))
    assert np.allclose(X, [[1, 0], [1, 1]], rtol=0, atol=1e-12)


def test_splines_take_the_range_of_the_schema():
    """Knots by hand: a spline fitted to an even grid over the range is the same at every site."""
    design = AGREED.design("`a b` ~ bs(age, df=4) + center(age)")
    grid = pd.DataFrame({"age": np.linspace(18, 110, 100), "a b": 0.0})
    other = Design.fit(grid, "`a b` ~ bs(age, df=4)")
    ours = design.matrix(grid)
    theirs = other.matrix(grid)
    assert np.allclose(ours[:, 1:5], theirs[:, 1:5], rtol=0, atol=1e-12)
    assert np.allclose(ours[:, 5], grid["age"] - 54.0)


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("ill ~ agee", "'agee', which is not a column. Did you mean 'age'"),
        ("ill ~ hospital", "holds labels"),
        ("ill ~ C(age)", "has no levels of 'age'"),
        ("ill ~ scale(`a b`)", "learns from rows"),
        ("age ~ scale(log(age))", "both sides"),
        ("ill ~ scale(log(age))", "learns from rows"),
        ("ill ~ scale(age, center=False)", "without options"),
        ("pain ~ age", "must be a number, or have two values"),
    ],
)
def test_formulas_the_sites_cannot_agree_on(formula, sentence):
    with pytest.raises(CoterieError, match=sentence):
        AGREED.design(formula)


def test_scaling_needs_numbers():
    schema = Schema({"y": SchemaColumn("number"), "x": SchemaColumn("number", center=1.0)})
    with pytest.raises(CoterieError, match=r"'scale\(x\)' needs numbers .*: write scale of column 'x'"):
        schema.design("y ~ scale(x)")
    with pytest.raises(CoterieError, match=r"write low and high of column 'x'"):
        schema.design("y ~ bs(x, df=4)")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"type": "numbr"}, "type .*must be number, category or label"),
        ({"type": "number", "unit": 3}, "unit .*must be text"),
        ({"type": "category", "levels": [1, 2]}, "levels .*must be a list of text"),
        ({"type": "category", "levels": ["a", "a"]}, "named twice"),
        ({"type": "number", "low": 3, "high": 2}, "must be below"),
        ({"type": "number", "scale": 0}, "above 0"),
        ({"type": "number", "center": "x"}, "must be a number"),
        ({"type": "number", "units": "kg"}, "Did you mean 'unit'"),
        ({}, "does not say type"),
    ],
    ids=str,
)
def test_a_wrong_column_is_named(keys, sentence):
    with pytest.raises(CoterieError, match=sentence) as problem:
        Schema.of({"age": keys})
    assert "age" in str(problem.value)


def test_a_first_schema_from_a_table():
    frame = table(2).assign(rare=["x"] * 2 + ["y"] * 38, day=pd.Timestamp("2026-01-01"))
    found, notes = propose(frame, ["ward"], ["pain"], min_group=5)
    assert found.columns["pain"] == SchemaColumn("category", levels=("1", "2", "3", "4"))
    assert found.columns["ward"] == SchemaColumn("label")
    assert abs(found.columns["age"].center - frame["age"].mean()) < 1.0
    assert [n for n in notes if "'rare'" in n] == [
        "Levels of 'rare' with fewer than 5 rows, whose names travel: 'x' (2)."
    ]
    assert any("'day' was left out" in n for n in notes)


def test_a_first_schema_keeps_what_was_agreed():
    before = Schema(
        {
            "pain": SchemaColumn("category", "score", levels=("9",)),
            "age": SchemaColumn("number", "years", low=0, high=99),
        }
    )
    found, _ = propose(table(0), ["ward"], known=before)
    assert found.columns["pain"] == SchemaColumn("category", "score", levels=("9", "1", "2", "3"))
    assert found.columns["age"] == before.columns["age"]


def test_levels_are_united_and_differences_named():
    first = Schema({"x": SchemaColumn("category", levels=("a", "b")), "chol": SchemaColumn("number", "mmol/l")})
    other = Schema({"x": SchemaColumn("category", levels=("b", "c")), "chol": SchemaColumn("number", "mg/dl")})
    united, problems = unite({"basel": first, "bern": other})
    assert united.columns["x"].levels == ("a", "b", "c")
    assert problems == ["at site 'bern' 'chol' is in mg/dl and not in mmol/l"]
    without = Schema({"x": replace(first.columns["x"], type="label", levels=())})
    assert disagreements(first, without) == ["'x' is a label and not a category", "there is no column 'chol'"]
    assert disagreements(first, other, ["x"]) == []


def test_a_level_of_the_schema_is_no_missing_value(tmp_path):
    (tmp_path / "a.csv").write_text("arm,x\n" + "None,1\nNA,2\nb,3\n" * 6)
    schema = Schema({"arm": SchemaColumn("category", levels=("None", "b")), "x": SchemaColumn("number")})
    arm = read_table(tmp_path / "a.csv", (), schema.na_values).arm
    assert (arm.value_counts()["None"], arm.isna().sum()) == (6, 6)
    assert AGREED.na_values is None
