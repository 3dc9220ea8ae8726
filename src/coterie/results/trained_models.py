"""Trained models on disk (see :mod:`coterie.results.saved_form`), which answer rows and adapt to a new client's.

What is read chooses no code: a model of the package is found by its name, and anything else is the caller's to name.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie import files
from coterie.data.columns import at_rows
from coterie.data.partition import ClientRows
from coterie.engines.inprocess import InProcess
from coterie.errors import CoterieError, fitting, nearest
from coterie.methods.groups.evaluation import Adapted, adapt
from coterie.methods.registry import trained_method
from coterie.methods.user_defined_method import Permitted, digest
from coterie.options import need_names
from coterie.results.saved_form import Form, Shelf, plain, unplain
from coterie.runs import training_problem as model
from coterie.runs.config import Config
from coterie.runs.config_keys import SECTIONS, section
from coterie.runs.training import Trained

if TYPE_CHECKING:
    import pandas as pd

TRAINING = Form("training.json", "coterie training")
_CODE = {"path": "The model", "loss": "The loss", "score": "The score"}
_REMEDY = "They are damaged: train them again."


@dataclass(frozen=True)
class Saved:
    """Models that were trained and saved."""

    config: Config
    method: str
    setting: dict[str, Any]  # hyper-parameters
    labels: tuple[str, ...]  # what clients are called
    theta: npt.NDArray[Any]  # (m, d), or (1, d) where all have the same: their models
    group: Any  # (m,) int64: groups that the method was told, or that it found; or None
    classes: int
    shape: tuple[int, ...]  # of a row of X
    about: dict[str, Any]  # the configuration's hash, seed, rounds, status, scores and more

    def model(self, client: Any) -> npt.NDArray[Any]:
        """The parameters (d,) of a client, by its label."""
        name = str(client)
        if name not in self.labels:
            hint = nearest(name, self.labels)
            raise CoterieError(f"There was no client '{name}' in training: adapt() makes a model for a new one.{hint}")
        found = np.asarray(self.theta[0 if len(self.theta) == 1 else self.labels.index(name)])
        if name in self.about.get("helpers", ()):
            raise CoterieError(f"Client '{name}' helped the main clients and has no model: adapt() makes one for it.")
        return found

    def predict(self, X: npt.ArrayLike, client: Any) -> npt.NDArray[Any]:
        """What a client's model says of rows X (n, ...).

        Under the loss "cross_entropy" that is the likeliest class of every row (of every pixel or place, where each
        has one); else the model's outputs as they are, such as (n, outputs).
        """
        rows = self._rows(X, "predict")
        some = rows if len(rows) else np.zeros((1, *self.shape), rows.dtype)  # the answer's shape is the model's to say
        theta = self.model(client)
        with fitting("What was read of these trained models", _REMEDY):
            found = self.objective(some).predict(theta[None])
        return np.asarray(found)[: len(rows)]

    def adapt(self, X: npt.ArrayLike, y: npt.ArrayLike, **options: Any) -> Adapted:
        """A model for a client that was not there, from its own rows X, y (n, ...).

        It begins at the best of the groups' models, or where there are none, at the mean of all clients' models.
        Models of clients that were left out, or that diverged, have no part in either. Options are ``eta``, ``steps``,
        ``B`` and ``personal`` of :func:`coterie.methods.groups.evaluation.adapt`; by default the layout's personal
        layers are, or all where there is no layout. A CoterieError for rows of another shape, none, or such as are not
        finite, and where no client's model is of use.
        """
        rows = self._rows(X, "adapt to")
        if not len(rows):
            raise CoterieError("A new client needs one row at least to adapt a model to.")
        need_names("adapt()", options, inspect.signature(adapt).parameters.keys() - {"fed", "w"})
        here = self.objective(rows, _finite(y, "Outcomes to adapt to"))
        if "personal" not in options and any(self.config.layout.values()):
            options["personal"] = model.layers(self.config, here)["personal"]
        with fitting("What was read of these trained models", _REMEDY):
            groups, means = self._groups()
        found = adapt(InProcess(here), means, **options)
        if options.get("steps") and np.array_equal(found.models[0], means[found.group[0]]):
            warnings.warn("The steps on these rows diverge or move nothing: the model is its group's.", stacklevel=2)
        return replace(found, group=np.where(found.group < 0, -1, groups[found.group]))

    def _groups(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Groups (k,) and the mean model (k, d) of each, of clients whose models are sound and were not left out."""
        theta, out = self.theta, {*self.about.get("quarantined", ()), *self.about.get("failed", ())}
        good = np.isfinite(theta).all(axis=1)
        label = np.zeros(len(theta), dtype=np.int64)
        if len(theta) == len(self.labels):
            good &= ~np.isin(self.labels, list(out))
            label = label if self.group is None else np.asarray(self.group)
        groups = np.unique(label[good])
        if not len(groups):
            raise CoterieError("Every client was left out of the training: there is no model to adapt. Train again.")
        return groups, np.stack([theta[good & (label == g)].mean(axis=0) for g in groups])

    def _rows(self, X: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
        """Rows of the shape that was trained, all finite, or a CoterieError."""
        rows = _finite(X, f"Rows to {what}")
        if rows.shape[1:] != self.shape:
            raise CoterieError(f"Rows to {what} must have the shape {self.shape} each, not {rows.shape[1:]}.")
        return rows

    def objective(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Any:
        """Rows of one client as the objective that was trained; without outcomes it only predicts."""
        rows = np.asarray(X)
        outcome = np.zeros(len(rows), dtype=np.int64) if y is None else np.asarray(y)
        each = self.theta[0] if len(self.theta) else np.empty(0)
        model.need_size(self.config, len(each), (1 + prod(self.shape)) * self.classes)
        part = ClientRows(rows, outcome, np.array([0]), np.array([len(rows)]))
        return model.objective_of(self.config, part, self.classes, targets=y is not None)


def _finite(values: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """Rows of finite numbers, or a CoterieError."""
    try:
        rows = np.asarray(values)
    except ValueError as e:
        raise CoterieError(f"{what} must be one array, with rows of one shape: pad them, or cut them.") from e
    if rows.dtype.kind not in "biuf" or not rows.ndim:
        raise CoterieError(f"{what} must be numbers in an array, not {'None' if values is None else rows.dtype}.")
    if rows.dtype.kind == "f" and (bad := ~np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))).any():
        raise CoterieError(f"{what} have values that are not finite in {at_rows(bad)}: fill or drop them.")
    return rows


def save(out: Path, problem: model.TrainingProblem, run: Trained) -> None:
    """Write models, ``metrics.csv`` (the curve) and ``clients.csv`` (each client) into a folder."""
    out, shelf, data, config = files.local(out), Shelf(), problem.data, problem.config
    group = data.group if trained_method(run.method).groups else run.group  # known, or found
    told = (
        "seed",
        "rounds",
        "status",
        "quarantined",
        "failed",
        "ledger",
        "seconds",
        *(["privacy"] * bool(run.privacy)),
    )
    about = {key: getattr(run, key) for key in told}
    if run.helpers:
        about["helpers"] = run.helpers
    about |= {"configuration": config.fingerprint(run.method), "data": data.fingerprint, **run.scores.summary()}
    document = {
        "theta": shelf.put("theta", np.asarray(run.theta)),
        "group": None if group is None else shelf.put("group", group),
        "config": {key: plain(getattr(config, key)) for key in (*SECTIONS, "method", "options")},
        "code": _digests(config),
        "method": run.method,
        "setting": plain(run.setting),
        "labels": list(data.labels),
        "classes": data.classes,
        "shape": list(data.train.X.shape[1:]),
        "about": plain(about),
    }
    try:
        TRAINING.write(out, document, shelf)
        files.write(out / "metrics.csv", [curve(run).to_csv(index=False).encode()])
        files.write(out / "clients.csv", [by_client(problem, run).to_csv().encode()])
    except OSError as e:
        raise CoterieError(f"The models cannot be written to '{out}': {e.strerror or e}.") from e


def curve(run: Trained) -> pd.DataFrame:
    """A row wherever the run was evaluated: round, scores, bytes, seconds."""
    import pandas as pd

    return pd.DataFrame(run.curve)


def by_client(problem: model.TrainingProblem, run: Trained) -> pd.DataFrame:
    """A row for each client: rows, scores on held-out rows, groups, the round in which it was left out."""
    import pandas as pd

    data = problem.data
    frame: dict[str, Any] = {
        "rows": data.train.stops - data.train.starts,
        "test_rows": data.test.stops - data.test.starts,
    }
    if run.scores.score is not None:
        frame[run.scores.rule.score] = run.scores.score
    frame["loss"] = run.scores.loss
    if run.helpers:
        frame["main"] = ~np.isin(data.labels, run.helpers)
    if data.known:
        frame["group"] = data.group + 1
    if run.group is not None:
        frame["found_group"] = run.group + 1
    if run.quarantined:
        frame["quarantined"] = [run.quarantined.get(label, (0, ""))[0] for label in data.labels]
    return pd.DataFrame(frame, index=pd.Index(data.labels, name="client"))


def load(
    path: str | Path,
    folder: str | Path = ".",
    *,
    model: Callable[..., Any] | None = None,
    allow: Iterable[str] = (),
    changed: bool = False,
) -> Saved:
    """Read what ``coterie train --out`` wrote. Nothing in it runs.

    Models and losses of the package are found by their names; code of a user's own is taken only from this call, and
    only if its file is the one that was there in training.

    Parameters
    ----------
    path : path
        The folder.
    folder : path, default "."
        Where modules that ``allow`` names are imported from, before other places.
    model : callable, optional
        What makes the torch module, where that was a function or class of the user's own. It is called with the
        ``args`` that the configuration had.
    allow : iterable of str
        Import paths "module:name" that may be imported: of the model, the loss and the score, as the configuration
        named them.
    changed : bool, default False
        Take that code also if its file has changed since.

    Raises
    ------
    CoterieError
        If there are no models, or they are damaged. Code that is not allowed, or that has changed, is refused when it
        is needed: by ``predict`` and ``adapt``.
    """
    path, home = files.local(path), files.local(folder)
    if isinstance(allow, str) or not isinstance(allow, Iterable) or not all(isinstance(name, str) for name in allow):
        raise CoterieError("allow must be a list of import paths, such as ['mine:net'].")
    try:
        with fitting(f"The trained models in '{path}'", _REMEDY):
            document = TRAINING.document(path)
            config = document["config"]
            sections = {key: section(key, unplain(config.get(key) or {})) for key in SECTIONS}
            given = {} if model is None else {_own_model(sections["model"]["path"]): model}
            permitted = Permitted(frozenset(allow), given, dict(document.get("code", {})), changed)
            method, options = _text(config["method"]), _options(unplain(config["options"]))
            made = Config(**sections, method=method, options=options, folder=home.absolute(), permitted=permitted)
            return _saved(document, TRAINING.shelf(path, document), made)
    except OSError as e:
        raise CoterieError(f"There are no trained models in '{path}': {e.strerror or e} ('{e.filename}').") from e


def _saved(document: Mapping[str, Any], shelf: Shelf, config: Config) -> Saved:
    """The models; a ValueError where parts do not fit each other."""
    labels = tuple(map(_text, document["labels"]))
    theta, m = shelf.get(document["theta"]), len(labels)
    group = None if document["group"] is None else shelf.get(document["group"])
    classes, shape = document["classes"], tuple(document["shape"])
    rows = theta.ndim == 2 and len(theta) in (1, m) and theta.dtype.kind == "f"
    whole = all(type(n) is int and 0 <= n < 2**31 for n in (classes, *shape))
    if not (m and rows and whole and len(set(labels)) == m):
        raise ValueError
    if group is not None and (group.shape != (m,) or group.dtype.kind not in "iu"):
        raise ValueError
    setting, about = unplain(document["setting"]), unplain(document["about"])
    if not (isinstance(setting, dict) and isinstance(about, dict)):
        raise ValueError
    return Saved(config, _text(document["method"]), setting, labels, theta, group, classes, shape, about)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _options(value: Any) -> dict[str, dict[str, Any]]:
    """What was given of each method's hyper-parameters."""
    if not (isinstance(value, dict) and all(isinstance(options, dict) for options in value.values())):
        raise ValueError
    return value


def _own_model(path: str) -> str:
    """The path of a model that a caller may stand in for; a CoterieError where it is one of the package."""
    if model.own(path):
        return path
    raise CoterieError(f"These models are of the package's '{path}', which needs no model=: leave it out.")


def _digests(config: Config) -> dict[str, str]:
    """:func:`~coterie.methods.user_defined_method.digest` of the code of a user's own that a configuration names."""
    found = {p: digest(config.load(p, what)) for key, what in _CODE.items() if model.own(p := config.model[key] or "")}
    return found | ({config.method: digest(trained_method(config.method).method_class)} if ":" in config.method else {})
