"""The first models: what clients say of theirs, once before the first round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation, Ragged, Replies, Site, work
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.mixed import kinds
from coterie.objectives.parameters import base_digest, initial_parameters, precision, statistics_mask


@dataclass(frozen=True)
class FirstModels:
    """What clients said of their first models."""

    shared: Bools  # (d,) parameters that are sent to and fro
    models: Floats  # (k, d) the objective's first model for every seed, in its precision
    known: bool  # whether the objective has first models of its own; else they are zero
    statistics: Bools  # (d1,) what of the shared part has no gradient

    def shared_layers(self, w: npt.ArrayLike) -> Floats:
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
def begin(site: Site, transport: ModelTransport, seeds: Sequence[int], asked: Any, w: Any = None) -> dict[str, Any]:
    """Take the first own parts, those of w (..., d) where it is given; the client ``asked`` tells the first models."""
    objective, m, own = site.objective, len(site), client.personal_mask(site, transport)
    if own.any() and (w is not None or site.state.written("personal").any()):  # else they are the first ones anyway
        given = w is not None and np.shape(w)[-1:] == (len(own),)
        start = np.atleast_2d(w)[0] if given else initial_parameters(objective, transport.get("seed", 0))
        site.state["personal"] = np.tile(start[own].astype(precision(objective)), (m, 1))
    chosen, models = site.ids == asked, np.empty((0, objective.dim), dtype=precision(objective))
    if chosen.any() and hasattr(objective, "start"):
        models = np.stack([initial_parameters(objective, seed) for seed in seeds])
    about = {"dim": np.full(m, objective.dim), "shared": np.full(m, (~own).sum()), "bytes": np.full(m, models.itemsize)}
    base = np.zeros(m, dtype=np.uint64)
    for rows, part in kinds(objective):
        base[rows] = int(base_digest(part)[:16] or "0", 16)
    about |= {"base": base} if base.any() else {}
    first = {"models": _only_from(models.ravel(), chosen), "mask": _only_from(~own, chosen)}
    if (still := statistics_mask(objective)[~own]).any():
        first |= {"statistics": _only_from(still, chosen)}
    return about | first


def _only_from(values: npt.NDArray[Any], chosen: Bools) -> Ragged:
    """All values in the rows that tell, nothing in the others."""
    return Ragged(np.tile(values, int(chosen.sum())), np.concatenate([[0], np.cumsum(chosen * len(values))]))


def ask_first_models(
    fed: Federation, transport: ModelTransport, seeds: Sequence[int], w: npt.ArrayLike | None
) -> FirstModels:
    """Ask all clients how they start; a CoterieError where they differ, or where nobody says."""
    w = None if w is None else _numbers(w)
    about, asked = fed.ask(begin, transport=transport, seeds=seeds, asked=fed.clients.ids[:1], w=w), 0
    if about and about.to[about.rows[0]] != asked:
        asked = int(about.to[about.rows[0]])
        ids = fed.clients.ids[asked : asked + 1]
        reply = fed.ask(begin, to=[asked], transport=transport, seeds=seeds, asked=ids, w=w)
    else:
        reply = about
    if not reply:
        raise CoterieError("No client said how many parameters it has: start again when some answer.")
    if len(np.unique(about.get("base", ()))) > 1:
        raise CoterieError(
            "Clients have other numbers in the layers that do not train: give all the same pretrained module, or a "
            "function that makes the same one everywhere."
        )
    d, width = _same(about, "dim", "parameters"), _same(about, "bytes", "bytes in a number")
    _same(about, "shared", "shared parameters")
    models, mask = (reply[name][0] for name in ("models", "mask"))
    shape, dtype = (len(seeds), d), np.dtype(f"f{width}")
    still = reply["statistics"][0] if "statistics" in reply else np.zeros(int(mask.sum()), dtype=bool)
    first = models.reshape(shape) if len(models) else np.zeros(shape, dtype=dtype)
    return FirstModels(mask, first, len(models) > 0, still)


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
    different = np.unique(about[name])
    if len(different) != 1:
        raise CoterieError(
            f"Clients have between {different[0]} and {different[-1]} {what}: give all the same columns and classes."
        )
    return int(different[0])
