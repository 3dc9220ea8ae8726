"""Before the first round: how many parameters there are, which of them are shared, and where they start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation, Ragged, Replies, Site, work
from coterie.methods.local_training.own import Link, stays
from coterie.numerics.kernels import Bools, Floats
from coterie.objectives.parts import first, precision


@dataclass(frozen=True)
class Start:
    """What clients said.

    Attributes
    ----------
    shared : (d,) bool
        Parameters that are sent to and fro.
    models : (k, d)
        The objective's first model for every seed, in the objective's precision.
    told : bool
        Whether the objective has first models of its own; else they are zero.
    """

    shared: Bools
    models: Floats
    told: bool

    def cut(self, w: npt.ArrayLike) -> Floats:
        """The shared part of models given (..., d) or (..., d1); a CoterieError for another shape, or too many."""
        d, d1 = len(self.shared), int(self.shared.sum())
        given = np.array(w, dtype=self.models.dtype)
        if given.shape[-1:] not in ((d,), (d1,)) or not np.isfinite(given).all():
            also = "" if d1 == d else f" or the {d1} that they share"
            raise CoterieError(f"The first model must be {d} finite numbers, as many as clients have parameters{also}.")
        if len(given.reshape(-1, given.shape[-1])) > (k := len(self.models)):
            where, many = ("at one model", "one first model") if k == 1 else (f"at {k} models", "as many first models")
            raise CoterieError(f"Clients begin {where}: give {many}, not an array of shape {given.shape}.")
        out: Floats = given if given.shape[-1] == d1 else given[..., self.shared]
        return out

    def whole(self, w: npt.ArrayLike | None) -> Floats:
        """A model (d,) with the first own parts, those of the first of the models w (..., d) where they are given."""
        given = None if w is None else np.atleast_2d(np.asarray(w, dtype=self.models.dtype))[0]
        return np.asarray(self.models[0] if given is None or given.shape != self.shared.shape else given)


@work
def begin(site: Site, link: Link, seeds: Sequence[int], asked: Any, w: Any = None) -> dict[str, Any]:
    """Take the first own parts, those of w (..., d) where it is given; the client ``asked`` tells the first models."""
    objective, m, own = site.objective, len(site), stays(site, link)
    if own.any():
        given = w is not None and np.shape(w)[-1:] == (len(own),)
        start = np.atleast_2d(w)[0] if given else first(objective, link.get("seed", 0))
        site.state["own"] = np.tile(start[own].astype(precision(objective)), (m, 1))
    tells, models = site.ids == asked, np.empty((0, objective.dim), dtype=precision(objective))
    if tells.any() and hasattr(objective, "start"):
        models = np.stack([first(objective, seed) for seed in seeds])
    about = {"dim": np.full(m, objective.dim), "shared": np.full(m, (~own).sum()), "bytes": np.full(m, models.itemsize)}
    return about | {"models": _told(models.ravel(), tells), "mask": _told(~own, tells)}


def _told(values: npt.NDArray[Any], tells: Bools) -> Ragged:
    """All values in the rows that tell, nothing in the others."""
    return Ragged(np.tile(values, int(tells.sum())), np.concatenate([[0], np.cumsum(tells * len(values))]))


def started(fed: Federation, link: Link, seeds: Sequence[int], w: npt.ArrayLike | None) -> Start:
    """Ask all clients how they start; a CoterieError where they differ, or where nobody says."""
    w = None if w is None else _numbers(w)
    about, asked = fed.ask(begin, link=link, seeds=seeds, asked=fed.clients.ids[:1], w=w), 0
    if about and about.to[about.rows[0]] != asked:
        asked = int(about.to[about.rows[0]])
        told = fed.ask(begin, to=[asked], link=link, seeds=seeds, asked=fed.clients.ids[asked : asked + 1], w=w)
    else:
        told = about
    if not told:
        raise CoterieError("No client said how many parameters it has: start again when some answer.")
    d, width = _same(about, "dim", "parameters"), _same(about, "bytes", "bytes in a number")
    _same(about, "shared", "shared parameters")
    models, mask = (told[name][0] for name in ("models", "mask"))
    shape, dtype = (len(seeds), d), np.dtype(f"f{width}")
    return Start(mask, models.reshape(shape) if len(models) else np.zeros(shape, dtype=dtype), len(models) > 0)


def _numbers(w: Any) -> npt.NDArray[Any]:
    """First models that are numbers; a CoterieError for whatever else."""
    try:
        given = np.asarray(w)
    except Exception:
        given = np.empty(0, dtype=object)
    if given.dtype.kind not in "biuf":
        raise CoterieError(
            f"The first model must be a row of numbers, not a {type(w).__name__}: objective.flat(module) is "
            "that of a torch module."
        )
    return given


def _same(about: Replies, name: str, what: str) -> int:
    found = np.unique(about[name])
    if len(found) != 1:
        raise CoterieError(
            f"Clients have between {found[0]} and {found[-1]} {what}: give all the same columns and classes."
        )
    return int(found[0])
