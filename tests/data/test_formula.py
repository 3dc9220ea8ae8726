"""Formulas that ask for more than anybody can compute are refused at once; honest ones are read as ever."""

from __future__ import annotations

import pytest

from coterie.data.formula import LENGTH, limit_columns, parse
from coterie.data.formula_terms import formulaic_terms
from coterie.errors import LONGEST, CoterieError, nearest, shortened

MANY = [f"x{i}" for i in range(30)]


def joined(sign, text, n):
    return f"y ~ {sign.join(text.format(i) for i in range(n))}"


ENDLESS = {
    "a power": ("y ~ (a + b + c)**30", "multiplies out into too many terms"),
    "a power by another sign": ("y ~ (a + b + c)^30", "multiplies out into too many terms"),
    "a power of a power": ("y ~ ((a + b)**9)**9", "multiplies out into too many terms"),
    "a power without end": ("y ~ a**999999999", "must be a whole number from 1 to 99"),
    "a power that is a formula": ("y ~ (a + b)**(30 + c)", "must be a whole number from 1 to 99"),
    "a dot to a power": ("y ~ .**30", "multiplies out into too many terms"),
    "all interactions": (joined("*", "x{0}", 22), "multiplies out into too many terms"),
    "interactions of sums": (joined(":", "(x{0} + I(x{0} + 1))", 24), "multiplies out into too many terms"),
    "many terms": (joined("+", "I(a + {0})", 5000), "multiplies out into too many terms"),
    "more terms than columns": (joined(":", "(x{0} + I(x{0} + 1))", 11), "makes 2,049 columns or more"),
    "terms taken away": (joined(" - ", "a", 4000), "multiplies out into too many terms"),
    "a degree": ("y ~ poly(a, 200000)", "may have 100 columns or knots, not 200,000"),
    "knots": ("y ~ bs(a, df=500000)", "may have 100 columns or knots, not 500,000"),
    "many knots": (f"y ~ bs(a, knots={list(range(5000))})", "may have 100 columns or knots, not 5,000"),
    "functions of functions": ("y ~ " + "log(" * 2000 + "a" + ")" * 2000, "cannot be read|nested too deeply"),
    "signs in a function": ("y ~ I(" + "-" * 5000 + "a)", "nested too deeply"),
    "a long sum in a function": ("y ~ I(" + "+".join(["a"] * 5000) + ")", "nested too deeply"),
    "a long sum on the left": ("I(" + "+".join(["y"] * 5000) + ") ~ a", "cannot be read|nested too deeply"),
    "powers of plain numbers": ("y ~ I(I(9)**I(9)**I(99)) + a", "Write the number"),
    "a choice of numbers": ("y ~ I((9 or a)**(9 or a)**(99 or a))", "may not hold"),
    "a list many times": ("y ~ I([a] * 1000000000)", "numbers alone"),
    "a list in a function, many times": ("y ~ I(I((a,)) * 1000000000)", "numbers alone"),
    "text of any width": ("y ~ I('%999999999s' % a)", "numbers alone"),
    "many characters": ("y ~ " + "a" * LENGTH, "characters, more than 1,000,000"),
    "many dots": ("y ~ " + "+".join(["."] * 20_000), "characters, more than 1,000,000"),
}


@pytest.mark.parametrize(("formula", "why"), ENDLESS.values(), ids=ENDLESS)
def test_a_formula_without_end_is_refused_in_one_short_sentence(formula, why):
    with pytest.raises(CoterieError, match=why) as problem:
        parse(formula, ["y", "a", "b", "c", *MANY])
    assert len(str(problem.value)) < 1000


@pytest.mark.parametrize(
    ("right", "terms"),
    [
        ("(" + "+".join(MANY[:20]) + ")**3", 1351),
        ("(" + "+".join(MANY[:12]) + ")**4", 794),
        ("*".join(MANY[:10]), 1024),
        ("/".join(MANY[:20]), 21),
        ("a %in% b + c", 4),
        ("+".join(f"I(a + {i})" for i in range(1500)), 1501),
        ("(" * 500 + "a" + ")" * 500, 2),
        ("I(" + "+".join(["a"] * 150) + ")", 2),
        ("poly(a, 3) + bs(b, df=9)", 3),
        ("I((a > 1) * b) + I((a == 'x') * c) + np.where(a > 0, a, 0)", 4),
        ("bs(a, df=4, lower_bound=-150, upper_bound=150) + cc(b, knots=[91, 182, 273], upper_bound=366)", 3),
        ("scale(a, center=170, scale=1000)", 2),
        ("0 + a", 1),
    ],
    ids=range(13),
)
def test_honest_formulas_are_read(right, terms):
    assert len(formulaic_terms(right, right)) == terms
    assert parse(f"y ~ {right}").columns


def test_a_basis_counts_as_many_columns_as_it_has():
    parsed = parse("y ~ poly(a, 90):poly(b, 80) + x", ["y", "a", "b", "x"])
    assert parsed.widths == (1, 1, 7200)
    assert parse("y ~ bs(a, df=4, upper_bound=90) + scale(b, center=90)").widths == (1, 4, 1)
    with pytest.raises(CoterieError, match="makes about 7,202 columns"):
        limit_columns(parsed, {})


def test_a_formula_of_many_columns_is_read():
    names = [f"a column with a name that is rather long {i}" for i in range(1990)]
    assert len(parse("y ~ . + I(z**2)", ["y", "z", *names]).columns) == 1991


def test_messages_are_shortened_in_the_middle():
    text = "ab" * 5000
    assert shortened(text, 100).startswith("abab") and shortened(text, 100).endswith("abab")
    assert len(shortened(text, 100)) <= 100 and "9,900 characters" in shortened(text, 100)
    assert shortened("short") == "short"
    assert len(str(CoterieError(f"Column '{text}' is wrong: call it something else."))) <= LONGEST
    assert str(CoterieError(f"Column '{text}' is wrong: call it something else.")).endswith("something else.")
    assert nearest(text, [text]) == ""
