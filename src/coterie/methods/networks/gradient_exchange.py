"""How models and gradients travel between the server and the clients: batches, who takes part, who has no gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from coterie.codecs.compression import Compression, with_rows
from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods.local_training import client_work as client
from coterie.methods.stepwise import LARGEST
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient, sizes
from coterie.objectives.parameters import has_finite_gradient, parameter_mask
from coterie.options import Option

State = dict[str, Any]
Reply = dict[str, Any]


@dataclass(frozen=True)
class Received:
    """What the server knows of the clients' gradients after an exchange."""

    g: Floats  # (n, d) mean gradients, as decoded; 0 of clients without one
    share: Floats  # (n,) what each counts in the sum
    diverged: bool  # whether some client's model has diverged so far that it has no gradient
    state: dict[str, Any]
    unanswered: bool = False  # whether clients were asked, and nobody answered


@dataclass(frozen=True)
class LocalSteps:
    """Steps that clients take at home, so that they send the mean gradient met on these."""

    eta: float
    tau: int
    seed: int = 0  # of the first values of what stays with clients
    precision: str = "float64"  # of models and gradients that travel without codecs

    @property
    def message(self) -> dict[str, Any]:
        """What clients are told."""
        return {"eta": self.eta, "tau": self.tau, "seed": self.seed}


@dataclass(frozen=True)
class GradientExchange(Compression):
    """What is sent, and how: the codecs, the rows of a gradient, and who takes part.

    A client that takes part counts ``1 / participation`` times, so that sums of gradients are unbiased, and steps must
    be shorter by ``participation``; with EF21 the last estimates of the others count. Where replies are lost, those
    that came speak for all that were asked.
    """

    batch: Annotated[int, Option("Rows of a gradient, drawn with replacement; 0 takes all.", low=0)] = 0
    participation: Annotated[float, Option("How often a client takes part in a step.", above=0.0, high=1.0)] = 1.0
    local: LocalSteps | None = None

    def init(self, fed: Federation, d: int) -> State:
        """What is remembered before the first step; a CoterieError for clients of another number of parameters."""
        local: dict[str, Any] = {} if self.local is None else {"local": True}
        about = require_all_replies(fed.ask(shape, **local))
        if not (about["dim"] == d).all():
            other = int(about["dim"][about["dim"] != d][0])
            raise CoterieError(f"The layout has {d} parameters and a client's model {other}: make it of the same ones.")
        weight = about["weight"]
        if not weight.sum() > 0.0:
            raise CoterieError("No client has any rows, so there is nothing to learn.")
        n = len(weight)
        state: State = {"share": weight / weight.sum(), "quarantined": np.zeros(n, dtype=np.int64)}
        known = {"known": np.zeros(n, dtype=bool)} if self.feedback == "ef21" else {}
        return state | self.memory(n, d) | known

    def exchange(self, fed: Federation, state: State, theta: Floats) -> Received:
        """Deliver the models theta (n, d) to whoever takes part, and collect their gradients."""
        t, (n, d) = state["t"], theta.shape
        takes = keyed_random.uniform(self.seed, "participation", fed.clients.ids, t, 1)[:, 0] < self.participation
        to = np.flatnonzero(takes & (state["quarantined"] == 0))
        if self.local is not None and self.down == "none":
            theta = theta.astype(self.local.precision)
        message, held = self.message(state, theta[to], to, fed.clients.ids[to], t)
        how = {"d": d, "t": t, "batch": self.batch, "up": self.up, "down": self.down}
        how |= {"feedback": self.feedback, "order": self.order}
        if self.local is not None:
            how["local"] = self.local.message
        sent = "g" if self.up == "none" else "payload"

        def check(rows: Ints, values: Mapping[str, Any]) -> None:
            self.decode(values.get(sent), state, to[rows], held[rows])

        replies = fed.ask(send, to=to, check=check, theta=PerRow(message), **how)
        if not replies:
            if len(to) or self.feedback != "ef21":
                return Received(np.zeros((n, d)), np.zeros(n), False, state, unanswered=len(to) > 0)
            return Received(state["estimate"], self._share(state, to, state["known"]), False, state)
        at, sound = replies.rows, replies["sound"]
        spoke = to[at]
        if self.down != "none":
            state = state | {"held": with_rows(state["held"], spoke, held[at])}
        if (~sound & ~replies["broken"]).any():
            return Received(np.zeros((n, d)), np.zeros(n), True, state)
        g, state = self.decode(replies[sent], state, spoke, held[at])
        state = state | {"quarantined": with_rows(state["quarantined"], spoke[~sound], t + 1)}
        if self.feedback == "ef21":
            g = state["estimate"] = with_rows(state["estimate"], spoke, g)
            known = (state["known"] | np.isin(np.arange(n), spoke)) & (state["quarantined"] == 0)
            state["known"] = known
        else:
            g, known = with_rows(np.zeros((n, d)), spoke, g), np.isin(np.arange(n), spoke[sound])
        return Received(g, self._share(state, to, known), False, state)

    def _share(self, state: State, to: Ints, known: Bools) -> Floats:
        """What the gradients of those that are ``known`` (n,) count, where the clients ``to`` were asked."""
        share = np.where(state["quarantined"] == 0, state["share"], 0.0)
        heard = np.where(known, share, 0.0)
        asked = share.sum() if self.feedback == "ef21" else share[to].sum() / self.participation
        whole = heard.sum() * share.sum()
        return heard * (asked / whole) if whole > 0.0 else heard


@work
def shape(site: Site, local: bool = False) -> Reply:
    """Each client's number of parameters, of those that leave it where steps are ``local``; the weight of its rows."""
    d = int((~parameter_mask(site.objective)).sum()) if local else site.objective.dim
    return {"dim": np.full(len(site), d), "weight": sizes(site.objective)}


@work
def send(
    site: Site, theta: Any, d: int, t: int, batch: int, local: Mapping[str, Any] | None = None, **codecs: Any
) -> Reply:
    """The gradient at the model that arrived; ``sound`` says whether there is one (0 is sent where there is none).

    Where there is none, ``broken`` says whose fault that is: the rows', which give none at zero either, or the model's.
    """
    travels = Compression(**codecs)
    theta = travels.receive(site, theta, d)
    if local is None:
        draws = Draws(keyed_random.starts(site.seed, "rows", site.ids), np.full(len(site), t, dtype=np.int64), batch)
        site.count(len(site))
        g = at(site.objective, theta, draws)
    else:
        g = met(site, theta, t, batch, **local)
    sound: Bools = np.all(np.abs(g) < LARGEST, axis=1)
    broken = ~sound
    if broken.any() and local is not None:
        broken &= ~has_finite_gradient(site.objective)
    elif broken.any():
        broken &= ~np.all(np.abs(at(site.objective, np.zeros(theta.shape), draws)) < LARGEST, axis=1)
    reply, g = {"sound": sound, "broken": broken}, np.where(sound[:, None], g, 0.0)
    if travels.up == "none":
        return reply | {"g": g if local is None else g.astype(theta.dtype)}
    return reply | {"payload": travels.send(site, g, t, theta)}


@np.errstate(over="ignore", invalid="ignore")
def met(site: Site, theta: Floats, t: int, batch: int, eta: float, tau: int, seed: int) -> Floats:
    """The mean gradient (m, d1) met on tau local steps from theta (m, d1); what never leaves a client stays with it."""
    how: client.ModelTransport = {"seed": seed}
    end = client.train(site, client.start_from(site, theta, how), eta, tau, t * tau, batch, plain=True)
    g = (theta - client.split(site, end, client.finite(end), how)) / theta.dtype.type(eta * tau)
    return np.asarray(np.where(client.finite(end)[:, None], g, np.nan), dtype=np.float64)


def at(objective: Any, theta: Floats, draws: Draws) -> Floats:
    """Mean gradients (m, d) over the rows drawn, whatever numbers they have."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(gradient(objective, theta, draws), dtype=np.float64)
