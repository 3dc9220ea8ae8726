"""Results on disk, of tables and of training, as :mod:`coterie.results.saved_values` writes them: sound when read.

What is read chooses no code: a model of the package is found by its name, and anything else is the caller's to name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie import __version__, files
from coterie.errors import CoterieError, checked_call, fitting, listed, or_say
from coterie.evidence.training_comparison import TrainingComparison
from coterie.families import is_family
from coterie.methods.tree.variance_posterior import Uncertainty
from coterie.options import need_names
from coterie.results.fit_result import FitResult
from coterie.results.model import Model
from coterie.results.net_predictions import DAMAGED
from coterie.results.saved_values import Form, Shelf, packed, plain, remedy, unpack, unpacked, unplain
from coterie.results.training_result import TrainingResult
from coterie.runs.config import Config
from coterie.runs.config_keys import SECTIONS, section
from coterie.runs.metrics import METRICS, Measured
from coterie.runs.model_objective import own
from coterie.runs.scores_over_clients import Rule, Scores
from coterie.runs.training import Trained
from coterie.user_code import Permitted
from coterie.user_code_digest import Digest, digest

SCHEMA = 1
MODEL, TRAINING = Form("model.json", "coterie model"), Form("training.json", "coterie training")
_REPORT = b'<meta name="generator" content="coterie">'  # of pages that coterie wrote, here of another model
_CODE = {"path": "The model", "loss": "The loss", "score": "The score"}
_AGAIN = "Save it again."
_PARTS: dict[str, Any] = {"Scores": Scores, "Rule": Rule, "Measured": Measured}


@checked_call
def load(path: str | os.PathLike[str], folder: str | os.PathLike[str] = ".", **code: Any) -> FitResult | TrainingResult:
    """Read a result that was saved: :class:`FitResult`, or :class:`~coterie.results.training_result.TrainingResult`.

    Nothing in the folder runs. A net's code of a user's own is taken only from this call, and only if its file is the
    one that was there in training.

    Parameters
    ----------
    path : path
        The directory.
    folder : path, default "."
        Of a net: where modules that ``allow`` names are imported from, before other places.
    model : callable, optional
        What makes the torch module, where that was a function or class of the user's own. It is called with the
        ``args`` that the configuration had.
    allow : iterable of str
        Import paths "module:name" that may be imported: of the net, the loss, the score and the method, as they were
        named.
    changed : bool, default False
        Take that code also if its file has changed since.

    Raises
    ------
    CoterieError
        If there is no result, if it is damaged, or if a newer coterie wrote it. Code that is not allowed, or that has
        changed, is refused when it is needed: by ``predict``, ``module`` and ``adapt``.
    """
    need_names("load()", code, ("model", "allow", "changed"), "argument")
    place, home = files.place(path), files.local(folder)
    if (place / TRAINING.file).exists() and not (place / MODEL.file).exists():
        return _load_training(place, home, **code)
    if code:
        raise CoterieError(f"There are no nets in '{place}' that {listed(code)} could be of: leave that out.")
    return _load_fit(place)


def save_fit(result: FitResult, path: Path, force: bool = False) -> None:
    """Write a FitResult into the directory `path`; see its ``save``."""
    with or_say(f"The model cannot be written to '{path}'"):
        _refuse_others(path, force)
        shelf, before = Shelf(), _content(path / MODEL.file)
        checked = replace(result, checked=result.fit_check)
        MODEL.write(path, {"schema": SCHEMA, "result": packed(checked, shelf)}, shelf)
    page = path / "report.html"
    if before not in (None, _content(path / MODEL.file)) and _REPORT in (_content(page) or b"")[:4096]:
        with or_say(f"'{page}' is of the model before and cannot be removed"):
            page.unlink()


def _content(file: Path) -> bytes | None:
    with suppress(OSError):
        return file.read_bytes()
    return None


def _load_fit(path: Path) -> FitResult:
    """The one in the directory `path`; see :func:`load`."""
    instead = _AGAIN
    try:
        document = _document(path)
        instead = remedy(document, instead)
        parts, shelf = {"Model": Model, "Uncertainty": Uncertainty}, MODEL.shelf(path, document)
        result = FitResult(**unpacked(FitResult, document["result"], shelf, parts))
        if result.design is not None and result.design.terms != result.model.terms:
            raise ValueError("its formula does not have its terms")
        if not _sound(result.model) or not _told(result.model):
            raise ValueError("its arrays do not fit together")
        return result
    except CoterieError:
        raise
    except OSError as e:
        raise CoterieError(f"The model in '{path}' cannot be read: {e.strerror or e} ('{e.filename}').") from e
    except Exception as e:  # a file may hold anything, which may come out anywhere
        reason = str(e) if type(e) is ValueError else "its parts do not fit together"
        what = "is damaged" if instead == _AGAIN else "cannot be used"
        raise CoterieError(f"The model in '{path}' {what}: {reason}. {instead}") from e


def _document(path: Path) -> dict[str, Any]:
    """``model.json``, once it is sure that this version can read it."""
    if not (path / MODEL.file).is_file():
        what = "has no model.json" if path.is_dir() else "is not a directory" if path.exists() else "does not exist"
        raise CoterieError(f"There is no coterie model in '{path}': it {what}.")
    document = MODEL.document(path)
    schema = document.get("schema")
    if type(schema) is not int or schema < 1:
        raise ValueError("its schema version is missing")
    if schema > SCHEMA:
        raise CoterieError(
            f"The model in '{path}' was saved by coterie {document.get('version', '?')!s:.40} in a newer format "
            f"({schema}; this is coterie {__version__}, which reads up to {SCHEMA}). Update coterie."
        )
    return document


def _refuse_others(path: Path, force: bool) -> None:
    """Raise rather than overwrite something that is not a coterie model."""
    if path.exists() and not path.is_dir():
        raise CoterieError(f"'{path}' is a file; a model is saved into a directory.")
    target = path / MODEL.file
    if force or not target.exists():
        return
    try:
        MODEL.document(path)
    except (ValueError, OSError) as e:
        raise CoterieError(f"'{target}' is not a coterie model and is left alone; choose another directory.") from e


def _told(model: Model) -> bool:
    """Whether what a model's info says of coefficients and clients is of their number."""
    centred, network = model.info.get("centred"), model.info.get("network")
    if centred is not None:
        at, means = centred["intercept"], np.asarray(centred["means"])
        if type(at) is not int or not 0 <= at < len(model.terms) or means.shape != (len(model.terms),):
            return False
        if means.dtype.kind not in "fi":
            return False
    groups = np.zeros(len(model.labels), np.int64) if network is None else np.asarray(network["groups"])
    return groups.shape == model.labels.shape and groups.dtype.kind == "i"


def _sound(model: Model) -> bool:
    """Whether every array is of the kind and shape that the others ask for."""
    m, p, levels = len(model.labels), len(model.terms), model.levels
    P, sizes = p * (p + 1) // 2, [len(level.labels) for level in levels]
    below, n = (model.clusters, *(v.parent for v in levels)), len(model.nodes)
    floats: list[tuple[Any, Any]] = [
        (model.root, (p,)), (model.root_cov, (p, p)), (model.client, (m, p)),
        (model.client_cov, (m, P)), (model.client_sigma2, (m,)), (model.D_client[0], (p, p)),
        *((v, (k, p)) for v, k in zip(model.nodes, sizes, strict=False)),
        *((v, (k, P)) for v, k in zip(model.node_cov, sizes, strict=False)),
        *((D, (p, p)) for D in model.D_levels),
    ]  # fmt: skip
    if (u := model.uncertainty) is not None:
        ways = len(u.root) if u.root.ndim else 0
        floats += [(u.root, (ways, p, p)), *((G, (ways, p, p)) for G in u.levels), (u.client, (m,))]
        floats += [(D, (len(D) if D.ndim else 0, p, p)) for D in u.more]
        floats += [(v, (k,)) for v, k in zip(u.nodes, sizes, strict=False)]
        if len(u.levels) != n + 1 or len(u.more) != n + 1 or len(u.nodes) != n:
            return False
    whole = [(model.clusters, m), (model.personal, len(model.personal)), *zip(below[1:], sizes, strict=True)]
    return (
        is_family(model.family)
        and n <= len(levels)
        and len(model.node_cov) == n
        and len(model.D_client) in (1, *sizes[:1])
        and all(isinstance(v.name, str) and v.labels.ndim == 1 for v in levels)
        and model.labels.ndim == 1
        and all(v is None or (v.dtype.kind == "f" and v.shape == shape) for v, shape in floats)
        and all(v.dtype.kind in "iu" and v.shape == (k,) and np.all(v >= 0) for v, k in whole)
        and bool(np.all(model.personal < p))
        and all(bool(np.all(v < k)) for v, k in zip(below, [*sizes, 1], strict=True))
    )


def save_training(result: TrainingResult, out: Path) -> None:
    """Write a TrainingResult into a folder; see its ``save``."""
    shelf, config, evidence = Shelf(), result.configuration, result.evidence
    code = _digests(config, result.method)
    document = {
        "config": {key: plain(getattr(config, key)) for key in (*SECTIONS, "method", "options", "compare")},
        "code": {path: found.sha256 for path, found in code.items()},
        "unseen": {path: found.unseen for path, found in code.items() if found.unseen},  # said to who reads this file
        "result": packed(result, shelf),
        "tried": evidence.tried,
        "class_counts": None if evidence.class_counts is None else shelf.put("class_counts", evidence.class_counts),
        "groups": [None if g is None else shelf.put(f"groups.{k}", g) for k, g in enumerate(evidence.groups)],
        "runs": {
            name: [packed(run, shelf, f"{name}.{k}.") for k, run in enumerate(runs)]
            for name, runs in evidence.runs.items()
        },
    }
    with or_say(f"The models cannot be written to '{out}'"):
        TRAINING.write(out, document, shelf)
        files.write(out / "metrics.csv", [pd.DataFrame(result.run.curve).to_csv(index=False).encode()])
        files.write(out / "clients.csv", [result.clients.to_csv().encode()])


def _load_training(
    path: Path,
    home: Path,
    *,
    model: Callable[..., Any] | None = None,
    allow: Iterable[str] = (),
    changed: bool = False,
) -> TrainingResult:
    """The one in a folder, as :func:`load` says."""
    if isinstance(allow, str) or not isinstance(allow, Iterable) or not all(isinstance(name, str) for name in allow):
        raise CoterieError("allow must be a list of import paths, such as ['mine:net'].")
    try:
        with fitting(f"The trained models in '{path}'", DAMAGED):
            document = TRAINING.document(path)
        with fitting(f"The trained models in '{path}'", remedy(document, DAMAGED)):
            config, shelf = document["config"], TRAINING.shelf(path, document)
            sections: dict[str, Any] = {key: section(key, unplain(config.get(key) or {})) for key in SECTIONS}
            given = {} if model is None else {_own_model(sections["model"]["path"]): model}
            permitted = Permitted(frozenset(allow), given, dict(document.get("code", {})), changed)
            kinds = {"method": "str", "options": "dict[str, dict[str, Any]]", "compare": "tuple[str, ...]"}
            named = {name: unpack(kind, name, config[name], shelf, {}) for name, kind in kinds.items()}
            made = Config(**sections, **named, folder=home.absolute(), permitted=permitted)
            return _read(document, shelf, made)
    except OSError as e:
        raise CoterieError(f"There are no trained models in '{path}': {e.strerror or e} ('{e.filename}').") from e


def _read(document: Mapping[str, Any], shelf: Shelf, config: Config) -> TrainingResult:
    """The models; a ValueError where parts do not fit each other."""
    fields = unpacked(TrainingResult, document["result"], shelf, {})
    theta, group, m = fields["theta"], fields["group"], len(fields["labels"])
    rows = theta.ndim == 2 and len(theta) in (1, m) and theta.dtype.kind == "f"
    whole = all(0 <= n < 2**31 for n in (fields["classes"], *fields["shape"]))
    if not (m and rows and whole and len(set(fields["labels"])) == m):
        raise ValueError
    heads, sizes = fields["heads"], fields["sizes"]
    if heads and not (len(heads) == len(sizes) == m == len(theta) and 0 < sizes.min() <= sizes.max() == theta.shape[1]):
        raise ValueError
    shared, base, digests = fields["shared"], fields["base"], fields["digests"]
    if shared is not None and not (shared.ndim == 2 and len(shared) and 0 < shared.shape[1] <= theta.shape[1]):
        raise ValueError
    told = len(digests) in ((len(set(heads)),) if heads else (0, 1)) and (base is not None or not any(digests))
    if not told or (base is not None and (base.ndim != 1 or base.dtype != np.uint8)):
        raise ValueError
    if group is not None and (group.shape != (m,) or group.dtype.kind not in "iu"):
        raise ValueError
    runs = {name: [_run(entry, shelf) for entry in each] for name, each in document["runs"].items()}
    known = [None if g is None else shelf.get(g) for g in document["groups"]]
    if {len(each) for each in runs.values()} != {len(config.run["seeds"])} or len(known) != len(config.run["seeds"]):
        raise ValueError
    if runs[fields["method"]][0].labels != fields["labels"]:
        raise ValueError
    counts = None if document["class_counts"] is None else shelf.get(document["class_counts"])
    if counts is not None and (counts.ndim != 2 or len(counts) != m or counts.dtype.kind != "i" or counts.min() < 0):
        raise ValueError
    evidence = TrainingComparison(config, runs, known, dict(document["tried"]), class_counts=counts)
    return TrainingResult(evidence, **fields)


def _run(entry: Mapping[str, Any], shelf: Shelf) -> Trained:
    """A run, without its models; a ValueError where its scores are not those of its clients."""
    run = Trained(theta=None, **unpacked(Trained, entry, shelf, _PARTS))
    m, scores = len(run.labels), run.scores
    if not len(scores.loss) == len(scores.weight) == m or not all(name in METRICS for name in scores.metrics):
        raise ValueError
    for one in scores.metrics.values():
        if not (one.clients.shape == (m,) and one.over.shape == one.under.shape and one.over[:, :0].shape == (m, 0)):
            raise ValueError
    return run


def _own_model(path: str) -> str:
    """The path of a model that a caller may stand in for; a CoterieError where it is one of the package."""
    if own(path):
        return path
    raise CoterieError(f"These models are of the package's '{path}', which needs no model=: leave it out.")


def _digests(config: Config, method: str) -> dict[str, Digest]:
    """:func:`~coterie.user_code_digest.digest` of the code of a user's own that a configuration names."""
    paths = {config.model[key] or "": what for key, what in _CODE.items()}
    theirs = {path: what for path, what in paths.items() if own(path)}
    found: dict[str, Digest] = {}
    for path, what in theirs.items():
        with suppress(CoterieError):  # code that only the sites of a federation have, which has no digest here
            found[path] = digest(config.load(path, what), what != _CODE["path"])
    return found | ({method: digest(config.trainer(method).method_class)} if ":" in method else {})
