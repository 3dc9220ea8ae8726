"""Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang (2016), Deep learning with differential privacy, Algorithm 1.

DP-SGD over sites: each adds up the clipped gradients of its rows, the server steps along their sum. In a federation
``Private(unit="row")`` the sum has noise, and coins at the sites draw its rows; a plain one does neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, Sums, require_all_replies, work
from coterie.methods.local_training.client_work import Reply
from coterie.methods.local_training.rounds import LocalTraining, State
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.clipped_gradients import clipped_gradients
from coterie.options import Option


@work
def row_counts(site: Site) -> Reply:
    """How many rows every client has, which is no secret."""
    return {"rows": np.asarray(site.objective.counts, dtype=np.int64)}


@work
def gradients(site: Site, w: Floats, clip: float = np.inf, chosen: Bools | None = None) -> Reply:
    """Lines 5 to 7: the sum of the rows' gradients at w, each of norm ``clip`` at most, over those that are chosen."""
    site.count(gradients=len(site))
    return {"g": clipped_gradients(site.objective, w, clip, chosen)}


@dataclass(frozen=True, kw_only=True)
class DPSGD(LocalTraining):
    """Algorithm 1 with the paper's symbols; clip, noise and sampling of rows are the federation's."""

    joins: ClassVar[str] = "steps"
    mu: Annotated[float, Option("Momentum of the server, which costs no privacy.", low=0.0, high=1.0)] = 0.0
    without: ClassVar[tuple[str, str]] = (
        "dp-sgd adds up gradients of a whole model, of rows that the federation's `sampling` draws",
        "B personal up down",
    )
    by_row: ClassVar[bool] = True  # is compared where the privacy of rows is asked for

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first step."""
        state = super().init(fed, w)
        if "whole" in state:
            raise CoterieError("dp-sgd trains the whole model: take one that keeps nothing with its clients.")
        rows = require_all_replies(fed.ask(row_counts))["rows"]
        return state | {"rows": np.array(rows), "v": np.zeros_like(state["w"])}

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Lines 3 to 8: ``w_{t+1} = w_t - eta_t (sum of clipped gradients + noise) / L``."""
        w, v = state["w"], state["v"]
        sums = fed.total(gradients, to=to, w=w)
        if not sums:
            return sums, {}
        L = max(int(state["rows"][sums.to[sums.rows]].sum()), 1)
        v = (self.mu * v + sums["g"] / L).astype(w.dtype)
        w = (w - self.rate(state["t"]) * v).astype(w.dtype)
        verdict: dict[str, Any] = {"diverged": 1.0 * (not np.isfinite(w).all()) * len(sums.rows), "broken": 0.0}
        return Sums({**sums, **verdict}, sums.to, sums.rows, sums.missing, sums.count), {"w": w, "v": v}
