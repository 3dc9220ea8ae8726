"""Checks of users' arrays: each raises one sentence that says what can be asked."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.errors import CoterieError


def need_shape(name: str, at: Any, shape: tuple[int, ...]) -> None:
    """Raise where an array has another shape, or numbers that are not finite."""
    if at.shape != shape or not np.isfinite(at).all():
        raise CoterieError(f"{name} must be finite numbers of shape {shape}, not {at.shape}.")


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
