"""What a user sees for every kind of bad table: one sentence that names the column, the client or the row."""

import numpy as np
import pandas as pd
import pytest

from coterie.data.clients import Clients
from coterie.data.design import Design
from coterie.data.prepare_table import prepare
from coterie.errors import CoterieError
from tests.messages import names

N = 12


def table(**columns):
    """Three clients of four rows in two clusters; columns can be replaced, added, or left out with None."""
    rng = np.random.default_rng(5)
    data = {
        "school": np.repeat(["a", "b", "c"], 4),
        "sector": np.repeat(["u", "u", "v"], 4),
        "score": rng.normal(size=N),
        "hours": rng.normal(size=N),
        "level": ["lo", "hi", "mid"] * 4,
        "passed": [0, 1] * 6,
        "visits": np.arange(N) % 5,
        "ok": ["yes", "no"] * 6,
    }
    data |= columns
    return pd.DataFrame({k: v for k, v in data.items() if v is not None})


def changed(column, rows, value):
    """A column with another value in some rows (counted from 1)."""
    values = list(table()[column])
    for row in rows:
        values[row - 1] = value
    return {column: values}


BASE = {"formula": "score ~ hours", "client": "school"}

CASES = [
    # id, table, arguments, what the sentence holds
    ("no rows", table().iloc[:0], {}, ["The table has no rows"]),
    ("client not there", table(), {"client": "schol"}, ["client column 'schol'", "Did you mean 'school'"]),
    ("cluster not there", table(), {"cluster": "sektor"}, ["cluster column 'sektor'", "'sector'"]),
    ("weights not there", table(), {"weights": "w"}, ["weights column 'w' is not in the table"]),
    ("column not there", table(), {"formula": "score ~ houres"}, ["'houres', which is not a column", "'hours'"]),
    ("outcome not there", table(), {"formula": "scor ~ hours"}, ["'scor'", "Did you mean 'score'"]),
    ("case differs", table(), {"formula": "score ~ Hours"}, ["'Hours'", "Did you mean 'hours'"]),
    ("no outcome", table(), {"formula": "~ hours"}, ["needs one outcome"]),
    ("no tilde", table(), {"formula": "score hours"}, ["needs one outcome and one '~'"]),
    ("a half", table(), {"formula": "score ~ hours/2"}, ["a number other than 0 or 1 is no term", "I(x / 2)"]),
    ("twice", table(), {"formula": "score ~ 2*hours"}, ["a number other than 0 or 1 is no term", "I(x / 2)"]),
    ("alone", table(), {"formula": "score ~ hours + 5"}, ["a number other than 0 or 1 is no term", "I(x / 2)"]),
    ("syntax", table(), {"formula": "score ~ hours +"}, ["cannot be read", "+"]),
    ("lme4 bar", table(), {"formula": "score ~ hours + (1 | school)"}, ["'|'", "name the group as client"]),
    ("unknown function", table(), {"formula": "score ~ logg(hours)"}, ["calls 'logg'", "'log'"]),
    ("code", table(), {"formula": "score ~ {__import__('os')}"}, ["calls '__import__'"]),
    ("attribute", table(), {"formula": "score ~ log(hours.values)"}, ["may not hold"]),
    ("empty right", table(), {"formula": "score ~ 0"}, ["no columns on its right side"]),
    ("both sides", table(), {"formula": "score ~ score + hours"}, ["'score' is on both sides"]),
    ("client in formula", table(), {"formula": "score ~ hours + school"}, ["'school' is the client column"]),
    ("client is outcome", table(), {"client": "score"}, ["'score' is the outcome"]),
    ("cluster is outcome", table(), {"cluster": "score"}, ["'score' is the outcome"]),
    ("cluster is client", table(), {"cluster": "school"}, ["'school' is both the client and a cluster"]),
    ("cluster twice", table(), {"cluster": ["sector", "sector"]}, ["'sector' is named twice"]),
    ("offset is weights", table(), {"offset": "hours", "weights": "hours"}, ["'hours' is named twice"]),
    ("offset in formula", table(), {"offset": "hours"}, ["'hours' is the offset"]),
    ("labels missing", table(**changed("school", [2, 5], None)), {}, ["Client column 'school'", "(data rows 2, 5)"]),
    ("cluster missing", table(**changed("sector", [3], None)), {"cluster": "sector"}, ["'sector'", "(data row 3)"]),
    ("missing", table(**changed("hours", [1, 4, 9], np.nan)), {}, ["'hours' has missing", "(data rows 1, 4, 9)"]),
    ("many missing", table(**changed("hours", range(1, 8), np.nan)), {}, ["7 rows (data rows 1, 2, 3, 4, 5, ...)"]),
    ("infinite", table(**changed("hours", [6], np.inf)), {}, ["'hours' has infinite values in 1 row (data row 6)"]),
    ("outcome missing", table(**changed("score", [6], np.nan)), {}, ["'score' has missing values", "(data row 6)"]),
    ("not a number", table(**changed("hours", [7], "many")), {}, ["'hours' has values that are", "7): 'many'"]),
    ("outcome not a number", table(**changed("score", [7], "?")), {}, ["'score' has values that are", "7): '?'"]),
    ("category missing", table(**changed("level", [8], None)), {"formula": "score ~ level"},
     ["'level' has missing", "row 8"]),
    ("two faults", table(**changed("hours", [1], np.nan), **changed("score", [2], np.inf)), {},
     ["'hours'", "'score'", "row 2"]),
    ("dates", table(hours=pd.date_range("2020", periods=N)), {}, ["'hours' holds dates"]),
    ("durations", table(hours=pd.to_timedelta(range(N), "h")), {}, ["'hours' holds durations"]),
    ("lists", table(hours=[[1, 2]] * N), {}, ["'hours' holds values of type object"]),
    ("labels are lists", table(school=[[1]] * N), {}, ["'school' holds values of type list, which cannot be labels"]),
    ("offset as text", table(off=["1.5", "2.5", "3.5"] * (N // 3)), {"offset": "off"}, ["'off' must hold numbers"]),
    ("all left out", table(hours=[np.nan] * N), {"missing": "drop"}, ["No row is left"]),
    ("missing argument", table(), {"missing": "ignore"}, ["missing must be 'error' or 'drop'"]),
    ("constant", table(score=3.0), {}, ["'score' is constant: 3"]),
    ("constant text", table(ok="yes"), {"formula": "ok ~ hours", "family": "binomial"}, ["'ok' is constant: 'yes'"]),
    ("constant 0", table(passed=0), {"formula": "passed ~ hours", "family": "binomial"}, ["'passed' is constant: 0"]),
    ("family unknown", table(), {"family": "binomal"}, ["no family 'binomal'", "Did you mean 'binomial'"]),
    ("binomial 0.5", table(**changed("passed", [3], 0.5)), {"formula": "passed ~ hours", "family": "binomial"},
     ["0 and 1", "'passed' has 0.5 in 1 row (data row 3)"]),
    ("binomial 1 and 2", table(passed=[1, 2] * 6), {"formula": "passed ~ hours", "family": "binomial"},
     ["has 2 in 6 rows"]),
    ("text of three values", table(), {"formula": "level ~ hours", "family": "binomial"}, ["'level' is text with 3"]),
    ("gaussian text", table(), {"formula": "ok ~ hours"}, ["'ok' is text ('no' and 'yes')", "Use family binomial"]),
    ("poisson text", table(), {"formula": "ok ~ hours", "family": "poisson"}, ["'ok' is text"]),
    ("poisson negative", table(**changed("visits", [4], -1)), {"formula": "visits ~ hours", "family": "poisson"},
     ["counts", "'visits' has -1 in 1 row (data row 4)"]),
    ("poisson fraction", table(**changed("visits", [4], 1.5)), {"formula": "visits ~ hours", "family": "poisson"},
     ["'visits' has 1.5"]),
    ("client in two clusters", table(**changed("sector", [4, 5], "w")), {"cluster": "sector"},
     ["2 of 3 labels of 'school'", "a in u, w", "b in u, w"]),
    ("cluster in two regions", table(region=list("xxxxyyyyyyyy")), {"cluster": ["sector", "region"]},
     ["1 of 2 labels of 'sector'", "u in x, y"]),
    ("clusters coarse to fine", table(region=list("xxxxyyyyzzzz")), {"cluster": ["sector", "region"]},
     ["Every 'region' is in one 'sector', not the other way round", "from fine to coarse"]),
    ("client coarser than cluster", table(), {"client": "sector", "cluster": "school"},
     ["Every 'school' is in one 'sector'"]),
    ("numbers with decimal commas", table(hours=[f"0,{i}" for i in range(N)]), {},
     ["'hours' has numbers that are written", "'0,0'"]),
    ("percentages", table(hours=[f"{i} %" for i in range(N)]), {},
     ["'hours' has numbers that are written as text", "'0 %'"]),
    ("dates as text", table(hours=[f"2026-01-{i + 1:02}" for i in range(N)]), {}, ["'hours' holds dates", "C(hours)"]),
    ("spaces in a name", table(**{"study hours": 1.0}), {"formula": "score ~ study hours"},
     ["between backticks, `study hours`"]),
    ("huge counts", table(visits=np.arange(N) * 1e10), {"formula": "visits ~ hours", "family": "poisson"},
     ["counts up to 1.1e+11"]),
    ("one client", table(school="only"), {}, ["only one client: 'school' is only in every row"]),
    ("negative weight", table(w=[-1.0] + [1.0] * 11), {"weights": "w"}, ["'w' is negative in 1 row (data row 1)"]),
    ("missing weight", table(w=[1.0] * 11 + [np.nan]), {"weights": "w"}, ["'w' has missing values", "(data row 12)"]),
    ("text weight", table(), {"weights": "level"}, ["weights column 'level' must hold numbers"]),
    ("zero weights", table(w=0.0), {"weights": "w"}, ["'w' is 0 in every row"]),
    ("wide weights", table(w=[1e9] + [1.0] * 11), {"weights": "w"},
     ["weights in a school span more than eight powers of ten"]),
    ("text offset", table(), {"offset": "level"}, ["offset column 'level' must hold numbers"]),
    ("log of zero", table(hours=np.arange(N)), {"formula": "score ~ log(hours)"},
     ["'log(hours)' is not a finite", "row 1"]),
    ("zero by zero", table(hours=np.arange(N) - 3), {"formula": "score ~ I(hours / 0)"},
     ["'I(hours / 0)' is not a finite"]),
    ("outcome log of zero", table(), {"formula": "log(visits) ~ hours"}, ["'log(visits)' is not a finite", "1, 6, 11"]),
    ("log of text", table(), {"formula": "score ~ log(level)"}, ["cannot be computed"]),
    ("spline of one value", table(hours=2.0), {"formula": "score ~ cr(hours, df=3)"}, ["'hours' is the same in every"]),
    ("scale of one value", table(hours=2.0), {"formula": "score ~ scale(hours)"}, ["'scale(hours)' is", "in any row"]),
    ("R's product", table(), {"formula": "score ~ hours %*% visits"}, ["'%*%'", "write *"]),
    ("truth beside numbers", table(school=[True, 1, 1.0, 0] * 3), {}, ["'school' must not hold True or False"]),
    ("both ways", table(), {"formula": "score ~ visits + C(visits)"}, ["'visits' both as a category and as a number"]),
    ("Intercept", table(Intercept=1.0), {"formula": "score ~ Intercept + level"}, ["Rename the column 'Intercept'"]),
    ("same name", table().rename(columns={"hours": "score"}), {}, ["more than one column named 'score'"]),
    ("not a table", [1, 2], {}, ["must be a pandas or polars frame, not list"]),
]  # fmt: skip


@pytest.mark.parametrize(("df", "arguments", "fragments"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_bad_table(df, arguments, fragments):
    with pytest.raises(CoterieError) as caught:
        prepare(df, **(BASE | arguments))
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message
    assert message.endswith((".", "?")), message
    assert "\n" not in message
    assert "singular" not in message.lower()


def test_every_case_has_its_own_name():
    assert len({c[0] for c in CASES}) == len(CASES)


def test_rows_are_those_of_the_users_table_also_after_others_were_left_out():
    df = table(**changed("hours", [1, 2], np.nan), **changed("visits", [9], -2))
    with pytest.raises(CoterieError, match=r"has -2 in 1 row \(data row 9\)"):
        prepare(df, "visits ~ hours", "school", family="poisson", missing="drop")


def test_ten_thousand_levels_are_refused_by_name():
    n = 20_000
    df = pd.DataFrame(
        {"y": np.arange(n, dtype=float), "g": np.arange(n) % 50, "city": [f"c{i // 2}" for i in range(n)]}
    )
    with pytest.raises(
        CoterieError, match=r"Column 'city' has 10,000 different values.*the client or the cluster column"
    ):
        prepare(df, "y ~ city", "g")


def test_wide_interactions_are_refused():
    n = 2000
    df = pd.DataFrame({"y": np.arange(n, dtype=float), "g": np.arange(n) % 50})
    df["a"] = [f"a{i % 60}" for i in range(n)]
    df["b"] = [f"b{i % 61}" for i in range(n)]
    with pytest.raises(CoterieError, match=r"about 3,782 columns"):
        prepare(df, "y ~ a * b", "g")


def test_missing_rows_are_left_out_on_request_and_said():
    df = table(**changed("hours", [2], np.nan), **changed("school", [5], None), **changed("score", [6], "bad"))
    clients, design = prepare(df, "score ~ hours", "school", missing="drop")
    assert sorted(clients.order) == [0, 2, 3, 6, 7, 8, 9, 10, 11]
    assert "3 of 12 rows were left out" in clients.notes[0]
    assert design.terms == ("(Intercept)", "hours")
    assert np.array_equal(clients.y, df["score"][clients.order].astype(float))


def test_a_category_seen_only_in_rows_left_out_has_no_column():
    df = table(**changed("level", [1], "rare"), **changed("hours", [1], np.nan))
    _, design = prepare(df, "score ~ hours + level", "school", missing="drop")
    assert design.levels["level"] == ("hi", "lo", "mid")


def test_one_cluster_is_left_out_and_said():
    clients, _ = prepare(table(sector="u"), "score ~ hours", "school", "sector")
    assert clients.levels == ()
    assert "only one cluster: 'sector' is u" in clients.notes[0]


def test_clusters_of_one_client_each_are_left_out_and_said():
    df = table(unit=np.repeat([1, 2, 3], 4))
    clients, _ = prepare(df, "score ~ hours", "school", ["unit", "sector"])
    assert [level.name for level in clients.levels] == ["sector"]
    assert "Every 'unit' holds one 'school'" in clients.notes[0]
    assert clients.levels[0].parent.tolist() == [0, 0]
    assert clients.clusters.tolist() == [0, 0, 1]


def test_one_row_for_each_client_is_a_property_not_an_error():
    clients, _ = prepare(table(school=np.arange(N)), "score ~ hours", "school")
    assert clients.single_rows
    assert not prepare(table(), "score ~ hours", "school")[0].single_rows


def test_text_of_two_values_says_which_is_1():
    clients, design = prepare(table(), "ok ~ hours", "school", family="binomial")
    assert clients.notes == ("In 'ok', 'yes' counts as 1 and 'no' as 0.",)
    assert design.outcome_levels == ("no", "yes")
    assert clients.y.tolist() == [1, 0] * 6


def test_a_client_with_one_class_only_works():
    df = table(passed=[1] * 4 + [0, 1] * 4)
    clients, _ = prepare(df, "passed ~ hours", "school", family="binomial")
    assert clients.y[:4].tolist() == [1, 1, 1, 1]


def test_booleans_are_a_binomial_outcome():
    df = table(passed=[False, True] * 6)
    assert prepare(df, "passed ~ hours", "school", family="binomial")[0].y.tolist() == [0, 1] * 6


ARRAYS = [
    ("X shape", {"X": np.ones(4)}, "two dimensions"),
    ("X empty", {"X": np.ones((0, 1)), "y": [], "clients": []}, "no rows"),
    ("X text", {"X": [["a"], ["b"], ["c"], ["d"]]}, "X must be numbers, in rows of one length"),
    ("X missing", {"X": [[1.0], [np.nan], [1.0], [1.0]]}, r"X has missing or infinite values in 1 row \(data row 2\)"),
    ("y length", {"y": [1.0, 2.0]}, "y has shape"),
    ("y missing", {"y": [1.0, np.inf, 2.0, 3.0]}, r"y has missing or infinite values in 1 row \(data row 2\)"),
    ("clients length", {"clients": ["a", "b"]}, "clients has 2 labels; X has 4 rows"),
    ("clients missing", {"clients": ["a", None, "b", "b"]}, r"clients has no label in 1 row \(data row 2\)"),
    ("clusters torn", {"clusters": [1, 2, 2, 2]}, "1 of 2 labels of 'client' are in more than one 'cluster'"),
    ("terms", {"terms": ["a", "b"]}, "2 names of terms cannot name 1 column"),
    ("weights", {"weights": [1.0, 1.0, 1.0, -1.0]}, "1 negative"),
]


@pytest.mark.parametrize(("arguments", "match"), [c[1:] for c in ARRAYS], ids=[c[0] for c in ARRAYS])
def test_bad_arrays(arguments, match):
    good = {"X": np.ones((4, 1)), "y": [1.0, 2.0, 3.0, 4.0], "clients": ["a", "a", "b", "b"]}
    with pytest.raises(CoterieError, match=match):
        Clients.from_arrays(**(good | arguments))


DESIGNS = [
    ("unseen level", table(**changed("level", [3, 6], "top")),
     r"'level' has levels .* 'top' \(2 rows\), in 2 rows \(data rows 3, 6\)"),
    ("column gone", table(hours=None), "formula's column 'hours' is not in the table"),
    ("missing", table(**changed("hours", [2], np.nan)), r"'hours' has missing values in 1 row \(data row 2\)"),
]  # fmt: skip


@pytest.mark.parametrize(("df", "match"), [c[1:] for c in DESIGNS], ids=[c[0] for c in DESIGNS])
def test_bad_table_for_a_fitted_design(df, match):
    design = Design.fit(table(), "score ~ hours * level")
    with pytest.raises(CoterieError, match=match):
        design.matrix(df)


def test_other_outcome_text_is_refused():
    design = Design.fit(table(), "ok ~ hours")
    with pytest.raises(CoterieError, match=names("'ok' 'no' 'yes' not 'perhaps'")):
        design.read_outcome(table(**changed("ok", [2], "perhaps")))


HOSTILE = [
    "y ~ {__import__('os').system('true')}",
    "y ~ I(().__class__.__bases__)",
    "y ~ np.load(x)",
    "y ~ C(x, contr.treatment(eval('1')))",
    "y ~ {[i for i in x]}",
    "y ~ {(lambda: 1)()}",
    "y ~ I(9**9**9**9)",
    "y ~ x.to_pickle",
    "{exec('1')} ~ x",
    "y ~ {f'{x}'}",
    "y ~ {x if x else x}",
    "y ~ {(x := 3)}",
]


@pytest.mark.parametrize("formula", HOSTILE)
def test_a_formula_from_a_file_cannot_run_code(formula):
    text = Design.fit(table(), "score ~ hours").to_json().replace("score ~ hours", formula.replace('"', '\\"'))
    with pytest.raises(CoterieError):
        Design.from_json(text).matrix(pd.DataFrame({"x": [1.0], "y": [2.0]}))
