"""Every option that is declared anywhere: whatever is given for it is kept as declared, or refused in one sentence."""

from __future__ import annotations

import importlib
import inspect
import math
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator

import coterie
from coterie.errors import CoterieError
from coterie.methods.registry import METHODS, TRAINED
from coterie.options import declared
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from coterie.results.fit_options import Columns
from coterie.runs.config_keys import SECTIONS
from tests.docs.options_page import own, page

SOURCE = Path(coterie.__file__).parent
BAD = [
    None,
    math.nan,
    math.inf,
    -math.inf,
    -1,
    0,
    0.5,
    10**12,
    2**70,
    -(2**70),
    "3",
    "",
    "auto",
    True,
    [],
    {},
    [1],
    ["a"],
]
BAD += [
    object(),
    object,
    np.float64("nan"),
    np.int64(-1),
    np.array([1.0, 2.0]),
    np.array("x"),
    {"a": object()},
    b"x",
    1j,
]
GOOD = [1, "a", "local", Network.of(2, [(0, 1)]), Layout.of(["a"])]
READ_BY_OF = {*SECTIONS.values(), Columns}
"""Classes of tables that are only made of a user's mapping."""


def every() -> dict[str, object]:
    """All classes and functions of the package with declared options, by their names."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if "from coterie.options import" in (text := path.read_text()) and "Annotated[" in text:
            name = "coterie." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            if not name.startswith("coterie.cli."):
                found |= here(importlib.import_module(name))
    return found


def here(module) -> dict[str, object]:
    """Those that a module defines."""
    own = [v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__]
    own = [v for v in own if inspect.isfunction(v) or isinstance(v, type)]
    return {f"{module.__name__}.{v.__name__}": v for v in own if options(v)}


def fits(row, value) -> bool:
    """Whether an option may have a value."""
    try:
        row.read(value)
    except CoterieError:
        return False
    return True


def options(thing):
    if isinstance(thing, type) and not is_dataclass(thing) and "__init__" not in vars(thing):
        return {}
    try:
        return declared(thing)
    except (NameError, ValueError, TypeError):  # names that are there for type checkers only, and nothing declared
        return {}


EVERY = every()
ROWS = [(f"{name}.{row.name}", thing, row) for name, thing in EVERY.items() for row in options(thing).values()]


def test_all_are_found():
    classes = tuple(cls for cls in EVERY.values() if isinstance(cls, type))
    assert all(issubclass(method.method_class, classes) for method in TRAINED.values())
    assert len(EVERY) > 45 and len(ROWS) > 250


def test_whatever_is_given_is_kept_as_declared_or_refused_in_one_sentence():
    assert {(name, repr(value)): why for name, _, row in ROWS for value in BAD if (why := trouble(row, value))} == {}


def trouble(row, value) -> str:
    """What is wrong with how an option takes a value, or nothing."""
    try:
        kept = row.read(value, "[table]")
    except CoterieError as refused:
        text = str(refused)
        return "" if text.endswith((".", "?")) and "\n" not in text and len(text) < 700 else text
    if row.kind is not Any and isinstance(kept, float) and math.isnan(kept):
        return "is kept as nan"
    return "" if alike(row.read(kept), kept) else f"is kept as {kept!r}, which is read otherwise"


def alike(a, b) -> bool:
    try:
        np.testing.assert_equal(a, b)
    except AssertionError:
        return False
    return True


def test_every_option_says_what_it_is_and_a_default_is_one_of_its_values():
    assert [name for name, thing, row in ROWS if not row.option.text and isinstance(thing, type)] == []
    given = [(name, row) for name, _, row in ROWS if row.default not in (inspect.Parameter.empty, ())]
    assert [name for name, row in given if not alike(row.read(row.default), row.read(row.read(row.default)))] == []


CLASSES = [
    pytest.param(cls, id=name)
    for name, cls in EVERY.items()
    if is_dataclass(cls) and not (cls in READ_BY_OF or inspect.isabstract(cls))
    if not issubclass(cls, BaseEstimator)  # which check their parameters when they are fitted, as scikit-learn wants
]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_class_checks_itself_when_it_is_made(cls):
    needed = {n: row for n, row in declared(cls).items() if row.default is inspect.Parameter.empty}
    given = {n: next((value for value in GOOD if fits(row, value)), None) for n, row in needed.items()}
    given |= {f.name: 1 for f in fields(cls) if f.default is f.default_factory is MISSING and f.name not in given}
    for name, row in declared(cls).items():
        if not fits(row, wrong := object()):
            with pytest.raises(CoterieError):
                cls(**{**given, name: wrong})


@pytest.mark.parametrize("name", METHODS)
def test_every_row_of_the_table_of_methods_leads_somewhere(name):
    method = METHODS[name]
    assert method.fits or method.trains
    if method.fits:
        assert callable(method.fit)
    if method.rounds:
        method.over_rounds({})
    if method.trains:
        method.check({})


def test_the_page_is_that_of_the_declarations():
    written = (Path(__file__).parents[1] / "docs" / "options.md").read_text(encoding="utf-8")
    assert written == page(), "python tests/docs/options_page.py > docs/options.md"


def test_the_page_shows_what_a_net_gets():
    """Where the row of a method has another default than its class, or no class has one."""
    assert "| `s` | a whole number from 1 | `5` |" in own(TRAINED["ditto"].method_class)
    assert "| `0`; `20` for `fedavg-finetune` |" in page()
