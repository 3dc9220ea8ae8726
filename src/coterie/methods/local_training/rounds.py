"""Rounds in which sampled clients train locally and a server averages their models: options, participation, the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from inspect import signature
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.codecs import codec_option
from coterie.codecs.compression import CompressedFederation, Compression
from coterie.errors import CoterieError, joined
from coterie.federation import Federation, Sums
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport
from coterie.methods.local_training.first_models import FirstModels, ask_first_models
from coterie.methods.stepwise import Stepwise
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.client_models import LARGE, ClientModels
from coterie.objectives.torch_names import Schedule
from coterie.options import Checked, Declared, Option

State = dict[str, Any]
Passes = Annotated[int, Option("Passes over a client's rows in a round, ceil(n / B) steps each.", low=1)]
_RATE = Declared("eta", float, Option(low=0.0))


LAYERS = "names of parameters, or patterns such as head*"  # what options that name parameters must be


def patterns(text: str) -> Option:
    """An option that names parameters."""
    return Option(text, what=LAYERS, read=_filled)


def _filled(names: tuple[str, ...]) -> tuple[str, ...]:
    if "" in names:
        raise ValueError("an empty name")
    return names


@dataclass(frozen=True)
class Smoothness:
    """What steps go by where the losses of clients are known, each a mean over rows: the largest over clients."""

    L: float  # how fast gradients of a step's rows change
    gradient: float  # length of the gradient where a run begins
    rows: int

    @classmethod
    def of(cls, clients: Mapping[str, Any]) -> Smoothness:
        """From what clients reply: L, g and rows (m,)."""
        L = float(np.max(clients["L"]))
        return cls(L if L > 0.0 else 1.0, float(np.max(clients["g"])), int(np.max(clients["rows"])))

    def steps(self, how: Mapping[str, Any]) -> int:
        """Steps in E passes of B rows each, of the client with the most rows."""
        return int(how.get("E", 1)) * (-(-self.rows // how["B"]) if how.get("B") else 1)


NO_GRADIENT = "the data of some clients give no gradient"


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Checked, Stepwise):
    """Options that all of these methods have.

    What the objective keeps with each client stays there, too, whatever is ``personal``. Where not ``strict``, a client
    that diverges is left out from then on, unless most of those that answered have diverged.
    """

    eta: Annotated[float | Callable[[int], float], Option("Local step size, or eta(t) of round t.", above=0.0)]
    schedule: Annotated[Schedule | None, Option("Of eta over rounds: a class of torch.optim.lr_scheduler.")] = None
    schedule_args: Annotated[dict[str, Any], Option("Its arguments, a round an epoch.", beside=("schedule", ()))] = (
        field(default_factory=dict)
    )
    B: Annotated[int, Option("Rows of a step, drawn with replacement; 0 takes all.", low=0)] = 0
    C: Annotated[float, Option("Share of the clients in a round, one at least.", above=0.0, high=1.0)] = 1.0
    online: Annotated[
        float, Option("Share of the time in which a client is there to be asked.", above=0.0, high=1.0)
    ] = 1.0
    stay: Annotated[
        int, Option("Rounds that a client stays there, or away, at least.", low=1, beside=("online", ()))
    ] = 1
    seed: Annotated[int, Option("Of who takes part and of the first model; rows are drawn by the engine's.", low=0)] = 0
    personal: Annotated[tuple[str, ...], patterns("Parameters that never leave a client, such as head*.")] = ()
    up: Annotated[str, codec_option("Codec of what clients send: see ``coterie.codecs.by_name``.")] = "none"
    down: Annotated[str, codec_option("Codec of what clients are sent.")] = "none"
    model: ClassVar[Any] = staticmethod(client.current_model)  # which work tells a client's model in the end
    update: ClassVar[Any]  # what clients do in a round
    joins: ClassVar[str] = ""  # what is done with a client that comes later: see ``new_client``
    bends: ClassVar[str] = ""  # which option bends the losses of local steps beside their own curvature
    longer: ClassVar[tuple[str, int] | None] = None  # an option for local steps, and how many a table asks for
    without: ClassVar[tuple[str, str]] = ("", "")  # why some options keep their defaults, and their names
    strict: Annotated[bool, Option("Whether a client that diverges, or has no gradient, ends the run.")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        (why, names), usual = self.without, {f.name: f.default for f in fields(LocalTraining)}
        if any(getattr(self, name) != usual[name] for name in names.split()):
            raise CoterieError(f"{why}: leave {joined(names.split())} out.")
        if self.schedule is not None:
            self.rate(0)

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """Options that losses of a known smoothness ask for, given the others: steps stable at every client."""
        eta = 1.0 / (losses.L + (how[cls.bends] if cls.bends else 0.0))
        return {"eta": eta} | ({} if cls.longer is None else dict([cls.longer]))

    @property
    def notes(self) -> list[str]:
        """What is well defined here, and known to go wrong or covered by no theorem: a sentence each."""
        return []

    @property
    def transport(self) -> ModelTransport:
        """What clients are told of how models travel."""
        return {"personal": list(self.personal), "seed": self.seed} if self.personal else {}

    @property
    def compression(self) -> Compression:
        """The codecs, checked."""
        return Compression(self.up, self.down, seed=self.seed)

    @property
    def seeds(self) -> list[int]:
        """Of the first models, one each."""
        return [self.seed]

    def rate(self, t: int) -> float:
        """The step size of round t."""
        if self.schedule is None:
            return float(_RATE.read(self.eta(t) if callable(self.eta) else self.eta))
        if callable(self.eta):
            raise CoterieError("eta is a function of the round already: leave schedule out.")
        try:
            from coterie.objectives.deep.optimizers import step_sizes
        except ModuleNotFoundError as problem:
            raise CoterieError(
                "schedule needs PyTorch, whose schedulers it names: pip install 'coterie[torch]'."
            ) from (problem)
        return step_sizes(self.schedule, json.dumps(self.schedule_args, sort_keys=True, default=str), self.eta).at(t)

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round, at w, all (d,) or the shared (d1,), by default the objective's own."""
        start = ask_first_models(fed, self.transport, self.seeds, w)
        if not start.shared.any() and self.compression.active:
            raise CoterieError(
                "All parameters stay with their clients, so there is nothing to compress: leave up and down out."
            )
        state: State = first_quarantine(fed)
        if not start.shared.all():
            state |= {"whole": start.whole(w), "shared": start.shared}
        if start.statistics.any():
            state |= {"statistics": start.statistics}
        return state | {"w": self.first(start) if w is None else start.shared_layers(w)}

    def first(self, start: FirstModels) -> Floats:
        """The shared part of the first model, where the user gives none."""
        return start.shared_layers(start.models[0])

    def told(self, work: Any, state: State) -> State:
        """What clients are told for a work: what its parameters name, of options, of the state, and of every round."""
        out: State = {}
        for name in _parameters(work):
            if name == "eta":
                out[name] = self.rate(state["t"])
            elif hasattr(self, name) or name in state:
                out[name] = getattr(self, name) if hasattr(self, name) else state[name]
        return out

    @np.errstate(over="ignore", invalid="ignore")
    def models(self, fed: Federation, state: State) -> Any:
        """Every client's model (m, d): of its own, or what is shared as it is now, with its personal layers."""
        if self.model is client.current_model:
            return current_models(fed, state, self.transport)
        return client_models(fed, state, self.model, **self.told(self.model, state))

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """One round with the clients ``to``: what they sent, added up, and what changes in the state.

        Unless overridden, w becomes the mean of what clients make of it, by what they count; the others rest.
        """
        sums = self.exchange(fed, self.update, to, state)
        return sums, {"w": average(sums, state["w"])}

    def chosen(self, fed: Federation, state: State, free: Ints) -> Ints:
        """Who takes part in a round, of the clients that are ``free``: a share C of them, of those who are there."""
        ids, t = fed.clients.ids, state["t"]
        there = free[available(ids[free], t, self.online, self.stay, self.seed)]
        return participants(ids, there, t, self.C, self.seed, len(free))

    def exchange(self, fed: Federation, work: Any, to: Ints, state: State, **more: Any) -> Sums:
        """What the clients ``to`` send after ``work``, added up; ``more`` is said to them, or to ``total``, instead."""
        return fed.total(work, to=to, **self.told(work, state) | more)

    @np.errstate(over="ignore", invalid="ignore")  # a divergence is found and named
    def step(self, fed: Federation, state: State) -> State:
        """One round; clients that cannot go on are left out from then on, or end the run (``quarantine_failed``)."""
        t, free = state["t"], np.flatnonzero(state["quarantined"] == 0)
        if t == 0 and self.strict and len(free) < len(state["quarantined"]):
            return state | {"status": f"ended by step 1: {NO_GRADIENT}", "failed": np.flatnonzero(state["quarantined"])}
        if not len(free):
            return state | {"status": f"ended by step {t + 1}: every client is quarantined"}
        to = self.chosen(fed, state, free)
        if self.compression.active:
            compressed = CompressedFederation(fed, state, self.compression)
            sums, new = self.round(compressed, state, to)
            new |= compressed.state
        else:
            sums, new = self.round(fed, state, to)
        verdict = quarantine_failed(fed, state, sums, new, self.strict)
        return state | verdict if "status" in verdict else state | new | verdict | {"t": t + 1}


@cache
def _parameters(work: Any) -> tuple[str, ...]:
    """What a work is told beside its site: with ``**sent`` also what a ``LocalRound`` is made of."""
    names = signature(work).parameters
    every = any(one.kind is one.VAR_KEYWORD for one in names.values())
    return (*names, *(f.name for f in fields(client.LocalRound) if every))


def average(sums: Sums, w: Floats) -> Floats:
    """What was sent, divided by its weight; w (d1,) or (k, d1) where nothing was."""
    if not sums:
        return w
    weight = np.asarray(sums["w"])[..., None]
    mean = np.where(weight > 0.0, sums["x"] / np.where(weight > 0.0, weight, 1.0), w)
    return mean.astype(w.dtype, copy=False)


def but_statistics(state: State, moved: Floats, mean: Floats) -> Floats:
    """Where a server's step leads (d1,); statistics such as BatchNorm's have no gradient, and are their mean."""
    return np.where(state["statistics"], mean, moved) if "statistics" in state else moved


def client_models(fed: Federation, state: State, work: Any, **message: Any) -> Floats:
    """The clients' own models (m, d) that ``work`` replies; the shared one for those that do not answer."""
    w = np.atleast_2d(state["w"])[0]
    if "whole" in state:
        shared, w = w, state["whole"].copy()
        w[state["shared"]] = shared
    replies = fed.ask(work, **message)
    if replies and replies["theta"].size > LARGE and len(replies.rows) == len(fed.clients):
        return np.asarray(replies["theta"])
    theta = np.tile(w, (len(fed.clients), 1))
    if replies:
        theta[replies.to[replies.rows]] = replies["theta"]
    return theta


def current_models(fed: Federation, state: State, transport: ModelTransport) -> Any:
    """Every client's model (m, d): w (d1,) as it is now, with its personal layers.

    They are one row seen m times where w is all of them, and made row by row where there would be too many numbers.
    """
    w, m = state["w"], len(fed.clients)
    if w.ndim == 1 and "whole" not in state:
        return np.broadcast_to(w, (m, len(w)))
    if w.ndim > 1 or m * len(state["whole"]) <= LARGE:
        return client_models(fed, state, client.current_model, w=w, transport=transport)
    whole, own = state["whole"].copy(), ~state["shared"]
    whole[~own] = w
    replies = fed.ask(client.personal_layers, transport=transport)
    if len(replies.rows) == m:
        return ClientModels(whole, own, replies["layers"])
    personal = np.tile(whole[own], (m, 1))
    if replies:
        personal[replies.to[replies.rows]] = replies["layers"]
    return ClientModels(whole, own, personal)


def participants(ids: Any, free: Ints, t: int, C: float, seed: int, of: int | None = None) -> Ints:
    """The clients ``free`` that take part in round t, in rising order: a share C of them, or of ``of``, drawn by keys.

    One at least takes part, unless nobody is free.
    """
    m = max(int(C * (len(free) if of is None else of) + 0.5), 1)
    if m >= len(free):
        return free
    u = keyed_random.uniform(seed, "participation", ids[free], t, 1)[:, 0]
    return np.sort(free[np.argpartition(u, m - 1)[:m]])


def available(ids: Any, t: int, share: float, stay: int, seed: int) -> Bools:
    """Who can be asked in round t (m,): each one's time is cut into stretches of ``stay`` rounds, at its own place.

    In each of them it is there with probability ``share``, by keys: a trace of two states that nobody need keep.
    """
    if share == 1.0:
        return np.ones(len(ids), dtype=bool)
    phase = (stay * keyed_random.uniform(seed, "phase", ids, 0, 1)[:, 0]).astype(np.int64)
    found: Bools = keyed_random.uniform(seed, "online", ids, (t + phase) // stay, 1)[:, 0] < share
    return found


def first_quarantine(fed: Federation) -> dict[str, Any]:
    """The state before the first round: one whose data give no gradient never takes part, but in private sums."""
    out, why = (np.zeros(len(fed.clients), dtype=np.int64) for _ in range(2))
    replies = None if getattr(fed, "private", False) else fed.ask(client.usable)
    if replies:
        unusable = replies.to[replies.rows][~replies["sound"].astype(bool)]
        out[unusable], why[unusable] = 1, client.BROKEN
    return {"t": 0, "status": "running", "quarantined": out, "why": why}


def quarantine_failed(
    fed: Federation, state: dict[str, Any], sums: Sums, new: dict[str, Any], strict: bool
) -> dict[str, Any]:
    """What changes in the state of round t, where some of those that were just added up cannot go on.

    They are ``quarantined`` in it (its number, from 1; ``why`` is DIVERGED or BROKEN). Where the run is ``strict``, or
    most have diverged, its status ends it, and ``failed`` are those clients. So does what is ``new`` and not finite.
    """
    step = state["t"] + 1
    far, broken = (float(np.sum(sums[name])) if sums else 0.0 for name in ("diverged", "broken"))
    failed, why = failed_clients(fed, sums) if far or broken else (sums.to[:0], sums.to[:0])
    if far > (0.0 if strict else 0.5 * len(sums.rows)):
        return {"status": f"diverged by step {step}", "failed": failed[why == client.DIVERGED]}
    if broken and strict:
        return {"status": f"ended by step {step}: {NO_GRADIENT}", "failed": failed}
    if not all(np.isfinite(v).all() for v in new.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f"):
        return {"status": f"diverged by step {step}", "failed": failed}
    quarantined, reason = state["quarantined"].copy(), state["why"].copy()
    quarantined[failed], reason[failed] = step, why
    return {"quarantined": quarantined, "why": reason}


def failed_clients(fed: Federation, sums: Sums) -> tuple[Ints, Ints]:
    """The clients of a sum that have diverged, or have broken data, and which of both (DIVERGED, BROKEN)."""
    replies = fed.ask(client.verdicts, to=sums.to[sums.rows])
    if not replies:
        return sums.to[:0], sums.to[:0]
    bad = np.isin(replies["verdict"], (client.DIVERGED, client.BROKEN))
    return replies.to[replies.rows][bad], replies["verdict"][bad]
