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
from coterie.numerics.kernels import Floats, Ints
from coterie.relations.layout import Layout


@dataclass(frozen=True)
class GroupLayout:
    """Where the parameters of every group's model are in the augmented one.

    Attributes
    ----------
    reads : (d_1 + ... + d_k,) int64
        The entry of the augmented model that each parameter is, group after group. No two of a group are the same one.
    sizes : (k,) int64
        Parameters d_g of each group's model.
    shared : int
        Length of x_s, which comes first.
    """

    reads: Ints
    sizes: Ints
    shared: int

    @classmethod
    def of(cls, layers: Sequence[Mapping[str, int]], shared: Sequence[str] = ()) -> GroupLayout:
        """From the layers of every group's model.

        Parameters
        ----------
        layers : sequence of mappings
            ``{name: size}`` of each group, in the order of its parameters.
        shared : sequence of str, default ()
            Names or patterns of the layers that all groups share; each group's other layers are its own.

        Raises
        ------
        CoterieError
            For a pattern that matches nothing, and for a shared layer that some group lacks or has in another size.
        """
        pieces = [Layout.of(names, shared=shared) for names in layers]
        common = [_chosen(names, piece) for names, piece in zip(layers, pieces, strict=True)]
        for g, mine in enumerate(common[1:], start=1):
            _need_same(common[0], mine, g)
        first = dict(zip(common[0], np.cumsum([0, *common[0].values()])[:-1], strict=True))
        size, reads = sum(common[0].values()), []
        for names, mine, piece in zip(layers, common, pieces, strict=True):
            at = [first[name] + np.arange(n) if name in mine else np.full(n, -1) for name, n in names.items()]
            of = np.concatenate([np.empty(0, dtype=np.int64), *at]).astype(np.int64)
            of[of < 0] = size + np.arange(piece.d2)
            size += piece.d2
            reads.append(of)
        total = np.array([len(of) for of in reads], dtype=np.int64)
        return cls(np.concatenate(reads), total, sum(common[0].values()))

    def arrays(self) -> dict[str, Any]:
        """All that makes this layout again: ``GroupLayout(**arrays)``."""
        return {"reads": self.reads, "sizes": self.sizes, "shared": self.shared}

    @property
    def k(self) -> int:
        """Number of groups."""
        return len(self.sizes)

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

    @cached_property
    def blocks(self) -> Ints:
        """The block of every entry (dim,): 0 for x_s, g + 1 for what is group g's own."""
        out = np.zeros(self.dim, dtype=np.int64)
        for g in range(self.k):
            of = self.of_group(g)
            out[of[of >= self.shared]] = g + 1
        return out

    def shared_part(self, g: int, part: Floats) -> Floats:
        """Those of group g's numbers (d_g,) that belong to x_s, (shared,)."""
        of = self.of_group(g)
        out = np.zeros(self.shared, dtype=part.dtype)
        out[of[of < self.shared]] = part[of < self.shared]
        return out

    def gather(self, parts: Sequence[Floats], share: Floats) -> Floats:
        """``sum_g share_g parts_g``, every coordinate at its place.

        Parameters
        ----------
        parts : k arrays (..., d_g)
            Such as gradients of the groups' mean losses.
        share : (k,)
            Such as |G| / n.

        Returns
        -------
        (..., dim)
            Then the gradient of the augmented objective.
        """
        out = np.zeros((*np.shape(parts[0])[:-1], self.dim), dtype=np.result_type(np.asarray(parts[0]), np.float32))
        for g, part in enumerate(parts):
            out[..., self.of_group(g)] += share[g] * part
        return out


def _chosen(names: Mapping[str, int], piece: Layout) -> dict[str, int]:
    """The shared ones of some layers."""
    starts = np.cumsum([0, *names.values()])[:-1]
    return {name: n for (name, n), at in zip(names.items(), starts, strict=True) if piece.shared[at] >= 0}


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
