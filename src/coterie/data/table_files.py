"""Tables in files: CSV, Parquet, Feather and NPZ are read, and all but the last written.

In text, CSV and TSV, a label is what is written and not the number that it looks like.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import os
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from coterie import files
from coterie.data.table import need_distinct, to_pandas
from coterie.errors import CoterieError, NoRows, checked_call, nearest, plural
from coterie.remote import Url

_STARTS = {b"PAR1": "a Parquet", b"ARROW1": "a Feather", b"PK\x03\x04": "an NPZ or Excel", b"\x1f\x8b": "a gzip"}
_MARKS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
NA_VALUES = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""Texts that mean a missing value where nobody says which do; those of pandas."""
_DECIMAL = r"\s*[+-]?\d+,\d+\s*"


def read_delimited(file: Path, labels: Collection[str] = (), na_values: Collection[str] | None = None) -> pd.DataFrame:
    """Read a CSV or TSV file, as :func:`coterie.read_table` says.

    ``.attrs["coterie"]`` of the frame says which texts were read as missing.
    """
    sep = "\t" if file.name.lower().endswith((".tsv", ".tsv.gz")) else ","
    _check_start(file)
    form: dict[str, Any] = {"sep": sep, "encoding": "utf-8-sig"}
    try:
        _check_head(file, form)
        empty = ["", *(NA_VALUES if na_values is None else na_values)]
        df = pd.read_csv(file, low_memory=False, keep_default_na=False, na_values=empty, **form)
    except UnicodeDecodeError as e:
        raise CoterieError(_convert(file, "WINDOWS-1252", "Latin-1 or Windows-1252")) from e
    _check_quotes(file, df, sep)
    df, absent = _as_text(df, file, form, labels)
    if absent or na_values is not None:
        given = None if na_values is None else list(na_values)
        df.attrs["coterie"] = {"na_values": given, "rows": len(df), "read_as_missing": absent}
    return df


def _check_start(file: Path) -> None:
    with file.open("rb") as f:
        start = f.read(1 << 12)
    kind = next((kind for mark, kind in _STARTS.items() if start.startswith(mark)), None)
    if kind is not None and not file.name.lower().endswith(".gz"):
        raise CoterieError(f"'{file}' is {kind} file by its content; give it the extension of what it is.")
    if start.startswith(_UTF16) or (kind is None and b"\0" in start):
        raise CoterieError(_convert(file, "UTF-16", "UTF-16 (Excel's 'Unicode text')"))


def _convert(file: Path, code: str, name: str) -> str:
    return (
        f"'{file}' is not UTF-8 text but, it seems, {name}; save it again as UTF-8, or convert it: "
        f"iconv -f {code} -t UTF-8 '{file.name}' > 'utf8-{file.name}'."
    )


def _check_head(file: Path, form: dict[str, Any]) -> None:
    """Raise CoterieError unless the first line names the columns of the second."""
    text: dict[str, Any] = {**form, "header": None, "dtype": str, "keep_default_na": False, "nrows": 1}
    try:
        head = pd.read_csv(file, **text)
        width = pd.read_csv(file, skiprows=1, **text).shape[1]
    except pd.errors.EmptyDataError as e:
        raise CoterieError(f"The table '{file}' has no rows.") from e
    names = [str(v) for v in head.iloc[0]]
    mark = next((mark for mark in _MARKS if mark in names[0] and mark != form["sep"]), None)
    if len(names) == 1 and mark is not None:
        raise CoterieError(_other_mark(file, mark))
    need_distinct(n for n in names if n)
    if width > len(names):  # pandas would take what has no name for row labels
        raise CoterieError(
            f"The rows of '{file}' have {plural(width, 'value')}, its first line only {len(names)} names."
        )


def _opened(file: Path, mode: str, **how: Any) -> Any:
    return (gzip.open if file.name.lower().endswith(".gz") else open)(file, mode, **how)


def _check_quotes(file: Path, df: pd.DataFrame, sep: str) -> None:
    """Raise CoterieError for a quote that opens a cell and is closed in another row, which pandas reads as one cell."""
    texts = [df.iloc[:, j] for j, dtype in enumerate(df.dtypes) if not pd.api.types.is_numeric_dtype(dtype)]
    if not any(text.astype(str).str.contains("\n", regex=False).any() for text in texts):
        return
    with _opened(file, "rt", encoding="utf-8-sig", newline="") as f:
        rows = csv.reader(f, delimiter=sep, strict=True)
        start = 1
        try:
            for _ in rows:
                start = rows.line_num + 1
        except csv.Error as e:
            raise CoterieError(
                f"A quotation mark in line {start:,} of '{file}' opens a cell that ends in line {rows.line_num:,}, in "
                'the midst of another: write it twice ("") in a cell between quotation marks, or take it away.'
            ) from e


def _other_mark(file: Path, mark: str) -> str:
    sentence = f"'{file}' has {_MARKS[mark]} between its columns, not commas; save it with commas"
    if mark == "\t":
        return f"{sentence}, or give it the extension .tsv{'.gz' * file.name.endswith('.gz')}."
    rows = pd.read_csv(file, sep=mark, dtype=str, encoding="utf-8-sig", nrows=1000, index_col=False)
    commas = any(rows[c].str.fullmatch(_DECIMAL, na=False).any() for c in rows.columns)
    decimal = ", decimal=','" if commas else ""
    return f"{sentence}, or read it in Python with pandas.read_csv('{file.name}', sep='{mark}'{decimal})."


def _as_text(
    df: pd.DataFrame, file: Path, form: dict[str, Any], labels: Collection[str]
) -> tuple[pd.DataFrame, dict[str, dict[str, int]]]:
    """Labels as they are written, and the texts that were read as missing in other columns, each with its rows.

    No number begins with a zero, such as a ZIP code: 01002 and 1002 are two.
    """
    zeros = _leading_zeros(file, form["sep"])
    plain = [not zeros and dtype == np.int64 for dtype in df.dtypes]  # need no second look, and no memory for text
    own = {j for j, name in enumerate(df.columns) if name in labels and not plain[j]}
    numeric = {j for j, dtype in enumerate(df.dtypes) if zeros and pd.api.types.is_numeric_dtype(dtype)}
    gaps = {j for j, some in enumerate(df.isna().any()) if some and df.columns[j] not in labels}
    places, absent = sorted(own | numeric | gaps), dict[str, dict[str, int]]()
    if not places:
        return df, absent
    texts = pd.read_csv(file, usecols=places, dtype=str, keep_default_na=False, na_values=[""], **form)
    for j, (_, text) in zip(places, texts.items(), strict=True):
        if j in own:
            df[df.columns[j]] = _as_written(text)
            continue
        if j in gaps and len(counts := text[df[df.columns[j]].isna()].value_counts()):
            absent[str(df.columns[j])] = {str(k): int(n) for k, n in counts.items()}
        if j in numeric and text.str.fullmatch(r"\s*0[0-9]+\s*", na=False).any():
            df[df.columns[j]] = text.str.strip().mask(df[df.columns[j]].isna())
    return df, absent


def _as_written(text: pd.Series[Any]) -> pd.Series[Any]:
    """Labels as numbers where each is the only way to write its number, else as text."""
    codes, uniques = pd.factorize(text)
    bare = [str(u).strip() for u in uniques]
    numbers = pd.to_numeric(pd.Series(bare, dtype=object), errors="coerce")
    if not bare or numbers.isna().any():
        return text
    kept: Any = None
    if all(b.removeprefix("-").isdecimal() and b == str(int(b)) and abs(int(b)) < 2**63 for b in bare):
        whole = pd.array([*map(int, bare), None], dtype="Int64")
        kept = whole[codes] if (codes < 0).any() else whole[codes].to_numpy(dtype=np.int64)
    elif all(b == repr(float(b)) for b in bare) and np.isfinite(numbers).all():
        kept = np.array([*map(float, bare), np.nan])[codes]
    return text.str.strip() if kept is None else pd.Series(kept, index=text.index)


def _leading_zeros(file: Path, sep: str) -> bool:
    """Whether any cell may begin with a zero and another digit."""
    before, last = np.frombuffer(f'{sep} "\n'.encode(), dtype=np.uint8), b""
    with _opened(file, "rb") as f:
        while block := f.read(1 << 24):
            text = np.frombuffer(last + block, dtype=np.uint8)
            zero = np.flatnonzero(text[1:-1] == ord("0"))
            if np.any(np.isin(text[zero], before) & (text[zero + 2] - np.uint8(ord("0")) < 10)):
                return True
            last = block[-2:]
    return False


_READ = (".csv", ".csv.gz", ".parquet", ".feather", ".npz", ".tsv", ".tsv.gz")
_WRITE = (".csv", ".csv.gz", ".parquet", ".feather")


@checked_call
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
    file = files.place(path)
    if not file.exists():
        here = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        raise CoterieError(f"There is no file '{file}'.{nearest(file.name, here)}")
    if file.is_dir():
        raise CoterieError(f"'{file}' is a folder, not a table: name a file in it.")
    suffix = _suffix(file, _READ)
    readers = {".parquet": _parquet, ".feather": _feather, ".npz": _npz}
    with readable(file), files.fetched(file) as copy:
        if suffix in readers:
            df = readers[suffix](copy)
        else:
            df = read_delimited(copy, (labels,) if isinstance(labels, str) else labels, na_values)
    if len(df) == 0:
        raise NoRows(f"The table '{file}' has no rows.")
    return df


def write_table(df: Any, path: str | os.PathLike[str]) -> None:
    """Write a table without its index to ``.csv``, ``.csv.gz``, ``.parquet`` or ``.feather``, whole or not at all.

    A file that is there is replaced, as by pandas; the commands ask for ``--force`` before they do so. A CoterieError
    for an unknown extension, a folder that is not there, and whatever else keeps the table from being written.
    """
    file = files.place(path)
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
    file = files.place(path)
    suffix = _suffix(file, _WRITE)
    if file.is_dir():
        raise CoterieError(f"'{file}' is a folder; name a file.")
    if not (isinstance(file, Url) or file.parent.is_dir()):
        raise CoterieError(f"There is no folder '{file.parent}' to write '{file.name}' to: make it first.")
    files.need_writable(file, file.parent)
    return suffix


def _suffix(file: Path, known: tuple[str, ...]) -> str:
    name = file.name.lower()
    for suffix in sorted(known, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    sheet = " Save the sheet as CSV, or give what pandas.read_excel makes of it." if known is _READ else ""
    hint = sheet * name.endswith((".xlsx", ".xls", ".ods"))
    raise CoterieError(f"'{file.name}' has none of the extensions {', '.join(known)}.{hint}")


@contextlib.contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn what the readers raise into one sentence."""
    try:
        yield
    except CoterieError:
        raise
    except OSError as e:
        if isinstance(file, Url) and e.filename == str(file):
            raise CoterieError(f"'{file}' cannot be read: {e.strerror}.") from e
        if not isinstance(e, PermissionError):
            raise _damaged(file, e) from e
        raise CoterieError(f"'{file}' may not be read: permission denied.") from e
    except (ValueError, EOFError, KeyError, zlib.error, zipfile.BadZipFile, pa.ArrowException) as e:
        raise _damaged(file, e) from e


def _damaged(file: Path, problem: BaseException) -> CoterieError:
    reason = " ".join(str(problem).split("\n")[0].split())[:200].rstrip(". ")
    reason = reason.removeprefix("Error tokenizing data. C error: ")
    return CoterieError(f"'{file}' is damaged or not what its extension says: {reason}.")


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
            raise CoterieError(
                f"The array '{name}' in '{file}' has {plural(array.ndim, 'dimension')}; a table has one or two."
            )
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
