"""Formulas as people write them in R and patsy: they work, or one sentence says how to write them here."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError

N = 120


def table():
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"c": np.arange(N) % 6, "x": rng.uniform(1, 9, N), "z": rng.normal(size=N)})
    df["k"] = np.resize(["a", "b", "d"], N)
    df["year"] = np.resize([2000, 2001, 2002], N)
    return df.assign(**{"a b": df.x, "x.y": df.z}, y=df.x**2 + 0.1 * df.z)


def fit(right, df=None, **options):
    return coterie.fit(table() if df is None else df, f"y ~ {right}", "c", splits=0, method="pooled", **options)


PATSY = {
    "C(k, Treatment('b'))": "contr.treatment('b')",
    'C(k, Treatment(reference="b"))': "contr.treatment('b')",
    "C(k, contr.Treatment('b'))": "contr.treatment('b')",
    "C(k, Treatment)": "contr.treatment",
    "C(k, Sum)": "contr.sum",
    "C(k, Sum())": "contr.sum",
    "C(k, Poly)": "contr.poly",
    "C(k, Helmert)": "contr.helmert",
    "C(k, Diff)": "contr.diff",
    "C(k, contrasts=Sum)": "contr.sum",
}


@pytest.mark.parametrize(("right", "ours"), PATSY.items(), ids=PATSY)
def test_contrasts_of_patsy_are_ours(right, ours):
    theirs, mine = fit(right), fit(f"C(k, {ours})")
    np.testing.assert_array_equal(theirs.model.root, mine.model.root)
    again = theirs.predict(table().drop(columns="y")).prediction
    np.testing.assert_allclose(again, table().groupby("k").y.transform("mean"), rtol=1e-9)


def test_a_level_that_is_a_number_is_found():
    means = table().groupby("year").y.mean()
    for right in ("C(year, Treatment(2001))", "C(year, contr.treatment(base=2001))", "C(year, Treatment('2001'))"):
        root = fit(right).model.root
        np.testing.assert_allclose(root, [means[2001], means[2000] - means[2001], means[2002] - means[2001]])


HABITS = {
    "offset(z) + x": "offset='z' (--offset z)",
    "x + weights(z)": "weights='z' (--weights z)",
    "factor(k)": "write C(k)",
    "as.factor(k)": "write C(k)",
    "x + (1 | c)": "name the group as client (--client)",
    "x + (1 + x || c)": "name the group as client (--client)",
    "ns(x, df=3)": "bs(x, df=4)",
    "s(x)": "cr(x, df=4, constraints='center')",
    "log1p(x)": "np.log1p(x)",
    "np.power(x, 2)": "I(x**2)",
    "I(x^2)": "** for a power",
    "Q('x')": "backticks",
    "poly(x, 2, raw=TRUE)": "Write True",
    "x > 3": "I(x > 3)",
    "k == 'a'": "I(x > 3)",
    "log(x.y)": "`x.y` between backticks",
    "log(x, 2)": "log takes one value",
    "np.log(x, z)": "np.log takes one value",
    "relevel(k, ref='b')": "contr.treatment('level')",
    "C(k, 'b')": "contr.treatment('b')",
    "C(k, base='b')": "contr.treatment('b')",
    "C(k, contr.treatment(3, base=2))": "contr.treatment(base)",
    "C(k, contr.sum(n=3))": "contr.sum()",
    "C(k, Treatment('zz'))": "names level 'zz'",
    "C(k, Treatment(1))": "names level '1'",
}


@pytest.mark.parametrize(("right", "remedy"), HABITS.items(), ids=HABITS)
def test_other_habits_are_told_how_to_be_written(right, remedy):
    with pytest.raises(CoterieError) as problem:
        fit(right)
    assert remedy in str(problem.value)
    assert "TypeError" not in str(problem.value)


def test_names_with_points_need_no_backticks():
    assert fit("x.y + x").model.terms == ("(Intercept)", "x.y", "x")


@pytest.mark.parametrize(
    ("values", "family", "said"),
    [
        ([0, 1], "gaussian", "two values, 0 and 1"),
        ([True, False], "gaussian", "two values, 0 and 1"),
        ([1, 2], "gaussian", "binomial) with values of 0 and 1"),
        ([0, 1, 2], "gaussian", None),
        ([0, 1], "binomial", None),
        ([0, 1], "poisson", None),
    ],
)
def test_an_outcome_of_two_values_under_the_default_family_gets_a_note(values, family, said):
    df = table().assign(y=np.random.default_rng(1).choice(values, N))
    notes = [n for n in fit("x", df, family=family).notes if "two values" in n]
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]


def test_contrasts_of_ordered_levels_say_that_text_is_taken_by_the_alphabet():
    df = table().assign(size=np.resize(["low", "mid", "high"], N))
    own = df.assign(size=pd.Categorical(df["size"], ["low", "mid", "high"], ordered=True))
    for contrast in ("Poly", "contr.poly", "contr.helmert(reverse=False)", "Diff"):
        assert any("'high', 'low', 'mid'" in n for n in fit(f"C(size, {contrast})", df).notes)
        assert not any("alphabet" in n for n in fit(f"C(size, {contrast})", own).notes)
    for right in ("C(size, Sum)", "C(year, Poly)", "size"):
        assert not any("alphabet" in n for n in fit(right, df).notes)


FAULTS = {
    "exp(log) + log(exp)": "Rename the column 'exp': the formula calls a function of that name",
    "exp(`class`)": "Rename the column 'class', which is a word of Python",
    "x + ``": "names no column between two backticks",
    "cr(x, df=4)": "Write cr(x, df=4, constraints='center')",
    "te(cr(x), cr(z))": "bs(x, df=4):bs(z, df=4)",
    "offset(log(z))": "offset='name'",
    "log(k)": "on this table: 'log(k)': 'k' is a category",
    "scale(k)": "on this table: 'scale(k)': 'k' is a category",
    "x + poly(z, 0)": "'poly(z, 0)' makes no columns",
    "bs(x, df=2)": "on this table: 'bs(x, df=2)': 'x' has 120 different values, and df, degree",
    "log(z)": "Correct these rows, or leave them out of the table",
}


@pytest.mark.parametrize(("right", "words"), FAULTS.items(), ids=FAULTS)
def test_more_faults_have_their_remedy(right, words):
    with pytest.raises(CoterieError) as e:
        fit(right, table().assign(exp=1.0, log=2.0, **{"class": 3.0}))
    assert words in str(e.value)


def test_a_short_name_in_backticks_is_not_found_inside_of_other_words():
    df = table().assign(o=np.resize(["a", "b", "d"], N))
    np.testing.assert_array_equal(fit("C(`o`, contr.sum)", df).model.root, fit("C(o, contr.sum)", df).model.root)


def test_numbers_that_are_text_are_refused_and_whole_ones_get_a_note():
    df = table()
    for column in (df.x.astype(str), [v if i % 2 else str(v) for i, v in enumerate(df.x)]):
        with pytest.raises(CoterieError, match=r"numbers that are text, such as .* pandas\.to_numeric"):
            fit("x", df.assign(x=column))
    assert any("all of it is whole numbers" in n for n in fit("year", df.assign(year=df.year.astype(str))).notes)
    for right, front in (("C(year)", ""), ("year", "0")):
        notes = fit(right, df.assign(year=front + df.year.astype(str))).notes
        assert not any("whole numbers" in n for n in notes)
