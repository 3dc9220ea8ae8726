"""Rounds in which the server keeps a model of each client, and weighs them anew for everyone: who collaborates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coterie.federation import Federation, PerRow, Sums
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.rounds import LocalTraining, State, average, client_models
from coterie.numerics.arrays import Floats, Ints


@dataclass(frozen=True, kw_only=True)
class OwnModels(LocalTraining):
    """What these methods share; the server's work grows with the square of the number of clients.

    The state has every client's model ``w`` (N, d1), what it ``counts`` (N,), 0 until it has sent one, the ``weights``
    (N, N) that made what it was sent last, and the model (d1,) at which all have ``begun``.
    """

    joins: ClassVar[str] = "among"
    mixes: ClassVar[bool] = False  # whether clients' models are mixtures of those in the state, not these

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round: all clients at one model w (d,)."""
        state, n = super().init(fed, w), len(fed.clients)
        every = {"w": np.tile(state["w"], (n, 1)), "counts": np.zeros(n), "weights": np.eye(n)}
        return state | every | {"begun": state["w"]}

    def among(self, fed: Federation, others: Floats, counts: Floats) -> State:
        """The state in which the last client of ``fed`` begins beside others' models (N, d), which count so much."""
        state = self.init(fed)
        w = np.concatenate([others[:, state.get("shared", slice(None))], state["w"][-1:]])
        return state | {"w": w.astype(state["w"].dtype), "counts": np.append(counts, 0.0)}

    @staticmethod
    def trained(state: State, known: Ints) -> Floats:
        """What trains of the models of some clients (k, d2), by which they are compared; statistics do not."""
        return np.asarray(state["w"][known][:, ~state["statistics"]] if "statistics" in state else state["w"][known])

    def weigh(self, state: State, known: Ints) -> Floats:
        """What each of the clients ``known`` (k,), which have sent models, is to hear of the others: (k, k)."""
        return np.asarray(state["weights"][np.ix_(known, known)])

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Clients are sent mixtures of all models, and send theirs."""
        known = np.flatnonzero((state["counts"] > 0.0) & (state["quarantined"] == 0))
        weights = np.eye(len(state["w"]))
        if len(known) > 1:
            weights[np.ix_(known, known)] = self.weigh(state, known)
        mixed = (weights[to] @ state["w"]).astype(state["w"].dtype)
        return self.received(fed, state, to, weights, w=PerRow(mixed))

    def received(self, fed: Federation, state: State, to: Ints, weights: Floats, **message: Any) -> tuple[Sums, State]:
        """What the clients ``to`` send, one by one, and the state with their models."""
        n = len(state["w"])
        sums = self.exchange(fed, self.update, to, state, by=to, groups=n, **message)
        counts = np.where(sums["w"] > 0.0, sums["w"], state["counts"]) if sums else state["counts"]
        return sums, {"w": average(sums, state["w"]), "counts": counts, "weights": weights}

    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's model (m, d) as it sent it, with its personal layers."""
        work = client.current_model
        return client_models(fed, state, work, w=PerRow(state["w"]), transport=self.transport)
