"""The exact methods by name: what each needs, and where it can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.methods import clusterwise, hierarchical, local, own_intercept, pooled
from coterie.methods.fitted import Fitted, Problem


@dataclass(frozen=True)
class Method:
    """One row of a comparison.

    Attributes
    ----------
    name : str
    fit : callable
        ``fit(federation, problem, **options) -> Fitted``.
    learns : bool
        Learns variances, and takes their options.
    flat : bool
        Ignores clusters.
    clustered : bool
        Says something else than the others only where there are clusters.
    intercept : bool
        Needs an intercept that can be personal.
    """

    name: str
    fit: Callable[..., Fitted]
    learns: bool = False
    flat: bool = False
    clustered: bool = False
    intercept: bool = False


METHODS = {
    method.name: method
    for method in (
        Method("local", local.fit),
        Method("pooled", pooled.fit),
        Method("own-intercept", own_intercept.fit, intercept=True),
        Method("clusterwise", clusterwise.fit, clustered=True),
        Method("single-cluster", hierarchical.fit, learns=True, flat=True, clustered=True),
        Method("hierarchical", hierarchical.fit, learns=True),
    )
}


def applicable(problem: Problem, learnable: bool) -> list[str]:
    """Names of the methods that differ on this problem; ``learnable`` says whether variances can be split."""

    def fits(m: Method) -> bool:
        has_intercept = problem.intercept is not None and problem.intercept in problem.personal
        clusters = len(problem.tree.parents) > 0 and problem.tree.sizes[0] > 1
        return (learnable or not m.learns) and (clusters or not m.clustered) and (has_intercept or not m.intercept)

    return [name for name, method in METHODS.items() if fits(method)]


def options_for(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that a method takes."""
    return options if METHODS[name].learns else {}
