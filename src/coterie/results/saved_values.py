"""What results are saved as: a JSON document and, beside it, arrays in a safetensors file that it names. Never pickle.

Dataclasses are kept field by field, as they are declared. Values come back exactly: labels of any kind, infinities,
keys that are not text. The arrays' file is named after its content and written first; replacing the document then
switches from what was there to the new at once, so no crash leaves half of it, and other files are left alone. What is
read is checked here, once, but for what the parts say together: that is the reader's.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie import __version__, files
from coterie.data.clients import Level
from coterie.data.design import Design
from coterie.errors import CoterieError
from coterie.objectives.client_models import ClientModels

_TAG = "$"
_ZONE = re.compile(r"UTC([+-]\d\d:\d\d)?|[A-Z][\w+-]*(/[A-Z][\w+-]*)*", re.ASCII)
"""Names of time zones; what else pandas takes for one may be a file."""


def plain(value: Any) -> Any:
    """What JSON can hold of a value: itself, or ``{"$": kind, "value": text}``.

    Raises
    ------
    CoterieError
        For things that no model can be saved with.
    """
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        return plain(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_TAG: "float", "value": repr(float(value))}
    if isinstance(value, tuple):
        return {_TAG: "tuple", "value": [plain(v) for v in value]}
    if isinstance(value, (list, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        if all(type(k) is str for k in value) and _TAG not in value:
            return {k: plain(v) for k, v in value.items()}
        return {_TAG: "dict", "value": [[plain(k), plain(v)] for k, v in value.items()]}
    for kind, (cls, write, _) in _KINDS.items():
        if isinstance(value, cls):
            return {_TAG: kind, "value": write(value)}
    raise CoterieError(f"A model cannot be saved with {value!r} in it; use numbers, text or dates.")


def unplain(value: Any) -> Any:
    """The value that `plain` was given."""
    if isinstance(value, list):
        return [unplain(v) for v in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {k: unplain(v) for k, v in value.items()}
    kind, inner = value[_TAG], value["value"]
    if kind == "tuple":
        return tuple(unplain(v) for v in inner)
    if kind == "dict":
        return {unplain(k): unplain(v) for k, v in inner}
    return float(inner) if kind == "float" else _KINDS[kind][2](inner)


def from_json(data: bytes) -> Any:
    """What a JSON file says; a ValueError where it is none, or has text or numbers that nothing here writes so."""
    found = json.loads(data, parse_constant=_refuse)
    if re.search(rb"\\u[dD][89a-fA-F]", data):  # halves of a character, which no page can be written with
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"it holds {name} for a number")


def need_zone(name: str | None) -> None:
    """A ValueError where a text does not name a time zone."""
    if name is not None and not _ZONE.fullmatch(name):
        raise ValueError("it names no time zone")


def _timestamp(parts: list[Any]) -> Any:
    iso, zone, unit = parts
    need_zone(zone)
    stamp = pd.Timestamp(iso)
    return (stamp if zone is None else stamp.tz_convert(zone)).as_unit(unit)


_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "timestamp": (pd.Timestamp, lambda v: [v.isoformat(), None if v.tz is None else str(v.tz), v.unit], _timestamp),
    "datetime64": (np.datetime64, lambda v: [str(v), np.datetime_data(v.dtype)[0]], lambda v: np.datetime64(*v)),
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
}
"""Types of dates, each of which the next ones hold too; how one is written, and read."""


Array = npt.NDArray[Any]

_DATES = re.compile(r"[<>|]M8\[\d*(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]")
_DTYPE = re.compile(r"u?int\d+|U?Int\d+|[fF]loat\d+|bool|boolean|object|str|string|category|datetime64\[\w+(, (.*))?\]")
_WIDE = 100
"""How many times as long as its texts an array of equal lengths may be."""


@dataclass(frozen=True)
class Form:
    """A saved form: the name of its document, and the ``format`` that it says it has."""

    file: str
    format: str

    @property
    def stem(self) -> str:
        """How the files of its arrays begin."""
        return self.file.removesuffix(".json")

    def write(self, folder: Path, document: Mapping[str, Any], shelf: Shelf) -> None:
        """Write a document and its arrays; an OSError where they cannot be.

        The folder is made; who may not look into it may not read the files either, should they be moved.
        """
        content = shelf.to_bytes()
        digest = hashlib.sha256(content).hexdigest()
        arrays = {"file": f"{self.stem}-{digest[:16]}.safetensors", "sha256": digest}
        about = {"format": self.format, "version": __version__, **document}
        text = json.dumps(about | {"arrays": arrays}, allow_nan=False, indent=1)
        folder.mkdir(parents=True, exist_ok=True)
        files.sweep(folder)
        mode = folder.stat().st_mode & 0o666
        files.write(folder / arrays["file"], [content], mode=mode)
        files.write(folder / self.file, [text.encode()], mode=mode)
        for old in folder.iterdir():
            if self._holds_arrays(old.name) and old.name != arrays["file"]:
                old.unlink()

    def document(self, folder: Path) -> dict[str, Any]:
        """The document in a folder; an OSError where there is none, a ValueError where it is cut off or another's."""
        try:
            found = from_json(files.content(folder / self.file))
        except (ValueError, RecursionError) as e:
            raise ValueError(f"{self.file} is cut off or changed") from e
        if not isinstance(found, dict) or found.get("format") != self.format:
            raise CoterieError(f"'{folder / self.file}' is not a {self.format} document.")
        return found

    def shelf(self, folder: Path, document: Mapping[str, Any]) -> Shelf:
        """The arrays of a document; a ValueError where they are not those that it was written with."""
        name = str(document["arrays"]["file"])
        if not self._holds_arrays(name):
            raise ValueError("the arrays' file has another name")
        content = files.content(folder / name)
        if hashlib.sha256(content).hexdigest() != document["arrays"]["sha256"]:
            raise ValueError(f"'{name}' is not what was saved")
        return Shelf.from_bytes(content)

    def _holds_arrays(self, name: str) -> bool:
        return re.fullmatch(rf"{self.stem}-[0-9a-f]{{16}}\.safetensors", name) is not None


def remedy(document: Mapping[str, Any], damaged: str) -> str:
    """What to do about a document whose parts do not fit: it is ``damaged``, or another version of coterie's."""
    version = f"{document.get('version', '?')!s:.40}"
    if version == __version__:
        return damaged
    return f"Coterie {version} saved it, and this is coterie {__version__}: load it with that one, or make it anew."


class Shelf:
    """Arrays of any kind, and tables, as the plain arrays that safetensors holds."""

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
            values = self._texts(entry["array"])
            if entry["dtype"] != "|O":
                width, size = re.fullmatch(r"[<>]U(\d{1,9})", entry["dtype"]), self.arrays[entry["array"]].nbytes
                if not width or int(width[1]) * len(values) > _WIDE * (size + len(values)):
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

    def _texts(self, name: str) -> list[str]:
        ends, data = self.arrays[f"{name}.stops"], self.arrays[name].tobytes()
        stops = ends.tolist()
        if (stops[-1] if stops else 0) != len(data) or np.any(np.diff(ends, prepend=0) < 0):
            raise ValueError("the texts are cut off")
        return [data[a:b].decode("utf-8", "surrogatepass") for a, b in zip([0, *stops[:-1]], stops, strict=False)]

    def put_frame(self, name: str, frame: pd.DataFrame) -> Any:
        """Keep a table; what is returned goes into the JSON."""
        index = [plain(frame.index.name), str(frame.index.dtype), self.put(f"{name}.index", frame.index.to_numpy())]
        each = [(column, frame.iloc[:, j]) for j, column in enumerate(frame.columns)]
        columns = [
            [plain(column), str(series.dtype), self.put(f"{name}.{j}", series.to_numpy())]
            for j, (column, series) in enumerate(each)
        ]
        return {"index": index, "columns": columns}

    def get_frame(self, entry: Any) -> pd.DataFrame:
        """The table that `put_frame` was given."""
        name, dtype, values = entry["index"]
        for known in map(_DTYPE.fullmatch, [dtype, *(kind for _, kind, _ in entry["columns"])]):
            if known is None:
                raise ValueError("a table of it has a column of no kind that is known")
            need_zone(known[2])
        index = pd.Index(self.get(values), dtype=dtype, name=unplain(name))
        columns = [pd.Series(self.get(v), dtype=kind, index=index) for _, kind, v in entry["columns"]]
        if not columns:
            return pd.DataFrame(index=index)
        frame: pd.DataFrame = pd.concat(columns, axis=1)
        frame.columns = pd.Index([unplain(c) for c, _, _ in entry["columns"]])
        return frame


_ARRAYS, _SEVERAL, _OPTIONAL = ("Floats", "Ints", "npt.NDArray[Any]", "Any"), "tuple[Floats, ...]", " | None"
_COLUMNS = "dict[str, npt.NDArray[Any]]"
_BY_NAME = {"dict[str, Measured]": "Measured"}
"""Dataclasses that a field may have by names, by its annotation."""
_TYPES: dict[str, tuple[type, ...]] = {
    **{"str": (str,), "bool": (bool,), "int": (int,), "float": (float, int)},
    **{"list": (list,), "tuple": (tuple,), "dict": (dict,)},
}
"""Python's types of values that JSON holds, by the annotations of their fields."""


def saved_fields(cls: Any) -> dict[str, str]:
    """Types by name of a dataclass's fields, but for those whose metadata say ``{"saved": False}``."""
    return {f.name: str(f.type) for f in fields(cls) if f.metadata.get("saved", True)}


def packed(made: Any, shelf: Shelf, at: str = "") -> dict[str, Any]:
    """The fields of a dataclass as JSON holds them, their arrays and tables on the shelf under names that begin so."""
    return {name: _pack(kind, f"{at}{name}", getattr(made, name), shelf) for name, kind in saved_fields(made).items()}


def _pack(kind: str, name: str, value: Any, shelf: Shelf) -> Any:
    if value is None:
        return None
    match kind.removesuffix(_OPTIONAL):
        case "Design":
            return json.loads(value.to_json())
        case _ if isinstance(value, ClientModels):
            return {f.name: shelf.put(f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value)}
        case _ if is_dataclass(value):
            return packed(value, shelf, f"{name}.")
        case by_name if by_name in _BY_NAME:
            return {key: packed(one, shelf, f"{name}.{key}.") for key, one in value.items()}
        case "pd.DataFrame":
            return shelf.put_frame(name, value)
        case columns if columns == _COLUMNS:
            return {key: shelf.put(f"{name}.{key}", one) for key, one in value.items()}
        case "tuple[Level, ...]":
            each = [(f"{name}.{i}", level) for i, level in enumerate(value)]
            return [
                [v.name, shelf.put(f"{at}.labels", v.labels), shelf.put(f"{at}.parent", v.parent)] for at, v in each
            ]
        case array if array in _ARRAYS:
            return shelf.put(name, value)
        case several if several == _SEVERAL:
            return [shelf.put(f"{name}.{i}", v) for i, v in enumerate(value)]
    return plain(value)


def unpacked(cls: Any, entries: Mapping[str, Any], shelf: Shelf, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that :func:`packed` was given; a ValueError where one is of another type than declared.

    ``parts`` are the dataclasses that a field may be of, by their names.
    """
    kinds = saved_fields(cls)
    if kinds.keys() != entries.keys():
        raise ValueError("the model's parts are not those of this version")
    return {name: unpack(kind, name, entries[name], shelf, parts) for name, kind in kinds.items()}


def unpack(kind: str, name: str, entry: Any, shelf: Shelf, parts: Mapping[str, Any]) -> Any:
    """A value of a declared type; a ValueError where what is there is of another."""
    if entry is None:
        if kind.endswith(_OPTIONAL) or kind == "Any":
            return None
        raise ValueError(f"its {name} is missing")
    kind = kind.removesuffix(_OPTIONAL)
    match kind:
        case part if part in parts:
            return parts[part](**unpacked(parts[part], entry, shelf, parts))
        case by_name if by_name in _BY_NAME:
            part = parts[_BY_NAME[by_name]]
            return {str(key): part(**unpacked(part, one, shelf, parts)) for key, one in entry.items()}
        case "Design":
            return Design.from_json(json.dumps(entry))
        case "pd.DataFrame":
            return shelf.get_frame(entry)
        case columns if columns == _COLUMNS:
            return {key: shelf.get(one) for key, one in entry.items()}
        case "tuple[Level, ...]":
            return tuple(Level(called, shelf.get(labels), shelf.get(parent)) for called, labels, parent in entry)
        case array if array in _ARRAYS and entry.keys() == {f.name for f in fields(ClientModels)}:
            return ClientModels(*(shelf.get(entry[f.name]) for f in fields(ClientModels)))
        case array if array in _ARRAYS:
            return shelf.get(entry)
        case several if several == _SEVERAL:
            return tuple(shelf.get(v) for v in entry)
    value, (outer, _, inner) = unplain(entry), kind.partition("[")
    each = inner.removeprefix("str, ").partition("[")[0].removesuffix("]").removesuffix(", ...")
    members = (value.values() if outer == "dict" else value) if each in _TYPES else ()
    if not _is(value, outer) or not all(_is(one, each) for one in members):
        raise ValueError(f"its {name} is of another kind")
    return value


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
