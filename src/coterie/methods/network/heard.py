"""What the server knows after an exchange of Algorithm 6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.numerics.kernels import Floats, Ints

FAR = 1e100
"""Parameters that are farther away have diverged."""


@dataclass(frozen=True)
class Heard:
    """What the server knows of the clients' gradients after an exchange.

    Attributes
    ----------
    g : (n, d)
        Mean gradients, as decoded; 0 of clients that are not heard.
    share : (n,)
        What each counts in the sum.
    astray : bool
        Whether some client's model has gone so far that it has no gradient.
    state : dict
    lost : bool
        Whether clients were asked, and nobody answered.
    """

    g: Floats
    share: Floats
    astray: bool
    state: dict[str, Any]
    lost: bool = False


def put(array: Any, at: Ints, value: Any) -> Any:
    """A copy of ``array`` with ``value`` in the rows ``at``."""
    out = array.copy()
    out[at] = value
    return out
