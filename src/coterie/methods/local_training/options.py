"""Checks of hyper-parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.errors import CoterieError

LARGE = 2**63
"""Whole numbers are smaller: what int64 holds, and keys of random numbers."""


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
