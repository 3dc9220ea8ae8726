"""Marfoq, Neglia, Kameni, Vidal (2022), Personalized federated learning through local memorization, Algorithm 1.

kNN-Per: all train one net (here by FedAvg), and in the end each client remembers its rows by the features that the net
gives its head. A row is said to be ``lambda_m h_m(x) + (1 - lambda_m) h(x)``: h_m is the mean outcome of the k rows in
the client's memory that are nearest, by ``exp(-distance)``, and h is the net. (PFLlib does not have it.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Ragged, Site, work
from coterie.methods.local_training.client_work import LocalRound, Reply, features
from coterie.methods.local_training.rounds import LocalTraining, Passes, State, patterns
from coterie.objectives.holdout import halves
from coterie.objectives.mean_loss import sizes
from coterie.objectives.mixed import padded
from coterie.objectives.row_kernels import owned_rows, weighted_sums
from coterie.objectives.wide_models import WithMemory, loss_of
from coterie.options import Option

GRID = np.linspace(0.0, 1.0, 11)
"""Values of lambda_m among which clients choose."""


def parts(site: Site, held: float) -> tuple[Any, Any]:
    """The rows that lambda_m is chosen on, where any are held back, and those to train on and to remember."""
    found = halves(site.objective, site.ids, site.seed, held) if held else []
    return tuple(found) if found else (None, getattr(site.objective, "train", site.objective))


@work
def update(site: Site, held: float, **sent: Any) -> Reply:
    """FedAvg's steps, on rows that are not held back."""
    here, rest = LocalRound(site, **sent), parts(site, held)[1]
    return here.reply(here.train(objective=rest), counts=site.weights * sizes(rest))


@work
def remember(site: Site, head: list[str], k: int, scale: float, lam: float, held: float, **sent: Any) -> Reply:
    """A client's net, lambda_m and memory; lambda_m is the one with the least loss of rows that are held back."""
    theta, (back, rest), m = LocalRound(site, **sent).start, parts(site, held), len(site)
    loss, z, y = loss_of(rest, "kNN-Per"), features(site, theta, head), rest.targets()
    owner, rows = owned_rows(rest.starts, rest.stops)
    kept = rest.weights[rows] > 0.0
    memory, n = np.concatenate([z, y.reshape(len(y), -1)], axis=1)[kept], np.bincount(owner[kept], minlength=m)
    edges = np.concatenate([[0], np.cumsum(theta.shape[1] + 2 + n * memory.shape[1])])
    values, net = np.empty(edges[-1], dtype=theta.dtype), np.zeros(edges[-1], dtype=bool)
    first = (edges[:-1, None] + np.arange(theta.shape[1] + 2)).ravel()
    net[first] = True
    values[first] = np.concatenate([theta, np.full((m, 1), lam), n[:, None]], axis=1).ravel()
    values[~net] = memory.ravel()
    if back is not None:
        wide = padded(Ragged(values, edges))
        judge = WithMemory(back, wide.shape[1], loss, head, k, scale)
        net_says, memory_says = judge.both(wide)
        each = [weighted_sums(back, judge.losses_of(a * memory_says + (1.0 - a) * net_says)) for a in GRID]
        seen = (n > 0) & (back.sizes() > 0.0)
        values[edges[:-1] + theta.shape[1]] = np.where(seen, GRID[np.argmin(each, axis=0)], lam)
    return {"theta": Ragged(values, edges)}


remember.holds_rows = True  # type: ignore[attr-defined]  # as they are: no site that guards its rows answers it


@dataclass(frozen=True, kw_only=True)
class KNNPer(LocalTraining):
    """Algorithm 1; rows count alike in a memory, but for those of weight 0, and clients by the weight of their rows.

    A client's model is its net and its memory: it has the features and outcomes of its rows, and should go where they
    may. A client that comes later remembers its own.
    """

    joins: ClassVar[str] = "rounds"
    head: Annotated[tuple[str, ...], patterns("The layers above the features.")] = ("head*",)
    k: Annotated[int, Option("How many near rows are asked.", low=1)] = 10
    scale: Annotated[float, Option("Distance of features at which a row counts 1 / e.", above=0.0)] = 1.0
    lam: Annotated[
        float, Option("lambda_m: 0 is the net, 1 the memory.", low=0.0, high=1.0, beside=("held", (0.0,)))
    ] = 0.5
    held: Annotated[
        float, Option("Share of rows kept back, on which each chooses lambda_m; 0: none.", low=0.0, below=1.0)
    ] = 0.0
    E: Passes = 1
    update = staticmethod(update)

    def models(self, fed: Federation, state: State) -> Any:
        """Every client's net, lambda_m and memory (m, d + 2 + ...); the net alone where it does not answer."""
        nets, told = super().models(fed, state), self.told(remember, state)
        if hasattr(fed, "at_home"):  # over sites, where what is remembered stays
            return fed.at_home(told, nets)
        replies = fed.ask(remember, **told)
        if not replies:
            raise CoterieError("No client told what it remembers: ask again when some answer.")
        found = padded(replies["theta"])
        out = np.zeros((len(nets), found.shape[1]), dtype=found.dtype)
        out[:, : nets.shape[1]] = nets
        out[replies.to[replies.rows]] = found
        return out

    def reads(self, objective: Any, width: int) -> Any:
        """Rows as these models answer for them."""
        return WithMemory(objective, width, loss_of(objective, "kNN-Per"), self.head, self.k, self.scale)
