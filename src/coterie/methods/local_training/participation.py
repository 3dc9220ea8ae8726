"""Who takes part in a round, and who cannot go on after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation, Site, Sums, work
from coterie.numerics import keyed_random
from coterie.numerics.kernels import Ints
from coterie.objectives.parameters import has_finite_gradient

GOOD, DIVERGED, BROKEN = 0, 1, 2
"""Verdicts of clients on themselves: their steps diverged, or their rows give no gradient."""

NO_GRADIENT = "the data of some clients give no gradient"


@work
def verdicts(site: Site) -> dict[str, Any]:
    """What clients found of themselves in the last round."""
    return {"verdict": site.state.get("verdict", np.zeros(len(site), dtype=np.int64))}


@work
def usable(site: Site) -> dict[str, Any]:
    """Whether clients' data give a gradient."""
    return {"sound": has_finite_gradient(site.objective)}


def participants(ids: Any, free: Ints, t: int, C: float, seed: int) -> Ints:
    """The share C of the clients ``free`` that takes part in round t, drawn by keys: one at least, in rising order."""
    m = max(int(C * len(free) + 0.5), 1)
    if m == len(free):
        return free
    u = keyed_random.uniform(seed, "participation", ids[free], t, 1)[:, 0]
    return np.sort(free[np.argpartition(u, m - 1)[:m]])


def first_quarantine(fed: Federation) -> dict[str, Any]:
    """What a state says of clients before the first round: whose data give no gradient never takes part.

    Where replies are private sums, nobody is asked, and such clients add nothing to them.
    """
    out, why = (np.zeros(len(fed.clients), dtype=np.int64) for _ in range(2))
    replies = None if getattr(fed, "private", False) else fed.ask(usable)
    if replies:
        who = replies.to[replies.rows][~replies["sound"].astype(bool)]
        out[who], why[who] = 1, BROKEN
    return {"t": 0, "status": "running", "quarantined": out, "why": why}


def judged(fed: Federation, state: dict[str, Any], sums: Sums, new: dict[str, Any], strict: bool) -> dict[str, Any]:
    """What changes in the state of round t, where some of those that were just added up cannot go on.

    They are ``quarantined`` in it (its number, from 1; ``why`` is DIVERGED or BROKEN). Where the run is ``strict``, or
    most have diverged, its status ends it, and ``failed`` are those clients. So does what is ``new`` and not finite.
    """
    at = state["t"] + 1
    far, broken = (float(np.sum(sums[name])) if sums else 0.0 for name in ("diverged", "broken"))
    who, why = blame(fed, sums) if far or broken else (sums.to[:0], sums.to[:0])
    if far > (0.0 if strict else 0.5 * len(sums.rows)):
        return {"status": f"diverged by step {at}", "failed": who[why == DIVERGED]}
    if broken and strict:
        return {"status": f"ended by step {at}: {NO_GRADIENT}", "failed": who}
    if not all(np.isfinite(v).all() for v in new.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f"):
        return {"status": f"diverged by step {at}", "failed": who}
    quarantined, reason = state["quarantined"].copy(), state["why"].copy()
    quarantined[who], reason[who] = at, why
    return {"quarantined": quarantined, "why": reason}


def blame(fed: Federation, sums: Sums) -> tuple[Ints, Ints]:
    """Who of those that were just added up has diverged, or has broken data, and which of both (DIVERGED, BROKEN)."""
    replies = fed.ask(verdicts, to=sums.to[sums.rows])
    if not replies:
        return sums.to[:0], sums.to[:0]
    bad = np.isin(replies["verdict"], (DIVERGED, BROKEN))
    return replies.to[replies.rows][bad], replies["verdict"][bad]
