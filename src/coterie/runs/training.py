"""A run: a ``for`` loop around a method's states that evaluates, tells callbacks, saves, and goes on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from coterie.engines import checkpoint, wire
from coterie.engines.inprocess import InProcess
from coterie.engines.privacy import BudgetSpent, Private
from coterie.errors import CoterieError, fitting, listed
from coterie.files import local
from coterie.methods.local_training.client_work import BROKEN, DIVERGED
from coterie.methods.method import Method
from coterie.methods.registry import trained_method
from coterie.runs.callbacks import Callback, Look
from coterie.runs.config import differences
from coterie.runs.scores import Scores
from coterie.runs.training_data import Federated
from coterie.runs.training_objective import layers
from coterie.runs.training_problem import TrainingProblem
from coterie.runs.user_defined_checks import CheckedMethod

State = dict[str, Any]
Point = dict[str, float]
FILE = "checkpoint"
_WHY = {DIVERGED: "its steps diverged", BROKEN: "its data give no gradient"}
_LEFT = "the method left it out"


@dataclass(frozen=True)
class Trained:
    """A run that ended.

    Attributes
    ----------
    method : str
    setting : dict
        Its hyper-parameters.
    seed : int
    theta : (m, d) or (1, d) array, or Ragged
        Models of the clients; one row where all have the same.
    scores : Scores
        Of these on held-out rows.
    curve : list of dict
        Round, scores, bytes and seconds wherever it was evaluated.
    status : str
        "running" where all rounds were done.
    rounds : int
        Done.
    quarantined : dict
        Labels of clients that were left out, the round in which that began, and why.
    failed : list of str
        Labels of clients that diverged and ended the run.
    group : (m,) int64 or None
        Groups that the method found.
    ledger : dict
    seconds : float
    privacy : dict
        ``epsilon``, ``delta``, ``unit`` and a ``statement`` of them, where sums had noise.
    notes : list of str
        What no theorem covers in the hyper-parameters.
    labels : tuple of str
        What clients are called.
    """

    method: str
    setting: dict[str, Any]
    seed: int
    theta: Any
    scores: Scores
    curve: list[Point]
    status: str
    rounds: int
    quarantined: dict[str, tuple[int, str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    group: Any = None
    ledger: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    privacy: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    labels: tuple[str, ...] = ()

    @property
    def trouble(self) -> str:
        """Why the run ended early, in a sentence; empty where it did not."""
        if self.status in ("running", "stopped"):
            return ""
        who = f" (client {listed(self.failed)})" if self.failed else ""
        return f"The run of {self.method} {self.status}{who}; its models are those of round {self.rounds}."


@dataclass
class _Run:
    """A run while it goes on."""

    problem: TrainingProblem
    trainer: Method
    setting: dict[str, Any]
    judge: TrainingProblem | None
    state: State = field(default_factory=dict)
    curve: list[Point] = field(default_factory=list)
    best: State = field(default_factory=dict)
    before: float = 0.0

    def __post_init__(self) -> None:
        _ = self.problem.held, self.judge and self.judge.held  # whether there are rows to judge by is said first
        given = dict(self.setting)
        if self.problem.config.run["strict"] and "strict" in self.trainer.hyper_parameters:
            given.setdefault("strict", True)
        if self.trainer.layout:
            layout = layers(self.problem.config, self.problem.objective)
            given = {k: v for k, v in layout.items() if k == self.trainer.layout} | given
        self.method = self.trainer.make(self.problem.seed, **given)
        if self.trainer.user_defined:
            self.method = CheckedMethod(
                self.trainer.name, self.method, (len(self.problem.data), self.problem.objective.dim)
            )
        self.fed: InProcess | Private = self.problem.engine(self.trainer)
        self.started = perf_counter()

    @property
    def seconds(self) -> float:
        return self.before + perf_counter() - self.started

    def models(self) -> Any:
        """Every client's model. Looking changes nothing: neither the clients' state nor what is booked.

        In a private federation this stands for every client's own look at home, which no coordinator sees.
        """
        home = self.fed.fed if isinstance(self.fed, Private) else self.fed
        book = self.fed.ledger.as_dict()
        self.fed.mark("look")
        theta = self.method.models(home, self.state)
        self.fed.restore("look")
        self.fed.ledger.load(book)
        return theta

    @property
    def privacy(self) -> dict[str, Any]:
        """What the sums so far have cost."""
        if not isinstance(self.fed, Private):
            return {}
        epsilon, delta = self.fed.spent()
        return {"epsilon": epsilon, "delta": delta, "unit": self.fed.unit, "statement": self.fed.statement}

    def evaluate(self) -> None:
        """Put a point on the curve; where rows are held back to judge by, remember the best models."""
        theta = self.models()
        entry: Point = {"round": self.state["t"], **self.problem.scores(theta).summary()}
        entry |= {"bytes_up": self.fed.ledger.bytes_up, "bytes_down": self.fed.ledger.bytes_down}
        if self.judge is not None:
            scores = self.judge.scores(theta)
            value = float(np.nanmean(np.where(scores.weight > 0.0, scores.best, np.nan)))
            entry["validation"] = scores.rule.sign * value
            judged, value = scores.rule.by != "loss", value if np.isfinite(value) else -np.inf
            if not self.best or (judged, value) > (self.best["judged"], self.best["value"]):
                self.best = {"judged": judged, "value": value, "round": self.state["t"], "theta": theta}
        self.curve.append(entry | {"seconds": self.seconds})

    def look(self, rounds: int) -> Look:
        point = self.curve[-1] if self.curve else {}
        book, t = self.fed.ledger, self.state["t"]
        kept = {k: v for k, v in point.items() if k not in ("round", "bytes_up", "bytes_down", "seconds")}
        fresh = bool(point) and point["round"] == t
        return Look(self.trainer.name, t, rounds, self.seconds, book.bytes_up, book.bytes_down, kept, fresh, self.state)

    def save(self, file: Path) -> None:
        document = self.problem.config.document(self.trainer.name)
        data = {"fingerprint": self.problem.data.fingerprint, "seed": self.problem.seed}
        kept = {"method": self.state, "curve": self.curve, "best": self.best, "seconds": self.seconds}
        checkpoint.save(file, self.fed, {"configuration": document, "data": data, "setting": self.setting, **kept})

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint that :func:`saved_run` read."""
        self.fed.resume(saved["engine"])
        kept = saved["state"]
        every = self.problem.config.run["evaluate_every"]
        self.state, self.best, self.before = dict(kept["method"]), dict(kept["best"]), float(kept["seconds"])
        t, status = self.state["t"], self.state["status"]
        whole = isinstance(t, Integral) and not isinstance(t, bool)
        if not (whole and 0 <= t <= self.problem.config.run["rounds"] and status == "running"):
            raise ValueError
        self.curve = [dict(p) for p in kept["curve"] if p["round"] % every == 0]


def train(
    problem: TrainingProblem,
    name: str,
    setting: Mapping[str, Any],
    callbacks: Sequence[Callback] = (),
    folder: Path | None = None,
    resume: bool = False,
) -> Trained:
    """Train one method.

    Parameters
    ----------
    problem : TrainingProblem
    name : str
        Of the method.
    setting : mapping
        Its hyper-parameters, each one value.
    callbacks : sequence of Callback
    folder : path, optional
        Where checkpoints go.
    resume : bool, default False
        Go on from the checkpoint there; the numbers are those of a run that was never cut. Its setting must be one that
        the configuration, or ``setting``, has.

    Returns
    -------
    Trained

    Raises
    ------
    CoterieError
        For a checkpoint that is missing or of another configuration (the keys that differ are named), and wrong input.
    """
    config = problem.config.run
    judge = problem.inside() if config["patience"] else None
    here = TrainingProblem(problem.config, problem.seed, _kept(problem, judge)) if judge is not None else problem
    folder = None if folder is None else local(folder)
    saved = saved_run(here, name, folder) if resume else None
    if saved is not None:
        setting = _resumed(trained_method(name, here.config.folder), setting, here.config.given(name), saved["state"])
    run = _Run(here, trained_method(name, here.config.folder), dict(setting), judge)
    if saved is None:
        run.state = dict(run.method.init(run.fed))
        return _train(run, callbacks, folder)
    with fitting(f"The checkpoint in '{folder}'", "Begin again without it."):
        run.restore(saved)
        return _train(run, callbacks, folder)


def _train(run: _Run, callbacks: Sequence[Callback], folder: Path | None) -> Trained:
    """All rounds from where a run stands, between the first and the last word to callbacks."""
    problem, name, config = run.problem, run.trainer.name, run.problem.config.run
    try:
        settings = {"method": name, "seed": problem.seed, **run.trainer.merge(run.trainer.defaults, run.setting)}
        for callback in callbacks:
            callback.start({**settings, "rounds": config["rounds"], "configuration": problem.config.fingerprint(name)})
        status = _rounds(run, callbacks, folder)
    except BudgetSpent:
        status = "stopped"
    finally:
        for callback in callbacks:
            callback.end()
    return _ended(run, status)


def _resumed(
    trainer: Method, given: Mapping[str, Any], configured: Mapping[str, Any], kept: Mapping[str, Any]
) -> dict[str, Any]:
    """The setting of a checkpoint, each value of which the configuration or the call must have too."""
    choices = [*trainer.settings(configured), given]
    setting = kept.get("setting")
    if not isinstance(setting, dict) or not all(
        any(name in choice and wire.encode(choice[name]) == wire.encode(value) for choice in choices)
        for name, value in setting.items()
    ):
        raise CoterieError(
            "The checkpoint has hyper-parameters that the configuration has not: begin again without it."
        )
    return setting


def _rounds(run: _Run, callbacks: Sequence[Callback], folder: Path | None) -> str:
    """All rounds that are left; "stopped" where somebody asked for it, else the method's status."""
    config, t = run.problem.config.run, run.state["t"]
    rounds, every, patience = config["rounds"], config["evaluate_every"], config["patience"]
    for state in run.method.run(run.fed, range(t + 1, rounds + 1), run.state):
        run.state = state
        t, going = state["t"], state["status"] == "running"
        if (t % every == 0 or t == rounds) and going:
            run.evaluate()
        told = [callback.look(run.look(rounds)) for callback in callbacks]
        waited = bool(patience and run.best and t - run.best["round"] >= patience)
        last = waited or any(told) or t == rounds
        if folder is not None and going and (last or t % config["checkpoint_every"] == 0):
            run.save(folder / FILE)
        if last and going:
            return "stopped" if t < rounds else "running"
    return str(run.state["status"])


def _ended(run: _Run, status: str) -> Trained:
    """The result: models of the last round, or the best ones where rows were held back to judge by."""
    if not run.curve or run.curve[-1]["round"] != run.state["t"]:
        run.evaluate()
    theta = run.best["theta"] if run.best else run.models()
    labels, state = (
        run.problem.data.labels,
        run.method.about_clients(run.state) if run.trainer.user_defined else run.state,
    )
    together = run.trainer.pool_rows
    out = np.zeros(0) if together else np.asarray(state.get("quarantined", np.zeros(len(labels))))
    why = state.get("why", np.full(len(out), BROKEN))
    failed = [] if together else [labels[i] for i in np.atleast_1d(state.get("failed", []))]
    return Trained(
        method=run.trainer.name,
        setting=run.trainer.merge(run.trainer.defaults, run.setting),
        seed=run.problem.seed,
        theta=theta,
        scores=run.problem.scores(theta, classes=True),
        labels=labels,
        curve=run.curve,
        status=status,
        rounds=int(run.state["t"]),
        quarantined={labels[i]: (int(out[i]), _WHY.get(int(why[i]), _LEFT)) for i in np.flatnonzero(out)},
        failed=failed,
        group=np.asarray(state["group"]) if "group" in state and not together else None,
        ledger=run.fed.ledger.as_dict(),
        seconds=run.seconds,
        privacy=run.privacy,
        notes=[*([] if run.trainer.user_defined else run.method.notes), *getattr(run.problem.objective, "notes", ())],
    )


def _kept(problem: TrainingProblem, judge: TrainingProblem) -> Federated:
    """Rows to train on without those that are held back to judge by, and the test rows as they were."""
    return replace(judge.data, test=problem.data.test)


def saved_run(problem: TrainingProblem, name: str, folder: Path | None) -> dict[str, Any]:
    """The checkpoint in a folder, once it is sure that it is of this configuration; more rounds are allowed."""
    if folder is None:
        raise CoterieError("There is no folder to resume from: name one with --out, or run.checkpoint.")
    saved: dict[str, Any] = checkpoint.read(folder / FILE)
    kept = saved["state"] if isinstance(saved, dict) and "state" in saved else None
    if not isinstance(kept, dict) or "configuration" not in kept:
        raise CoterieError(f"{folder / FILE} is not the checkpoint of a training run.")
    before, now = kept["configuration"], problem.config.document(name)
    with fitting(f"The checkpoint in '{folder}'", "Begin again without it."):
        longer = before["run"]["rounds"] <= now["run"]["rounds"]
        if longer:
            before = before | {"run": before["run"] | {"rounds": now["run"]["rounds"]}}
        data = {"fingerprint": problem.data.fingerprint, "seed": problem.seed}
        found = differences(before, now) or differences({"data": kept["data"]}, {"data": data})
    if found:
        more = "" if longer else " Rounds can only be made more."
        raise CoterieError(f"The checkpoint in '{folder}' is of another configuration: {', '.join(found)}.{more}")
    return saved
