"""A table in memory: any data frame, whose columns are read once, however often they are asked for."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.data.columns import Column, Kind
from coterie.errors import CoterieError, listed, nearest, plural
from coterie.lazy_modules import pd
from coterie.options import shown


class Table:
    """The typed columns of a frame with text for column names, as :func:`to_pandas` makes it."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self._columns: dict[str, Column] = {}

    @classmethod
    def of(cls, df: Any) -> Table:
        """The table of any data frame; a table as it is, with what was read of it already."""
        return df if isinstance(df, Table) else cls(to_pandas(df))

    def __len__(self) -> int:
        return len(self.frame)

    def __contains__(self, name: object) -> bool:
        return name in self.frame.columns

    def __getitem__(self, name: str) -> Column:
        if name not in self._columns:
            self._columns[name] = Column(self.frame[name], self._read_as_missing(name))
        return self._columns[name]

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.frame.columns)

    def need(self, names: Iterable[str], role: str) -> None:
        """Raise CoterieError unless the table has these columns."""
        known = self.names
        for name in names:
            if name not in known:
                several = "," in name and set(map(str.strip, name.split(","))) <= set(known)
                hint = " Name each column by itself." if several else meant(name, known)
                if name in self.frame.index.names:
                    hint = " It is in the index: reset_index() makes a column of it."
                raise CoterieError(f"The {role} column '{name}' is not in the table.{hint}")

    def missing_remedy(self, kinds: Mapping[str, Kind], labels: Iterable[str] = ()) -> str:
        """How text that was read as missing is read as a label or level; empty where no such column has it."""
        if found := [name for name in labels if self[name].read_as_missing]:
            return f" If such text is a label, read the file with read_table(path, labels={found})."
        if not any(self[name].read_as_missing for name, kind in kinds.items() if kind == "category"):
            return ""
        return (
            " If such text is a level and not a missing value, name the texts that do mean missing when the file is "
            "read: na_values=[] (--na-value '') leaves empty cells alone."
        )

    def fingerprint(self, columns: Container[str] | None = None) -> str:
        """A hash (SHA-256) of column names, types and values, in their order; only of these columns, where given."""
        total = hashlib.sha256(f"{len(self)}".encode())
        for name in self.names:
            if columns is None or name in columns:
                total.update(f"\n{len(name)} {name} ".encode() + self[name].digest)
        return total.hexdigest()

    def _read_as_missing(self, name: str) -> str:
        """Which texts of a file were read as missing in a column, in words; counts are those of the whole file.

        :func:`coterie.read_table` leaves word of them in the frame.
        """
        word: dict[str, Any] = self.frame.attrs.get("coterie") or {}
        counts = word.get("read_as_missing", {}).get(name)
        if not counts:
            return ""
        whole = len(self) == word["rows"]
        said = [f"{t!r} ({plural(n, 'row')})" if whole else repr(t) for t, n in counts.items()]
        return f"the file says {listed(said, 5)}"


def to_pandas(df: Any) -> pd.DataFrame:
    """A pandas, polars or other frame that narwhals knows, or a dict of columns, as a pandas frame.

    Column names become text; a pandas frame is not copied. A CoterieError for other things and columns of one name.
    """
    if isinstance(df, pd.DataFrame):
        frame = df
    elif isinstance(df, dict):
        try:
            frame = pd.DataFrame(df)
        except ValueError as e:
            raise CoterieError(
                "The columns of the table do not have the same length: give one value for each row."
            ) from e
    else:
        import narwhals as nw

        try:
            native = nw.from_native(df)
        except TypeError as e:
            file = isinstance(df, (str, os.PathLike))
            hint = f": read the file with coterie.read_table({str(df)!r})" if file else ""
            hint = ": arrays go with coterie.Torch(...)" if isinstance(df, (tuple, list)) else hint
            raise CoterieError(f"A table must be a pandas or polars frame, not {type(df).__name__}{hint}.") from e
        frame = (native.collect() if isinstance(native, nw.LazyFrame) else native).to_pandas()
    names = [str(c) for c in frame.columns]
    need_distinct(names)
    return frame if all(isinstance(c, str) for c in frame.columns) else frame.set_axis(names, axis=1)


def need_distinct(names: Iterable[str]) -> None:
    """Raise CoterieError for columns of the same name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise CoterieError(f"The table has more than one column named '{twice[0]}'; rename one of them.")


def as_names(what: str, value: Any) -> tuple[str, ...]:
    """None, one or several names of columns as a tuple; CoterieError, which names the argument, for anything else."""
    if value is None:
        return ()
    if hasattr(value, "iloc"):
        raise CoterieError(f"{what} must name a column of the table, not be one: write its name.")
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    names = tuple(value) if several else (value,)
    for name in names:
        if not isinstance(name, str):
            hint = f": write {str(name)!r}" if isinstance(name, (int, np.integer)) else ""
            raise CoterieError(f"{what} must name columns by text, not by {name!r}{hint}.")
    return names


def as_name(what: str, value: Any) -> str:
    """The name of one column; CoterieError, which names the argument, for anything else."""
    names = as_names(what, value)
    if len(names) != 1:
        raise CoterieError(f"{what} must be the name of one column, not {shown(value)}.")
    return names[0]


def meant(name: str, known: Sequence[str]) -> str:
    """The end of a message about a column that is not there: the nearest ones, or those there are."""
    if not known:
        return " The table has no columns."
    return nearest(name, known) or f" There are the columns {listed(map(repr, known), 10)}."
