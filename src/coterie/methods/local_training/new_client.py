"""A client that comes after the training: what its method does with it, while what the others share stays as it is.

A method says by ``joins`` what that is:

* "rounds": the client takes part in rounds, each of which begins at the same shared model, and has the model that the
  method gives it then: Ditto's own model is pulled to that, FedPer trains own layers, APFL its part of the mixture.
* "steps": it has the shared model, of several the one with the least loss on its rows, and may take steps from it.
* "groups": it has the model of the group with the least loss, and may take steps of own layers.
* "": its models hang on other clients' rows or gradients, which nobody has afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation
from coterie.numerics.arrays import Floats


def shared_models(method: Any, state: Any) -> Floats | None:
    """What the server has for clients to come (k, d), of which own layers are the first model's; None where nothing."""
    if getattr(method, "joins", "") not in ("rounds", "steps"):
        return None
    w = np.atleast_2d(state["w"])
    if "whole" not in state:
        return w
    out = np.tile(state["whole"], (len(w), 1))
    out[:, state["shared"]] = w
    return out


def join(fed: Federation, method: Any, w: Floats, rounds: int) -> Floats:
    """Models (m, d) of the clients of ``fed`` after ``rounds`` that all begin at the shared model w (d,) or (k, d)."""
    state = method.init(fed, w)
    shared = {"w": state["w"]}
    for t in range(rounds):
        _, new = method.round(fed, state | {"t": t}, np.arange(len(fed.clients)))
        state = state | new | shared
    return np.asarray(method.models(fed, state))
