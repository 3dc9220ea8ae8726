"""One secure sum as all sides see it: who takes part with which keys, and which site holds which group."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.engines import wire
from coterie.errors import CoterieError
from coterie.federation import Ints

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Key:
    """The public part of a site's keys for one sum, used once.

    Attributes
    ----------
    epoch : int
        Rises from key to key of a site.
    public : bytes
        X25519 key that masks are agreed with.
    check : bytes
        Tells whether a mask seed was put together rightly.
    signature : bytes
        By the site's identity.
    """

    epoch: int
    public: bytes
    check: bytes
    signature: bytes

    def statement(self, owner: str, context: bytes) -> bytes:
        """What the owner signs."""
        return wire.encode(["secure sum key", context, owner, self.epoch, self.public, self.check])

    def bound(self, owner: str, holder: str, context: bytes) -> bytes:
        """What an encrypted share of this key is bound to."""
        return wire.encode(["secure sum share", context, owner, holder, self.epoch, self.public])

    def as_list(self) -> list[Any]:
        """For the wire."""
        return [self.epoch, self.public, self.check, self.signature]

    @classmethod
    def read(cls, saved: Any) -> Key:
        """From the wire; a CoterieError if it is no key."""
        try:
            epoch, *parts = saved
            sound = isinstance(epoch, int) and [len(p) for p in parts] == [32, 32, 64]
            sound = sound and all(isinstance(p, bytes) for p in parts)
        except (TypeError, ValueError):
            sound = False
        if not sound:
            raise CoterieError("A key of a secure sum has not the form of one.")
        return cls(epoch, *parts)


LIFE = 16
"""Random bytes by which a site's memory is told from the one that it had before somebody deleted it."""


def read_lives(saved: Any) -> dict[str, bytes]:
    """Lives of sites from the wire; a CoterieError if they are none."""
    lives = dict(saved) if isinstance(saved, Mapping) else {"": b""}
    if not all(isinstance(n, str) and isinstance(life, bytes) and len(life) == LIFE for n, life in lives.items()):
        raise CoterieError("A secure sum was asked for without saying who holds its keys.")
    return lives


class Round:
    """Who takes part in one sum.

    Parameters
    ----------
    keys : dict of str to Key
        Sites that take part.
    cover : (groups, sites) bool
        Which groups each of the sites, sorted by name, has clients in.
    lives : dict of str to bytes
        What the keys were made for: the life of every site that holds shares of them.
    """

    def __init__(self, keys: Mapping[str, Key], cover: Bools, lives: Mapping[str, bytes]) -> None:
        self.keys = dict(sorted(keys.items()))
        self.names: Sequence[str] = list(self.keys)
        self.cover, self.lives = cover, dict(sorted(lives.items()))

    def as_dict(self) -> dict[str, Any]:
        """For the wire."""
        packed = np.packbits(self.cover, axis=1)
        keys = [k.as_list() for k in self.keys.values()]
        return {"names": self.names, "keys": keys, "cover": packed, "lives": self.lives}

    @classmethod
    def read(cls, saved: Any) -> Round:
        """From the wire; a CoterieError if it is no round."""
        try:
            names, packed = saved["names"], saved["cover"]
            keys = dict(zip(names, map(Key.read, saved["keys"]), strict=True))
            sound = names == sorted(set(names)) and packed.shape[1:] == ((len(names) + 7) // 8,)
            cover = np.unpackbits(packed, axis=1, count=len(names)).astype(bool) if sound else packed
            lives = read_lives(saved["lives"])
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise CoterieError("A secure sum was asked for without saying who takes part.") from problem
        if not sound:
            raise CoterieError("A secure sum was asked for with sites and groups that do not fit together.")
        return cls(keys, cover, lives)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that tell this round from all others."""
        return hashlib.sha256(wire.encode(self.as_dict())).digest()

    def rows(self, name: str) -> Ints:
        """The groups that a site has clients in."""
        return np.flatnonzero(self.cover[:, self.names.index(name)])

    def common(self, name: str, other: str) -> Bools:
        """Of the groups of a site, which another has clients in too."""
        common: Bools = self.cover[self.rows(name), self.names.index(other)]
        return common

    def sent(self, owner: str, context: bytes) -> bytes:
        """What a site signs that has masked its sums for this round."""
        return wire.encode(["secure sum sent", context, owner, self.digest])

    def opened(self, answered: Bools, context: bytes) -> bytes:
        """What a site signs that helps to open the sum over the sites that ``answered``, and over no others."""
        return wire.encode(["secure sum opened", context, self.digest, answered])

    def purpose(self) -> bytes:
        """What masks of this round are derived for."""
        return b"coterie secure sum mask" + self.digest


def smallest_group(cover: Bools, least: int) -> tuple[int, int] | None:
    """A row of ``cover`` (groups, sites) with fewer than ``least`` sites but not none, and how many; or None."""
    left = cover.sum(axis=1)
    found = np.flatnonzero((left > 0) & (left < least))
    return (int(found[0]), int(left[found[0]])) if len(found) else None
