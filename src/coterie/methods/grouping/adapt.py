"""Clients never seen: the group that suits their few rows best, and a short training of what is not shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.checks import need
from coterie.methods.grouping.sure import Sure, sure
from coterie.methods.local_training.client_work import finite, train
from coterie.numerics.kernels import Floats, Ints
from coterie.objectives.parts import where


@dataclass(frozen=True)
class Adapted:
    """Models of new clients.

    Attributes
    ----------
    models : (m, d)
        A client whose steps diverge, or which has no rows, keeps its group's model; NaN for those that do not answer.
    group : (m,) int64
        Chosen by loss on a client's rows; 0 where it has none, -1 where it does not answer.
    sure : Sure
        Losses under every group's model, margins, and the probability that the group is the best.
    """

    models: Floats
    group: Ints
    sure: Sure


@work
def short(site: Site, w: Floats, eta: float, steps: int, B: int, personal: list[str]) -> dict[str, Any]:
    """Some steps from w (m, d) on a client's own rows, of the personal parameters alone."""
    on = where(site.objective, personal).astype(np.float64) if personal else None
    many = np.full(len(site), steps, dtype=np.int64)
    theta = train(site, w, eta, many, np.zeros_like(many), B, "adaptation rows", on=on)
    return {"theta": np.where(finite(theta)[:, None], theta, w)}


def adapt(
    fed: Federation,
    w: Floats,
    *,
    eta: float = 0.1,
    steps: int = 0,
    B: int = 0,
    personal: Sequence[str] = (),
) -> Adapted:
    """Models for new clients out of a fitted run; nothing that is shared changes.

    Parameters
    ----------
    fed : Federation
        Of the new clients, over an objective with the same parameters.
    w : (k, d) or (d,)
        A model for each group (``state["w"]`` of IFCA and CFL, or any client's model of each group), or one for all.
    eta : float, default 0.1
        Step size.
    steps : int, default 0
        Local steps after the group is chosen; 0 takes the group's model as it is.
    B : int, default 0
        Rows of a step; 0 takes all.
    personal : sequence of str
        Names or patterns of the parameters that the steps move, such as ``head*``; by default all.

    Returns
    -------
    Adapted
        In the order of ``fed.clients``.

    Raises
    ------
    CoterieError
        For a pattern that matches nothing, or negative steps.
    """
    need("steps", steps, 0, whole=True)
    need("eta", eta, 0.0)
    w = np.atleast_2d(np.asarray(w))
    judged = sure(fed, w, held=False)
    chosen = w[np.maximum(judged.group, 0)]
    patterns = [personal] if isinstance(personal, str) else list(personal)
    found = fed.ask(short, w=PerRow(chosen), eta=float(eta), steps=steps, B=B, personal=patterns)
    models, group = np.full(chosen.shape, np.nan, dtype=chosen.dtype), np.full(len(chosen), -1, dtype=np.int64)
    here = found.to[found.rows]
    if found:
        models[here], group[here] = found["theta"], np.maximum(judged.group[here], 0)
    return Adapted(models, group, judged)
