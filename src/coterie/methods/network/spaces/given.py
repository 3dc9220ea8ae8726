"""What a user asks of a similarity network, and the points a user has: checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import CoterieError, listed, nearest
from coterie.methods.network.spaces import feature, model
from coterie.numerics.kernels import Floats

if TYPE_CHECKING:
    from coterie.methods.network.similarity import Similarity

LARGEST = 10**6
SPACES = ("model", "data", "feature", "covariates")
ONLY_IN = {
    **dict.fromkeys(("features", "width"), ("data",)),
    "response": ("data", "feature"),
    "means": ("feature",),
    **dict.fromkeys(("probes", "models"), ("model",)),
    **dict.fromkeys(("distance", "prior"), ("model", "feature")),
    "covariates": ("covariates",),
}
"""Options that one space, or two, have."""


def check(asked: Similarity) -> None:
    """A CoterieError for a value that cannot be, or an option that the space would ignore."""
    if not (isinstance(asked.space, str) and asked.space in SPACES):
        raise CoterieError(f"space must be {' or '.join(SPACES)}, not {asked.space!r}.{nearest(asked.space, SPACES)}")
    for name, spaces in ONLY_IN.items():
        value, default = getattr(asked, name), type(asked).__dataclass_fields__[name].default
        unused = value is default or (np.ndim(value) == 0 and value == default)
        if not unused and asked.space not in spaces:
            raise CoterieError(f"{name} is an option of the space {' or '.join(spaces)}, not of {asked.space}.")
    for name in ("weighted", "mutual", "connected", "means"):
        if not isinstance(getattr(asked, name), (bool, np.bool_)):
            raise CoterieError(f"{name} must be True or False, not {getattr(asked, name)!r}.")
    if asked.response is not None and not isinstance(asked.response, (bool, np.bool_)):
        raise CoterieError(f"response must be True or False, not {asked.response!r}.")
    for name, least in (("k", 1), ("features", 2), ("seed", 0), ("probes", 1)):
        value = getattr(asked, name)
        if (name == "k" and isinstance(value, str) and value == "auto") or (name == "probes" and np.ndim(value) == 2):
            continue
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not (whole and least <= value <= LARGEST):
            other = {"k": "auto, or ", "probes": "a table, or "}.get(name, "")
            raise CoterieError(f"{name} must be {other}a whole number from {least} to {LARGEST:,}, not {value!r}.")
    if asked.features % 2:
        raise CoterieError(f"features must be even, a cosine and a sine of each frequency, not {asked.features}.")
    choices = {"model": model.DISTANCES, "feature": feature.DISTANCES}.get(asked.space, ())
    if asked.distance is not None and not (isinstance(asked.distance, str) and asked.distance in choices):
        raise CoterieError(
            f"distance must be {' or '.join(choices)} in the space {asked.space}, not {asked.distance!r}."
        )
    for name in ("width", "prior"):
        value = getattr(asked, name)
        number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if value is not None and not (number and 0.0 < value < np.inf):
            raise CoterieError(f"{name} must be a positive finite number, not {value!r}.")
    if asked.space == "covariates" and asked.covariates is None:
        raise CoterieError("The space of covariates needs them: give covariates, a table with a row for each client.")


def table(name: str, values: Any, n: int | None = None) -> Floats:
    """A user's numbers (n, q), finite."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise CoterieError(f"{name} must be a table of numbers.") from e
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or not found.shape[1] or (n is not None and len(found) != n):
        rows = "rows" if n is None else f"one row for each of {n} clients"
        raise CoterieError(f"{name} must be a table with {rows}, not of shape {np.shape(values)}.")
    wrong = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(wrong):
        raise CoterieError(f"{name} of rows {listed(wrong)} are not finite numbers: fill them in or leave them out.")
    return found


def covariates(values: Any, n: int) -> Floats:
    """Covariates of clients in standard units; those that are the same for all are left out."""
    found = table("covariates", values, n)
    most = np.abs(found).max(axis=0)
    found = found / np.where(most > 0.0, most, 1.0)  # squares neither overflow nor vanish
    centred = found - found.mean(axis=0)
    sd = np.sqrt(np.mean(centred**2, axis=0))
    vary = sd > 1e-12 * np.abs(found).max(axis=0)
    if n > 1 and not vary.any():
        raise CoterieError("All clients have the same covariates: give some that differ.")
    return np.asarray(centred[:, vary] / sd[vary]) if vary.any() else centred
