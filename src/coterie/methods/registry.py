"""The methods by name: what each needs, and where it can be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from coterie.methods import clusterwise, given_strengths, hierarchical, james_stein, local, own_intercept, pooled
from coterie.methods.clustered_l2gd import fit as clustered_l2gd
from coterie.methods.clustered_l2gd.options import Options as Rounds
from coterie.methods.collaboration import fit as collaboration
from coterie.methods.collaboration.options import Options as Collaboration
from coterie.methods.estimates import Estimates, GroupedProblem
from coterie.methods.network import fit as network
from coterie.methods.network.options import Run
from coterie.relations.clusters import ClusterTree


@dataclass(frozen=True)
class Method:
    """One row of a comparison.

    Attributes
    ----------
    name : str
    fit : callable
        ``fit(federation, problem, **options) -> Estimates``.
    takes : tuple of str
        Names of the options that ``fit`` takes.
    learns : bool
        Learns variances (where it is not given strengths), which needs more than one row for some clients.
    flat : bool
        Ignores clusters.
    clustered : bool
        Says something else than the others only where there are clusters.
    intercept : bool
        Needs an intercept that can be personal.
    asked : bool
        Compared only where it is asked for by name.
    whole : bool
        Ties all coefficients of a client, and one level of clusters at most.
    over : callable, optional
        Of a method over rounds: checks what a user asks of them, a mapping.
    corrected : bool or None
        Of a main client and its collaborators: whether their bias is corrected.
    networked : bool
        Ties clients along a network; compared where one is described, too.
    turns : bool
        Knows ``GroupedProblem.basis``, so that it may be given other columns that say the same.
    """

    name: str
    fit: Callable[..., Estimates]
    takes: tuple[str, ...] = ()
    learns: bool = False
    flat: bool = False
    clustered: bool = False
    intercept: bool = False
    asked: bool = False
    whole: bool = False
    over: Callable[[Mapping[str, Any]], Any] | None = None
    corrected: bool | None = None
    networked: bool = False
    turns: bool = False


LEARNING = ("covariance", "reml", "own", "residual")
STRENGTHS = ("gamma", "lam", "alpha")
OVER_ROUNDS = (*STRENGTHS, "rounds")
METHODS = {
    method.name: method
    for method in (
        Method("local", local.fit, turns=True),
        Method("pooled", pooled.fit, turns=True),
        Method("own-intercept", own_intercept.fit, intercept=True, turns=True),
        Method("clusterwise", clusterwise.fit, clustered=True, turns=True),
        Method("single-cluster", hierarchical.fit, LEARNING, learns=True, flat=True, clustered=True, turns=True),
        Method("hierarchical", hierarchical.fit, LEARNING, learns=True, turns=True),
        Method("given-strengths", given_strengths.given, STRENGTHS, turns=True),
        Method("james-stein", james_stein.fit, STRENGTHS + LEARNING, learns=True, asked=True, turns=True),
        Method("async-l2gd", clustered_l2gd.fit, OVER_ROUNDS, learns=True, asked=True, whole=True, over=Rounds.of),
        Method(
            "async-al2sgd",
            partial(clustered_l2gd.fit, accelerated=True),
            OVER_ROUNDS,
            learns=True,
            asked=True,
            whole=True,
            over=Rounds.of,
        ),
        Method("similarity-network", network.fit, ("network", "rounds"), asked=True, over=Run.of, networked=True),
        *(
            Method(
                name,
                partial(collaboration.fit, corrected=corrected),
                ("rounds",),
                asked=True,
                over=partial(Collaboration.of, corrected=corrected),
                corrected=corrected,
            )
            for name, corrected in (("weighted-averaging", False), ("bias-correction", True))
        ),
    )
}


def applicable(
    problem: GroupedProblem, learnable: bool, strengths: bool, asked: str = "auto", network: bool = False
) -> list[str]:
    """Names of the methods that differ on this problem.

    ``learnable`` says whether variances can be split, ``strengths`` whether strengths are given, ``asked`` which method
    is asked for, ``network`` whether a similarity network is described.
    """
    learns = {False: learnable, True: learnable and replace(problem, tree=ClusterTree()).learnable}

    def fits(m: Method) -> bool:
        has_intercept = problem.intercept is not None and problem.intercept in problem.personal
        clusters = len(problem.tree.parents) > 0 and problem.tree.sizes[0] > 1
        given = strengths and "gamma" in m.takes
        if (m.asked and m.name != asked and not (m.networked and network)) or not (
            given or (learns[m.flat] if m.learns else "gamma" not in m.takes)
        ):
            return False
        return (clusters or not m.clustered) and (has_intercept or not m.intercept)

    return [name for name, method in METHODS.items() if fits(method)]
