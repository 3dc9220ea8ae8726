"""Monitoring a run over groups: gradients of groups, variances, and the M of the strong growth condition."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.groups.group_gradients import look
from coterie.methods.local_training.rounds import State


def monitored(
    fed: Federation, method: GroupSGD, rounds: int, every: int = 1, replicates: int = 2
) -> tuple[State, dict[str, Any]]:
    """Run a method: its last state, and the trace of a look at all rows (``growth.look``) before ``every`` rounds.

    ``replicates`` are independent batches of every client at a look.
    """
    state, trace = method.init(fed), dict[str, Any]()
    while state["t"] < rounds and state["status"] == "running":
        if state["t"] % every == 0:
            trace = append_row(trace, look(fed, method, state, replicates, rows=0))
        state = method.step(fed, state)
    return state, trace


def append_row(trace: dict[str, Any] | None, row: dict[str, Any] | None) -> dict[str, Any]:
    """A trace with one more row: arrays, the first axis of which is observations."""
    if row is None:
        return trace or {}
    new = {name: np.asarray(value)[None] for name, value in row.items()}
    return {name: np.concatenate([trace[name], value]) for name, value in new.items()} if trace else new
