"""Results of training on disk (see :mod:`coterie.results.saved_form`): models, and the evidence for them.

What is read chooses no code: a model of the package is found by its name, and anything else is the caller's to name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from coterie import files
from coterie.errors import CoterieError, fitting
from coterie.evidence.training_comparison import TrainingComparison
from coterie.methods.registry import trained_method
from coterie.methods.user_defined_method import Permitted, digest
from coterie.results.saved_form import Form, Shelf, plain, unplain
from coterie.runs import training_problem
from coterie.runs.config import Config
from coterie.runs.config_keys import SECTIONS, section
from coterie.runs.scores import Rule, Scores
from coterie.runs.training import Trained

TRAINING = Form("training.json", "coterie training")
_CODE = {"path": "The model", "loss": "The loss", "score": "The score"}
_REMEDY = "They are damaged: train them again."


def save(result: Any, out: Path) -> None:
    """Write a TrainingResult into a folder; see its ``save``."""
    import pandas as pd

    shelf, config = Shelf(), result.configuration
    document = {
        "theta": shelf.put("theta", result.theta),
        "group": None if result.group is None else shelf.put("group", result.group),
        "config": {key: plain(getattr(config, key)) for key in (*SECTIONS, "method", "options")},
        "code": _digests(config, result.method),
        "method": result.method,
        "labels": list(result.labels),
        "classes": result.classes,
        "shape": list(result.shape),
        "clients": shelf.put_frame("clients", result.clients),
        "data": result.data_fingerprint,
        "tried": result.evidence.tried,
        "groups": [None if g is None else shelf.put(f"groups.{k}", g) for k, g in enumerate(result.evidence.groups)],
        "runs": {
            name: [_packed(run, f"{name}.{k}", shelf) for k, run in enumerate(runs)]
            for name, runs in result.evidence.runs.items()
        },
    }
    try:
        TRAINING.write(out, document, shelf)
        files.write(out / "metrics.csv", [pd.DataFrame(result.run.curve).to_csv(index=False).encode()])
        files.write(out / "clients.csv", [result.clients.to_csv().encode()])
    except OSError as e:
        raise CoterieError(f"The models cannot be written to '{out}': {e.strerror or e}.") from e


_SCORES = ("loss", "score", "weight", "hits", "counts")
_KEPT = tuple(f.name for f in fields(Trained) if f.name not in ("theta", "scores", "group"))
"""What of a run is plain."""


def _packed(run: Trained, at: str, shelf: Shelf) -> dict[str, Any]:
    """A run without its models as JSON holds it, its arrays on the shelf."""
    arrays = {name: getattr(run.scores, name) for name in _SCORES} | {"group": run.group}
    held = {name: None if v is None else shelf.put(f"{at}.{name}", v) for name, v in arrays.items()}
    return {name: plain(getattr(run, name)) for name in _KEPT} | {"rule": vars(run.scores.rule), "arrays": held}


def _unpacked(entry: Mapping[str, Any], shelf: Shelf) -> Trained:
    """The run that :func:`_packed` was given; a ValueError where parts do not fit each other."""
    arrays: dict[str, Any] = {name: None if v is None else shelf.get(v) for name, v in entry["arrays"].items()}
    group, scores = arrays.pop("group"), Scores(**arrays, rule=Rule(**entry["rule"]))
    given = {name: unplain(entry[name]) for name in _KEPT}
    m = len(given["labels"])
    if not all(isinstance(v, np.ndarray) and len(v) == m for v in (scores.loss, scores.weight)):
        raise ValueError("scores are not those of its clients")
    return Trained(theta=None, scores=scores, group=group, **given)


def load(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str] = ".",
    *,
    model: Callable[..., Any] | None = None,
    allow: Iterable[str] = (),
    changed: bool = False,
) -> dict[str, Any]:
    """The fields of a TrainingResult that was saved, as :func:`coterie.load` says. Nothing in the folder runs."""
    path, home = files.local(path), files.local(folder)
    if isinstance(allow, str) or not isinstance(allow, Iterable) or not all(isinstance(name, str) for name in allow):
        raise CoterieError("allow must be a list of import paths, such as ['mine:net'].")
    try:
        with fitting(f"The trained models in '{path}'", _REMEDY):
            document = TRAINING.document(path)
            config = document["config"]
            sections: dict[str, Any] = {key: section(key, unplain(config.get(key) or {})) for key in SECTIONS}
            given = {} if model is None else {_own_model(sections["model"]["path"]): model}
            permitted = Permitted(frozenset(allow), given, dict(document.get("code", {})), changed)
            method, options = _text(config["method"]), _options(unplain(config["options"]))
            made = Config(**sections, method=method, options=options, folder=home.absolute(), permitted=permitted)
            return _read(document, TRAINING.shelf(path, document), made)
    except OSError as e:
        raise CoterieError(f"There are no trained models in '{path}': {e.strerror or e} ('{e.filename}').") from e


def _read(document: Mapping[str, Any], shelf: Shelf, config: Config) -> dict[str, Any]:
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
    runs = {name: [_unpacked(run, shelf) for run in each] for name, each in document["runs"].items()}
    known = [None if g is None else shelf.get(g) for g in document["groups"]]
    if {len(each) for each in runs.values()} != {len(config.run["seeds"])} or len(known) != len(config.run["seeds"]):
        raise ValueError
    found, method = TrainingComparison(config, runs, known, dict(document["tried"])), _text(document["method"])
    if runs[method][0].labels != labels:
        raise ValueError
    sizes = {"classes": classes, "shape": shape}
    frame, data = shelf.get_frame(document["clients"]), _text(document["data"])
    models = {"labels": labels, "theta": theta, "group": group, "clients": frame, "data_fingerprint": data}
    return {"evidence": found, "method": method, **models, **sizes}


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
    if training_problem.own(path):
        return path
    raise CoterieError(f"These models are of the package's '{path}', which needs no model=: leave it out.")


def _digests(config: Config, method: str) -> dict[str, str]:
    """:func:`~coterie.methods.user_defined_method.digest` of the code of a user's own that a configuration names."""
    paths = {config.model[key] or "": what for key, what in _CODE.items()}
    found = {path: digest(config.load(path, what)) for path, what in paths.items() if training_problem.own(path)}
    return found | ({method: digest(trained_method(method, config.folder).method_class)} if ":" in method else {})
