"""Where the search for the variances is: what a stopped run goes on from."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.numerics.kernels import Floats


@dataclass(frozen=True)
class State:
    """A point of the search: all that a resumed run needs.

    Attributes
    ----------
    x : (a,) float64
        Standard deviations (relative to sigma for a Gaussian outcome), then w where it is not profiled out.
    deviance : float
    gradient : (a,) float64
    H, held : (a, a) float64
        Inverses of the approximate Hessian that BFGS keeps, and of the expected one at x with what holds zeros.
    u : list of (k_l, q) float64
        The clusters' deviations: where Newton's method starts.
    iteration : int
    status : str
        "running", "converged", or "stopped" where no step along the gradient decreases the deviance.
    """

    x: Floats
    deviance: float
    gradient: Floats
    H: Floats
    held: Floats
    u: list[Floats]
    iteration: int = 0
    status: str = "running"
