"""Which layers all groups share and which are a group's own: the augmented model ``[x_s, x_1, ..., x_k]``.

Groups may have different architectures. All that they share has the same names and sizes, in whatever order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.parameter_layout import matching


@dataclass(frozen=True)
class GroupLayout:
    """Where the layers of every group's model are in the augmented one."""

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
    def _bounds(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def dim(self) -> int:
        """Length of the augmented model."""
        return int(self.reads.max(initial=-1)) + 1

    def of_group(self, g: int) -> Ints:
        """The entries (d_g,) that group g's parameters are."""
        return self.reads[self._bounds[g] : self._bounds[g + 1]]

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
            raise CoterieError(
                f"Shared layer '{name}' is in group {has} and not in group {lacks}: share only layers that all have."
            )
        raise CoterieError(
            f"Shared layer '{name}' has {there} numbers in group 0 and {here} in group {g}: share only layers of the "
            "same size, and leave the others to the groups."
        )
