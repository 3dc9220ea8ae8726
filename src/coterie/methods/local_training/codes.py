"""The clients' end of models that travel coded: read what was sent, code what is sent back.

A coded model is ``{"full", "news", "each"}``: the reference that a client is to hold, for those that do not hold it (no
numbers for the others), and the coded change of it since, k rows for all, or one for ``each``. What is sent back is the
coded change of the model since it came; what a biased codec loses of it is remembered, and added the next time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.codecs import Codec, by_name
from coterie.codecs.feedback import error_feedback, plain
from coterie.errors import CoterieError
from coterie.federation import Ragged, Site
from coterie.methods.local_training.own import Link, joined
from coterie.numerics import keyed
from coterie.numerics.kernels import Bools, Floats


def heard(site: Site, w: Any, link: Link) -> Floats:
    """Shared parts (m, k, d1) of the k models that were sent, as they are (k, d1) or coded."""
    if not isinstance(w, dict):
        return np.broadcast_to(w, (len(site), *w.shape))
    full, lengths = w["full"].values, np.diff(w["full"].offsets)
    lacks, size = lengths > 0, int(lengths.max(initial=0))
    held = np.array(site.state.get("held", np.zeros((len(site), size), dtype=full.dtype)))
    if lacks.any():
        held[lacks] = full.reshape(-1, size)
    k = 1 if w["each"] else len(w["news"])
    held = held.reshape(len(site), k, -1)
    news = by_name(link["down"]).decode(w["news"], held.shape[2])
    held = (held + (news[:, None] if w["each"] else news)).astype(held.dtype)
    site.state["held"] = held.reshape(len(site), -1)
    return np.asarray(held)


def begun(site: Site, shared: Floats, link: Link) -> Floats:
    """Models (m, d) to start from, of shared parts (d1,) or (m, d1), which are remembered where changes are sent."""
    if "up" in link:
        site.state["base"] = np.broadcast_to(shared, (len(site), shared.shape[-1]))
    return joined(site, shared, link)


def packed(site: Site, shared: Floats, good: Bools, link: Link) -> tuple[Ragged, Bools]:
    """The coded change of the shared parts (m, d1) where they are good (m,), and where the codec could hold it."""
    codec, keys = by_name(link["up"]), keyed.starts(site.seed, "codec", site.ids)
    change = shared - site.state["base"]
    memory = change[:0] if codec.unbiased else site.state.get("memory", np.zeros(shared.shape, dtype=shared.dtype))
    wanted = change if codec.unbiased else memory + change
    good = good & _held(codec, np.where(good[:, None], wanted, 0.0), keys, link["message"])
    change = np.where(good[:, None], change, 0.0)
    if codec.unbiased:
        return plain(memory, change, codec, keys, link["message"]).payload, good
    sent = error_feedback(np.where(good[:, None], memory, 0.0), change, codec, keys, link["message"])
    site.state["memory"] = np.where(good[:, None], sent.memory, memory).astype(shared.dtype)
    return sent.payload, good


def _held(codec: Codec, rows: Floats, keys: Any, step: int) -> Bools:
    """Which rows a codec can hold (m,): some have a largest number."""
    if np.abs(rows).max(initial=0.0) < SAFE:
        return np.ones(len(rows), dtype=bool)
    held = np.ones(len(rows), dtype=bool)
    for i in range(len(rows)):
        try:
            codec.encode(rows[i : i + 1], keys[i : i + 1], step)
        except CoterieError:
            held[i] = False
    return held


SAFE = 1e4
"""Numbers below it fit every codec."""
