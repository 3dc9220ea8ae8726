"""Checks of what users ask for: each raises one sentence that says what can be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from coterie.errors import CoterieError, nearest

LARGEST = 10**9
"""Steps, rows and seeds at most."""
LARGE = 2**63
"""Whole numbers are smaller: what int64 holds, and keys of random numbers."""


def need_names(what: str, given: Iterable[str], known: Sequence[str] | type) -> None:
    """Raise for an option of ``what`` that is not among those known: names, or a dataclass's fields."""
    names = [f.name for f in fields(known)] if isinstance(known, type) else list(known)
    for name in given:
        if name not in names:
            raise CoterieError(f"{what} has no option {name!r}.{nearest(name, names)} There are {', '.join(names)}.")


def need_choices(options: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Raise where an attribute of ``options`` is none of its choices."""
    for name, values in choices.items():
        value = getattr(options, name)
        if not (isinstance(value, str) and value in values):
            raise CoterieError(f"{name} must be one of {', '.join(values)}, not {value!r}.{nearest(value, values)}")


def need_whole(options: Any, least: Mapping[str, int], optional: Sequence[str] = ()) -> None:
    """Raise where an attribute is no whole number from its least value on; None where that is ``optional``."""
    for name, low in least.items():
        value = getattr(options, name)
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not (whole and low <= value <= LARGEST) and not (value is None and name in optional):
            raise CoterieError(f"{name} must be a whole number from {low} to {LARGEST:,}, not {value!r}.")


def need_positive(options: Any, most: Mapping[str, float], words: Mapping[str, Sequence[str]] | None = None) -> None:
    """Raise where an attribute is no finite number above 0, up to ``most``, nor one of its words."""
    for name, high in most.items():
        value, others = getattr(options, name), (words or {}).get(name, ())
        if isinstance(value, str) and value in others:
            continue
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.bool_))
        if not (number and 0.0 < value <= high and value < np.inf):
            also = "".join(f"{word} or " for word in others)
            upper = "" if np.isinf(high) else f" and up to {high:g}"
            raise CoterieError(f"{name} must be {also}a number above 0{upper}, not {value!r}.")


def need_phases(phases: Any) -> None:
    """Raise where there are phases, and they are not two whole numbers of steps."""
    if phases is None:
        return
    steps = list(phases) if isinstance(phases, (tuple, list, np.ndarray)) else []
    whole = all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) and 1 <= v <= LARGEST for v in steps)
    if len(steps) != 2 or not whole:
        raise CoterieError(f"phases must be two numbers of steps from 1, of x and of Z, not {phases!r}.")


def need_kinds(options: Any, kinds: Mapping[str, type]) -> None:
    """Raise where an attribute of ``options`` is not of its class."""
    for name, kind in kinds.items():
        value = getattr(options, name)
        if not isinstance(value, kind):
            raise CoterieError(f"{name} must be a {kind.__name__}, not of type {type(value).__name__}.")


def need_shape(name: str, at: Any, shape: tuple[int, ...]) -> None:
    """Raise where an array has another shape, or numbers that are not finite."""
    if at.shape != shape or not np.isfinite(at).all():
        raise CoterieError(f"{name} must be finite numbers of shape {shape}, not {at.shape}.")


def need_norm(name: str, p: Any) -> None:
    """Raise where p is no norm of differences."""
    if not is_number(p) or p not in (1, 2, np.inf):
        raise CoterieError(f"{name} must be 1, 2 or inf, not {p!r}.")


def need_numbers(name: str, value: Any, size: int, least: float | None = None) -> None:
    """Raise where a value is neither a number nor one for each of ``size``, finite and above 0, or from ``least``."""
    try:
        given = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise CoterieError(f"{name} must be a number, not {value!r}.") from e
    many = size > 1 and given.shape == (size,)
    if isinstance(value, (bool, str)) or not (given.ndim == 0 or many):
        raise CoterieError(f"{name} must be a number{f', or {size} of them' * (size > 1)}, not {value!r}.")
    fine = np.isfinite(given) & (given > 0.0 if least is None else given >= least)
    if not fine.all():
        where = "above 0" if least is None else f"from {least:g}"
        raise CoterieError(
            f"{name} must be a finite number {where}, not {np.atleast_1d(given)[~np.atleast_1d(fine)][0]:g}."
        )


def need(name: str, value: Any, low: float, high: float = np.inf, above: bool = False, whole: bool = False) -> None:
    """Raise a CoterieError where a hyper-parameter is not a finite number in its range."""
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    kind, beyond = "a whole number" if whole else "a number", f" and at most {high:g}" if np.isfinite(high) else ""
    if isinstance(value, int) and value >= LARGE:
        raise CoterieError(f"{name} must be {kind} below 2**63, not {value!r}.")
    right = isinstance(value, kinds) and not isinstance(value, bool) and np.isfinite(value)
    if not right or not (value > low if above else value >= low) or value > high:
        raise CoterieError(
            f"{name} must be {kind} {'above' if above else 'of at least'} {low:g}{beyond}, not {value!r}."
        )


def need_patterns(name: str, value: Any) -> tuple[str, ...]:
    """Patterns of names as a tuple; a CoterieError where a value is neither text nor a list of it."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, (tuple, list)) or not all(isinstance(v, str) and v for v in given):
        raise CoterieError(f"{name} must be names of parameters, or patterns such as head*, not {value!r}.")
    return tuple(given)


def is_number(value: Any) -> bool:
    """Whether a value is a real number, which a truth value is not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
