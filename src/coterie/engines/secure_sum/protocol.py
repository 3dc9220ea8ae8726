"""What all sites and the coordinator agree on: the settings of secure sums, who takes part in one, with which keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coterie.engines import wire
from coterie.engines.secure_sum import crypto, fixed_point
from coterie.engines.secure_sum.fixed_point import Layout, Words
from coterie.errors import CoterieError
from coterie.federation import Ints
from coterie.options import Checked, Option

Bools = npt.NDArray[np.bool_]
LEAST = 3  # sites of a sum at least, where nothing else is asked for: one over two tells each of them the other's part


@dataclass(frozen=True)
class Secure(Checked):
    """How sums are hidden.

    Sums are exact to 2^-fraction for each site, and n sites carry numbers below 2^(127 - fraction) / n in size (64 bits
    and 10 sites: steps of 5.4e-20, numbers below 9.2e17). Where ``min_sites`` is 0 it is one more than the threshold,
    where there are so many, and 3 at least: sites that are fewer than the threshold may tell the coordinator what they
    sent, and what is left is a sum over two others or more. A smaller number keeps sums going while more sites are
    away, and in groups of fewer sites; min_sites - 2 sites that help the coordinator still read no other.
    :meth:`promise` says it in words.
    """

    fraction: Annotated[int, Option("Bits after the point.", low=1, high=126)] = 64
    threshold: Annotated[
        int, Option("How many sites must help to open a sum, more than half; 0 is the smallest majority.", low=0)
    ] = 0
    min_sites: Annotated[
        int, Option("How many sites every group of a sum must cover, those that are away not counted.", low=0)
    ] = 0

    def opening(self, sites: int) -> int:
        """The threshold among ``sites``; a CoterieError if it is no majority of them, or more than there are."""
        t = self.threshold or sites // 2 + 1
        if not sites < 2 * t <= 2 * sites:
            raise CoterieError(
                f"Secure sums over {sites} sites need a threshold of {sites // 2 + 1} to {sites}, not {t}."
            )
        return t

    def least(self, sites: int) -> int:
        """How many of ``sites`` every group of a sum must cover."""
        return self.min_sites or max(min(self.opening(sites) + 1, sites), LEAST)

    def withstands(self, sites: int) -> tuple[int, int]:
        """How many of ``sites`` may help a coordinator that still reads no other site; negative: it needs no help.

        Of a coordinator that follows the protocol, and of one that does not.
        """
        t, rest = self.opening(sites), self.least(sites) - 2
        return min(t - 1, rest), min(2 * t - sites - 1, rest)

    def promise(self, sites: int) -> str:
        """What secure sums over ``sites`` need and withstand, in a sentence or two."""
        least, (passive, active) = self.least(sites), self.withstands(sites)
        if passive < 0:
            return "A secure sum may cover one site (min_sites): then the coordinator reads what that site sent."
        helped = (
            "no site that tells it what it sent" if passive == 0 else f"the help of {passive} site{'s' * (passive > 1)}"
        )
        lying = "" if active == passive else f", and one that does not with {active or 'none'}"
        return (
            f"A secure sum covers {least} of {sites} sites at least. A coordinator that follows the protocol reads no "
            f"single site with {helped}{lying}."
        )


def context(secure: Secure, run: str, peers: Mapping[str, bytes], lives: Mapping[str, bytes]) -> bytes:
    """32 bytes that all that is signed or encrypted is bound to: settings, run, sites, and the lives of those there."""
    agreed: list[Any] = [secure.fraction, secure.opening(len(peers)), secure.least(len(peers)), run]
    agreed += [dict(sorted(peers.items())), dict(sorted(lives.items()))]
    return hashlib.sha256(wire.encode(agreed)).digest()


@dataclass(frozen=True)
class Key:
    """The public part of a site's keys for one sum, used once.

    ``epoch`` rises from key to key of a site; masks are agreed with ``public``, an X25519 key; ``check`` tells whether
    a mask seed was put together rightly; ``signature`` is by the site's identity.
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


LIFE = 16  # random bytes by which a site's memory is told from the one that it had before somebody deleted it


def read_lives(saved: Any) -> dict[str, bytes]:
    """Lives of sites from the wire; a CoterieError if they are none."""
    lives = dict(saved) if isinstance(saved, Mapping) else {"": b""}
    if not all(isinstance(n, str) and isinstance(life, bytes) and len(life) == LIFE for n, life in lives.items()):
        raise CoterieError("A secure sum was asked for without saying who holds its keys.")
    return lives


class Round:
    """Who takes part in one sum, with which keys.

    ``cover`` (groups, sites) says which groups each of the sites, sorted by name, has clients in; ``lives`` what the
    keys were made for: the life of every site that holds shares of them.
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

    def mask(self, words: Words, layout: Layout, name: str, other: str, key: bytes, off: bool = False) -> None:
        """Put the mask that ``name`` has with ``other`` on its words, or take it off."""
        at = layout.words_of(self.common(name, other))
        combine = fixed_point.add if (name < other) != off else fixed_point.subtract
        words[at] = combine(words[at], crypto.stream(key, len(words[at])))

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
