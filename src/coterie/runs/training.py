"""Training on the clients of a configuration: a run that is evaluated, watched and saved, and goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import read_durable, save_checkpoint
from coterie.engines.privacy import BudgetSpent, Private
from coterie.errors import CoterieError, fitting, listed
from coterie.federation import Ragged
from coterie.files import clear, place
from coterie.methods.local_training.client_work import BROKEN, DIVERGED
from coterie.methods.local_training.new_client import shared_models
from coterie.methods.local_training.rounds import NO_GRADIENT
from coterie.methods.method import Method
from coterie.methods.registry import trained_method
from coterie.numerics.arrays import compile_seconds
from coterie.objectives.client_models import finite
from coterie.objectives.mixed import padded
from coterie.objectives.parameters import base_digest
from coterie.options import unheeded
from coterie.runs.config import differences, judged
from coterie.runs.config_keys import section
from coterie.runs.loop_and_callbacks import Callback, Look, State, follow
from coterie.runs.model_objective import need_layers, of_layout
from coterie.runs.scores_over_clients import RARE, Scores
from coterie.runs.training_problem import TrainingProblem
from coterie.runs.user_defined_method_checks import CheckedMethod

Point = dict[str, float]
FILE, SITES = "checkpoint", "sites"
_WHY = {DIVERGED: "its steps diverged", BROKEN: "its data give no gradient"}
_LEFT, _AGAIN = "the method left it out", "Begin again without it."


@dataclass(frozen=True)
class Trained:
    """A run that ended."""

    method: str
    setting: dict[str, Any]  # its hyper-parameters
    seed: int
    # models of the clients: (m, d), or (1, d) where all have the same
    theta: Any = field(metadata={"saved": False})
    scores: Scores  # of these on held-out rows
    curve: list[Point]  # round, scores, bytes and seconds wherever it was evaluated
    status: str  # "running" where all rounds were done
    rounds: int  # done
    kept: int = 0  # the round whose models these are
    quarantined: dict[str, tuple[int, str]] = field(default_factory=dict)  # clients left out: since which round, why
    failed: list[str] = field(default_factory=list)  # clients that diverged and ended the run
    group: Any = None  # (m,) int64: groups that the method found
    ledger: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    privacy: dict[str, Any] = field(default_factory=dict)  # epsilon, delta, unit, statement, where sums had noise
    notes: list[str] = field(default_factory=list)  # what no theorem covers in the hyper-parameters
    labels: tuple[str, ...] = ()  # what clients are called
    helpers: list[str] = field(default_factory=list)  # clients without a model, which help the main ones
    shared: Any = None  # (k, d) what the server has for clients to come, where the method has anything

    @property
    def trouble(self) -> str:
        """Why the run ended early, in a sentence; empty where it did not."""
        if self.status in ("running", "stopped"):
            return ""
        who = f" (client {listed(self.failed)})" if self.failed else ""
        return f"The run of {self.method} {self.status}{who}; its models are those of round {self.kept}."

    @property
    def finite(self) -> bool:
        """Whether any client has a loss that is a number, or none was asked for."""
        return not self.scores.known or bool(np.isfinite(self.scores.loss).any())


@dataclass
class _Run:
    """A run while it goes on; ``judge`` has the rows that are held back to stop by, where there are any."""

    problem: TrainingProblem
    trainer: Method
    setting: dict[str, Any]
    judge: TrainingProblem | None
    folder: Path | None = None  # of checkpoints, where sites behind a wire keep their state, too
    state: State = field(default_factory=dict)
    curve: list[Point] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    scored: Scores | None = None  # of the last point of the curve
    before: float = 0.0  # seconds until the checkpoint that it goes on from

    def __post_init__(self) -> None:
        _ = self.problem.held, self.problem.rule, self.judge and self.judge.held  # what to judge by is missed first
        self.config, given = self.problem.config.run, dict(self.setting)
        if self.config["strict"] and "strict" in self.trainer.hyper_parameters:
            given.setdefault("strict", True)
        given = of_layout(self.trainer, self.problem.config, self.problem.objective) | given
        known = {"labels": self.problem.data.labels, "group_labels": self.problem.data.groups}
        given |= {f.name: known[f.name] for f in fields(self.trainer.method_class) if f.name in known}
        self.method = self.trainer.make(self.problem.seed, **given)
        self.main = self.method.positions() if self.trainer.relation == "main client" else None
        if self.main is not None and self.problem.main is None:
            self.problem = self.problem.but(main=self.main)
            self.judge = self.judge and self.judge.but(main=self.main)
        if not self.trainer.user_defined:
            need_layers(self.trainer.name, self.method, self.problem.objective)
        else:
            shape = len(self.problem.data), self.problem.objective.dim
            self.method = CheckedMethod(self.trainer.name, self.method, shape)
        self.fed = self.problem.engine(self.trainer, None if self.folder is None else self.folder / SITES)
        self.walked.clear()  # of another method
        self.started, self.compiled = perf_counter(), compile_seconds()

    @property
    def seconds(self) -> float:
        return self.before + perf_counter() - self.started

    @property
    def settings(self) -> dict[str, Any]:
        """All hyper-parameters."""
        return self.trainer.merge(self.trainer.defaults, self.setting)

    def go(self, callbacks: Sequence[Callback]) -> Trained:
        """All rounds that are left, between the first and the last word to callbacks."""
        problem, name, rounds = self.problem, self.trainer.name, self.config["rounds"]
        told = {"method": name, "seed": problem.seed, **self.settings, "rounds": rounds}

        def evaluated(state: State) -> bool:
            self.state, t = state, state["t"]
            if state["status"] == "running" and (t % self.config["evaluate_every"] == 0 or t == rounds):
                self.evaluate()
            return bool(self.broken) or self.settled

        def keep(state: State, last: bool) -> None:
            if self.folder is not None and (last or state["t"] % self.config["checkpoint_every"] == 0):
                self.save(self.folder / FILE)

        watching = [lambda _, callback=callback: callback.look(self.look(rounds)) for callback in callbacks]
        try:
            for callback in callbacks:
                callback.start({**told, "configuration": problem.config.fingerprint(name)})
            status = "stopped"  # of one that goes on from where it had ended
            if not self.settled or self.state["t"] == rounds:
                _, status = follow(self.method, self.fed, self.state, rounds, [evaluated, *watching], keep)
            if status in ("stopped", "running") and (broken := self.broken):
                status = f"ended by step {self.state['t']}: {NO_GRADIENT}"
                self.state = dict(self.state, failed=broken)
        except BudgetSpent:
            status = "stopped"
        finally:
            for callback in callbacks:
                callback.end()
        return self.ended(status)

    @property
    def broken(self) -> list[int]:
        """Clients that a method without ``strict`` of its own left out, where that is to end the run."""
        if not self.config["strict"] or "strict" in self.trainer.hyper_parameters:
            return []
        state = self.method.about_clients(self.state) if self.trainer.user_defined else self.state
        return np.flatnonzero(state.get("quarantined", [])).tolist()

    @property
    def settled(self) -> bool:
        """Whether so many rounds as ``patience`` says brought no improvement."""
        patience = self.config["patience"]
        return bool(patience and self.best and self.state["t"] - self.best["round"] >= patience)

    @property
    def walked(self) -> dict[str, int]:
        """How long runs of local steps were so far, where the objective remembers that."""
        found: dict[str, int] = getattr(self.on, "walked", {})
        return found

    def unheeded(self) -> dict[str, str]:
        """What is given and changes nothing in this run, and why."""
        config, trainer = self.problem.config, self.trainer
        given = config.given(trainer.name)
        more: dict[str, str] = getattr(self.method, "unheeded", lambda clusters: {})(self.fed.clients.k)
        found = config.idle(trainer.name) | unheeded(trainer.method_class, given, self.settings)
        return found | {key: why for key, why in more.items() if key in given}

    def models(self) -> Any:
        """Every client's model. In a private federation this is each one's look at home, which no coordinator sees."""
        found = self.aside(self.method.models)
        return padded(found) if isinstance(found, Ragged) else found

    def measured(self) -> Point:
        """What a method measures beside scores; not under privacy, where sums without noise would tell of rows."""
        measure = None if isinstance(self.fed, Private) else getattr(self.method, "measure", None)
        return {} if measure is None else self.aside(measure)

    def aside(self, look: Callable[[Any, State], Any]) -> Any:
        """A look that changes nothing: neither the clients' state nor what is booked."""
        home = self.fed.fed if isinstance(self.fed, Private) else self.fed
        book, _ = self.fed.ledger.as_dict(), self.fed.mark("look")
        found = look(home, self.state)
        self.fed.restore("look")
        if hasattr(self.fed, "forget"):
            self.fed.forget("look")
        self.fed.ledger.load(book)
        return found

    def evaluate(self) -> None:
        """Put a point on the curve; where rows are held back to judge by, remember the best models."""
        theta = self.models()
        self.scored = self.problem.scores(theta, self.method)
        entry: Point = {"round": self.state["t"], **self.scored.summary()}
        entry |= {"bytes_up": self.fed.ledger.bytes_up, "bytes_down": self.fed.ledger.bytes_down}
        if self.judge is not None:
            scores = self.judge.scores(theta, self.method)
            value = float(np.nanmean(scores.best))
            entry["validation"] = scores.rule.sign * value
            judged, value = scores.rule.by != "loss", value if np.isfinite(value) else -np.inf
            if not self.best or (judged, value) > (self.best["judged"], self.best["value"]):
                self.best = {"judged": judged, "value": value, "round": self.state["t"], "theta": theta}
                self.best |= {"shared": shared_models(self.method, self.state)}
        self.curve.append(entry | self.measured() | {"seconds": self.seconds})

    def look(self, rounds: int) -> Look:
        point = self.curve[-1] if self.curve else {}
        book, t = self.fed.ledger, self.state["t"]
        kept = {k: v for k, v in point.items() if k not in ("round", "bytes_up", "bytes_down", "seconds")}
        fresh = bool(point) and point["round"] == t
        return Look(self.trainer.name, t, rounds, self.seconds, book.bytes_up, book.bytes_down, kept, fresh, self.state)

    def notes(self) -> list[str]:
        """What the method says of its run, and of what it was run on."""
        said, labels = [*self.method.notes, *self.problem.data.held.notes], self.problem.data.labels
        said += (f"{key} changes nothing for {self.trainer.name}{why}" for key, why in self.unheeded().items())
        if self.problem.config.model["path"] != "softmax":
            said += filter(None, [getattr(self.method, "without_convexity", "")])
        if self.helpers:
            who = listed([label for label in labels if label not in self.helpers])
            said += [f"Only the main clients ({who}) have models and are evaluated; {len(self.helpers):,} others help."]
        return said

    @property
    def on(self) -> Any:
        """The objective that is trained on."""
        return self.problem.pooled if self.trainer.pool_rows else self.problem.objective

    @property
    def helpers(self) -> list[str]:
        """Clients without a model, which help the main ones."""
        labels = self.problem.data.labels
        return [] if self.main is None else [labels[i] for i in np.setdiff1d(np.arange(len(labels)), self.main)]

    def save(self, file: Path) -> None:
        if isinstance(self.method, CheckedMethod):
            self.method.need_saveable(self.state)
        kept = {"method": self.state, "curve": self.curve, "best": self.best, "seconds": self.seconds}
        kept |= {"walked": dict(self.walked)}
        save_checkpoint(file, self.fed, {**_about(self.problem, self.trainer.name), "setting": self.setting, **kept})

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint that :func:`saved_run` read."""
        self.fed.resume(saved["engine"])
        kept = saved["state"]
        self.state, self.best, self.before = dict(kept["method"]), dict(kept["best"]), float(kept["seconds"])
        t, status = self.state["t"], self.state["status"]
        whole = isinstance(t, Integral) and not isinstance(t, bool)
        if not (whole and 0 <= t <= self.config["rounds"] and status == "running"):
            raise ValueError
        self.walked.update(kept["walked"])
        self.curve = [dict(p) for p in kept["curve"] if p["round"] % self.config["evaluate_every"] == 0]

    def ended(self, status: str) -> Trained:
        """The result: models of the last round, or the best ones where rows were held back to judge by."""
        if not self.curve or self.curve[-1]["round"] != self.state["t"]:
            self.evaluate()
        last = self.best or {"theta": self.models(), "shared": shared_models(self.method, self.state)}
        theta, labels = last["theta"], self.problem.data.labels
        if (scores := self.scored) is None or self.best or scores.rule.common >= RARE:
            scores = self.problem.scores(theta, self.method, last=True)
        ours, together = not self.trainer.user_defined, self.trainer.pool_rows
        state = self.state if ours else self.method.about_clients(self.state)
        out = np.zeros(0) if together else np.asarray(state.get("quarantined", np.zeros(len(labels))))
        why = state.get("why", np.full(len(out), BROKEN))
        if status in ("running", "stopped") and not finite(theta).any():
            status = "gave no client a model of finite numbers"
        privacy: dict[str, Any] = {}
        if isinstance(self.fed, Private):
            privacy = dict(zip(("epsilon", "delta"), self.fed.spent(), strict=True))
            privacy |= {"unit": self.fed.unit, "statement": self.fed.statement}
        return Trained(
            method=self.trainer.name,
            setting=self.settings,
            seed=self.problem.seed,
            theta=theta,
            shared=last["shared"],
            scores=scores,
            labels=labels,
            curve=self.curve,
            status=status,
            rounds=int(self.state["t"]),
            kept=int((self.best or {"round": self.state["t"]})["round"]),
            quarantined={labels[i]: (int(out[i]), _WHY.get(int(why[i]), _LEFT)) for i in np.flatnonzero(out)},
            failed=[] if together else [labels[i] for i in np.atleast_1d(state.get("failed", []))],
            group=np.asarray(state["group"]) if "group" in state and not together else None,
            ledger=self.fed.ledger.as_dict() | {"compiling": compile_seconds() - self.compiled},
            seconds=self.seconds,
            privacy=privacy,
            helpers=self.helpers,
            notes=[*(self.notes() if ours else ()), *getattr(self.on, "notes", ()), *getattr(self.on, "idle", ())],
        )


def train(
    problem: TrainingProblem,
    name: str,
    setting: Mapping[str, Any],
    callbacks: Sequence[Callback] = (),
    folder: Path | None = None,
    resume: bool = False,
) -> Trained:
    """Train one method with the hyper-parameters ``setting``, each one value; checkpoints go into ``folder``.

    ``resume`` goes on from the checkpoint there, and the numbers are those of a run that was never cut: its setting
    must be one that the configuration, or ``setting``, has. A CoterieError for a checkpoint that is missing or of
    another configuration (the keys that differ are named), and for wrong input.
    """
    judge = problem.inside() if judged(problem.config.run) else None
    if judge is not None:  # trains without the rows that are held back to judge by; test rows are as they were
        problem = problem.without(judge)
    folder = None if folder is None else place(folder)
    if resume and folder is None:
        raise CoterieError("There is no folder to resume from: name the one of the run's checkpoint.")
    if folder is None or not resume:
        if folder is not None:
            clear(folder / SITES)  # of an earlier run
        run = _Run(problem, trained_method(name, problem.config.folder), dict(setting), judge, folder)
        with run.fed:
            run.state = dict(run.method.init(run.fed))
            return run.go(callbacks)
    saved = saved_run(problem, name, folder)
    trainer = trained_method(name, problem.config.folder)
    setting = _resumed(trainer, setting, problem.config.given(name), saved["state"])
    run = _Run(problem, trainer, setting, judge, folder)
    with fitting(f"The checkpoint in '{folder}'", _AGAIN), run.fed:
        run.restore(saved)
        return run.go(callbacks)


def need_able(problem: TrainingProblem, name: str) -> dict[str, str]:
    """What is given and changes nothing in any setting of a method, and why.

    A CoterieError for a method that needs what is not there, and settings that cannot be, such as ties of unknown
    clients.
    """
    trainer = trained_method(name, problem.config.folder)
    _ = problem.held  # made here, it is there for the run, too
    here = problem.but(config=replace(problem.config, engine=section("engine", {})))  # of this process
    idle = [_Run(here, trainer, dict(one), None).unheeded() for one in trainer.settings(problem.config.given(name))]
    return {key: why for key, why in idle[0].items() if all(key in one for one in idle)}


def _about(problem: TrainingProblem, name: str) -> dict[str, Any]:
    """What a checkpoint is of."""
    data = {"fingerprint": problem.data.fingerprint, "seed": problem.seed, "base": base_digest(problem.objective)}
    return {"configuration": problem.config.document(name), "data": data}


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
        raise CoterieError("The checkpoint has hyper-parameters that the configuration has not: begin without it.")
    return setting


def saved_run(problem: TrainingProblem, name: str, folder: Path) -> dict[str, Any]:
    """The checkpoint in a folder, once it is sure that it is of this configuration; more rounds are allowed."""
    saved: dict[str, Any] = read_durable(folder / FILE)
    kept = saved["state"] if isinstance(saved, dict) and "state" in saved else None
    if not isinstance(kept, dict) or "configuration" not in kept:
        raise CoterieError(f"{folder / FILE} is not the checkpoint of a training run: begin without it.")
    before, now = kept["configuration"], _about(problem, name)
    with fitting(f"The checkpoint in '{folder}'", _AGAIN):
        rounds = now["configuration"]["run"]["rounds"]
        longer = before["run"]["rounds"] <= rounds
        before = before | {"run": before["run"] | {"rounds": rounds}} if longer else before
        found = differences(before, now["configuration"]) or differences({"data": kept["data"]}, {"data": now["data"]})
    if found:
        more = "" if longer else " Rounds can only be made more."
        raise CoterieError(f"The checkpoint in '{folder}' is of another configuration: {', '.join(found)}.{more}")
    return saved
