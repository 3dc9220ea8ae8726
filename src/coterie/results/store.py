"""Results on disk: ``model.json`` and, beside it, the arrays in a safetensors file that it names. Never pickle.

The arrays' file is named after its content and written first; replacing ``model.json`` then switches from the old
model to the new one at once, so no crash leaves half a model, and other files in the directory are left alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie import __version__, files
from coterie.data.clients import Level
from coterie.data.design import Design
from coterie.errors import CoterieError
from coterie.families import FAMILIES
from coterie.results.json_values import from_json, need_zone, plain, unplain
from coterie.results.model import Model

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[Any]

SCHEMA = 1
FORMAT = "coterie model"

_TENSORS = re.compile(r"model-[0-9a-f]{16}\.safetensors")
_FRAMES = ("comparison", "client_gains", "local_coefficients")
_VALUES = (
    *("formula", "log_likelihood", "reml", "recommended", "reason", "loss", "notes", "ledger", "settings"),
    *("data_fingerprint", "versions", "offset"),
)
_MODEL_VALUES = ("method", "family", "terms", "client_name", "sigma2", "info")
_MODEL_ARRAYS = ("clusters", "personal", "root", "root_cov", "client", "client_cov", "D_client", "client_sigma2")
_MODEL_LISTS = ("nodes", "node_cov", "D_levels")
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("formula", "recommended", "reason", "loss", "data_fingerprint", "method", "client_name"), (str,)),
    **dict.fromkeys(("ledger", "settings", "versions", "info"), (dict,)),
    **dict.fromkeys(("log_likelihood", "sigma2"), (float, int)),
    **{"notes": (list,), "terms": (tuple, list), "offset": (str, type(None)), "family": (str,), "reml": (bool,)},
}
_DATES = re.compile(r"[<>|]M8\[\d*(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]")
_DTYPE = re.compile(r"u?int\d+|U?Int\d+|[fF]loat\d+|bool|boolean|object|str|string|category|datetime64\[\w+(, (.*))?\]")
_WIDE = 100
"""How many times as long as its texts an array of equal lengths may be."""


def save(result: Any, path: Path, force: bool = False) -> None:
    """Write a FitResult into the directory `path`; see its ``save``."""
    try:
        _refuse_others(path, force)
        shelf = Shelf()
        document = _document(result, shelf)
        path.mkdir(parents=True, exist_ok=True)
        data = shelf.to_bytes()
        name = f"model-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
        document["arrays"] = {"file": name, "sha256": hashlib.sha256(data).hexdigest()}
        files.write(path / name, [data])
        text = json.dumps(document, ensure_ascii=True, allow_nan=False, indent=1)
        files.write(path / "model.json", [text.encode()])
        for old in path.iterdir():
            if _TENSORS.fullmatch(old.name) and old.name != name:
                old.unlink()
    except OSError as e:
        raise CoterieError(f"The model cannot be written to '{path}': {e.strerror or e}.") from e


def load(path: Path) -> dict[str, Any]:
    """The fields of a FitResult, from the directory `path`; see :func:`coterie.load`."""
    try:
        document = _read_json(path)
        file = str(document["arrays"]["file"])
        if not _TENSORS.fullmatch(file):
            raise ValueError("the arrays' file has another name")
        data = files.content(path / file)
        if hashlib.sha256(data).hexdigest() != document["arrays"]["sha256"]:
            raise ValueError(f"'{file}' is not what was saved")
        return _fields(document, Shelf.from_bytes(data))
    except CoterieError:
        raise
    except OSError as e:
        raise CoterieError(f"The model in '{path}' cannot be read: {e.strerror or e} ('{e.filename}').") from e
    except Exception as e:  # a file may hold anything, which may come out anywhere
        reason = str(e) if type(e) is ValueError else "its parts do not fit together"
        raise CoterieError(f"The model in '{path}' is damaged: {reason}. Save it again.") from e


def _read_json(path: Path) -> dict[str, Any]:
    """``model.json``, once it is sure that this version can read it."""
    if not (path / "model.json").is_file():
        what = "has no model.json" if path.is_dir() else "is not a directory" if path.exists() else "does not exist"
        if (path / "training.json").is_file():
            what = "was made by coterie train, whose rows are arrays and no tables. In Python, "
            what += f"coterie.results.trained_models.load({str(path)!r}).predict(X, client) answers them"
        raise CoterieError(f"There is no coterie model in '{path}': it {what}.")
    try:
        document = from_json(files.content(path / "model.json"))
    except (ValueError, RecursionError) as e:
        raise CoterieError(f"The model in '{path}' is damaged: model.json is cut off or changed.") from e
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CoterieError(f"'{path / 'model.json'}' is not a coterie model.")
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
    target = path / "model.json"
    if force or not target.exists():
        return
    try:
        document = json.loads(target.read_bytes())
    except (ValueError, OSError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CoterieError(f"'{target}' is not a coterie model and is left alone; choose another directory.")


class Shelf:
    """Arrays of any kind, as the plain ones that safetensors holds."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def to_bytes(self) -> bytes:
        """All arrays."""
        from safetensors.numpy import save as to_bytes

        return to_bytes({k: np.ascontiguousarray(v) for k, v in self.arrays.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> Shelf:
        """The arrays that `to_bytes` wrote."""
        from safetensors.numpy import load as from_bytes

        shelf = cls()
        shelf.arrays = from_bytes(data)
        return shelf

    def put(self, name: str, values: Array) -> Any:
        """Keep an array; what is returned goes into the JSON."""
        kind = values.dtype.kind
        if kind in "fiub":
            self.arrays[name] = values
            return {"kind": "numbers", "array": name}
        if kind == "M":
            self.arrays[name] = values.astype(np.int64)
            return {"kind": "dates", "array": name, "dtype": values.dtype.str}
        if kind == "U" or all(type(v) is str for v in values):
            texts = [str(v).encode("utf-8", "surrogatepass") for v in values]
            self.arrays[name] = np.frombuffer(b"".join(texts), dtype=np.uint8)
            self.arrays[f"{name}.stops"] = np.cumsum([len(t) for t in texts], dtype=np.int64)
            return {"kind": "texts", "array": name, "dtype": values.dtype.str}
        return {"kind": "mixed", "values": [plain(v) for v in values]}

    def get(self, entry: Any) -> Array:
        """The array that `put` was given."""
        kind = entry["kind"]
        if kind == "mixed":
            values = [unplain(v) for v in entry["values"]]
        elif kind == "texts":
            ends, data = self.arrays[f"{entry['array']}.stops"], self.arrays[entry["array"]].tobytes()
            stops = ends.tolist()
            if (stops[-1] if stops else 0) != len(data) or np.any(np.diff(ends, prepend=0) < 0):
                raise ValueError("the texts are cut off")
            starts = [0, *stops[:-1]]
            values = [data[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, stops, strict=False)]
            if entry["dtype"] != "|O":
                width = re.fullmatch(r"[<>]U(\d{1,9})", entry["dtype"])
                if not width or int(width[1]) * len(values) > _WIDE * (len(data) + len(values)):
                    raise ValueError("the texts are cut off")
                return np.array(values, dtype=entry["dtype"])
        else:
            array = self.arrays[entry["array"]]
            if kind == "dates" and _DATES.fullmatch(entry["dtype"]):
                return array.astype(entry["dtype"])
            if kind != "numbers":
                raise ValueError("it holds an array of no kind that is known")
            return array
        out = np.empty(len(values), dtype=object)
        out[:] = values
        return out


def _document(result: Any, shelf: Shelf) -> dict[str, Any]:
    m = result.model
    model = {k: plain(getattr(m, k)) for k in _MODEL_VALUES}
    model["labels"] = shelf.put("labels", m.labels)
    model["levels"] = [
        {
            "name": v.name,
            "labels": shelf.put(f"level.{i}.labels", v.labels),
            "parent": shelf.put(f"level.{i}.parent", v.parent),
        }
        for i, v in enumerate(m.levels)
    ]
    for name in _MODEL_ARRAYS:
        value = getattr(m, name)
        model[name] = None if value is None else shelf.put(name, value)
    for name in _MODEL_LISTS:
        model[name] = [shelf.put(f"{name}.{i}", v) for i, v in enumerate(getattr(m, name))]
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "version": __version__,
        "model": model,
        "design": None if result.design is None else json.loads(result.design.to_json()),
        "result": {k: plain(getattr(result, k)) for k in _VALUES},
        "frames": {k: _put_frame(shelf, k, getattr(result, k)) for k in _FRAMES},
    }


def _fields(document: dict[str, Any], shelf: Shelf) -> dict[str, Any]:
    design = document["design"]
    values: dict[str, Any] = {k: unplain(document["result"][k]) for k in _VALUES}
    _need_kinds(values)
    values |= {k: _get_frame(shelf, document["frames"][k]) for k in _FRAMES}
    values["design"] = None if design is None else Design.from_json(json.dumps(design))
    model = _model(document["model"], shelf)
    if values["design"] is not None and values["design"].terms != model.terms:
        raise ValueError("its formula does not have its terms")
    return {"model": model, **values}


def _need_kinds(values: dict[str, Any]) -> None:
    """A ValueError for a value of another type than it is saved with."""
    for name, value in values.items():
        kinds = _KINDS[name]
        texts = value if name in ("notes", "terms") else [*value, *value.values()] if name == "versions" else ()
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        if wrong or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"its {name} is of another kind")


def _model(d: dict[str, Any], shelf: Shelf) -> Model:
    values: dict[str, Any] = {k: unplain(d[k]) for k in _MODEL_VALUES}
    _need_kinds(values)
    values["labels"] = shelf.get(d["labels"])
    values["levels"] = tuple(Level(v["name"], shelf.get(v["labels"]), shelf.get(v["parent"])) for v in d["levels"])
    for name in _MODEL_ARRAYS:
        values[name] = None if d[name] is None else shelf.get(d[name])
    for name in _MODEL_LISTS:
        values[name] = tuple(shelf.get(v) for v in d[name])
    if set(values) != {f.name for f in fields(Model)}:
        raise ValueError("the model's parts are not those of this version")
    model = Model(**values)
    if not _sound(model) or not _told(model):
        raise ValueError("its arrays do not fit together")
    return model


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


def _put_frame(shelf: Shelf, name: str, frame: pd.DataFrame | None) -> Any:
    if frame is None:
        return None
    columns = []
    for j, column in enumerate(frame.columns):
        series = frame.iloc[:, j]
        columns.append([plain(column), str(series.dtype), shelf.put(f"{name}.{j}", series.to_numpy())])
    index = [plain(frame.index.name), str(frame.index.dtype), shelf.put(f"{name}.index", frame.index.to_numpy())]
    return {"index": index, "columns": columns}


def _get_frame(shelf: Shelf, entry: Any) -> pd.DataFrame | None:
    import pandas as pd

    if entry is None:
        return None
    name, dtype, values = entry["index"]
    for known in map(_DTYPE.fullmatch, [dtype, *(kind for _, kind, _ in entry["columns"])]):
        if known is None:
            raise ValueError("a table of it has a column of no kind that is known")
        need_zone(known[2])
    index = pd.Index(shelf.get(values), dtype=dtype, name=unplain(name))
    columns = [pd.Series(shelf.get(v), dtype=kind, index=index) for _, kind, v in entry["columns"]]
    if not columns:
        return pd.DataFrame(index=index)
    frame: pd.DataFrame = pd.concat(columns, axis=1)
    frame.columns = pd.Index([unplain(c) for c, _, _ in entry["columns"]])
    return frame
