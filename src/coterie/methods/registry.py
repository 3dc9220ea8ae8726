"""The exact methods by name: what each needs, and where it can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coterie.methods import clusterwise, given_strengths, hierarchical, local, own_intercept, pooled
from coterie.methods.fitted import Fitted, Problem


@dataclass(frozen=True)
class Method:
    """One row of a comparison.

    Attributes
    ----------
    name : str
    fit : callable
        ``fit(federation, problem, **options) -> Fitted``.
    takes : tuple of str
        Names of the options that ``fit`` takes.
    learns : bool
        Learns variances, which needs more than one row for some clients.
    flat : bool
        Ignores clusters.
    clustered : bool
        Says something else than the others only where there are clusters.
    intercept : bool
        Needs an intercept that can be personal.
    """

    name: str
    fit: Callable[..., Fitted]
    takes: tuple[str, ...] = ()
    learns: bool = False
    flat: bool = False
    clustered: bool = False
    intercept: bool = False


LEARNING = ("covariance", "reml", "own", "residual")
METHODS = {
    method.name: method
    for method in (
        Method("local", local.fit),
        Method("pooled", pooled.fit),
        Method("own-intercept", own_intercept.fit, intercept=True),
        Method("clusterwise", clusterwise.fit, clustered=True),
        Method("single-cluster", hierarchical.fit, LEARNING, learns=True, flat=True, clustered=True),
        Method("hierarchical", hierarchical.fit, LEARNING, learns=True),
        Method("given-strengths", given_strengths.given, ("gamma", "lam", "alpha")),
    )
}


def applicable(problem: Problem, learnable: bool, strengths: bool) -> list[str]:
    """Names of the methods that differ on this problem.

    ``learnable`` says whether variances can be split, ``strengths`` whether strengths are given.
    """

    def fits(m: Method) -> bool:
        has_intercept = problem.intercept is not None and problem.intercept in problem.personal
        clusters = len(problem.tree.parents) > 0 and problem.tree.sizes[0] > 1
        if "gamma" in m.takes and not strengths:
            return False
        return (learnable or not m.learns) and (clusters or not m.clustered) and (has_intercept or not m.intercept)

    return [name for name, method in METHODS.items() if fits(method)]
