"""Results of a fit on disk, field by field as they are declared: see :mod:`coterie.results.saved_form`."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from coterie import __version__
from coterie.data.clients import Level
from coterie.data.design import Design
from coterie.errors import CoterieError
from coterie.families import FAMILIES
from coterie.results.model import Model
from coterie.results.saved_form import Form, Shelf, plain, unplain

SCHEMA = 1
MODEL = Form("model.json", "coterie model")

_REPORT = b'<meta name="generator" content="coterie">'
_ARRAYS, _SEVERAL, _OPTIONAL = ("Floats", "Ints", "npt.NDArray[Any]"), "tuple[Floats, ...]", " | None"
_PLAIN: dict[str, tuple[type, ...]] = {
    **{"str": (str,), "bool": (bool,), "float": (float, int), "list[str]": (list,), "tuple[str, ...]": (tuple,)},
    **{"dict[str, Any]": (dict,), "dict[str, str]": (dict,)},
}
"""Python's types of values that JSON holds, by the annotations of their fields."""


def save(result: Any, path: Path, force: bool = False) -> None:
    """Write a FitResult into the directory `path`; see its ``save``."""
    try:
        _refuse_others(path, force)
        shelf, before = Shelf(), _content(path / MODEL.file)
        MODEL.write(path, {"schema": SCHEMA, "result": _packed(result, shelf)}, shelf)
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
        result = _unpacked(cls, document["result"], MODEL.shelf(path, document))
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


def _packed(made: Any, shelf: Shelf) -> dict[str, Any]:
    """The fields of a dataclass as JSON holds them, their arrays and tables on the shelf."""
    return {f.name: _pack(str(f.type), f.name, getattr(made, f.name), shelf) for f in fields(made)}


def _pack(kind: str, name: str, value: Any, shelf: Shelf) -> Any:
    if value is None:
        return None
    match kind.removesuffix(_OPTIONAL):
        case "Model":
            return _packed(value, shelf)
        case "Design":
            return json.loads(value.to_json())
        case "pd.DataFrame":
            return shelf.put_frame(name, value)
        case "tuple[Level, ...]":
            parts = [(f"level.{i}", level) for i, level in enumerate(value)]
            return [
                [v.name, shelf.put(f"{at}.labels", v.labels), shelf.put(f"{at}.parent", v.parent)] for at, v in parts
            ]
        case array if array in _ARRAYS:
            return shelf.put(name, value)
        case several if several == _SEVERAL:
            return [shelf.put(f"{name}.{i}", v) for i, v in enumerate(value)]
    return plain(value)


def _unpacked(cls: Any, entries: dict[str, Any], shelf: Shelf) -> Any:
    """The dataclass that :func:`_packed` was given; a ValueError where a field is of another type than declared."""
    kinds = {f.name: str(f.type) for f in fields(cls)}
    if kinds.keys() != entries.keys():
        raise ValueError("the model's parts are not those of this version")
    return cls(**{name: _unpack(kind, name, entries[name], shelf) for name, kind in kinds.items()})


def _unpack(kind: str, name: str, entry: Any, shelf: Shelf) -> Any:
    if entry is None:
        if kind.endswith(_OPTIONAL):
            return None
        raise ValueError(f"its {name} is missing")
    kind = kind.removesuffix(_OPTIONAL)
    match kind:
        case "Model":
            return _unpacked(Model, entry, shelf)
        case "Design":
            return Design.from_json(json.dumps(entry))
        case "pd.DataFrame":
            return shelf.get_frame(entry)
        case "tuple[Level, ...]":
            return tuple(Level(called, shelf.get(labels), shelf.get(parent)) for called, labels, parent in entry)
        case array if array in _ARRAYS:
            return shelf.get(entry)
        case several if several == _SEVERAL:
            return tuple(shelf.get(v) for v in entry)
    value = unplain(entry)
    texts = [*value, *value.values()] if kind == "dict[str, str]" else value if kind.endswith(("[str]", "...]")) else ()
    wrong = not isinstance(value, _PLAIN[kind]) or (isinstance(value, bool) and kind != "bool")
    if wrong or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"its {name} is of another kind")
    return value


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
