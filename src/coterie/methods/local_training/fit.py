"""Methods that train over rounds, on a table: from rows to coefficients, and how far the run came.

The rows are a GLM in a :mod:`~coterie.methods.local_training.whitening`, whose columns are the layers of a model. Where
nothing else is asked for, steps take all rows, and are as long as the smoothness of clients' losses allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Annotated, Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, require_all_replies, work
from coterie.methods.groups.evaluation import held_loss
from coterie.methods.local_training.rounds import Smoothness
from coterie.methods.local_training.whitening import InFrame, well_scaled
from coterie.methods.method import Method
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.registry import METHODS
from coterie.methods.stepwise import TRACE_STEPS, trace_steps
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.constants import constants
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient, sizes
from coterie.options import Checked, Option, declared, need_names, of
from coterie.status_line import steps

MOST = 1000
"""Rounds where none are asked for, unless nothing changes any more before."""
STILL = 1e-8
"""Share of its whole way that models may move between two looks and count as still."""
BETWEEN = 5
"""Rounds between these looks at least: fewer may have been without a step."""


@dataclass(frozen=True)
class Rounds(Checked):
    """A training on a table; its other options are the method's, but for those that name layers."""

    rounds: Annotated[
        int | None, Option("By default until nothing changes any more, 1,000 at most.", low=1, high=10**9)
    ] = None
    seed: Annotated[int, Option("Of rows, of who takes part, and of first models.", low=0, high=10**9)] = 0
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any], name: str) -> Rounds:
        """From a user's mapping, for a method by name; a CoterieError for a name or a value that cannot be."""
        method, own = METHODS[name], list(declared(cls))
        layers = [option for option in ("personal", "shared") if option in method.hyper_parameters]
        hyper = [option for option in method.hyper_parameters if option not in layers]
        if named := [option for option in layers if isinstance(given, Mapping) and option in given]:
            raise CoterieError(
                f"On a table shared names the columns that all clients share, beside rounds: leave {named[0]} out of "
                "rounds."
            )
        need_names(f"The method {name}", given, (*own, *hyper))
        options = {option: value for option, value in given.items() if option not in own}
        if several := [option for option, value in options.items() if method.several(option, value)]:
            raise CoterieError(f"{several[0]} of the method {name} must be one value on a table.")
        method.check(options)
        made = of(cls, {option: given[option] for option in own if option in given}, f"The method {name}")
        return cls(made.rounds, made.seed, options)


def fit(fed: Federation, problem: GroupedProblem, rounds: Mapping[str, Any] | None = None, name: str = "") -> Estimates:
    """Train by the method ``name`` as ``rounds`` (:class:`Rounds`) ask for, from the model with an intercept alone.

    Personal columns are ``problem.personal`` where the method tells shared layers from others; known groups are the
    finest clusters. Clients never seen get the shared model, or the mean by rows of those of their cluster, or of all.
    Covariances are not known (NaN). ``info["training"]`` has the options, the ``trace`` of (round, mean loss of rows),
    how far the models ``moved`` at last, the ``groups`` found, and clients left out.
    """
    asked, method = Rounds.of(rounds or {}, name), METHODS[name]
    frame, here = well_scaled(fed, problem), InFrame(fed)
    clients = require_all_replies(here.ask(measure, batch=int(asked.options.get("B", 0))))
    chosen = settings(method, asked.options, Smoothness.of(clients))
    run = TableTraining(here, method.make(asked.seed, **chosen, **_layers(method, problem, len(frame.at))))
    run.go(asked.rounds)
    theta, weight, state = frame.theta(run.models), clients["w"], run.state
    root = weight @ theta / weight.sum()
    if np.shape(state["w"]) == root.shape:
        root = frame.theta(np.asarray(state["w"]))
    nodes = _means(problem, fed.clients.clusters, theta, weight, root)
    p, q, rows = len(root), len(root) * (len(root) + 1) // 2, float(clients["rows"].sum())
    gaussian = problem.family.has_dispersion
    loss = run.trace[-1][1] * weight.sum() * frame.size**2
    about = run.about | {"options": {k: v for k, v in chosen.items() if not callable(v)}}
    if getattr(run.method, "by_row", False):
        about["notes"].append("No gradient was clipped and no noise was added: nothing here is private.")
    about |= {"asked": {k: v for k, v in (rounds or {}).items() if not callable(v)}}
    return Estimates(
        root=root,
        root_cov=np.full((p, p), np.nan),
        nodes=nodes,
        node_cov=tuple(np.full((len(node), q), np.nan) for node in nodes),
        client=theta,
        client_cov=np.full((len(theta), q), np.nan),
        D_client=np.zeros((1, p, p)),
        D_levels=tuple(np.zeros((p, p)) for _ in nodes),
        sigma2=2.0 * loss / max(rows - p, 1.0) if gaussian else 1.0,
        info={"training": about},
    )


def settings(method: Method, given: Mapping[str, Any], losses: Smoothness) -> dict[str, Any]:
    """Hyper-parameters: the method's defaults, steps by the losses' smoothness, and above these what is given."""
    usual = {k: v for k, v in {**method.defaults, "B": 0}.items() if k in method.hyper_parameters and k != "eta"}
    return method.merge(usual | method.method_class.suited(losses, method.merge(usual, given)), given)


def _layers(method: Method, problem: GroupedProblem, p: int) -> dict[str, tuple[str, ...]]:
    """The option that tells shared from personal columns, which are layers called by their numbers."""
    personal = problem.personal.tolist()
    columns = {"personal": personal, "shared": [j for j in range(p) if j not in personal]}
    named = method.layout or "shared" * ("shared" in method.hyper_parameters)
    return {named: tuple(map(str, columns[named]))} if named else {}


def _means(problem: GroupedProblem, clusters: Ints, theta: Floats, weight: Floats, root: Floats) -> tuple[Floats, ...]:
    """Means (k_l, p) of clients' models by their rows, in the clusters of every level; the root where nobody is."""
    if not problem.tree.parents:
        return ()
    k = problem.tree.sizes[0]
    total, rows = np.zeros((k, theta.shape[1])), np.zeros(k)
    np.add.at(rows, clusters, weight)
    np.add.at(total, clusters, weight[:, None] * theta)
    out = []
    for level in range(len(problem.tree.parents)):
        out.append(np.where(rows[:, None] > 0.0, total / np.where(rows > 0.0, rows, 1.0)[:, None], root))
        total, rows = problem.tree.up(level, total), problem.tree.up(level, rows)
    return tuple(out)


@work
def measure(site: Site, batch: int) -> dict[str, Any]:
    """Of each client's mean loss: its smoothness for gradients of ``batch`` rows, its gradient where the run begins."""
    c, w, m = constants(site.objective), sizes(site.objective), len(site)
    L = c.L_row / batch + (1.0 - 1.0 / batch) * c.L if batch else c.L
    g = gradient(site.objective, np.zeros((m, site.objective.dim)), Draws.of_all(m))
    return {"L": L / np.where(w > 0.0, w, 1.0), "g": np.linalg.norm(g, axis=1), "rows": c.rows, "w": w}


@dataclass
class TableTraining:
    """A training in a frame: looks at it change neither the clients' state nor what is booked."""

    fed: InFrame
    method: Any
    state: dict[str, Any] = field(default_factory=dict)
    models: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    trace: list[tuple[int, float]] = field(default_factory=list)
    moved: float = 0.0
    still: bool = False

    def go(self, rounds: int | None) -> None:
        """So many rounds, or until nothing changes any more."""
        self.state = self.method.init(self.fed)
        first, last = self.look(), 0
        T = rounds or MOST
        states = self.method.run(self.fed, trace_steps(T), self.state)
        for state in steps(states, T, "Rounds", itemgetter("t"), most=rounds is None):
            self.state, before = state, self.models
            self.look()
            between = self.state["t"] - last
            with np.errstate(over="ignore", invalid="ignore"):
                step, way = (float(np.linalg.norm(self.models - other)) for other in (before, first))
            self.moved, last = step / way if way > 0.0 else 0.0, self.state["t"]
            self.still = between >= min(BETWEEN, T // TRACE_STEPS) and self.moved <= STILL
            if self.still and rounds is None:
                break

    def look(self) -> Floats:
        """The clients' models, and the mean loss of their rows."""
        book = self.fed.ledger.as_dict()
        self.fed.mark("look")
        self.models = np.asarray(self.method.models(self.fed, self.state), dtype=np.float64)
        self.trace.append((int(self.state["t"]), held_loss(self.fed, self.models, held=False)))
        self.fed.restore("look")
        self.fed.ledger.load(book)
        return self.models

    @property
    def about(self) -> dict[str, Any]:
        """What there is to say of it."""
        status = self.state["status"]
        out: dict[str, Any] = {"status": "finished" if status == "running" else status, "rounds": self.trace[-1][0]}
        out |= {"trace": self.trace, "moved": self.moved, "notes": list(self.method.notes)}
        asked = self.method.C < 1.0 or self.method.online < 1.0
        drawn = getattr(self.method, "B", 0) > 0 or asked or hasattr(self.method, "drawn")
        out["drawn"] = bool(drawn)  # then models never rest
        out["quarantined"] = np.flatnonzero(self.state["quarantined"]).tolist()
        return out | ({"groups": np.asarray(self.state["group"]).tolist()} if "group" in self.state else {})
