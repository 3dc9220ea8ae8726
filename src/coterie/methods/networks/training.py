"""The similarity network over rounds, for any objective: nets and softmax.

A round is a step of Algorithm 6 (Zhao, Liu, Jiang, He) on the mean gradient that clients meet on ``tau`` local steps;
with one it is the paper's. The network is given, or made first, of where some local steps lead clients, of their rows,
or of the features that the shared layers make of these; and again as rounds go, where that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.codecs import by_name, codec_option
from coterie.errors import CoterieError, nearest
from coterie.federation import Federation, PerRow, Ragged, Site, require_all_replies, work
from coterie.methods.groups.evaluation import adaptation_steps
from coterie.methods.groups.find import SKETCH, direction
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport
from coterie.methods.local_training.first_models import ask_first_models
from coterie.methods.local_training.rounds import client_models, patterns
from coterie.methods.networks.gradient_exchange import GradientExchange, LocalSteps
from coterie.methods.networks.options import MODELS, Norm
from coterie.methods.networks.similarity import NEIGHBOURS, Similarity
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.methods.stepwise import AlgorithmFromState, Stepwise
from coterie.numerics.arrays import Bools, Floats
from coterie.numerics.network.prox import network_prox, smoothed
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option, check
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout

State = dict[str, Any]
Edge = tuple[str, str] | tuple[str, str, float]
STILL = 1e8
"""How much heavier a model that stays is in a prox than the one that moves."""


@work
def personal_columns(site: Site, personal: Sequence[str], transport: ModelTransport) -> dict[str, Any]:
    """Which of the parameters that leave a client (m, d1) are its own."""
    mine, stays = parameter_mask(site.objective, personal), client.personal_mask(site, transport)
    return {"mine": Ragged.of([mine[~stays]] * len(site))}


def _columns(fed: Federation, layers: Sequence[str], transport: ModelTransport) -> Bools:
    """The same, as the first client says."""
    asked = fed.ask(personal_columns, to=[0], personal=list(layers), transport=transport)
    return np.asarray(require_all_replies(asked)["mine"][0])


@dataclass(frozen=True, kw_only=True)
class NetworkTraining(AlgorithmFromState):
    """Objective (1), (2) for mean losses that count by clients' rows; ``personal`` layers are Z, the others x.

    A client's own step is of size eta, and ``lam`` is the paper's lambda times the number of clients: both mean the
    same for many clients as for few. With ``lam = 0`` Z is local, with a large one it is FedAvg's.
    """

    without_convexity: ClassVar[str] = (
        "A net's loss is not convex: similarity-network solves each step on the personal layers exactly, but need not "
        "end at the optimum of its objective, so that clients which merge depend on the steps taken."
    )
    joins: ClassVar[str] = "tied"
    eta: Annotated[float, Option("Local step size.", above=0.0)]
    lam: Annotated[float, Option("Strength of a tie, of the norm of a difference, in mean losses.", low=0.0)] = 0.03
    p: Norm = 2
    squared: Annotated[
        bool, Option("Whether ties are of half the squares of differences, not of their norms: Laplacian smoothing.")
    ] = False
    tau: Annotated[int, Option("Local steps in a round; 1 is the paper's algorithm.", low=1)] = 1
    B: Annotated[int, Option("Rows of a step, drawn with replacement; 0 takes all.", low=0)] = 0
    C: Annotated[float, Option("How often a client takes part in a round.", above=0.0, high=1.0)] = 1.0
    personal: Annotated[tuple[str, ...], patterns("Layers Z of each client, which ties pull; the others are x.")] = (
        "*",
    )
    untied: Annotated[tuple[str, ...], patterns("Personal layers that nothing ties, such as head*.")] = ()
    network: Annotated[Similarity, Option("Where clients are compared, and with how many each is tied.")] = field(
        default_factory=Similarity
    )
    edges: Annotated[
        tuple[Edge, ...] | None,
        Option(
            "The user's own ties; their weights are 1 where none is given.",
            what="a list of pairs of clients' labels, each with a weight after them or without",
        ),
    ] = None
    alone: Annotated[int, Option("Local steps of each client that the space model compares.", low=1)] = 50
    relearn: Annotated[
        int, Option("Rounds after which the network is made again, by the models of then; 0 for never.", low=0)
    ] = 0
    up: Annotated[str, codec_option("Codec of what clients send: see ``coterie.codecs.by_name``.")] = "none"
    down: Annotated[str, codec_option("Codec of what they are sent; with one up, float16 by default.")] = "none"
    gap: Annotated[float, Option("Relative duality gap of a step on Z.", above=0.0, high=1.0)] = 1e-6
    seed: Annotated[int, Option("Of the first model, codecs and who takes part.", low=0)] = 0
    labels: Any = None

    def __post_init__(self) -> None:
        check(self)
        if self.edges is not None and self.network != Similarity():
            raise CoterieError("The network has edges of its own: leave what else says who is tied out, or edges.")
        alike = self.network.space in ("model", "feature") and self.network.models is None
        if self.relearn and (self.edges is not None or not alike):
            raise CoterieError(
                "relearn goes with the spaces model and feature, in which clients change as models do: leave it out."
            )
        if self.labels is not None and self.edges is not None:
            self._given(len(self.labels))

    def unheeded(self, clusters: int) -> dict[str, str]:
        """Hyper-parameters that change nothing beside the others, and why."""
        made = self.edges is None and self._by_steps
        out = {} if made else {"alone": ", as no network is made of local steps: leave it out."}
        return out | ({"p": ", as ties are squared: leave it out."} if self.squared else {})

    @property
    def notes(self) -> list[str]:
        """What is known to leave the paper's algorithm."""
        again = f"The network is made again every {self.relearn} rounds, so that the objective changes: no theorem "
        out = [again + "covers that."] if self.relearn else []
        if self.tau == 1:
            return out
        return [
            *out,
            f"Clients take tau = {self.tau} local steps in a round, so what they send is not a gradient at the model "
            "that they were sent: the paper's convergence holds for tau = 1.",
        ]

    def init(self, fed: Federation) -> State:
        """The network, and the state before the first round: all clients begin at the same model."""
        transport: ModelTransport = {"seed": self.seed}
        start = ask_first_models(fed, transport, [self.seed], None)
        w = start.shared_layers(start.models[0])
        mine = _columns(fed, self.personal, transport)
        network = self._similar(fed, start.models[0]) if self.edges is None else self._given(len(fed.clients))
        state: State = {"edges": network.edges, "weight": network.weight, "mine": mine, "precision": w.dtype.name}
        if self.untied:
            state["untied"] = _columns(fed, self.untied, transport)[mine]
        if not start.shared.all():
            state |= {"whole": start.whole(None), "shared": start.shared, "w": w}
        inner = self.algorithm(state | {"share": np.ones(network.n)}, network)
        return state | inner.init(fed, w[~mine], np.tile(w[mine], (network.n, 1)))

    def _similar(self, fed: Federation, w: Floats) -> Network:
        """The network of clients that are alike, under a model w (d,).

        In the space model it is of where their own steps lead from there, in feature of what its shared layers make of
        their rows; without shared layers that is the rows.
        """
        if self.network.space == "feature" and self.personal != ("*",):
            return self.network.network(fed, w=w, personal=list(self.personal))
        if not self._by_steps:
            return self.network.network(fed)
        how: State = {"eta": self.eta, "steps": self.alone, "B": self.B, "q": SKETCH, "seed": self.seed}
        moved = require_all_replies(fed.ask(direction, w=w, **how))["u"]
        return replace(self.network, models=np.asarray(moved)).network(fed)

    @property
    def _by_steps(self) -> bool:
        """Whether clients are alike whose own steps are."""
        return self.network.space == "model" and self.network.models is None

    def _again(self, fed: Federation, state: State) -> State:
        """The state with the network of the models at hand: the mean of clients', and first layers that stay."""
        theta = self._layout(state).theta(state["x"], state["Z"]).mean(axis=0).astype(state["precision"])
        if "whole" in state:
            shared, theta = theta, state["whole"].copy()
            theta[state["shared"]] = shared
        network = self._similar(fed, theta)
        dual = np.zeros((len(network.edges), state["dual"].shape[1]))
        return state | {"edges": network.edges, "weight": network.weight, "dual": dual}

    def step(self, fed: Federation, state: State) -> State:
        """One round."""
        due = self.relearn and state["t"] and state["t"] % self.relearn == 0
        return super().step(fed, self._again(fed, state) if due else state)

    def run(self, fed: Federation, stops: Sequence[int], state: State | None = None) -> Iterator[State]:
        """The states after ``stops`` (rising) rounds; with a network that changes, round by round."""
        yield from Stepwise.run(self, fed, stops, state) if self.relearn else super().run(fed, stops, state)

    def _given(self, n: int) -> Network:
        """The user's ties."""
        names = {str(label): i for i, label in enumerate(range(1, n + 1) if self.labels is None else self.labels)}
        for edge in self.edges or ():
            for label in edge[:2]:
                if label not in names:
                    raise CoterieError(f"An edge names client '{label}', which is not there.{nearest(label, names)}")
        pairs = [(names[edge[0]], names[edge[1]]) for edge in self.edges or ()]
        return Network.of(n, pairs, [float(edge[2]) if len(edge) > 2 else 1.0 for edge in self.edges or ()])

    def algorithm(self, state: State, network: Network | None = None) -> SimilarityNetwork:
        """Algorithm 6 with what a state knows: its steps are clients' own, whatever their share of the rows."""
        share, n = state["share"], len(state["share"])
        network = network or Network(n, state["edges"], state["weight"])
        step = self.eta * self.tau
        own = self.C * step / np.where(share > 0.0, share, 1.0 / n)
        lossy = self.up != "none" and not by_name(self.up).unbiased
        exchange = GradientExchange(
            self.up,
            MODELS if self.down == "none" != self.up else self.down,
            "ef" if lossy else "none",
            "magnitude" if self.up.startswith("tv") else "natural",
            seed=self.seed,
            batch=self.B,
            participation=self.C,
            local=LocalSteps(self.eta, self.tau, self.seed, state["precision"]),
        )
        layout = self._layout(state)
        how: State = {"p": self.p, "squared": self.squared, "gap": self.gap}
        how |= {"untied": state.get("untied"), "transport": exchange}
        return SimilarityNetwork(network=network, layout=layout, lam=self.lam / n, eta=step, own=own, **how)

    def degree(self, n: int) -> float:
        """With how many of n clients one is tied."""
        if self.edges is not None:
            return 2.0 * len(self.edges) / max(n, 1)
        return float(min(NEIGHBOURS if self.network.k == "auto" else self.network.k, n))

    def beside(self, fed: Federation, near: Floats, weight: float, rounds: int) -> Floats:
        """The model (1, d) of the one client of ``fed`` with ties to others' models (k, d), which stay.

        A round is one of Algorithm 5: local steps, and the prox of ``weight sum_k |z - z_k|`` with ends that are heavy.
        """
        transport: ModelTransport = {"seed": self.seed}
        start = ask_first_models(fed, transport, [self.seed], None)
        tied, theta = np.flatnonzero(start.shared), start.models[:1].copy()
        theta[:, tied] = near[:, tied].mean(axis=0)
        if self.untied:
            tied = tied[~_columns(fed, self.untied, transport)]
        tied = np.intersect1d(tied, np.flatnonzero(start.shared)[_columns(fed, self.personal, transport)])
        star = np.stack([np.zeros(len(near), dtype=np.int64), np.arange(len(near)) + 1], axis=1)
        how: State = {"eta": self.eta, "steps": self.tau, "B": self.B, "personal": list(self.personal), "pull": 0.0}
        mass = np.append(1.0, np.full(len(near), STILL)) / (self.eta * self.tau)
        for t in range(rounds):
            theta = fed.ask(adaptation_steps, w=PerRow(theta), done=t * self.tau, **how)["theta"]
            V, ties = np.concatenate([theta, near])[:, tied].astype(np.float64), np.full(len(near), weight)
            if self.squared:
                Z = smoothed(V, star, ties, mass)
            else:
                Z = network_prox(V, star, ties, self.p, self.gap, metric=mass).Z
            theta = np.array(theta)
            theta[0, tied] = Z[0]
        return theta

    @staticmethod
    def _layout(state: State) -> Layout:
        """Which columns are Z."""
        return Layout.columns(len(state["mine"]), np.flatnonzero(state["mine"]))

    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's model (m, d)."""
        theta = self._layout(state).theta(state["x"], state["Z"]).astype(state["precision"])
        if "whole" not in state:
            return theta
        return client_models(fed, state, client.current_model, w=PerRow(theta), transport={"seed": self.seed})
