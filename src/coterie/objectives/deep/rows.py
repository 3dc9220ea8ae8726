"""Rows of clients for a torch model: tensors, or what Datasets and DataLoaders give, one client after another.

Whatever a caller gives is turned into tensors here, or refused in a sentence that names the client and the row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from coterie.data.array_input import as_numbers
from coterie.data.net_inputs import as_inputs, is_plain, several, together
from coterie.errors import RAISED, CoterieError
from coterie.numerics.arrays import Bools, Ints
from coterie.objectives.deep.architecture import named, short
from coterie.objectives.deep.input_tensors import LENGTHS, MASK, Packed, Several, form_of, forward_of, tensors_of
from coterie.objectives.deep.random_generators import Generators
from coterie.objectives.row_kernels import owned_rows

PROBED = 256  # of so many clients' Datasets, at most, one row is looked at before anything is trained


class Rows:
    """Inputs and targets by row number, client after client, who are called by their labels, or 0, 1, ..."""

    starts: Ints
    stops: Ints
    device: torch.device
    labels: Sequence[str] | None = None
    sets: Sequence[Any] = ()  # what loads the rows, and may draw random numbers

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, rows: Ints) -> Rows:
        return Part(self, rows)

    def gather(self, index: Ints) -> tuple[Any, Tensor]:
        """Inputs and targets of the rows ``index``, of any shape."""
        raise NotImplementedError

    def only(self, of: Any) -> tuple[Rows, tuple[Ints, Ints], Any]:
        """What travels of the clients ``of`` a net: rows, their ranges and weights; here all that there are."""
        return self, (of.starts, of.stops), of.weights

    @cached_property
    def sound(self) -> Bools:
        """Which rows hold finite numbers only (rows,); every item is loaded once, some at a time."""
        good = np.ones(len(self), dtype=bool)
        with Generators(self.device, *self.sets).kept() as seed:
            seed(0, 0)
            for at in range(0, len(self), 1024):
                rows = self.gather(np.arange(at, min(at + 1024, len(self))))
                for values in (tensor for given in rows for tensor in tensors_of(given)):
                    if values.is_floating_point():
                        good[at : at + len(values)] &= torch.isfinite(values[..., None]).flatten(1).all(1).cpu().numpy()
        return good

    def label(self, client: int) -> str:
        """What a client is called."""
        return str(client) if self.labels is None or client >= len(self.labels) else str(self.labels[client])

    def client(self, row: int) -> str:
        """``"client 2"``: whose row it is."""
        found = np.flatnonzero((self.starts <= row) & (row < self.stops))
        return f"client {self.label(int(found[0]))}" if len(found) else "no client"

    def place(self, row: int) -> str:
        """``"row 5 of client 2"``, from 0; a client with a name alone where rows were dealt out, and have no place."""
        found = np.flatnonzero((self.starts <= row) & (row < self.stops))
        if not len(found):
            return f"row {row}"
        at = f"row {row - int(self.starts[found[0]])}" if self.labels is None else "a row"
        return f"{at} of {self.client(row)}"


class Part(Rows):
    """Some rows of others, in an order of their own, which were looked at as rows of clients before."""

    starts = stops = np.empty(0, dtype=np.int64)

    def __init__(self, whole: Rows, rows: Ints) -> None:
        self.whole, self.rows, self.device, self.labels, self.sets = whole, rows, whole.device, whole.labels, whole.sets

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, index: Ints) -> tuple[Any, Any]:
        """Inputs and targets of the rows ``index``."""
        return self.whole.gather(self.rows[index])


class Tensors(Rows):
    """Inputs (n, ...) and targets (n, ...) that lie in memory; floating numbers take the model's type.

    Whole numbers are handed on as they are, so that embeddings can be told which row to look up. Targets that are None
    are not known: 0 stands for each. Several arrays, and series of any length, come as what ``made`` makes takes them.
    """

    def __init__(
        self, X: Any, y: Any, dtype: torch.dtype, device: torch.device, made: Any = None, longest: Any = None
    ) -> None:
        self.device, self.known = device, y is not None

        def packed(values: Any, what: str, made: Any) -> Any:
            values = as_inputs(values, what) if several(values) else values
            if is_plain(values):
                return tensor(values, dtype, device, what)
            takes = forward_of(made)
            most = None if made is None else longest
            return Packed(
                values, takes, lambda part, name: tensor(part, dtype, device, f"{name or 'A row'} of {what}"), most
            )

        self.X = packed(X, "The inputs X", made)
        zeros = self.X.new_zeros if isinstance(self.X, Tensor) else torch.zeros
        self.y = packed(y, "The targets y", None) if self.known else zeros(self.X.shape[:1])
        if not self.X.ndim or len(self.X) != (len(self.y) if self.y.ndim else -1):
            shapes = f"{tuple(self.X.shape)} and {tuple(self.y.shape)}"
            raise CoterieError(f"X and y must have one row for each other, not the shapes {shapes}.")

    @classmethod
    def joined(
        cls,
        clients: Sequence[tuple[Any, ...]],
        labels: Sequence[str],
        dtype: torch.dtype,
        device: torch.device,
        made: Any = None,
    ) -> Tensors:
        """Of one pair (X, y) for each client."""
        if any(several(part) for pair in clients for part in pair) and all(len(pair) == 2 for pair in clients):
            named = list(zip(labels, clients, strict=True))
            rows = [[as_inputs(pair[k], f"{'Xy'[k]} of client {who}") for who, pair in named] for k in (0, 1)]
            joint = [together(part, f"{'Xy'[k]} of clients") for k, part in enumerate(rows)]
            out = cls(joint[0], joint[1], dtype, device, made)
            out.stops = np.cumsum([len(part) for part in rows[1]], dtype=np.int64)
            out.starts = np.concatenate([[0], out.stops[:-1]])
            return out
        parts = [_pair(who, pair, dtype, device) for who, pair in zip(labels, clients, strict=True)]
        stops = np.cumsum([len(p) for p in parts], dtype=np.int64)
        full = [number for number, p in enumerate(parts) if len(p)]
        if not full:
            raise CoterieError("No client has a row: give the data of one at least.")
        first = parts[full[0]]
        for number in full:
            for name, a, b in (("X", parts[number].X, first.X), ("y", parts[number].y, first.y)):
                if a.shape[1:] != b.shape[1:]:
                    raise CoterieError(_differ(name, labels[number], a.shape[1:], labels[full[0]], b.shape[1:]))
        X, y = (torch.cat([getattr(parts[number], name) for number in full]) for name in ("X", "y"))
        out = cls(X, y, dtype, device)
        out.starts, out.stops = np.concatenate([[0], stops[:-1]]), stops
        return out

    def only(self, of: Any) -> tuple[Rows, tuple[Ints, Ints], Any]:
        """The rows of the clients ``of`` a net alone, as a copy, where they are plain tensors."""
        if not (isinstance(self.X, Tensor) and isinstance(self.y, Tensor)):
            return super().only(of)
        out, at = copy(self), owned_rows(of.starts, of.stops)[1]
        out.__dict__.pop("sound", None)
        out.X, out.y = self.gather(at)
        if self.labels is not None:
            out.labels = [self.label(int(i)) for i in np.searchsorted(self.starts, of.starts, "right") - 1]
        return out, of.own_ranges, of.weights[at]

    def __len__(self) -> int:
        return len(self.X)

    def gather(self, index: Ints) -> tuple[Any, Any]:
        """Inputs and targets of the rows ``index``."""
        at = torch.from_numpy(index).to(self.X.device)
        return self.X[at], self.y[at]


class Sets(Rows):
    """Items of map-style Datasets, one Dataset or DataLoader for each client, put together as a DataLoader would.

    Every batch is shown to ``checked(y, rows)``, which raises a CoterieError for targets that the loss has no use for.
    """

    def __init__(
        self, clients: Sequence[Any], labels: Sequence[str], dtype: torch.dtype, device: torch.device, made: Any = None
    ) -> None:
        self.takes = forward_of(made)
        loader = next((c for c in clients if isinstance(c, DataLoader)), None)
        usual = loader is None or loader.collate_fn is default_collate
        self.collate: Callable[[list[Any]], Any] = self._collated if loader is None or usual else loader.collate_fn
        self.usual = usual
        self.sets = [_items(who, c, dtype) for who, c in zip(labels, clients, strict=True)]
        counts = [_length(who, data) for who, data in zip(labels, self.sets, strict=True)]
        self.stops = np.cumsum(counts, dtype=np.int64)
        if not self.stops[-1]:
            raise CoterieError("No client has a row: give the data of one at least.")
        self.starts = np.concatenate([[0], self.stops[:-1]])
        self.dtype, self.device = dtype, device
        self.checked: Callable[[Tensor, Ints], None] | None = None

    def __len__(self) -> int:
        return int(self.stops[-1]) if len(self.stops) else 0

    def gather(self, index: Ints) -> tuple[Any, Any]:
        """Inputs and targets of the rows ``index``, which are loaded now."""
        flat = index.ravel()
        if not len(flat):
            return torch.zeros(index.shape, dtype=self.dtype), torch.zeros(index.shape, dtype=self.dtype)
        owner = np.searchsorted(self.stops, flat, side="right")
        items = [self._item(int(o), int(r)) for o, r in zip(owner, flat, strict=True)]
        try:
            found = self.collate(items)
        except RAISED as problem:
            raise CoterieError(
                f"Items of Datasets must be pairs of inputs and targets, of the same shapes, which those of "
                f"{self._misfit(items, flat)} are not: {short(problem)}."
            ) from problem
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise CoterieError(
                f"Items of Datasets must be pairs of inputs and targets; {self.place(int(flat[0]))} is "
                f"{kind_of(found)}: give a Dataset whose items are (x, y)."
            )
        X, y = (self._shaped(v, w, index) for v, w in zip(found, ("inputs", "targets"), strict=True))
        if self.checked is not None and isinstance(y, Tensor):
            self.checked(y.reshape(len(flat), *y.shape[index.ndim :]), flat)
        return X.to(self.device), y.to(self.device)

    def _collated(self, items: list[Any]) -> Any:
        """Items put together by torch, or padded where their series have several lengths and the module can be told."""
        try:
            return default_collate(items)
        except RAISED:
            if not {MASK, LENGTHS} & self.takes.keys():
                raise
            X = as_inputs([x for x, _ in items], "Items of Datasets")
            packed = Packed(X, self.takes, lambda part, name: tensor(part, self.dtype, torch.device("cpu"), name))
            return packed[torch.arange(len(items))], default_collate([y for _, y in items])

    def _item(self, owner: int, row: int) -> Any:
        try:
            return self.sets[owner][row - int(self.starts[owner])]
        except CoterieError:
            raise
        except RAISED as problem:
            raise CoterieError(f"The Dataset does not give {self.place(row)}: it raises {named(problem)}.") from problem

    def _misfit(self, items: list[Any], rows: Ints) -> str:
        """The first row whose item looks unlike the first one, in words."""
        look = [kind_of(item) for item in items]
        other = next((k for k, said in enumerate(look) if said != look[0]), 0)
        if not other:
            return f"{self.place(int(rows[0]))} ({look[0]})"
        return f"{self.place(int(rows[0]))} ({look[0]}) and {self.place(int(rows[other]))} ({look[other]})"

    def _shaped(self, values: Any, what: str, index: Ints) -> Any:
        row = int(index.flat[0])
        if isinstance(values, Several):
            return values.map(lambda part: part.reshape(*index.shape, *part.shape[1:]))
        if isinstance(values, Mapping | tuple | list) and len(values):
            named = values if isinstance(values, Mapping) else {str(k): part for k, part in enumerate(values)}
            form, names = form_of([*named], self.takes if what == "inputs" else {})
            made = (self._shaped(part, what, index) for part in named.values())
            return Several(dict(zip(names, made, strict=True)), form)
        got = tensor(values, self.dtype, torch.device("cpu"), f"The {what} of {self.place(row)}")
        if not got.ndim or len(got) != index.size:
            raise CoterieError(
                f"The {what} of {self.place(row)} have the shape {tuple(got.shape)} where {index.size} rows were put "
                "together: their first axis must be that of rows."
            )
        return got.reshape(*index.shape, *got.shape[1:])

    def probe(self) -> None:
        """Look at one row of some clients: a CoterieError where shapes differ that must be alike."""
        full = np.flatnonzero(self.stops > self.starts)
        seen: tuple[int, list[torch.Size]] | None = None
        for number in full[np.linspace(0, len(full) - 1, min(len(full), PROBED)).astype(np.int64)].tolist():
            shapes = [values.shape[1:] for values in self.gather(self.starts[number : number + 1])]
            seen = seen or (number, shapes)
            for name, a, b in zip("Xy", shapes, seen[1], strict=True):
                if a != b and self.usual and not {MASK, LENGTHS} & self.takes.keys():
                    raise CoterieError(_differ(name, self.label(number), a, self.label(seen[0]), b))


def of_clients(clients: Any, dtype: torch.dtype, device: torch.device, made: Any = None) -> Tensors | Sets:
    """Rows of a list or mapping of clients: in memory where all of them are pairs (X, y)."""
    single = isinstance(clients, Dataset | DataLoader | Tensor | np.ndarray | str | tuple)
    if single or not isinstance(clients, Iterable):
        raise CoterieError("Give a list with the data of each client, also where there is one alone.")
    labels = list(map(str, clients)) if isinstance(clients, Mapping) else None
    data = list(clients.values() if isinstance(clients, Mapping) else clients)
    if not data:
        raise CoterieError("There are no clients: give the data of one at least.")
    how = data, labels or [str(i) for i in range(len(data))], dtype, device
    rows = Tensors.joined(*how, made) if all(isinstance(c, tuple) for c in data) else Sets(*how, made)
    rows.labels = labels
    return rows


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """A pair of arrays as a Dataset."""

    def __init__(self, rows: Tensors) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.rows.X[row], self.rows.y[row]


def _pair(who: str, pair: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensors:
    """One client's arrays; what is wrong with them is said with the client's name."""
    if len(pair) != 2:
        raise CoterieError(f"The data of client {who} must be a pair (X, y), not {kind_of(pair)}.")
    try:
        return Tensors(*pair, dtype, device)
    except CoterieError as e:
        raise CoterieError(f"Client {who}: {e}") from e


def _items(who: str, data: Any, dtype: torch.dtype) -> Any:
    """What has items by number: of a loader its Dataset, of a pair (X, y) one of both."""
    if isinstance(data, tuple):
        return Pairs(_pair(who, data, dtype, torch.device("cpu")))
    data = data.dataset if isinstance(data, DataLoader) else data
    if data is None or isinstance(data, str | bytes | Mapping) or hasattr(data, "__array__"):
        raise CoterieError(
            f"The data of client {who} must be a Dataset, a DataLoader or a pair (X, y), not {kind_of(data)}."
        )
    if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise CoterieError(
            f"The data of client {who} can only be read in order ({type(data).__name__}): give a Dataset "
            "with a length and items by number, so that rows can be drawn."
        )
    return data


def _length(who: str, data: Any) -> int:
    try:
        return len(data)
    except RAISED as problem:
        raise CoterieError(f"The Dataset of client {who} has no length: len raises {named(problem)}.") from problem


def _differ(name: str, one: str, shape: torch.Size, other: str, wanted: torch.Size) -> str:
    return (
        f"All clients must have rows of one shape: those of {name} are {tuple(shape)} at client {one} and "
        f"{tuple(wanted)} at client {other}. Give all the same columns (of images: the same size), or pad them."
    )


def kind_of(item: Any) -> str:
    """What something looks like, in a few words."""
    if isinstance(item, Tensor | np.ndarray):
        return f"an array of shape {tuple(item.shape)}"
    if isinstance(item, Mapping):
        return f"a dict of {', '.join(map(str, list(item)[:5]))}"
    if isinstance(item, tuple | list):
        return f"a {type(item).__name__} of {len(item)}: {', '.join(map(kind_of, item[:3]))}" if len(item) else "empty"
    return "None" if item is None else "a number" if isinstance(item, Real) else f"a {type(item).__name__}"


def tensor(values: Any, dtype: torch.dtype, device: torch.device, what: str) -> Tensor:
    """Numbers of any kind as a tensor: floating ones take the model's type, others stay as they are."""
    if not isinstance(values, Tensor):
        values = _array(values, what)
        with warnings.catch_warnings():  # what is read-only is never written
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            values = torch.from_numpy(values)
    if values.layout is not torch.strided or values.is_quantized or values.is_nested:
        raise CoterieError(f"{what} must be a plain tensor of numbers: give X.to_dense(), or X.dequantize().")
    if values.is_meta:
        raise CoterieError(f"{what} must hold numbers, which a tensor on the device meta does not: give the rows.")
    if values.is_complex():
        raise CoterieError(f"{what} must be real numbers: give real and imaginary parts as two columns.")
    if values.is_floating_point():
        values = values.to(dtype)
    placed: Tensor = values.detach().to(device).contiguous()
    return placed


def _array(values: Any, what: str) -> npt.NDArray[Any]:
    """An array that torch can share: numbers in the machine's own byte order."""
    array = as_numbers(values, what)
    kind = array.dtype.kind
    wanted = np.int64 if kind == "u" else np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, dtype=wanted).reshape(array.shape)
