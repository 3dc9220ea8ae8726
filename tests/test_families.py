"""Every row of the table of families, and that nothing outside it knows a family by its name."""

from __future__ import annotations

import ast
import copy
import dataclasses
import itertools
import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.families import FAMILIES, Family, family_named
from coterie.likelihoods import above, constant, derivatives, dispersed, most_curved
from tests.test_structure import FILES, tree

EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
COUNTS = [0.0, 1.0, 7.0]
OUTCOMES = {"gaussian": [-1.5, 0.0, 2.25], "binomial": [0.0, 1.0], "poisson": COUNTS, "negative-binomial": COUNTS}
OUTCOMES |= {"gamma": [0.01, 1.0, 7.5], "student-t": [-1.5, 0.0, 40.0]}
"""Some that each family has."""
NO_COUNTS = [0.5, -1.0]
IMPOSSIBLE = {"gaussian": [], "binomial": [0.5, 2.0, -1.0], "poisson": NO_COUNTS, "negative-binomial": NO_COUNTS}
IMPOSSIBLE |= {"gamma": [0.0, -1.0], "student-t": []}
NAMES = set(FAMILIES) - {"gamma"}
"""Of families alone: strengths of ties are called gamma too."""


def at_dispersions(family: Family) -> list[Family]:
    """The family, and at some dispersions where it has one; with degrees of freedom where it has them."""
    if math.isnan(family.degrees):
        return [family.with_degrees(4.0).at(0.3), family.with_degrees(2.5).at(2.5)]
    return [family, family.at(0.3), family.at(2.5)] if family.unknown else [family]


def compared(module: ast.Module) -> list[int]:
    """Lines that compare with the name or the row of a family, or look one up in a mapping written out by name."""
    rows = {name.upper() for name in NAMES}

    def names(node: ast.AST) -> bool:
        nodes = [n for n in ast.walk(node) if isinstance(n, ast.Constant | ast.Name | ast.Attribute)]
        said = {n.value if isinstance(n, ast.Constant) else getattr(n, "id", getattr(n, "attr", "")) for n in nodes}
        return bool((NAMES | rows) & {word for word in said if isinstance(word, str)})

    found = []
    for node in ast.walk(module):
        match node:
            case ast.Compare(left=left, comparators=others):
                found += [node.lineno] * any(map(names, [left, *others]))
            case ast.Dict(keys=keys):
                found += [node.lineno] * any(key is not None and names(key) for key in keys)
            case ast.MatchValue(value=value):
                found += [node.lineno] * names(value)
            case ast.Tuple(elts=several) | ast.List(elts=several) | ast.Set(elts=several):
                found += [node.lineno] * (sum(isinstance(e, ast.Constant) and e.value in NAMES for e in several) > 1)
    return found


def test_no_file_but_the_table_knows_families_by_name() -> None:
    said = [n for n, path in FILES.items() if any(f in path.read_text(encoding="utf-8").lower() for f in NAMES)]
    assert {"families.py", "likelihoods.py"} <= {*said}
    assert [
        (name, lines)
        for name in said
        if name not in ("families.py", "likelihoods.py") and (lines := compared(tree(name)))
    ] == []


@pytest.mark.parametrize(
    "code",
    [
        "x = f == 'gaussian'",
        "x = f.family is POISSON",
        "x = f in ('binomial', 'poisson')",
        "x = {'gaussian': 1.0}[f]",
        "NAMES = ('gaussian', 'binomial')",
        "match f:\n    case 'poisson':\n        pass",
    ],
)
def test_a_comparison_by_name_is_seen(code: str) -> None:
    assert compared(ast.parse(code))


@EVERY
def test_every_row_is_complete(family: Family) -> None:
    fields = {field.name: getattr(family, field.name) for field in dataclasses.fields(family)}
    optional = {"saturated", "cdf", "usual", "dispersion"} | ({"alike"} if not family.boundary else set()) | {"remedy"}
    assert {name for name, value in fields.items() if value is None or value == ""} <= optional
    assert FAMILIES[family.name] is family
    assert [other.name for other in FAMILIES.values() if other.code == family.code] == [family.name]
    assert family.has_dispersion <= family.is_quadratic <= family.convex
    assert bool(family.boundary) <= (family.root_precision > 0.0) == (family.needs_prior and family.convex)
    assert copy.deepcopy(family) is family
    known = family if family.convex else family.with_degrees(3.5)
    assert copy.deepcopy(known.at(0.7)).kind == (family.code, 0.7, 0.0 if family.convex else 3.5)
    assert (str(family), family_named(family.name), family_named(family)) == (family.name, family, family)


@EVERY
def test_derivatives_belong_to_the_mean_and_the_loss(family: Family) -> None:
    """Central differences of each by the linear predictor; the score is the outcome less the mean, over a variance."""
    h = 1e-5
    for one, y, eta in itertools.product(at_dispersions(family), OUTCOMES[family.name], (-2.0, -0.3, 0.4, 1.7)):
        _, score, curvature, third = derivatives(one.kind, eta, y)
        up, down = (derivatives(one.kind, eta + s * h, y) for s in (1, -1))
        slopes = [(b - a) / (2 * h) for a, b in zip(down, up, strict=True)]
        np.testing.assert_allclose([-score, -curvature, third], slopes[:3], rtol=1e-7, atol=1e-8)
        mean, dispersion = one.mean(np.array([eta]))[0], one.kind[1]
        over = {"negative-binomial": 1.0 + dispersion * mean, "gamma": dispersion * mean}.get(one.name, 1.0)
        if not one.convex:
            over = (one.degrees * dispersion + (y - mean) ** 2) / (one.degrees + 1.0)
        assert score == pytest.approx((y - mean) / over, rel=1e-12)  # by the variance, less what the link takes
        assert (0.0 if one.convex else -math.inf) <= curvature <= above(one.kind, eta, y, curvature)
        assert above(one.kind, eta, y, curvature) <= one.curvature_bound
        assert one.lowest <= mean


@EVERY
def test_what_lies_above_a_loss_touches_it_and_is_nowhere_below(family: Family) -> None:
    for one, y, eta in itertools.product(at_dispersions(family), OUTCOMES[family.name], (-2.0, 0.4)):
        if not one.convex:
            loss, score, curvature, _ = derivatives(one.kind, eta, y)
            for to in np.linspace(-60.0, 60.0, 241):
                quadratic = loss - score * (to - eta) + 0.5 * above(one.kind, eta, y, curvature) * (to - eta) ** 2
                assert derivatives(one.kind, to, y)[0] <= quadratic + 1e-12


@EVERY
def test_derivatives_by_the_dispersion_are_those_of_the_likelihood(family: Family) -> None:
    h = 1e-5
    for one, y, eta in itertools.product(at_dispersions(family)[1:], OUTCOMES[family.name], (-2.0, 0.4, 1.7)):

        def at(s: float, one: Family = one, y: float = y, eta: float = eta) -> np.ndarray:
            moved = one.at(one.kind[1] * math.exp(s)).kind
            f, score, curvature, _ = derivatives(moved, eta, y)
            return np.array([f + constant(moved, y, 1.0), score, curvature])

        found = dispersed(one.kind, eta, y, derivatives(one.kind, eta, y), False)
        np.testing.assert_allclose(found, (at(h) - at(-h)) / (2 * h), rtol=1e-7, atol=1e-8)
        if one.degrees:

            def of(s: float, one: Family = one, y: float = y, eta: float = eta) -> np.ndarray:
                moved = (one.code, one.kind[1], one.degrees * math.exp(s))
                f, score, curvature, _ = derivatives(moved, eta, y)
                return np.array([f + constant(moved, y, 1.0), score, curvature])

            found = dispersed(one.kind, eta, y, derivatives(one.kind, eta, y), True)
            np.testing.assert_allclose(found, (of(h) - of(-h)) / (2 * h), rtol=1e-7, atol=1e-8)


@EVERY
def test_curvatures_are_largest_where_they_are_said_to_be(family: Family) -> None:
    for one, y in itertools.product(at_dispersions(family), OUTCOMES[family.name]):
        for ends in ((-3.0, 2.0), (0.5, 4.0), (-1.0, -6.0)):
            within = [derivatives(one.kind, eta, y)[2] for eta in np.linspace(*ends, 201)]
            top = derivatives(one.kind, most_curved(one.kind, *ends), y)[2]
            assert top >= max(within) - 1e-12 or one.curvature_bound < math.inf


@EVERY
def test_loss_and_constant_are_the_negative_log_likelihood(family: Family) -> None:
    """Densities by SciPy; a Gaussian outcome of weight w has variance 1 / w, others count w times."""
    from scipy import stats

    densities = {
        "gaussian": lambda y, mean, w: stats.norm(mean, w**-0.5).logpdf(y),
        "binomial": lambda y, mean, w: w * stats.bernoulli(mean).logpmf(y),
        "poisson": lambda y, mean, w: w * stats.poisson(mean).logpmf(y),
        "negative-binomial": lambda y, mean, w, d: w * stats.nbinom(1 / d, 1 / (1 + d * mean)).logpmf(y),
        "gamma": lambda y, mean, w, d: w * stats.gamma(1 / d, scale=mean * d).logpdf(y),
        "student-t": lambda y, mean, w, d: w * stats.t(one.degrees, mean, d**0.5).logpdf(y),
    }
    for one, y, w in itertools.product(at_dispersions(family)[-2:], OUTCOMES[family.name], (1.0, 2.5)):
        mean = float(one.mean(np.array([0.7]))[0])
        more = () if one.dispersion is None else (one.dispersion,)
        found = w * derivatives(one.kind, 0.7, y)[0] + constant(one.kind, y, w)
        assert found == pytest.approx(-densities[one.name.partition("(")[0]](y, mean, w, *more), rel=1e-11)


@EVERY
def test_the_saturated_loss_is_the_least(family: Family) -> None:
    y = np.array(OUTCOMES[family.name])
    grid = np.linspace(-30.0, 30.0, 6001)
    least = np.array([min(derivatives(family.kind, eta, v)[0] for eta in [*grid, v]) for v in y])
    saturated = np.zeros(len(y)) if family.saturated is None else family.saturated(y)
    np.testing.assert_allclose(saturated, least, atol=1e-4)


@EVERY
def test_outcomes_are_checked_and_drawn(family: Family) -> None:
    assert family.possible(np.array(OUTCOMES[family.name])).all()
    assert not family.possible(np.array(IMPOSSIBLE[family.name])).any()
    drawn = np.asarray(family.draw(np.random.default_rng(1), np.full(40_000, 0.3), 1.0), dtype=float)
    assert family.possible(drawn).all()
    assert drawn.mean() == pytest.approx(family.mean(np.array([0.3]))[0], abs=0.03)
    far = np.array([-800.0, 800.0])
    assert family.possible(np.asarray(family.draw(np.random.default_rng(1), far, 1.0), dtype=float)).all()
    for bad in IMPOSSIBLE[family.name]:
        with pytest.raises(CoterieError, match=rf"{family.name}.*'y'.*row 1"):
            family.check(np.array([bad]), "y", lambda _: "row 1")
    if family.largest < math.inf and not family.two_classes:
        with pytest.raises(CoterieError, match=r"'y'.*gaussian" if family.counted else r"'y'.*round number\.$"):
            family.check(np.array([10.0 * family.largest]), "y", lambda _: "row 1")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("multinomial", "binomial"), ("huber", "student-t"), ("student-t(1)", "from 2 to 100"), ("student-t(x)", "(4)")],
)
def test_what_is_no_family_is_refused_with_a_reason_and_a_remedy(name: str, remedy: str) -> None:
    import pandas as pd

    import coterie

    table = pd.DataFrame({"y": [0.0, 1.0, 2.0, 1.0], "g": [1, 1, 2, 2]})
    with pytest.raises(CoterieError, match=f"{re.escape(name)}.*{re.escape(remedy)}"):
        coterie.fit(table, "y ~ 1", client="g", family=name)


def test_an_unknown_family_passes_nowhere() -> None:
    from coterie.methods.problem_and_estimates import GroupedProblem
    from coterie.objectives.glm import GLM
    from coterie.relations.clusters import ClusterTree

    none = np.empty(0, dtype=np.int64)
    for made in (
        lambda: family_named("gausian"),
        lambda: GLM(np.empty((0, 1)), *[np.empty(0)] * 3, none, none, "gausian"),
        lambda: GroupedProblem(ClusterTree(), "gausian", none, None),
    ):
        with pytest.raises(CoterieError, match=r"'gausian'.*gaussian, binomial or poisson|'gausian'.*'gaussian'"):
            made()
    assert all(math.isnan(value) for value in derivatives((99, 1.0, 0.0), 0.0, 0.0))
    assert math.isnan(constant((99, 1.0, 0.0), 0.0, 1.0))


@pytest.mark.parametrize("unit", [1e-44, 1e44])
def test_squares_of_any_size_that_is_taken_are_fitted(unit: float) -> None:
    """Against NumPy's least squares; larger and smaller ones, whose squares would be lost, are refused."""
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=60), np.repeat(np.arange(6), 10)
    y = 1.0 + 2.0 * x + rng.normal(size=60)
    expected = np.linalg.lstsq(np.column_stack([np.ones(60), x]), y, rcond=None)[0]

    def fit(unit: float) -> Any:
        table = pd.DataFrame({"y": unit * y, "x": x, "client": client})
        return coterie.fit(table, "y ~ x", client="client", method="pooled", splits=0)

    np.testing.assert_allclose(fit(unit).model.root / unit, expected, rtol=1e-12)
    with pytest.raises(CoterieError, match=f"too {'large' if unit > 1.0 else 'small'} for their squares"):
        fit(unit * unit)
