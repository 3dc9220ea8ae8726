"""Readers of rows for nets by what lies in a place: folders as other projects write them, and folders of images.

Each gives arrays by name: X and y, and what else there is of client and split. Nothing that is read can run: of pickles
NumPy's arrays and plain containers are read alone.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.images import image_pairs, resized
from coterie.data.net_inputs import as_inputs, several, together
from coterie.data.splits import SIDES
from coterie.errors import CoterieError, listed, nearest
from coterie.lazy_modules import pd

Arrays = dict[str, npt.NDArray[Any]]
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, IndexError, AttributeError, MemoryError, SyntaxError)
_BROKEN = (*_DAMAGED, zipfile.BadZipFile, pickle.UnpicklingError, RecursionError, CoterieError)
_ADMITTED = re.compile(r"numpy(\.(_core|core)\.(multiarray|numeric))? (ndarray|dtype|_reconstruct|scalar|_frombuffer)")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Columns:
    """Which columns of a data set with named ones are taken."""

    target: str | None = None  # outcomes; by default label, labels or y
    inputs: Sequence[str] | None = None  # by default all others
    beside: Sequence[str] = ()  # what says client, group or split, where it is there
    named: Mapping[str, str] = field(default_factory=dict)  # those of them that must be there, by what they are for


@dataclass(frozen=True)
class Reader:
    """One kind of rows."""

    what: str  # for a sentence that lists all of them
    lies: Callable[[Path], bool]  # whether it is what lies in a place
    read: Callable[..., Arrays]  # (path, columns, **args)
    columns: bool = False  # whether it has columns by name
    args: tuple[str, ...] = ()  # what it takes beside


def read(path: Path, columns: Columns, args: Mapping[str, Any]) -> Arrays:
    """The rows that lie in a file or a folder; a CoterieError says what is wrong with them, or what may lie there."""
    if not path.exists():
        raise CoterieError(f"'{path}' is not there: name the folder or the file of the rows.")
    found = next((reader for reader in READERS if reader.lies(path)), None)
    if found is None:
        known = listed([reader.what for reader in READERS], len(READERS))
        raise CoterieError(f"'{path}' holds no rows that are known: there may be {known}.")
    if columns.target is not None and not found.columns:
        raise CoterieError(f"target is for rows with named columns, and '{path}' is {found.what}: leave it out.")
    for name in args:
        if name not in found.args:
            hint = nearest(name, found.args) or (f" It takes {', '.join(found.args)}." if found.args else "")
            raise CoterieError(f"'{path}' is {found.what}, which takes no args '{name}'.{hint}")
    return found.read(path, columns, **args)


def _sides(path: Path) -> dict[str, Path]:
    """The folders of a place that say by their name which side their rows are on."""
    return {p.name: p for p in sorted(path.iterdir()) if p.is_dir() and p.name.lower() in SIDES}


def _joined(parts: Sequence[tuple[Path, Arrays]]) -> Arrays:
    """Rows of several files, one after another; a CoterieError where they are not alike."""
    first, names = parts[0]
    for place, part in parts:
        for name, was in names.items():
            if name in part and (
                part[name].shape[1:] == was.shape[1:] or "O" in part[name].dtype.kind + was.dtype.kind
            ):
                continue
            unlike = part[name].shape[1:] if name in part else "none"
            raise CoterieError(
                f"Rows of {name} must be of one shape, and are {unlike} in '{place}' and {was.shape[1:]} in '{first}': "
                "pad or resize them."
            )
    return {name: together([part[name] for _, part in parts], f"Rows of {name}") for name in names}


class _Plain(pickle.Unpickler):
    """Reads NumPy's arrays and plain containers, and refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        if not _ADMITTED.fullmatch(f"{module} {name}"):
            raise CoterieError(f"it holds {module}.{name}, and only arrays and plain containers are read")
        return getattr(np, name, None) or getattr(np._core.multiarray, name, None) or getattr(np._core.numeric, name)


def unpickled_array(data: bytes) -> Any:
    """What an .npy file of one object holds, if that is made of arrays and plain containers."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if dtype.kind != "O" or shape != ():
        raise ValueError("it is an array of numbers, and no dict of x and y")
    return _Plain(file).load().item()


def _pfllib(path: Path, columns: Columns) -> Arrays:
    """``train/0.npz``, ``test/0.npz``, ... as https://github.com/TsingZ0/PFLlib writes them: a client is a number."""
    parts = []
    for side, folder in _sides(path).items():
        for file in sorted(folder.glob("*.npz"), key=lambda p: _NUMBER.sub(lambda n: n[0].zfill(20), p.stem)):
            try:
                with zipfile.ZipFile(file) as opened:
                    found = unpickled_array(opened.read("data.npy"))
                X, y = (np.asarray(found[name]) for name in ("x", "y"))
                if len(X) != len(y) or X.dtype.kind not in "biuf":
                    raise ValueError(f"x is of shape {X.shape} ({X.dtype}) and y of shape {y.shape}")
            except _BROKEN as e:
                raise CoterieError(f"'{file}' is no file of PFLlib with a dict of arrays x and y: {_why(e)}.") from e
            if len(X):
                client = int(file.stem) if file.stem.isdigit() else file.stem
                parts.append((file, {"X": X, "y": y, **_whose(client, side, len(X))}))
    if not parts:
        raise CoterieError(f"'{path}' has no rows in its folders: make the data set again.")
    return _joined(parts)


def _whose(client: Any, side: str | None, n: int) -> Arrays:
    found = {} if client is None else {"client": np.repeat(client, n)}
    return found if side is None else found | {"split": np.repeat(side, n)}


def _why(problem: BaseException) -> str:
    said = str(problem).partition("\n")[0].rstrip(".")
    return said if isinstance(problem, CoterieError) else f"{type(problem).__name__}{f' ({said})' if said else ''}"


def _leaf(path: Path, columns: Columns) -> Arrays:
    """One file of LEAF (https://leaf.cmu.edu), a folder of them, or folders train and test of them."""
    sides = {None: path} if path.is_file() or not (found := _sides(path)) else found
    parts: list[tuple[Path, Arrays]] = []
    for side, place in sides.items():
        for file in [place] if place.is_file() else sorted(place.glob("*.json")):
            parts += [(file, part | _whose(None, side, len(part["y"]))) for part in _users(file)]
    if not parts:
        raise CoterieError(f"'{path}' has no user with rows in any .json file: make the data set again.")
    return _joined(parts)


def _users(file: Path) -> list[Arrays]:
    """The rows of each user of a file."""
    try:
        held = json.loads(file.read_bytes())
        users, data = held["users"], held["user_data"]
        counts = held.get("num_samples") or [len(data[user]["y"]) for user in users]
        groups = held.get("hierarchies") or [None] * len(users)
        out = []
        for user, count, group in zip(users, counts, groups, strict=True):
            X, y = (np.asarray(data[user][name]) for name in ("x", "y"))
            if not len(X) == len(y) == count:
                raise ValueError(f"user {user} has {len(X)} rows of x and {len(y)} of y, where {count} are said")
            if X.dtype.kind == "U":
                raise CoterieError(f"x of user {user} is text, which a net takes as numbers: code its letters or words")
            if count:
                more = {} if group is None else {"group": np.repeat(str(group), count)}
                out.append({"X": X, "y": y, **_whose(str(user), None, count), **more})
        return out
    except _BROKEN as e:
        raise CoterieError(f"'{file}' is no file of LEAF with users and user_data: {_why(e)}.") from e


def _hugging_face(path: Path, columns: Columns) -> Arrays:
    """What ``datasets`` (Hugging Face) saves: a data set, or a folder with one for each split."""
    places: dict[str | None, Path] = {None: path}
    if (path / "dataset_dict.json").is_file():
        places = {name: path / name for name in _json(path / "dataset_dict.json")["splits"]}
    parts = [(place, _saved(place, columns) | _whose(None, side, 0)) for side, place in places.items()]
    for side, (_, part) in zip(places, parts, strict=True):
        part |= _whose(None, side, len(part["y"]))
    return _joined([one for one in parts if len(one[1]["y"])] or parts)


def _saved(place: Path, columns: Columns) -> Arrays:
    """The columns of one data set."""
    from pyarrow import ArrowInvalid, concat_tables, ipc, memory_map

    features = _json(place / "dataset_info.json").get("features") or {}
    files = [place / str(one.get("filename")) for one in _json(place / "state.json").get("_data_files") or ()]
    try:
        table = concat_tables([ipc.open_stream(memory_map(str(file))).read_all() for file in files])
    except (OSError, ValueError, ArrowInvalid) as e:
        raise CoterieError(f"The data set in '{place}' cannot be read ({_why(e)}): save it again.") from e
    names = table.column_names
    target = columns.target or next((name for name in ("label", "labels", "y") if name in names), None)
    beside = [name for name in columns.beside if name in names]
    inputs = [n for n in names if n not in (target, *beside)] if columns.inputs is None else list(columns.inputs)
    for name in (target, *inputs):
        if name not in names:
            hint = nearest(str(name), names) or f" There are {', '.join(names)}: say target and inputs."
            raise CoterieError(f"The data set in '{place}' has no column '{name or 'label'}'.{hint}")
    for role, name in columns.named.items():
        if name not in names:
            hint = nearest(name, names) or f" There are {', '.join(names)}."
            raise CoterieError(f"The data set in '{place}' has no column '{name}', as {role} says.{hint}")
    X = {name: _column(table[name], name, place) for name in inputs}
    y = _column(table[target], str(target), place, labels=True)
    if (known := features.get(target, {}).get("names")) and y.dtype.kind in "iu":
        y = np.asarray(known)[y]
    flat = all(values.ndim == 1 and values.dtype.kind in "biuf" for values in X.values())
    one = np.column_stack([*X.values()]) if flat and len(X) > 1 else None
    found = one if one is not None else as_inputs(X, "The inputs") if len(X) > 1 else next(iter(X.values()))
    return {"X": found, "y": y} | {name: np.asarray(table[name].to_pylist()) for name in beside}


def _column(column: Any, name: str, place: Path, labels: bool = False) -> npt.NDArray[Any]:
    """A column as an array, (n, ...) where every row has as many numbers."""
    if column.null_count:
        raise CoterieError(f"Column '{name}' of '{place}' has {column.null_count:,} missing values: fill or drop them.")
    rows = column.to_pylist()
    try:
        values = as_inputs(rows, f"Column '{name}'") if several(rows) else np.asarray(rows)
    except (ValueError, CoterieError) as e:
        raise CoterieError(f"Column '{name}' of '{place}' cannot be given to a net: {_why(e)}.") from e
    if values.dtype.kind not in "biufO" and not (labels and values.dtype.kind == "U"):
        raise CoterieError(
            f"Column '{name}' of '{place}' is no number, as a net needs: name other inputs, or code it (a tokenizer)."
        )
    return values


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as e:
        raise CoterieError(f"'{file}' cannot be read ({_why(e)}): save the data set again.") from e
    if not isinstance(found, dict):
        raise CoterieError(f"'{file}' is not what datasets writes: save the data set again.")
    return found


def _images(path: Path, columns: Columns, size: Any = None, mode: str = "") -> Arrays:
    """``client/class/a.png``, or ``class/a.png`` with a clients.csv; train and test may stand before it."""
    try:
        from PIL import Image
    except ImportError:
        raise CoterieError(f"Reading the images in '{path}' needs Pillow: pip install 'coterie[data]'.") from None
    places: Mapping[Any, Path] = _sides(path) or {None: path}
    files = [
        (side, file, file.relative_to(place))
        for side, place in places.items()
        for file in sorted(place.rglob("*"))
        if file.suffix.lower() in PICTURES
    ]
    depth = {len(inner.parts) for _, _, inner in files}
    if depth not in ({2}, {3}):
        raise CoterieError(f"Images of '{path}' must lie as client/class/a.png or class/a.png, each alike.")
    pixels: list[npt.NDArray[Any]] = []
    size = _size(size)
    for _, file, _ in files:
        try:
            with Image.open(file) as image:
                wanted = mode or ("L" if image.mode in ("1", "L", "I;16") else "RGB")
                made = np.asarray(image.convert(wanted), dtype=np.float32) / 255.0
        except (*_DAMAGED, Image.DecompressionBombError) as e:
            raise CoterieError(f"'{file}' cannot be read as an image ({_why(e)}): write it again.") from e
        planes = np.atleast_3d(made).transpose(2, 0, 1)
        planes = planes if size is None else np.stack([resized(plane, size, 1) for plane in planes])
        if pixels and planes.shape != pixels[0].shape:
            raise CoterieError(
                f"'{file}' has channels, height and width {planes.shape}, and '{files[0][1]}' {pixels[0].shape}: say "
                'args = {size = [height, width]}, or mode = "L" or "RGB", to bring all to one.'
            )
        pixels.append(planes)
    found = {"X": np.stack(pixels), "y": np.array([inner.parts[-2] for _, _, inner in files])}
    if depth == {3}:
        found["client"] = np.array([inner.parts[0] for _, _, inner in files])
    if None not in {side for side, _, _ in files}:
        found["split"] = np.array([side for side, _, _ in files])
    return found | _listed(path, [file for _, file, _ in files])


def _listed(path: Path, files: list[Path]) -> Arrays:
    """What a table clients.csv says of the images: its column file, and others such as client and split."""
    place = path / "clients.csv"
    if not place.is_file():
        return {}
    try:
        table = pd.read_csv(place, dtype=str)
    except (OSError, ValueError) as e:
        raise CoterieError(f"'{place}' cannot be read as a table ({_why(e)}): write columns file and client.") from e
    if "file" not in table or not table["file"].is_unique:
        raise CoterieError(f"'{place}' needs a column 'file' that names each image once, as class/a.png.")
    rows = table.set_index("file").reindex([file.relative_to(path).as_posix() for file in files])
    if lost := [name for name in rows.index if name not in set(table["file"])] or [
        *rows.index[rows.isna().any(axis=1)]
    ]:
        raise CoterieError(f"'{place}' does not say all of {lost[0]}: give each image a line.")
    return {str(name): rows[name].to_numpy(dtype=str) for name in rows}


def _size(size: Any) -> tuple[int, int] | None:
    """Height and width, of one number or two."""
    if size is None:
        return None
    both = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    if len(both) != 2 or not all(type(length) is int and length > 0 for length in both):
        raise CoterieError(f"size of args must be a height and a width, such as [32, 32], not {size!r}.")
    return both


def _any(path: Path, pattern: str) -> bool:
    """Whether any file in a folder, or in its folders train and test, is called so."""
    return path.is_dir() and any(next(place.glob(pattern), None) for place in (path, *_sides(path).values()))


READERS = (
    Reader(
        "a data set of Hugging Face's datasets",
        lambda p: (p / "dataset_dict.json").is_file() or (p / "state.json").is_file(),
        _hugging_face,
        columns=True,
    ),
    Reader(
        "folders train and test of PFLlib",
        lambda p: p.is_dir() and any(next(side.glob("*.npz"), None) for side in _sides(p).values()),
        _pfllib,
    ),
    Reader(
        "images with masks",
        lambda p: p.is_dir() and any((one / "masks").is_dir() for one in p.iterdir()),
        lambda path, columns, size=None: image_pairs(path, _size(size)),
        args=("size",),
    ),
    Reader(
        "images in folders of classes",
        lambda p: p.is_dir() and any(file.suffix.lower() in PICTURES for file in p.rglob("*")),
        _images,
        args=("size", "mode"),
    ),
    Reader(".json files of LEAF", lambda p: p.suffix == ".json" or _any(p, "*.json"), _leaf),
)
"""All kinds; the first that lies in a place is read."""
