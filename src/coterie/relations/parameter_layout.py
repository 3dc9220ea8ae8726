"""Which parameters all clients share and which are a client's own: ``theta_n = M x + N z_n`` (paper 003, IV-B).

Every row of M and of N has at most one value that is not zero, and that is 1, so two columns of whole numbers say all:
which entry of x, and which of z_n, a parameter reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

import numpy as np

from coterie.errors import CoterieError, listed, nearest
from coterie.lazy_modules import sparse
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option, checked

Kind = Literal["shared", "personal", "both", "zero"]
Names = Annotated[
    dict[str, int] | tuple[str, ...],
    Option(low=1, what="a list of names, or a table of names and sizes, which are whole numbers from 1"),
]
Patterns = Annotated[tuple[str, ...], Option("Names of parameters, or patterns such as conv*.")]
Tied = Annotated[dict[str, str] | None, Option(what="a table of names and names")]
Rest = Annotated[Kind, Option("What is not named.")]

NOTHING = -1  # a parameter that reads no entry


@dataclass(frozen=True)
class Layout:
    """What each of d parameters is made of.

    It is *shared* where only M's row is not zero, *personal* where only N's is, the *sum* of both where both are, and
    *fixed at zero* where neither is. Parameters that read the same entry are tied.
    """

    shared: Ints  # (d,) row j of M: the entry of x that parameter j reads, or -1
    personal: Ints  # (d,) row j of N: the entry of z_n, or -1

    def __post_init__(self) -> None:
        for name in ("shared", "personal"):
            given = np.asarray(getattr(self, name))
            if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
                raise CoterieError(f"{name} of a layout must be whole numbers, one for each parameter.")
            index = given.astype(np.int64)
            used = np.unique(index[index != NOTHING])
            if not np.array_equal(used, np.arange(len(used))):
                raise CoterieError(f"{name} of a layout must count 0, 1, 2, ... without a gap; -1 reads nothing.")
            object.__setattr__(self, name, index)
        if len(self.shared) != len(self.personal):
            raise CoterieError("A layout needs shared and personal for the same parameters.")

    @classmethod
    def columns(cls, d: int, personal: Ints) -> Layout:
        """The columns ``personal`` (q,) of d are each client's own, all others shared."""
        own = np.full(d, NOTHING, dtype=np.int64)
        own[personal] = np.arange(len(personal))
        common = np.full(d, NOTHING, dtype=np.int64)
        rest = own == NOTHING
        common[rest] = np.arange(rest.sum())
        return cls(common, own)

    @classmethod
    @checked
    def of(
        cls,
        names: Names,
        shared: Patterns = (),
        personal: Patterns = (),
        both: Patterns = (),
        zero: Patterns = (),
        tied: Tied = None,
        rest: Rest = "personal",
    ) -> Layout:
        """From the names of columns or layers, in the order of parameters; a layer's size is that of its tensor.

        ``shared``, ``personal``, ``both`` and ``zero`` are names, or patterns such as ``conv*``, of what is common to
        all clients, each client's own, the sum of both, or fixed at zero; ``rest`` is what is not named. With
        ``tied={name: other}`` the parameters of ``name`` are those of ``other``, of the same size. A CoterieError for
        names that match nothing (the names are listed), are matched twice, or are tied in a circle.
        """
        sizes = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, 1)
        if len(sizes) != len(names):
            raise CoterieError("A layout needs each name once.")
        kind: dict[str, str] = {}
        for what, patterns in zip(get_args(Kind), (shared, personal, both, zero), strict=True):
            for name in matching(patterns, sizes):
                if kind.setdefault(name, what) != what:
                    raise CoterieError(f"'{name}' cannot be {kind[name]} and {what}: name it once.")
        to = _roots(tied or {}, sizes, kind)
        stops = dict(zip(sizes, np.cumsum(list(sizes.values())), strict=True))
        index = {"x": np.full(sum(sizes.values()), NOTHING), "z": np.full(sum(sizes.values()), NOTHING)}
        count = {"x": 0, "z": 0}
        for name in sorted(sizes, key=lambda n: to.get(n, n) != n):  # those that others are tied to come first
            here = slice(stops[name] - sizes[name], stops[name])
            for part, kinds in (("x", ("shared", "both")), ("z", ("personal", "both"))):
                if name in to:
                    there = slice(stops[to[name]] - sizes[name], stops[to[name]])
                    index[part][here] = index[part][there]
                elif kind.get(name, rest) in kinds:
                    index[part][here] = count[part] + np.arange(sizes[name])
                    count[part] += sizes[name]
        return cls(index["x"].astype(np.int64), index["z"].astype(np.int64))

    @property
    def d(self) -> int:
        """Number of parameters."""
        return len(self.shared)

    @cached_property
    def d1(self) -> int:
        """Length of x."""
        return int(self.shared.max(initial=NOTHING)) + 1

    @cached_property
    def d2(self) -> int:
        """Length of z_n."""
        return int(self.personal.max(initial=NOTHING)) + 1

    @cached_property
    def M(self) -> Any:  # noqa: N802 - the paper's
        """(d, d1) sparse."""
        return _matrix(self.shared, self.d1)

    @cached_property
    def N(self) -> Any:  # noqa: N802 - the paper's
        """(d, d2) sparse."""
        return _matrix(self.personal, self.d2)

    def theta(self, x: Floats, Z: Floats) -> Floats:
        """Parameters (n, d) of clients with z_n = Z[n], from x (d1,) and Z (n, d2)."""
        wide = np.concatenate([x, [0.0]])[self.shared]
        own: Floats = np.concatenate([Z, np.zeros((len(Z), 1))], axis=1)[:, self.personal]
        return wide + own

    def to_shared(self, g: Floats) -> Floats:
        """M'g: from (..., d) to (..., d1)."""
        return np.asarray(g @ self.M)

    def to_personal(self, g: Floats) -> Floats:
        """N'g: from (..., d) to (..., d2)."""
        return np.asarray(g @ self.N)

    def split(self, theta: Floats) -> tuple[Floats, Floats]:
        """x (d1,) and Z (n, d2) nearest to parameters (n, d).

        Where only sums of both read an entry of x, it is their mean over clients; z_n is what is left. (Near
        only, where an entry of z_n is read alone and also in a sum.)
        """
        reads, alone = self.shared >= 0, self.personal < 0
        surely = np.append(np.bincount(self.shared[reads & alone], minlength=self.d1), 0)[self.shared] > 0
        tells = reads & (alone | ~surely)
        at = self.shared[tells]
        x = np.bincount(at, theta.mean(axis=0)[tells], self.d1) / np.bincount(at, minlength=self.d1)
        own = theta - np.concatenate([x, [0.0]])[self.shared]
        return x, self.to_personal(own) / np.maximum(np.bincount(self.personal[self.personal >= 0]), 1)


def _matrix(index: Ints, size: int) -> Any:
    rows = np.flatnonzero(index >= 0)
    return sparse.csr_array((np.ones(len(rows)), (rows, index[rows])), shape=(len(index), size))


def matching(patterns: Sequence[str], names: Mapping[str, int]) -> list[str]:
    """The names that patterns match; a CoterieError for one that matches nothing."""
    out = []
    for pattern in patterns:
        found = [pattern] if pattern in names else [n for n in names if fnmatchcase(n, pattern)]
        if not found:
            raise CoterieError(
                f"'{pattern}' matches no parameter.{nearest(pattern, names)} There are {listed(names, 12)}."
            )
        out += found
    return out


def _roots(tied: Mapping[str, str], sizes: Mapping[str, int], kind: Mapping[str, str]) -> dict[str, str]:
    """Whom every tied name follows in the end."""
    for name, other in tied.items():
        matching([name, other], dict.fromkeys(sizes, 1))
        if name in kind:
            raise CoterieError(f"'{name}' is tied to '{other}', so it cannot be {kind[name]} by itself: name it once.")
    out = {}
    for name in tied:
        at, seen = name, {name}
        while at in tied:
            at = tied[at]
            if at in seen:
                raise CoterieError(f"'{name}' is tied to itself in a circle: tie it to one that is not tied.")
            seen.add(at)
        if sizes[at] != sizes[name]:
            raise CoterieError(f"'{name}' has {sizes[name]} numbers and '{at}' {sizes[at]}: they cannot be tied.")
        out[name] = at
    return out


@dataclass(frozen=True)
class GroupLayout:
    """Where the layers of every group's model are in the augmented one, ``[x_s, x_1, ..., x_k]``.

    Groups may have different architectures. All that they share has the same names and sizes, in whatever order.
    """

    at: Ints  # (layers of all groups,) where each begins in the augmented model, group after group
    length: Ints  # (layers of all groups,) how many numbers it has
    layers: Ints  # (k,) layers of each group's model
    shared: int  # length of x_s, which comes first

    @classmethod
    def of(cls, layers: Sequence[Mapping[str, int]], shared: Sequence[str] = ()) -> GroupLayout:
        """From the layers ``{name: size}`` of every group's model, in the order of its parameters.

        ``shared`` are names or patterns of the layers that all groups share; each group's other layers are its own. A
        CoterieError for a pattern that matches nothing, and for a shared layer that some group lacks or has in another
        size.
        """
        chosen = [set(matching(shared, names)) for names in layers]
        common = [
            {name: n for name, n in names.items() if name in mine} for names, mine in zip(layers, chosen, strict=True)
        ]
        for g, mine in enumerate(common[1:], start=1):
            _need_same(common[0], mine, g)
        first = dict(zip(common[0], np.cumsum([0, *common[0].values()])[:-1].tolist(), strict=True))
        size, at = sum(common[0].values()), []
        for names in layers:
            for name, n in names.items():
                at.append(first.get(name, size))
                size += 0 if name in first else n
        length = np.array([n for names in layers for n in names.values()], dtype=np.int64)
        many = np.array([len(names) for names in layers], dtype=np.int64)
        return cls(np.array(at, dtype=np.int64), length, many, sum(common[0].values()))

    def arrays(self) -> dict[str, Any]:
        """All that makes this layout again: ``GroupLayout(**arrays)``."""
        return {"at": self.at, "length": self.length, "layers": self.layers, "shared": self.shared}

    @property
    def k(self) -> int:
        """Number of groups."""
        return len(self.layers)

    @cached_property
    def sizes(self) -> Ints:
        """Parameters d_g of each group's model (k,)."""
        return np.bincount(np.repeat(np.arange(self.k), self.layers), self.length, self.k).astype(np.int64)

    @cached_property
    def reads(self) -> Ints:
        """The entry of the augmented model that each parameter is (d_1 + ... + d_k,), group after group."""
        before = np.cumsum(self.length) - self.length
        return np.repeat(self.at - before, self.length) + np.arange(int(self.length.sum()))

    @cached_property
    def dim(self) -> int:
        """Length of the augmented model."""
        return int(self.reads.max(initial=-1)) + 1

    def of_group(self, g: int) -> Ints:
        """The entries (d_g,) that group g's parameters are."""
        start = int(self.sizes[:g].sum())
        return self.reads[start : start + int(self.sizes[g])]

    def models(self, x: Floats) -> list[Floats]:
        """The model (d_g,) of every group."""
        return [x[self.of_group(g)] for g in range(self.k)]


def _need_same(first: Mapping[str, int], mine: Mapping[str, int], g: int) -> None:
    """Raise for the first layer in which group g's shared part differs from that of group 0."""
    for name in [*first, *mine]:
        here, there = mine.get(name), first.get(name)
        if here == there:
            continue
        if here is None or there is None:
            has, lacks = (0, g) if here is None else (g, 0)
            raise CoterieError(f"Shared layer '{name}' is in group {has}, not in group {lacks}: share what all have.")
        raise CoterieError(
            f"Shared layer '{name}' has {there} numbers in group 0 and {here} in group {g}: share only layers of the "
            "same size, and leave the others to the groups."
        )
