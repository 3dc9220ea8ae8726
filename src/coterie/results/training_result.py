"""The result of training nets: what a user reads, predicts with, adapts to new clients, saves and loads.

What is read chooses no code: a model of the package is found by its name, and anything else is the caller's to name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from coterie import files
from coterie.data import net_inputs
from coterie.data.array_input import finite_rows, is_table, matrix
from coterie.data.columns import at_rows
from coterie.data.partition import ClientRows
from coterie.errors import CoterieError, checked_calls, fitting, nearest, plural
from coterie.evidence.training_comparison import TrainingComparison, compare
from coterie.evidence.training_selection import Watch, quiet
from coterie.lazy_modules import pd
from coterie.methods.groups.evaluation import Adapted
from coterie.methods.groups.group_gradients import Growth
from coterie.methods.registry import trained_method
from coterie.objectives.client_models import LARGE, is_one
from coterie.objectives.mixed import kinds
from coterie.objectives.wide_models import WideModels
from coterie.results.net_predictions import DAMAGED, adapted, outputs, probabilities, read_by_method
from coterie.runs import model_objective as model
from coterie.runs.config import AUTO, Config, chosen_methods, tables
from coterie.runs.training import Trained

if TYPE_CHECKING:
    from coterie.report.matplotlib_plots import TrainingPlots

_sound = fitting("The record of these trained models", DAMAGED)  # around what is made of one that may have been read


@checked_calls
@dataclass(frozen=True, eq=False, repr=False)
class TrainingResult:
    """Nets of clients that were trained, the evidence for them, and what they cost.

    Attributes
    ----------
    evidence : TrainingComparison
        Every method and seed that was trained.
    method : str
        Whose models these are.
    labels : tuple of str
        What clients are called.
    theta : (m, d) array, or (1, d) where all have the same
        Their models, of the first seed; where there is no room for all, rows are made when ``theta[rows]`` asks.
    group : (m,) int64 or None
        Groups that the method was told, or that it found.
    classes : int
        0 where outcomes are no classes.
    shape : tuple of int
        Of a row of X.
    columns : dict of (m,) arrays, those of :attr:`clients`
    data_fingerprint : str
        Hash of the rows of the first seed.
    heads : tuple of str
        Where groups' nets have other shapes: the group of every client, whose row of theta has zeros after its end.
    sizes : (m,) int64 or None
        Of their models then.
    inputs : tuple of str
        Columns of a table that a net is given.
    whole : bool
        Whether rows of X are whole numbers, such as tokens.
    base : (bytes,) uint8 or None
        What of the module does not train, once for all clients, as :func:`~coterie.objectives.deep.frozen_base.stored`.
    digests : tuple of str
        Of that of every group's net where they have other shapes, else of the one; empty without torch modules.
    layout : tuple of str
        Of a row of X that is several arrays, or series: see :func:`coterie.data.net_inputs.layout`.
    class_names : tuple of str
        What classes are called, where outcomes were text.
    shared : (k, d) array or None
        What the server has for clients to come: the shared model, or those of groups.
    groups : tuple of str
        What groups that are known are called, in the order of their numbers.
    """

    evidence: TrainingComparison = field(metadata={"saved": False})
    method: str
    labels: tuple[str, ...]
    theta: Any
    group: Any
    classes: int
    shape: tuple[int, ...]
    columns: dict[str, npt.NDArray[Any]]
    data_fingerprint: str
    heads: tuple[str, ...] = ()
    sizes: Any = None
    inputs: tuple[str, ...] = ()
    whole: bool = False
    base: Any = None
    digests: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    shared: Any = None
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: TrainingComparison, method: str) -> TrainingResult:
        """The models of a method that were kept of a comparison."""
        problem, run = found.problem, found.runs[method][0]
        if problem is None or run.theta is None:
            raise CoterieError("The comparison kept no models.")
        data = problem.data
        group = data.group if trained_method(method, found.config.folder).groups else run.group  # known, or found
        bare = {name: [replace(one, theta=None, shared=None) for one in runs] for name, runs in found.runs.items()}
        heads = tuple(data.groups[g] for g in data.group) if found.config.model["heads"] else ()
        sizes = np.concatenate([[p.dim] * len(p) for _, p in kinds(problem.objective)]) if heads else None
        bases = [part.base for _, part in kinds(problem.objective) if hasattr(part, "base")]
        base = None
        if bases:
            from coterie.objectives.deep.frozen_base import stored

            base = stored(bases)
        return cls(
            evidence=replace(found, runs=bare, problem=None),
            method=method,
            labels=tuple(data.labels),
            theta=run.theta[:1] if is_one(run.theta) and run.theta.size > LARGE else run.theta,
            group=group,
            classes=data.classes,
            shape=tuple(data.train.X.shape[1:]),
            columns=problem.by_client(run),
            data_fingerprint=data.fingerprint,
            heads=heads,
            sizes=sizes,
            inputs=data.inputs,
            whole=data.train.X.dtype.kind in "iu",
            base=base,
            digests=tuple(base.digest for base in bases),
            layout=() if net_inputs.is_plain(data.train.X) else net_inputs.layout(data.train.X, problem.longest),
            class_names=data.class_names,
            shared=run.shared,
            groups=data.groups if data.known else (),
        )

    @property
    def run(self) -> Trained:
        """The run that made the models: its setting, curve, status, rounds, and who was left out."""
        return self.evidence.runs[self.method][0]

    @cached_property
    def clients(self) -> pd.DataFrame:
        """By client: rows, held-out scores, groups, and the round in which one was left out (0: it was not)."""
        return pd.DataFrame(self.columns, index=pd.Index(self.labels, name="client"))

    @property
    def configuration(self) -> Config:
        """What was asked for, with every key at its value."""
        return self.evidence.config

    @property
    @_sound
    def comparison(self) -> pd.DataFrame:
        """A row for each method, best first: held-out scores with intervals, differences to the best, what was sent."""
        return self.evidence.table

    @property
    @_sound
    def recommended(self) -> str:
        """The method with the best held-out score over rows."""
        return self.evidence.best

    @property
    @_sound
    def reason(self) -> str:
        """The answer in one sentence."""
        from coterie.report.training_answer_and_notes import headline

        return headline(self.evidence)

    @property
    @_sound
    def notes(self) -> list[str]:
        """What went wrong, and what was left out: one sentence each."""
        from coterie.report.training_answer_and_notes import notes

        return notes(self.evidence)

    @property
    def ledger(self) -> dict[str, Any]:
        """exchanges, bytes_down, bytes_up, seconds and more, of the run that made the models."""
        return {**self.run.ledger, "seconds": self.run.seconds}

    @property
    def theory(self) -> dict[str, Any]:
        """What is promised (privacy), what no theorem covers in this run, and what was seen of groups' own gradients.

        ``groups`` is a :class:`~coterie.methods.groups.group_gradients.Growth`, or None without known groups.
        """
        return {"privacy": self.run.privacy, "not covered": list(self.run.notes), "groups": Growth.of(self.run.curve)}

    def config(self) -> dict[str, Any]:
        """The call written down: sections of a configuration, which :func:`coterie.fit` takes again.

        Rows and functions in memory are placeholders there, whose remedy is said when the configuration is read.
        """
        return tables(self.configuration)

    def client(self, label: Any) -> npt.NDArray[Any]:
        """The parameters (d,) of a client, by its label."""
        at = int(self.places([label])[0])
        return np.asarray(self.theta[0 if len(self.theta) == 1 else at, : self.sizes[at] if self.heads else None])

    def places(self, labels: Iterable[Any]) -> npt.NDArray[np.int64]:
        """Where clients that have models stand among all (k,), by their labels."""
        known = {name: at for at, name in enumerate(self.labels)}
        names = [str(label) for label in labels]
        for name in names:
            if name not in known:
                hint = nearest(name, self.labels)
                raise CoterieError(
                    f"There was no client '{name}' in training: adapt() makes a model for a new one.{hint}"
                )
            if name in self.run.helpers:
                raise CoterieError(
                    f"Client '{name}' helped the main clients and has no model: adapt() makes one for it."
                )
        return np.array([known[name] for name in names], dtype=np.int64)

    def module(self, label: Any) -> Any:
        """The torch module of a client, by its label, in evaluation mode, which shares nothing with any other.

        Of softmax it is a linear layer in float64 after one that flattens; else what was given.
        """
        theta, row = self.client(label), self.blank(np.int64 if self.whole else np.float32)
        rows = self.objective(row, of=label)
        if self.configuration.model["path"] == "softmax" and not isinstance(rows, WideModels):
            return model.linear(theta, self.classes)
        return rows.module(theta)

    def state_dict(self, label: Any) -> dict[str, Any]:
        """The tensors of a client's module by name, as torch's ``load_state_dict`` takes them."""
        return dict(self.module(label).state_dict())

    def export(self, client: Any, path: str | os.PathLike[str]) -> None:
        """Write a client's net to a file that other programs read; one that exists is replaced.

        Parameters
        ----------
        client : label
            Whose net.
        path : path
            It ends in ``.safetensors``: the tensors of :meth:`state_dict`, with the client and the method as metadata;
            or in ``.onnx``: the whole net, from "rows" (n, ...) to "outputs", within 1e-5 of torch's.

        Raises
        ------
        CoterieError
            For a client without a model, another ending, and a net that ONNX has no words for.
        """
        from coterie.results.exported_models import export

        export(self, client, path)

    def export_all(self, folder: str | os.PathLike[str], form: Literal["onnx", "safetensors"] = "onnx") -> pd.DataFrame:
        """Write the net of every client into a folder, and ``clients.csv`` with its columns client and file."""
        from coterie.results.exported_models import export_all

        return export_all(self, folder, form)

    @property
    def plot(self) -> TrainingPlots:
        """Pictures for notebooks, as ``plot.curves()``: see :class:`coterie.report.matplotlib_plots.TrainingPlots`."""
        from coterie.report.matplotlib_plots import TrainingPlots

        return TrainingPlots(self)

    @_sound
    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the report of all methods that were trained as one HTML page."""
        from coterie.report.training_page import write_report

        write_report(self.evidence, path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write models, evidence, ``metrics.csv`` (the curve) and ``clients.csv`` into a folder."""
        from coterie.results.saved_results import save_training

        save_training(self, files.place(path))

    def __repr__(self) -> str:
        path, data = self.configuration.model["path"], self.configuration.data["source"]
        return f"{self.method} models ({path}) of {plural(len(self.labels), 'client')} of {data}\n{self.reason}"

    def predict(self, X: npt.ArrayLike, client: Any) -> npt.NDArray[Any]:
        """What a client's model says of rows X (n, ...); ``client`` is its label, or that of each row's client (n,).

        Under the loss "cross_entropy" that is the likeliest class of every row (of every pixel or place, where each
        has one); else the model's outputs as they are, such as (n, outputs).
        """
        found = outputs(self, X, client)
        found = found.argmax(axis=1) if self._loss == "cross_entropy" else found
        return np.asarray(self.class_names)[found] if self.class_names else found

    def predict_proba(self, X: npt.ArrayLike, client: Any) -> npt.NDArray[Any]:
        """The probabilities that a client's model gives rows X (n, ...), under a loss of classes; ``client`` as above.

        Under "cross_entropy" (n, K), or (n, K, ...) of pixels or places, in the order of ``class_names`` where classes
        are text; under "bce" those of outcome 1, in the shape of the outputs. A CoterieError for other losses.
        """
        return probabilities(self._loss, outputs(self, X, client))

    @property
    def _loss(self) -> str:
        """The loss by its name, or the text that a user's own is held under."""
        model = self.configuration.model
        return "cross_entropy" if model["path"] == "softmax" else str(model["loss"])

    def adapt(self, X: npt.ArrayLike, y: npt.ArrayLike, *, group: str | None = None, **options: Any) -> Adapted:
        """A model for a client that was not there, from its own rows X, y (n, ...), by the rule of its method.

        Parameters
        ----------
        X, y : (n, ...) arrays
            The client's rows and outcomes.
        group : str, optional
            Of which it is, where groups' nets have other shapes.
        **options
            ``by="mean"`` begins at the mean of clients' models (of the best group by loss) instead of by "method".
            ``rounds`` (20), in which a client of ditto, fedper and the like takes part, each from the shared model,
            and one of fedamp, fedfomo, apple and pfedgraph among others' models as they are.
            ``neighbours``, labels of clients to whom similarity-network ties it, by default to the mean of all.
            ``steps``, ``eta``, ``B``, ``personal``, ``pull``: steps from there, by default of the layout's personal
            layers, or all; see :func:`coterie.methods.groups.evaluation.adapt`.

        Raises
        ------
        CoterieError
            For rows of another shape, none, or such as are not finite; where no client's model is of use; and for a
            method without a rule, whose models hang on what others answer in training.
        """
        return adapted(self, X, y, group, options)

    def rows_like_these(self, X: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
        """Rows of the shape that was trained, all finite, or a CoterieError."""
        if self.layout:
            rows = net_inputs.as_laid_out(X, self.layout, f"Rows to {what}")
            if (bad := ~net_inputs.finite_rows(rows)).any():
                raise CoterieError(f"Rows to {what} have values that are not finite in {at_rows(bad)}: fill them.")
            return rows
        rows = finite_rows(matrix(X, self.inputs) if self.inputs and is_table(X) else X, f"Rows to {what}")
        if rows.shape[1:] != self.shape:
            raise CoterieError(f"Rows to {what} must have the shape {self.shape} each, not {rows.shape[1:]}.")
        return rows if self.whole or rows.dtype.kind not in "iu" else rows.astype(np.float64)

    def blank(self, kind: Any) -> npt.NDArray[Any]:
        """A row of zeros."""
        return net_inputs.blank(self.layout) if self.layout else np.zeros((1, *self.shape), kind)

    def objective(
        self, X: npt.ArrayLike, y: npt.ArrayLike | None = None, of: Any = None, counts: npt.ArrayLike | None = None
    ) -> Any:
        """Rows of clients whose net is that ``of`` a label, as its method reads them; without y to predict.

        They are those of one client, or so many of each by ``counts`` (k,).
        """
        rows = np.asarray(X)
        outcome = np.zeros(len(rows), dtype=np.int64) if y is None else np.asarray(y)
        d = (self.theta if self.shared is None else self.shared).shape[1]  # of one net, where a client has several
        config, digest, base = self.configuration, next(iter(self.digests), ""), None
        if self.heads:
            at = self.labels.index(str(of))
            config, d = model.with_head(config, self.heads[at]), int(self.sizes[at])
            digest = self.digests[list(dict.fromkeys(self.heads)).index(self.heads[at])]
        model.need_size(config, d, (1 + prod(self.shape)) * self.classes)
        stops = np.cumsum([len(rows)] if counts is None else counts)
        part = ClientRows(rows, outcome, np.append(0, stops[:-1]), stops)
        if digest:
            from coterie.objectives.deep.frozen_base import restored

            base = restored(self.base, digest)
        how: dict[str, Any] = {"base": base, "longest": net_inputs.lengths_of(self.layout)}
        return read_by_method(self, model.objective_of(config, part, self.classes, targets=y is not None, **how))


def train(config: Config, methods: Sequence[str] | None = None, watch: Watch = quiet, **more: Any) -> TrainingResult:
    """Train the method of a configuration, or compare others with local and pooled; the best one's models are kept.

    ``more`` are options of :func:`coterie.evidence.training_comparison.compare`.
    """
    methods = chosen_methods(methods, config.compare)
    alone = methods is None and config.method != AUTO
    found = compare(config, methods or [config.method], watch, alone=alone, models=True, **more)
    if methods and list(methods) != [AUTO]:
        found = replace(found, config=replace(found.config, method=AUTO, compare=tuple(methods)))
    return TrainingResult.of(found, found.best)
