"""The order of rows by a column: every way of writing a time, shuffled, comes back sorted."""

from datetime import date, time
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.data.sort_keys import sort_keys
from coterie.errors import CoterieError

DAYS = pd.date_range("2023-11-06", periods=60, freq="7D")
MONTHS = pd.date_range("2023-09-01", periods=20, freq="MS")
SORTED = {
    "weeks": [f"week {w}" for w in range(1, 53)],
    "short": [f"w{w}" for w in (9, 10, 100)],
    "signs": ["day -10", "day -2", "day 0", "day 3", "day 12"],
    "plain numbers": ["-3", "2", "10.5", "1e3"],
    "leading zeros": ["08", "9", "010", "100"],
    "ISO": DAYS.strftime("%Y-%m-%d"),
    "ISO with time": DAYS.strftime("%Y-%m-%dT%H:%M:%S.5Z"),
    "ISO with zones": ["2024-01-01 10:00+05:00", "2024-01-01 06:00Z", "2024-01-01 05:00-02:00"],
    "no leading zeros": [f"{t.year}-{t.month}-{t.day}" for t in DAYS],
    "slashes": [f"{t.year}/{t.month}/{t.day}" for t in DAYS],
    "compact": DAYS.strftime("%Y%m%d"),
    "months": [f"{t.year}-{t.month}" for t in MONTHS],
    "month/year": [f"{t.month}/{t.year}" for t in MONTHS],
    "Jan 2024": MONTHS.strftime("%b %Y"),
    "January 2024": MONTHS.strftime("%B %Y"),
    "2024 Jan": MONTHS.strftime("%Y-%b"),
    "05 Jan 2024": DAYS.strftime("%d %b %Y"),
    "5-Jan-2024 14:30": [f"{t.day}-{t:%b-%Y} 14:30" for t in DAYS],
    "Jan 5, 2024": [f"{t:%B} {t.day}, {t.year}" for t in DAYS],
    "Mon, 05 Jan 2024": DAYS.strftime("%a, %d %b %Y"),
    "05JAN2024": [t.strftime("%d%b%Y").upper() for t in DAYS],
    "d/m/y": DAYS.strftime("%d/%m/%Y"),
    "m/d/y": [f"{t.month}/{t.day}/{t.year}" for t in DAYS],
    "d.m.y": ["02.01.2024", "01.02.2024", "03.04.2024"],
    "m/d/y and time": ["1/13/2024 9:05 am", "1/13/2024 12:30 pm", "2/1/2024 1:00 am"],
    "ISO weeks": ["2023-W52", "2024-W1", "2024-W9", "2024-W10"],
    "quarters": ["2023Q4", "2024Q1", "2024Q2"],
    "quarters first": ["Q4 2023", "Q1 2024", "Q2 2024"],
    "weeks of years": ["week 52 of 2023", "week 9 of 2024", "week 10 of 2024"],
    "seasons": ["1999/00", "2000/01", "2009/10"],
    "times": ["9:05", "10:00", "23:59:59"],
    "halves of the day": ["12:05 AM", "9:00 am", "12:00 PM", "1:15 pm"],
    "names of months": ["January", "February", "March", "April", "October"],
    "words": ["alpha", "beta", "Gamma"],
    "bytes": [b"week 9", b"week 10"],
    "mixed": [2, "9", "10"],
}


@pytest.mark.parametrize("name", SORTED)
def test_text_is_read_and_a_note_says_so(name):
    values = list(SORTED[name])
    shuffled = np.random.default_rng(1).permutation(len(values))
    keys, note = sort_keys(pd.Series([values[i] for i in shuffled], dtype=object), "t")
    assert np.array_equal(np.argsort(keys), np.argsort(shuffled)), name
    assert "'t'" in note
    assert note.endswith((f"to '{values[-1]}'.", "of it.")) or isinstance(values[-1], bytes)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["03/04/2024", "04/03/2024"], "no row tells apart"),
        (["13/01/2024", "01/13/2024"], "year first|do not sort"),
        (["01/01/24", "08/01/24"], "two digits"),
        (["Jan-24", "Feb-24"], "two digits"),
        (["2024-31-01", "2024-01-02"], "do not sort"),
        (["baseline", "month 3"], "numbers"),
        (["week 9", "visit 10"], "numbers"),
        (["a1b2", "a10b1"], "numbers"),
        (["Mon", "Tue"], "alphabet"),
        (["first visit", "second visit"], "alphabet"),
        (["wave I", "wave II", "wave IV"], "alphabet"),
        (["01022024", "31012024"], "year first"),
        ([1022024, 31012024], "year first"),
        (["012024", "122023"], "year first"),
        (["1.9", "1.10"], "decimals or versions"),
        ([[1], [2]], "no order"),
        ([1 + 2j, 3j], "no order"),
    ],
    ids=str,
)
def test_what_cannot_be_told_is_refused(values, words):
    with pytest.raises(CoterieError, match=words):
        sort_keys(pd.Series(values), "t")


@pytest.mark.parametrize(
    "values",
    [
        [Decimal("9"), Decimal("10")],
        [date(2024, 1, 9), date(2024, 1, 10)],
        [time(9), time(10)],
        pd.to_timedelta([9, 10], "D"),
        pd.period_range("2024-09", periods=2, freq="M"),
        pd.date_range("2024-01-09", periods=2, tz="Europe/Zurich"),
        pd.Categorical(["low", "high"], categories=["low", "high"], ordered=True),
        pd.array([9, 10], dtype="Int64"),
        [False, True],
        [9.0, 10.0],
        [-np.inf, 10.0],
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_has_an_order_keeps_it_without_a_word(values):
    keys, note = sort_keys(pd.Series(values), "t")
    assert keys[0] < keys[1]
    assert note is None


def test_a_category_without_an_order_is_text():
    keys, note = sort_keys(pd.Series(["week 10", "week 9"], dtype="category"), "t")
    assert keys[0] > keys[1]
    assert "numbers" in note


def test_held_out_rows_are_the_latest_whatever_the_column_is_written_as():
    rng = np.random.default_rng(0)
    weeks = np.tile(np.arange(1, 13), 6)
    df = pd.DataFrame({"c": np.repeat(list("abcdef"), 12), "x": rng.normal(size=72), "week": weeks})
    df["y"] = df.x + np.where(weeks > 9, 5.0, 0.0) + 0.1 * rng.normal(size=72)
    df["text"] = "week " + df.week.astype(str)
    fits = {name: coterie.fit(df, "y ~ x", "c", order_by=name) for name in ("week", "text")}
    first, second = (r.comparison.drop(columns="seconds") for r in fits.values())
    pd.testing.assert_frame_equal(first, second)
    assert not any("ordered by" in note for note in fits["week"].notes)
    assert sum("'week 1' to 'week 12'" in note for note in fits["text"].notes) == 1
