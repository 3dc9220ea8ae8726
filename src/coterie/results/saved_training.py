"""Results of training on disk (see :mod:`coterie.results.saved_values`): models, and the evidence for them.

What is read chooses no code: a model of the package is found by its name, and anything else is the caller's to name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from coterie import files
from coterie.errors import CoterieError, fitting
from coterie.evidence.training_comparison import TrainingComparison
from coterie.methods.code_digest import Digest, digest
from coterie.methods.user_defined_method import Permitted
from coterie.results.saved_values import Form, Shelf, packed, plain, unpack, unpacked, unplain
from coterie.runs import config_model
from coterie.runs.config import Config
from coterie.runs.config_keys import SECTIONS, section
from coterie.runs.scores import Rule, Scores
from coterie.runs.training import Trained

TRAINING = Form("training.json", "coterie training")
_CODE = {"path": "The model", "loss": "The loss", "score": "The score"}
_REMEDY = "They are damaged: train them again."


def save(result: Any, out: Path) -> None:
    """Write a TrainingResult into a folder; see its ``save``."""
    shelf, config, evidence = Shelf(), result.configuration, result.evidence
    code = _digests(config, result.method)
    document = {
        "config": {key: plain(getattr(config, key)) for key in (*SECTIONS, "method", "options")},
        "code": {path: found.sha256 for path, found in code.items()},
        "unseen": {path: found.unseen for path, found in code.items() if found.unseen},  # said to who reads this file
        "result": packed(result, shelf, without="evidence"),
        "tried": evidence.tried,
        "groups": [None if g is None else shelf.put(f"groups.{k}", g) for k, g in enumerate(evidence.groups)],
        "runs": {
            name: [packed(run, shelf, f"{name}.{k}.", without="theta") for k, run in enumerate(runs)]
            for name, runs in evidence.runs.items()
        },
    }
    try:
        TRAINING.write(out, document, shelf)
        files.write(out / "metrics.csv", [pd.DataFrame(result.run.curve).to_csv(index=False).encode()])
        files.write(out / "clients.csv", [result.clients.to_csv().encode()])
    except OSError as e:
        raise CoterieError(f"The models cannot be written to '{out}': {e.strerror or e}.") from e


def load(
    cls: type[Any],
    path: Path,
    home: Path,
    *,
    model: Callable[..., Any] | None = None,
    allow: Iterable[str] = (),
    changed: bool = False,
) -> Any:
    """A TrainingResult, which is ``cls``, as :func:`coterie.load` says. Nothing in the folder runs."""
    if isinstance(allow, str) or not isinstance(allow, Iterable) or not all(isinstance(name, str) for name in allow):
        raise CoterieError("allow must be a list of import paths, such as ['mine:net'].")
    try:
        with fitting(f"The trained models in '{path}'", _REMEDY):
            document = TRAINING.document(path)
            config, shelf = document["config"], TRAINING.shelf(path, document)
            sections: dict[str, Any] = {key: section(key, unplain(config.get(key) or {})) for key in SECTIONS}
            given = {} if model is None else {_own_model(sections["model"]["path"]): model}
            permitted = Permitted(frozenset(allow), given, dict(document.get("code", {})), changed)
            kinds = {"method": "str", "options": "dict[str, dict[str, Any]]"}
            named = {name: unpack(kind, name, config[name], shelf, {}) for name, kind in kinds.items()}
            made = Config(**sections, **named, folder=home.absolute(), permitted=permitted)
            return _read(cls, document, shelf, made)
    except OSError as e:
        raise CoterieError(f"There are no trained models in '{path}': {e.strerror or e} ('{e.filename}').") from e


def _read(cls: type[Any], document: Mapping[str, Any], shelf: Shelf, config: Config) -> Any:
    """The models; a ValueError where parts do not fit each other."""
    fields = unpacked(cls, document["result"], shelf, {}, without="evidence")
    theta, group, m = fields["theta"], fields["group"], len(fields["labels"])
    rows = theta.ndim == 2 and len(theta) in (1, m) and theta.dtype.kind == "f"
    whole = all(0 <= n < 2**31 for n in (fields["classes"], *fields["shape"]))
    if not (m and rows and whole and len(set(fields["labels"])) == m):
        raise ValueError
    heads, sizes = fields["heads"], fields["sizes"]
    if heads and not (len(heads) == len(sizes) == m == len(theta) and 0 < sizes.min() <= sizes.max() == theta.shape[1]):
        raise ValueError
    if group is not None and (group.shape != (m,) or group.dtype.kind not in "iu"):
        raise ValueError
    runs = {name: [_run(entry, shelf) for entry in each] for name, each in document["runs"].items()}
    known = [None if g is None else shelf.get(g) for g in document["groups"]]
    if {len(each) for each in runs.values()} != {len(config.run["seeds"])} or len(known) != len(config.run["seeds"]):
        raise ValueError
    if runs[fields["method"]][0].labels != fields["labels"]:
        raise ValueError
    return cls(TrainingComparison(config, runs, known, dict(document["tried"])), **fields)


def _run(entry: Mapping[str, Any], shelf: Shelf) -> Trained:
    """A run, without its models; a ValueError where its scores are not those of its clients."""
    run = Trained(theta=None, **unpacked(Trained, entry, shelf, {"Scores": Scores, "Rule": Rule}, without="theta"))
    if not len(run.scores.loss) == len(run.scores.weight) == len(run.labels):
        raise ValueError
    return run


def _own_model(path: str) -> str:
    """The path of a model that a caller may stand in for; a CoterieError where it is one of the package."""
    if config_model.own(path):
        return path
    raise CoterieError(f"These models are of the package's '{path}', which needs no model=: leave it out.")


def _digests(config: Config, method: str) -> dict[str, Digest]:
    """:func:`~coterie.methods.code_digest.digest` of the code of a user's own that a configuration names."""
    paths = {config.model[key] or "": what for key, what in _CODE.items()}
    own = {path: what for path, what in paths.items() if config_model.own(path)}
    found = {path: digest(config.load(path, what), what != _CODE["path"]) for path, what in own.items()}
    return found | ({method: digest(config.trainer(method).method_class)} if ":" in method else {})
