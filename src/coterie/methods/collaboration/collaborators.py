"""Main clients, who collaborates with each, and with what weights tau: a sparse matrix, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, require_all_replies, work
from coterie.lazy_modules import sparse
from coterie.methods.clustered_l2gd.client_work import describe_clients
from coterie.numerics.arrays import Floats, Ints

AT_ONCE = 2**22
"""Numbers of models that travel at a time: of every main client one to each that helps it."""


@dataclass(frozen=True)
class Collaborators:
    """Main clients 0, ..., M - 1 and their collaborators, as P pairs."""

    main: Ints  # (M,) which clients are main ones: positions in the federation, none twice
    pair_main: Ints  # (P,) whose collaborator: positions in ``main``, rising
    pair_client: Ints  # (P,) which client collaborates
    tau: Floats  # (P,) with what weight: not negative, adding up to 1 for every main client that has collaborators

    def __post_init__(self) -> None:
        for name in ("main", "pair_main", "pair_client"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))
        object.__setattr__(self, "tau", np.asarray(self.tau, dtype=np.float64))
        if len(np.unique(self.main)) < len(self.main):
            raise CoterieError("A main client is named twice: name it once.")
        if len(self.pair_main) and (
            np.any(np.diff(self.pair_main) < 0) or self.pair_main[0] < 0 or self.pair_main[-1] >= len(self.main)
        ):
            raise CoterieError("Collaborators must be sorted by their main client.")
        if np.any(self.pair_client == self.main[self.pair_main]):
            raise CoterieError("A main client cannot be its own collaborator: alpha says how much others count.")
        pairs = self.pair_main * (int(self.pair_client.max(initial=0)) + 1) + self.pair_client
        if len(np.unique(pairs)) < len(pairs):
            raise CoterieError("A collaborator is named twice for one main client: name it once.")
        self._check_weights()

    def _check_weights(self) -> None:
        if not np.isfinite(self.tau).all() or np.any(self.tau < 0.0):
            worst = self.tau[~(self.tau >= 0.0)][0] if np.any(~(self.tau >= 0.0)) else np.inf
            raise CoterieError(f"Weights tau must be numbers from 0 to 1, and one is {worst:g}.")
        sums = np.bincount(self.pair_main, self.tau, minlength=len(self.main))
        has_pairs = np.bincount(self.pair_main, minlength=len(self.main)) > 0
        wrong = np.flatnonzero((np.abs(sums - 1.0) > 1e-9) & has_pairs)
        if len(wrong):
            raise CoterieError(
                f"Weights tau of a main client's collaborators must add up to 1, and add up to {sums[wrong[0]]:g}: "
                "ask for them to be normalised (normalise=True), or correct them."
            )

    @classmethod
    def equally(cls, main: Ints, pair_main: Ints, pair_client: Ints) -> Collaborators:
        """With equal weights."""
        return cls(main, pair_main, pair_client, 1.0 / np.bincount(pair_main, minlength=len(main))[pair_main])

    def weights(self, alpha: Floats) -> Floats:
        """Weights (M + P,) of requests; ``alpha`` (M,) of main clients without collaborators counts as 0."""
        alpha = np.where(np.diff(self.starts) > 0, alpha, 0.0)
        return np.concatenate([1.0 - alpha, alpha[self.pair_main] * self.tau])

    @classmethod
    def of_one(
        cls,
        main: int,
        n: int,
        clients: npt.ArrayLike | None = None,
        tau: npt.ArrayLike | None = None,
        normalise: bool = False,
    ) -> Collaborators:
        """One main client of n; by default all others collaborate, with equal weights. A CoterieError without any."""
        others = np.setdiff1d(np.arange(n), [main]) if clients is None else np.asarray(clients, dtype=np.int64).ravel()
        if not len(others):
            raise CoterieError("There are no collaborators: name one at least, or fit the main client alone.")
        if np.any((others < 0) | (others >= n)) or not 0 <= main < n:
            raise CoterieError(f"Clients are numbered from 0 to {n - 1}.")
        weights = np.full(len(others), 1.0 / len(others)) if tau is None else np.asarray(tau, dtype=np.float64).ravel()
        if len(weights) != len(others):
            raise CoterieError(f"There are {len(others)} collaborators and {len(weights)} weights tau: give one each.")
        if normalise and np.isfinite(weights).all() and weights.sum() > 0.0 and np.all(weights >= 0.0):
            weights = weights / weights.sum()
        return cls(np.array([main]), np.zeros(len(others), dtype=np.int64), others, weights)

    @classmethod
    def of_all(cls, weights: Any, normalise: bool = False) -> Collaborators:
        """Every client is its own main client: ``weights`` (n, n), dense or sparse, diagonal 0, rows adding up to 1."""
        W = sparse.csr_array(weights, dtype=np.float64)
        if W.shape[0] != W.shape[1]:
            raise CoterieError(f"Weights of all clients must be a square matrix, not {W.shape}.")
        W.sum_duplicates()
        W.eliminate_zeros()
        tau, counts, clients = W.data, np.diff(W.indptr), W.indices.astype(np.int64)
        if normalise:
            sums = np.asarray(W.sum(axis=1)).ravel()
            tau = tau / np.repeat(np.where(sums > 0.0, sums, 1.0), counts)
        return cls(np.arange(W.shape[0]), np.repeat(np.arange(W.shape[0]), counts), clients, tau)

    @cached_property
    def starts(self) -> Ints:
        """Where the pairs of every main client begin, and where the last ones end, (M + 1,)."""
        return np.searchsorted(self.pair_main, np.arange(len(self.main) + 1)).astype(np.int64)

    def of_main(self, some: slice) -> Collaborators:
        """Neighbouring main clients, with their collaborators."""
        a, b = self.starts[some.start], self.starts[some.stop]
        return Collaborators(self.main[some], self.pair_main[a:b] - some.start, self.pair_client[a:b], self.tau[a:b])

    def blocks(self, size: int) -> list[tuple[int, int]]:
        """Ranges of main clients whose requests, with models of ``size`` numbers, are ``AT_ONCE`` numbers at most."""
        ends = np.arange(1, len(self.main) + 1) + self.starts[1:]
        edges = [0]
        while edges[-1] < len(self.main):
            before = ends[edges[-1] - 1] if edges[-1] else 0
            most = int(np.searchsorted(ends, before + AT_ONCE // max(size, 1), side="right"))
            edges.append(max(most, edges[-1] + 1))
        return list(pairwise(edges)) or [(0, 0)]

    @cached_property
    def request_client(self) -> Ints:
        """Who is asked in every step, (M + P,): the main clients, then their collaborators."""
        return np.concatenate([self.main, self.pair_client])

    @cached_property
    def request_main(self) -> Ints:
        """Whose model each of these is asked at, (M + P,): positions in ``main``."""
        return np.concatenate([np.arange(len(self.main)), self.pair_main])

    @cached_property
    def request_group(self) -> Ints:
        """Whom each is added up with, (M + P,): main clients are groups of their own, M + j are the others of j."""
        return np.concatenate([np.arange(len(self.main)), self.pair_main + len(self.main)])


def require_columns(fed: Federation, pairs: Collaborators, d: int) -> None:
    """Raise for clients that are not there, or whose models have not d parameters; the silent are found in a step."""
    everyone = np.unique(pairs.request_client)
    if len(everyone) and not 0 <= everyone[0] <= everyone[-1] < len(fed.clients):
        raise CoterieError(f"Clients are numbered from 0 to {len(fed.clients) - 1}.")
    replies = fed.ask(describe_clients, to=everyone)
    wrong = everyone[replies.rows[replies["dim"] != d]] if replies else everyone[:0]
    if len(wrong):
        names = ", ".join(str(w) for w in wrong[:5])
        raise CoterieError(
            f"The main client's model has {d} parameters, and clients at positions {names} have another number: "
            "give all the same columns, or leave these out."
        )


@work
def count(site: Site) -> dict[str, Any]:
    """Rows of every client."""
    return {"rows": site.objective.counts}


def require_rows(fed: Federation, batch: int) -> None:
    """Raise a CoterieError for a batch of more rows than any client has."""
    most = int(require_all_replies(fed.ask(count))["rows"].max()) if batch else 0
    if batch > most:
        raise CoterieError(f"batch is {batch:,}, and no client has more than {most:,} rows: 0 takes all.")
