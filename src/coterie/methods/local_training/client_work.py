"""What clients do in a round: put models together, take steps on their own rows, and check the outcome.

Personal layers stay with a client, shared ones travel. A result that is not finite is never sent. Where a client's data
give no gradient, they are to blame (BROKEN), else its steps were too long (DIVERGED); the verdict is kept in its state,
so that a coordinator can ask for names when sums say that there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from coterie.codecs.compression import receive_models, send_change
from coterie.errors import CoterieError
from coterie.federation import Site, work
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints, neighbours
from coterie.objectives.gradient_steps import Ahead, Draws, Second, Walk
from coterie.objectives.mean_loss import sizes, walk, walk_beside
from coterie.objectives.parameters import has_finite_gradient, initial_parameters, parameter_mask


class ModelTransport(TypedDict, total=False):
    """What clients are told of how models travel; what is not there is not done."""

    personal: list[str]  # patterns of parameters that never leave a client
    seed: int  # of their first values
    up: str  # codec of what clients send
    down: str  # and of what they are sent
    message: int  # number of the message


def personal_mask(site: Site, transport: ModelTransport) -> Bools:
    """Which parameters (d,) never leave a client."""
    return parameter_mask(site.objective, transport.get("personal", ()))


def merge(site: Site, shared: Floats, transport: ModelTransport) -> Floats:
    """Models (m, d) of a shared part, (d1,) or (m, d1), and every client's own."""
    own = personal_mask(site, transport)
    if not own.any():
        return np.broadcast_to(shared, (len(site), len(own)))
    theta = np.empty((len(site), len(own)), dtype=shared.dtype)
    for part, values in (
        (~own, np.broadcast_to(shared, (len(site), shared.shape[-1]))),
        (own, _personal_values(site, own, transport)),
    ):
        start = 0
        for run in neighbours(part):
            stop = start + run.stop - run.start
            theta[:, run], start = values[:, start:stop], stop
    return theta


def split(site: Site, theta: Floats, good: Any, transport: ModelTransport) -> Floats:
    """The shared part (m, d1) of models (m, d); the own ones are kept where models are ``good`` (m,)."""
    own = personal_mask(site, transport)
    if not own.any():
        return theta
    site.state["personal"] = np.where(
        np.asarray(good)[:, None], columns(theta, own), _personal_values(site, own, transport)
    )
    return columns(theta, ~own)


def columns(theta: Floats, part: Bools) -> Floats:
    """The columns of theta (m, d) that are in a part (d,): a view where they are neighbours."""
    pieces = [theta[:, run] for run in neighbours(part)] or [theta[:, :0]]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)


def _personal_values(site: Site, own: Bools, transport: ModelTransport) -> Floats:
    """Every client's own part (m, d2): the first one where it never made any."""
    if site.state.written("personal").all():
        return np.asarray(site.state["personal"])
    default = initial_parameters(site.objective, transport.get("seed", 0))[own]
    return np.asarray(site.state.get("personal", np.broadcast_to(default, (len(site), len(default)))))


Reply = dict[str, Any]

GOOD, DIVERGED, BROKEN = 0, 1, 2
"""Verdicts of clients on themselves: their steps diverged, or their rows give no gradient."""


def received(site: Site, w: Any, transport: ModelTransport) -> Floats:
    """Every client's model (m, d): the shared layers that were sent, with the client's personal ones."""
    return start_from(site, receive_models(site, w, transport["down"])[:, 0] if isinstance(w, dict) else w, transport)


def start_from(site: Site, shared: Floats, transport: ModelTransport) -> Floats:
    """Models (m, d) of shared layers (d1,) or (m, d1), which are remembered where compressed changes are sent."""
    if "up" in transport:
        site.state["base"] = np.broadcast_to(shared, (len(site), shared.shape[-1]))
    return merge(site, shared, transport)


def weight(site: Site) -> Floats:
    """How much clients count where rows do (m,): the weight of their rows, times their own."""
    return site.weights * sizes(site.objective)


def epoch_steps(site: Site, E: int, B: int) -> Ints:
    """Steps of B rows that look at as many rows as a client has, E times (m,); all rows at once are one step."""
    n = getattr(site.objective, "counts", None)
    rows = np.ones(len(site), dtype=np.int64) if n is None or not B else np.maximum(-(-n // B), 1)
    return np.asarray(E * rows, dtype=np.int64)


def train(
    site: Site,
    start: Floats,
    eta: Floats | float,
    steps: Ints | int,
    done: Ints | int,
    batch: int,
    stream: str = "rows",
    objective: Any = None,
    **beside: Any,
) -> Floats:
    """Take ``steps`` from ``start`` (m, d) on clients' mean losses, and what is ``beside`` them (:class:`Walk`).

    The losses are those of the site's objective, unless of another of the same clients. ``done`` steps came before
    them, which keys the rows that they draw; these and eta are numbers, or (m,).
    """
    by = _walk(site, eta, steps, done, batch, stream, **beside)
    site.count(gradients=int(by.steps.sum()))
    return walk(site.objective if objective is None else objective, start, by)


def train_beside(
    site: Site, start: Floats, second: Second, eta: float, steps: Ints | int, done: Ints | int, batch: int
) -> tuple[Floats, Floats]:
    """The same for two models (m, d) of every client: plain steps, each from rest."""
    by = _walk(site, eta, steps, done, batch, "rows", plain=True)
    site.count(gradients=2 * int(by.steps.sum()))
    return walk_beside(site.objective, start, by, second)


def train_ahead(
    site: Site, start: Floats, alpha: float, delta: float, eta: float, steps: Ints, done: Ints, batch: int
) -> Floats:
    """Plain steps that look :class:`Ahead`, where nets take them in one go; none (0, d) where they do not."""
    streams = "rows", "meta rows", "curvature rows"
    by, meta, curvature = (_walk(site, eta, steps, done, batch, stream, plain=True) for stream in streams)
    if not hasattr(site.objective, "walk_ahead"):
        return start[:0]
    end: Floats = site.objective.walk_ahead(start, by, Ahead(alpha, delta, (meta.draws, curvature.draws)))
    site.count(gradients=int(by.steps.sum()) * (4 if delta > 0.0 else 2) if len(end) else 0)
    return end


def _walk(site: Site, eta: Any, steps: Ints | int, done: Ints | int, batch: int, stream: str, **beside: Any) -> Walk:
    steps, done = (np.array(np.broadcast_to(each, len(site)), dtype=np.int64) for each in (steps, done))
    draws = Draws(keyed_random.starts(site.seed, stream, site.ids), done, batch)
    return Walk(np.array(np.broadcast_to(eta, len(site)), dtype=np.float64), steps, draws, **beside)


def features(site: Site, theta: Floats, head: Sequence[str]) -> Floats:
    """Features (sum of counts, h) of all rows, which layers ``head`` are given under clients' models theta (m, d)."""
    o = site.objective
    parameter_mask(o, head)
    if not hasattr(o, "features"):
        raise CoterieError(f"Features of rows are those of one net for all clients, which {type(o).__name__} has not.")
    return np.asarray(o.features(theta, head))


def finite(*models: Floats) -> Any:
    """Whether all of a client's models are where they may be (m,): parameters that are farther away have diverged."""
    largest = [np.maximum(x.max(axis=1, initial=0.0), -x.min(axis=1, initial=0.0)) for x in models]
    return np.all([x < (1e100 if x.itemsize == 8 else 1e30) for x in largest], axis=0)


def make_reply(
    site: Site, theta: Floats, transport: ModelTransport, good: Any = None, counts: Floats | None = None
) -> Reply:
    """What clients send of theta (m, d), to be added up: nothing where it is not ``good`` (m,), but a verdict.

    Good is what is ``finite``, unless told; clients count by ``weight``, unless by ``counts`` (m,). Personal layers
    stay. ``x`` (m, d1) are the shared layers times the weight w (m,); with a codec ``payload`` is their change since
    they came, without a weight.
    """
    good, counts = finite(theta) if good is None else good, weight(site) if counts is None else counts
    verdict = np.zeros(len(site), dtype=np.int64)
    shared, reply = split(site, theta, good, transport), Reply()
    if "up" in transport:
        reply["payload"], good = send_change(site, shared, good, transport["up"], transport["message"])
    bad = np.flatnonzero(~good)
    if len(bad):
        verdict[bad] = np.where(has_finite_gradient(site.objective.take(bad)), DIVERGED, BROKEN)
    site.state["verdict"] = verdict
    w = np.where(good, counts, 0.0)
    if "up" not in transport:
        shared = np.where(good[:, None], shared, 0.0) if len(bad) else shared
        reply["x"] = w.astype(theta.dtype)[:, None] * shared
    return reply | {"w": w, "diverged": 1.0 * (verdict == DIVERGED), "broken": 1.0 * (verdict == BROKEN)}


@dataclass
class LocalRound:
    """A round at clients: the models that they were sent, steps from there, and what they answer.

    ``LocalRound(site, **sent)`` takes what clients are sent in every round, and work names what its method adds to it.
    """

    site: Site
    transport: ModelTransport
    w: Any = None  # the shared layers, of all clients or of each
    eta: Any = 0.0  # step size, one or (m,)
    t: Any = 0  # rounds before this one, one or (m,)
    B: int = 0  # rows of a step; 0 takes all
    E: int = 1  # passes over a client's rows

    @cached_property
    def start(self) -> Floats:
        """Every client's model (m, d) as it was sent, with its own layers."""
        return received(self.site, self.w, self.transport)

    @cached_property
    def own(self) -> Bools:
        """Which parameters (d,) never leave a client."""
        return personal_mask(self.site, self.transport)

    @cached_property
    def steps(self) -> Ints:
        """The steps (m,) of E passes."""
        return epoch_steps(self.site, self.E, self.B)

    def train(
        self, start: Floats | None = None, steps: Any = None, stream: str = "rows", done: Any = None, **beside: Any
    ) -> Floats:
        """Steps on rows that no other round draws, by default E passes from ``start``: see :func:`train`."""
        start, steps = self.start if start is None else start, self.steps if steps is None else steps
        done = self.t * steps if done is None else done
        return train(self.site, start, self.eta, steps, done, self.B, stream, **beside)

    def reply(
        self,
        theta: Floats,
        good: Any = None,
        counts: Floats | None = None,
        kept: Mapping[str, tuple[Floats, Floats]] | None = None,
    ) -> Reply:
        """What clients send of theta: see :func:`make_reply`; of values ``kept`` by name, (new, old), the new are good.

        By default clients are good whose model, and what they keep, is ``finite``.
        """
        if kept:
            others = [new for new, _ in kept.values() if new is not theta]
            good = finite(theta, *others) if good is None else good
            for name, (new, old) in kept.items():
                self.site.state[name] = np.where(good[:, None], new, old)
        return make_reply(self.site, theta, self.transport, good, counts)


@work
def personal(site: Site, w: Floats, transport: ModelTransport) -> Reply:
    """A client's own model (m, d); the shared one where it never made any."""
    return {"theta": site.state.get("theta", received(site, w, transport))}


@work
def current_model(site: Site, w: Floats, transport: ModelTransport) -> Reply:
    """A client's model (m, d): what is shared as it is now, with its personal layers."""
    return {"theta": received(site, w, transport)}


@work
def personal_layers(site: Site, transport: ModelTransport) -> Reply:
    """A client's own layers (m, d2)."""
    return {"layers": _personal_values(site, personal_mask(site, transport), transport)}


@work
def verdicts(site: Site) -> dict[str, Any]:
    """What clients found of themselves in the last round."""
    return {"verdict": site.state.get("verdict", np.zeros(len(site), dtype=np.int64))}


@work
def usable(site: Site) -> dict[str, Any]:
    """Whether clients' data give a gradient."""
    return {"sound": has_finite_gradient(site.objective)}
