"""Step sizes of Algorithm 6 from the curvature of the losses.

With both blocks moving at once, half of what each block alone allows descends: the Hessian of f is at most twice its
block diagonal. A client's own block has the curvature of its own rows only, so its step is its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.replies import require_all_replies
from coterie.numerics.arrays import Floats, Ints, full, pack
from coterie.objectives.constants import extreme_eigenvalues, hessians
from coterie.objectives.mean_loss import sizes
from coterie.relations.parameter_layout import Layout

FLAT = 1e-6
"""Curvature of a client's own block at least, relative to the largest."""


class StepSizes(NamedTuple):
    """Step sizes: of x, and of every client's z (n,); and the weight of all rows."""

    eta: float
    own: Floats
    weight: float


@work
def curvature_bound(site: Site, unit: Floats, theta: Floats) -> dict[str, Any]:
    """What a client's curvature is at most, to be added up, and the weight of its rows."""
    return {"A": pack(_most(site, unit, theta)), "weight": sizes(site.objective)}


@work
def own_curvature(site: Site, unit: Floats, theta: Floats, shared: Ints, personal: Ints) -> dict[str, Any]:
    """The largest curvature of a client's own block, and the sums of its curvatures in both, as one mean row has."""
    layout, H = Layout(np.asarray(shared), np.asarray(personal)), _most(site, unit, theta)
    A, B = (np.array([P.T @ (P.T @ a).T for a in H]).reshape(len(H), *2 * P.shape[1:]) for P in (layout.N, layout.M))
    top = extreme_eigenvalues(pack(A))[1] if layout.d2 else np.zeros(len(H))
    return {"top": top, "own": np.trace(A, axis1=1, axis2=2), "shared": np.trace(B, axis1=1, axis2=2)}


def _most(site: Site, unit: Floats, theta: Floats) -> Floats:
    return full(hessians(site.objective, theta, most=True)) * unit * unit[:, None]


def step_sizes(
    fed: Federation,
    layout: Layout,
    unit: Floats,
    both: bool = True,
    theta: Floats | None = None,
    held: Floats | float = 0.0,
    participation: float = 1.0,
    batch: int = 0,
) -> StepSizes:
    """Steps with which f surely descends, given gradients of all rows (for Poisson outcomes: near ``theta`` (d,)).

    Few rows may all point in one direction, in which their curvature is the sum of all that they have. So where
    gradients are of ``batch`` rows, a client's curvature counts with its sum over ``batch`` added: runs stay stable,
    unless some rows are much larger than the mean. Clients hold ``unit * (M x + N z_n)``; ``both`` says whether x and Z
    move at once. ``held`` is added to the curvature of every client's own block, summed over its rows as theirs is.
    Clients that take part with probability ``participation`` count so much more, and steps are so much shorter.
    """
    at = np.tile(np.zeros(layout.d) if theta is None else theta, (len(fed.clients), 1))
    sums = require_all_replies(fed.total(curvature_bound, unit=unit, theta=PerRow(at)))
    weight, M = float(sums["weight"]), layout.M.toarray()
    common = float(np.linalg.eigvalsh(M.T @ full(sums["A"]) @ M)[-1]) / weight if layout.d1 else 0.0
    share = participation * (0.5 if both and layout.d1 and layout.d2 else 1.0)
    blocks: dict[str, Any] = {"shared": layout.shared, "personal": layout.personal}
    each = require_all_replies(fed.ask(own_curvature, unit=unit, theta=PerRow(at), **blocks))
    top = (each["top"] + held) / weight
    if batch:
        top, common = top + each["own"] / (batch * weight), common + float(each["shared"].max()) / (batch * weight)
    top = np.maximum(top, FLAT * float(top.max(initial=0.0)))
    return StepSizes(share / common if common > 0.0 else 1.0, share / np.where(top > 0.0, top, 1.0), weight)
