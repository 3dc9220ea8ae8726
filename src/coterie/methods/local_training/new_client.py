"""A client that comes after the training: what its method does with it, while what the others share stays as it is.

A method says by ``joins`` what that is:

* "rounds": the client takes part in rounds, each of which begins at the same shared model, and has the model that the
  method gives it then: Ditto's own model is pulled to that, FedPer trains own layers, APFL its part of the mixture.
* "steps": it has the shared model, of several the one with the least loss on its rows, and may take steps from it.
* "groups": it has the model of the group with the least loss, and may take steps of own layers.
* "among": it takes part in rounds among the models that others had in the end.
* "pulled": its steps are on the objective with others' models as they are, which is a pull to means of these.
* "tied": the same along a network: steps, and the prox of its ties to others.
* "": its models hang on other clients' rows or gradients, which nobody has afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation
from coterie.numerics.arrays import Floats, Ints

RULES = {
    "rounds": "takes part for `rounds`, each of which begins at the shared model",
    "steps": "the shared model, then `steps`",
    "groups": "the model of the group with the least loss, then `steps`",
    "among": "takes part for `rounds` among others' models, which stay",
    "pulled": "`rounds` of steps, pulled to the mean of the group with the least loss",
    "tied": "`rounds` of steps, tied to `neighbours`, or else to others' mean",
    "": 'none: `by="mean"`',
}
"""What a client that comes later gets by each rule, in words."""


def shared_models(method: Any, state: Any) -> Floats | None:
    """What the server has for clients to come (k, d), of which own layers are the first model's; None where nothing."""
    if getattr(method, "joins", "") not in ("rounds", "steps") and not getattr(method, "mixes", False):
        return None
    w = np.atleast_2d(state["w"])
    if "whole" not in state:
        return w
    out = np.tile(state["whole"], (len(w), 1))
    out[:, state["shared"]] = w
    return out


def join(fed: Federation, method: Any, w: Floats, rounds: int, others: Any = None) -> Floats:
    """Models (m, d) of the clients of ``fed`` after ``rounds`` that all begin at the shared model w (d,) or (k, d).

    What else is shared, a method's ``met`` knows by the mean (d,) of the ``others``' models.
    """
    state = method.init(fed, w)
    shared = {"w": state["w"]} | (method.met(fed, others) if hasattr(method, "met") else {})
    state = state | shared
    for t in range(rounds):
        _, new = method.round(fed, state | {"t": t}, np.arange(len(fed.clients)))
        state = state | new | shared
    return np.asarray(method.models(fed, state))


def join_among(fed: Federation, method: Any, others: Floats, counts: Floats, rounds: int) -> Floats:
    """The model (1, d) of the last client of N + 1 after ``rounds`` among others' models (N, d), which stay."""
    last = np.array([len(others)])
    state = method.among(fed, others, counts)
    for t in range(rounds):
        _, new = method.round(fed, state | {"t": t}, last)
        state = state | new
    return np.asarray(method.models(fed, state))[-1:]


def group_means(theta: Floats, weight: Floats, group: Ints, k: int = 0) -> Floats:
    """Weighted means (k, d) of models (m, d) of groups 0..k-1, by default to the last that is there; 0 of none."""
    sums = np.zeros((k or int(group.max()) + 1, len(group)))
    sums[group, np.arange(len(group))] = weight
    return np.asarray(sums @ theta / np.maximum(sums.sum(axis=1, keepdims=True), 1e-300))
