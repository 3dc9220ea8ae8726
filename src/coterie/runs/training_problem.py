"""What methods are tried on: the rows of one seed as objectives, made once and used by all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from coterie.data.partition import ClientRows
from coterie.engines.inprocess import InProcess
from coterie.engines.privacy import Private
from coterie.errors import CoterieError
from coterie.methods.method import EVERYTHING, Method
from coterie.objectives.mean_loss import sizes
from coterie.objectives.parameters import has_finite_gradient
from coterie.runs import training_objective as model
from coterie.runs.config import Config
from coterie.runs.scores import Rule, Scores
from coterie.runs.training_data import Federated, federated


@dataclass(frozen=True)
class TrainingProblem:
    """Rows and objectives of one seed.

    Attributes
    ----------
    config : Config
    seed : int
    data : Federated
        Rows to train on, and those that are evaluated.
    """

    config: Config
    seed: int
    data: Federated

    @classmethod
    def of(cls, config: Config, seed: int) -> TrainingProblem:
        """The rows of a seed."""
        return cls(config, seed, federated(config, seed))

    def inside(self) -> TrainingProblem:
        """The same with the training rows alone, some of them held out to choose by."""
        return TrainingProblem(self.config, self.seed, self.data.inside(self.config.data["validation"], self.seed))

    @cached_property
    def objective(self) -> Any:
        """The clients' objective."""
        return model.objective(self.config, self.data.train, self.data.classes, labels=self.data.labels)

    @cached_property
    def pooled(self) -> Any:
        """One client that holds all rows, the same ones in memory, but for those of clients whose rows are broken."""
        objective, part = self.objective, self.data.train
        good = np.flatnonzero(has_finite_gradient(objective))
        if 0 < len(good) < len(self.data):
            rows = np.concatenate([np.arange(part.starts[i], part.stops[i]) for i in good])
            part = ClientRows(part.X[rows], part.y[rows], part.starts[:1] * 0, np.array([len(rows)]))
            return model.objective(self.config, part, self.data.classes)
        return replace(objective, starts=np.array([0]), stops=np.array([len(part.y)]))

    @cached_property
    def held(self) -> Any:
        """Held-out rows of every client; a CoterieError where there are none to judge by."""
        test = self.data.test
        if not len(test.y):
            raise CoterieError(
                "No client has a row to spare that can be held out: deal rows out among fewer clients, or give more."
            )
        held = model.objective(self.config, test, self.data.classes, held=True, labels=self.data.labels)
        if not np.any(np.where(has_finite_gradient(held), sizes(held), 0.0) > 0.0):
            raise CoterieError("No client has held-out rows that are all finite: fill or drop missing values first.")
        return held

    def engine(self, trainer: Method) -> InProcess | Private:
        """A fresh engine; only methods that need known groups are told them.

        With [privacy] it is a private one, but for the two that have no coordinator: local and pooled.
        """
        engine = self.config.engine
        seed = self.seed if engine["seed"] is None else engine["seed"]
        if trainer.groups and not self.data.known:
            raise CoterieError(
                f"The method {trainer.name} needs known groups: give data that have them, or partition = 'rotated'."
            )
        if trainer.pool_rows:
            return InProcess(self.pooled, seed=seed, threads=engine["threads"])
        clusters = self.data.group if trainer.groups else None
        fed = InProcess(self.objective, clusters, ids=self.data.ids, seed=seed, threads=engine["threads"])
        if not self.config.private or trainer.fixed_options.get("personal") == EVERYTHING:
            return fed
        return Private(fed, **self.config.privacy, rounds=self.config.run["rounds"])

    @cached_property
    def rule(self) -> Rule:
        """What models are judged by."""
        return model.rule(self.config, np.concatenate([self.data.train.y, self.data.test.y]))

    def scores(self, theta: Any, classes: bool = False) -> Scores:
        """Of models of all clients, or of one for all of them, on held-out rows; by class, too, where asked for."""
        if isinstance(theta, np.ndarray) and len(theta) == 1:
            theta = np.broadcast_to(theta, (len(self.data), theta.shape[1]))
        part = self.data.test
        found = model.classes(self.config, part.y) if classes else None
        if found is None:
            return Scores.of(self.held, theta, self.rule)
        counts = part.stops - part.starts
        owner = np.repeat(np.arange(len(counts)), counts)
        rows = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - part.starts, counts)
        return Scores.of(self.held, theta, self.rule, found[rows], owner)
