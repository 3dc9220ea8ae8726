"""What an objective may say of its parameters, and what holds where it says nothing: names, first values, precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from coterie.errors import CoterieError, listed
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient
from coterie.relations.parameter_layout import Layout

NORMALISATION = "(layers that normalise)"  # the pattern of layers that normalise, whatever their names


def layer_sizes(objective: Any) -> dict[str, int]:
    """How many numbers every layer has, in order: its ``names``, by default "0", "1", ... of one number each."""
    return dict(getattr(objective, "names", None) or dict.fromkeys(map(str, range(objective.dim)), 1))


def precision(objective: Any) -> np.dtype[Any]:
    """The type of its parameters: its ``dtype``, by default float64."""
    return np.dtype(getattr(objective, "dtype", np.float64))


def initial_parameters(objective: Any, seed: int) -> Floats:
    """The model (d,) that training starts from: its ``start(seed)``, by default zero."""
    if not hasattr(objective, "start"):
        return np.zeros(objective.dim, dtype=precision(objective))
    return np.asarray(objective.start(int(seed)), dtype=precision(objective))


def base_digest(objective: Any) -> str:
    """What tells apart the numbers that no client changes: digests of the ``base`` of its parts; "" without any."""
    parts = getattr(objective, "parts", (objective,))
    return "/".join(filter(None, (getattr(getattr(part, "base", None), "digest", "") for part in parts)))


def normalising(objective: Any) -> tuple[str, ...]:
    """Names of layers that normalise: its ``normalising``, by default those called so."""
    known = getattr(objective, "normalising", None)
    return tuple(n for n in layer_sizes(objective) if "norm" in n or "bn" in n) if known is None else tuple(known)


def parameter_mask(objective: Any, patterns: Sequence[str] = ()) -> Bools:
    """Which parameters (d,) patterns such as ``head*`` name, or the objective keeps with each client: its ``kept``.

    The pattern NORMALISATION names the layers that normalise. A CoterieError for a pattern that matches nothing, which
    lists the names.
    """
    wanted = [name for name in patterns if name != NORMALISATION]
    if len(wanted) < len(patterns):
        wanted += (found := normalising(objective))
        if not found:
            raise CoterieError(
                f"No layer of the model normalises, as BatchNorm and LayerNorm do: name those that are to be personal. "
                f"There are {listed(layer_sizes(objective), 12)}."
            )
    wanted += getattr(objective, "kept", ())
    if not wanted:
        return np.zeros(objective.dim, dtype=bool)
    return _mask(tuple(layer_sizes(objective).items()), tuple(wanted))


def statistics_mask(objective: Any) -> Bools:
    """Which parameters (d,) are ``statistics``, such as BatchNorm's: they move, and have no gradient."""
    named = getattr(objective, "statistics", ())
    if not named:
        return np.zeros(objective.dim, dtype=bool)
    sizes = layer_sizes(objective)
    return np.repeat([name in named for name in sizes], list(sizes.values()))


@lru_cache(maxsize=64)
def _mask(sizes: tuple[tuple[str, int], ...], wanted: tuple[str, ...]) -> Bools:
    """The same for names and sizes of layers: sites ask again in every exchange."""
    layers = Layout.of([name for name, _ in sizes], personal=wanted, rest="shared").personal >= 0
    mask = np.repeat(layers, [size for _, size in sizes])
    mask.flags.writeable = False
    return mask


def has_finite_gradient(objective: Any) -> Bools:
    """Whether every client's data give a gradient (m,): by its own method, or else whether that at zero is finite."""
    if hasattr(objective, "has_finite_gradient"):
        return np.asarray(objective.has_finite_gradient(), dtype=bool)
    m = len(objective)
    return np.asarray(np.isfinite(gradient(objective, np.zeros((m, objective.dim)), Draws.of_all(m))).all(axis=1))
