"""Tables in files: CSV, Parquet, Feather and NPZ are read, and all but the last written."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from coterie import files
from coterie.data.delimited import read_delimited
from coterie.data.table import need_distinct, to_pandas
from coterie.errors import CoterieError, NoRows, nearest

_READ = (".csv", ".csv.gz", ".parquet", ".feather", ".npz", ".tsv", ".tsv.gz")
_WRITE = (".csv", ".csv.gz", ".parquet", ".feather")


def read_table(
    path: str | os.PathLike[str], labels: str | Sequence[str] = (), na_values: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """Read a table from a file.

    Parameters
    ----------
    path : path
        ``.csv``, ``.tsv`` (UTF-8, names in the first line), the same with ``.gz``, ``.parquet``, ``.feather`` or
        ``.npz``. Whole numbers with leading zeros in a CSV, such as ZIP codes, make their column text. In an NPZ file
        every one-dimensional array is a column; a two-dimensional array X gives ``X_0, X_1, ...``, or the names in an
        array ``columns`` where it has one name for each.
    labels : str or sequence of str, optional
        Columns of a CSV that hold labels, such as those of clients and clusters. They are read as they are written:
        ``1e3`` and ``1000`` are two, ``NA`` and ``null`` are labels, and only an empty cell has none. Names that are
        not in the table do not matter.
    na_values : str or sequence of str, optional
        Texts that mean a missing value in the other columns of a CSV, as an empty cell does everywhere; ``[]`` for
        none, so that "None" is a level as any other. By default those of pandas, such as ``NA``, ``null``, ``nan`` and
        ``None``. What is said of missing values names the texts that were read as such; a model remembers what was
        given here, and ``coterie predict`` reads tables in the same way.

    Returns
    -------
    DataFrame

    Raises
    ------
    CoterieError
        For a missing or damaged file, an unknown extension, columns of the same name, a table without rows.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise CoterieError(f"path must be the path of one file, not {path!r:.60}.")
    if isinstance(na_values, str):
        na_values = (na_values,)
    if na_values is not None and not all(isinstance(v, str) for v in na_values):
        raise CoterieError(f"na_values must be texts, such as ['NA', '-99'], not {na_values!r:.60}.")
    file = files.local(path)
    if not file.exists():
        here = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        raise CoterieError(f"There is no file '{file}'.{nearest(file.name, here)}")
    if file.is_dir():
        raise CoterieError(f"'{file}' is a folder, not a table.")
    suffix = _suffix(file, _READ)
    readers = {".parquet": _parquet, ".feather": _feather, ".npz": _npz}
    with readable(file):
        if suffix in readers:
            df = readers[suffix](file)
        else:
            df = read_delimited(file, (labels,) if isinstance(labels, str) else labels, na_values)
    if len(df) == 0:
        raise NoRows(f"The table '{file}' has no rows.")
    return df


def write_table(df: Any, path: str | os.PathLike[str]) -> None:
    """Write a table without its index to ``.csv``, ``.csv.gz``, ``.parquet`` or ``.feather``, whole or not at all.

    A file that is there is replaced, as by pandas; the commands ask for ``--force`` before they do so. A CoterieError
    for an unknown extension, a folder that is not there, and whatever else keeps the table from being written.
    """
    file = files.local(path)
    suffix = check_writable(file)
    frame = to_pandas(df).reset_index(drop=True)
    draft = file
    try:
        with files.replacing(file) as draft:
            if suffix == ".parquet":
                frame.to_parquet(draft, index=False)
            elif suffix == ".feather":
                frame.to_feather(draft)
            elif suffix == ".csv.gz":
                frame.to_csv(draft, index=False, compression={"method": "gzip", "mtime": 0})
            else:
                frame.to_csv(draft, index=False)
    except (OSError, UnicodeError, pa.ArrowException) as e:
        reason = " ".join(str(getattr(e, "strerror", None) or e).split()).replace(str(draft), str(file))
        raise CoterieError(f"'{file}' cannot be written: {reason[:200].rstrip('. ')}.") from e


def check_writable(path: str | os.PathLike[str]) -> str:
    """The extension of a file that a table can be written to, so that it is known before any work.

    A CoterieError for an unknown extension, and for a folder that is not there or may not be written to.
    """
    file = files.local(path)
    suffix = _suffix(file, _WRITE)
    if file.is_dir():
        raise CoterieError(f"'{file}' is a folder; name a file.")
    if not file.parent.is_dir():
        raise CoterieError(f"There is no folder '{file.parent}' to write '{file.name}' to.")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise CoterieError(f"'{file}' cannot be written: permission denied in '{file.parent}'.")
    return suffix


def _suffix(file: Path, known: tuple[str, ...]) -> str:
    name = file.name.lower()
    for suffix in sorted(known, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    raise CoterieError(f"'{file.name}' has none of the extensions {', '.join(known)}.")


@contextlib.contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn what the readers raise into one sentence."""
    try:
        yield
    except CoterieError:
        raise
    except PermissionError as e:
        raise CoterieError(f"'{file}' may not be read: permission denied.") from e
    except (ValueError, OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile, pa.ArrowException) as e:
        reason = " ".join(str(e).split("\n")[0].split())[:200].rstrip(". ")
        reason = reason.removeprefix("Error tokenizing data. C error: ")
        raise CoterieError(f"'{file}' is damaged or not what its extension says: {reason}.") from e


def _parquet(file: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq

    need_distinct(pq.read_schema(file).names)
    return pd.read_parquet(file)


def _feather(file: Path) -> pd.DataFrame:
    with pa.memory_map(str(file)) as source:
        need_distinct(pa.ipc.open_file(source).schema.names)
    return pd.read_feather(file)


def _npz(file: Path) -> pd.DataFrame:
    if not zipfile.is_zipfile(file):
        raise CoterieError(f"'{file}' is damaged or not what its extension says: it is no NPZ file.")
    with file.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    given = arrays.pop("columns", None)
    columns: list[tuple[str, npt.NDArray[Any]]] = []
    for name, array in arrays.items():
        if array.ndim not in (1, 2):
            raise CoterieError(f"The array '{name}' in '{file}' has {array.ndim} dimensions; a table has one or two.")
        if array.ndim == 1:
            columns.append((name, array))
            continue
        own = given is not None and len(given) == array.shape[1]
        titles = [str(v) for v in given] if own else [f"{name}_{j}" for j in range(array.shape[1])]
        columns += zip(titles, array.T, strict=True)
    need_distinct(name for name, _ in columns)
    lengths = {name: len(values) for name, values in columns}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{k}: {v:,}" for k, v in list(lengths.items())[:4])
        raise CoterieError(f"The arrays in '{file}' do not have the same length ({shown}).")
    return pd.DataFrame(dict(columns))
