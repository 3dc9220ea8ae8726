"""What the server knows after an exchange of Algorithm 6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.numerics.kernels import Floats, Ints

FAR = 1e100
"""Parameters that are farther away have diverged."""


@dataclass(frozen=True)
class Received:
    """What the server knows of the clients' gradients after an exchange.

    Attributes
    ----------
    g : (n, d)
        Mean gradients, as decoded; 0 of clients without one.
    share : (n,)
        What each counts in the sum.
    diverged : bool
        Whether some client's model has diverged so far that it has no gradient.
    state : dict
    unanswered : bool
        Whether clients were asked, and nobody answered.
    """

    g: Floats
    share: Floats
    diverged: bool
    state: dict[str, Any]
    unanswered: bool = False


def put(array: Any, at: Ints, value: Any) -> Any:
    """A copy of ``array`` with ``value`` in the rows ``at``."""
    out = array.copy()
    out[at] = value
    return out
