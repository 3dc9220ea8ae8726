"""How curved the losses of main clients are, and how differently their collaborators curve (delta, Assumption A3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.constants.bending import delta_at_most, delta_of
from coterie.methods.collaboration.metric import Metric
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, full
from coterie.objectives.constants import hessians
from coterie.objectives.mean_loss import sizes


@work
def bend(site: Site, at: Floats, w: Floats) -> dict[str, Any]:
    """Packed Hessian of the mean loss at one point, and what it is at most in the region of ``Constants``, times w."""
    weight = sizes(site.objective)
    theta, share = np.tile(at, (len(site), 1)), (w / np.where(weight > 0.0, weight, 1.0))[:, None]
    return {"A": share * hessians(site.objective, theta), "most": share * hessians(site.objective, theta, most=True)}


@dataclass(frozen=True)
class Curvature:
    """In the units of a metric, at its origin.

    Attributes
    ----------
    own, average : (M, d, d)
        Hessians of ``f_0`` and of ``sum_k tau_k f_k``.
    own_most, average_most : (M, d, d)
        What they are at most.
    """

    own: Floats
    average: Floats
    own_most: Floats
    average_most: Floats

    def smoothness(self, alpha: Floats) -> Floats:
        """L (M,) of ``(1 - alpha) f_0 + alpha sum_k tau_k f_k``, and of ``f_0`` where that is larger."""
        alpha = alpha[:, None, None]
        mixed = np.linalg.eigvalsh((1.0 - alpha) * self.own_most + alpha * self.average_most)[:, -1]
        return np.asarray(np.maximum(mixed, np.linalg.eigvalsh(self.own_most)[:, -1]))

    @property
    def mu(self) -> Floats:
        """Smallest curvature (M,) of ``f_0``."""
        return np.asarray(np.maximum(np.linalg.eigvalsh(self.own)[:, 0], 0.0))

    @property
    def delta(self) -> Floats:
        """``|H_average - H_0|`` (M,) at the origin: what BC has to do with, which corrects the average's bias."""
        return delta_of(self.own, self.average)

    @property
    def delta_at_most(self) -> Floats:
        """What delta is at most (M,): losses that are not quadratic curve otherwise elsewhere."""
        return delta_at_most(self.own, self.average, self.own_most, self.average_most)


def curvature(fed: Federation, who: Collaborators, metric: Metric) -> Curvature:
    """Ask for it: one exchange of sums."""
    M, here = len(who.main), np.concatenate([np.ones(len(who.main)), who.tau])
    by = np.concatenate([np.arange(M), M + who.of])
    s = require_all_replies(fed.total(bend, to=who.requests, by=by, groups=2 * M, at=metric.at, w=PerRow(here)))
    own, most = (np.einsum("ji,mjk,kl->mil", metric.R, full(s[name]), metric.R) for name in ("A", "most"))
    return Curvature(own[:M], own[M:], most[:M], most[M:])
