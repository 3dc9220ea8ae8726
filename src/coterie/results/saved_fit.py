"""A fit on disk (:mod:`coterie.results.saved_values`): written over nothing of others, and sound when it is read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from coterie import __version__
from coterie.errors import CoterieError
from coterie.families import FAMILIES
from coterie.relations.uncertainty import Uncertainty
from coterie.results.model import Model
from coterie.results.saved_values import Form, Shelf, packed, unpacked

SCHEMA = 1
MODEL = Form("model.json", "coterie model")

_REPORT = b'<meta name="generator" content="coterie">'


def save(result: Any, path: Path, force: bool = False) -> None:
    """Write a FitResult into the directory `path`; see its ``save``."""
    try:
        _refuse_others(path, force)
        shelf, before = Shelf(), _content(path / MODEL.file)
        MODEL.write(path, {"schema": SCHEMA, "result": packed(result, shelf, without="fitting")}, shelf)
    except OSError as e:
        raise CoterieError(f"The model cannot be written to '{path}': {e.strerror or e}.") from e
    if before not in (None, _content(path / MODEL.file)):
        _drop_report(path / "report.html")


def _content(file: Path) -> bytes | None:
    with suppress(OSError):
        return file.read_bytes()
    return None


def _drop_report(page: Path) -> None:
    """Remove a page that coterie wrote of another model; other pages stay."""
    if _REPORT in (_content(page) or b"")[:4096]:
        try:
            page.unlink()
        except OSError as e:
            raise CoterieError(f"'{page}' is of the model before and cannot be removed: {e.strerror or e}.") from e


def load(path: Path, cls: Any) -> Any:
    """A FitResult, which is ``cls``, from the directory `path`; see :func:`coterie.load`."""
    try:
        document = _document(path)
        parts = {"Model": Model, "Uncertainty": Uncertainty}
        result = cls(**unpacked(cls, document["result"], MODEL.shelf(path, document), parts, without="fitting"))
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
        raise CoterieError(f"The model in '{path}' is damaged: {reason}. Save it again.") from e


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
        model.family in FAMILIES
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
