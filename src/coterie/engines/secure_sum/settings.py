"""What all sites and the coordinator agree on beforehand: how sums are carried, who opens them, and who is who."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie import files
from coterie.engines import wire
from coterie.engines.secure_sum import crypto
from coterie.errors import CoterieError

_TITLE = "coterie identity 1"
LEAST = 3
"""Sites of a sum at least, where nothing else is asked for: one over two tells each of them the other's part."""


@dataclass(frozen=True)
class Secure:
    """How sums are hidden.

    Attributes
    ----------
    fraction : int, default 64
        Bits after the point: sums are exact to 2^-fraction for each site, and n sites carry numbers below
        2^(127 - fraction) / n in size (64 bits and 10 sites: steps of 5.4e-20, numbers below 9.2e17).
    threshold : int, default 0
        How many sites must help to open a sum; more than half of all. 0 is the smallest majority.
    min_sites : int, default 0
        How many sites every group of a sum must cover, those that are away not counted. 0 is one more than the
        threshold, where there are so many, and 3 at least: sites that are fewer than the threshold may tell the
        coordinator what they sent, and what is left is a sum over two others or more. A smaller number keeps sums
        going while more sites are away, and in groups of fewer sites; min_sites - 2 sites that help the coordinator
        still read no other. :meth:`promise` says it in words.
    """

    fraction: int = 64
    threshold: int = 0
    min_sites: int = 0

    def __post_init__(self) -> None:
        if find_spec("cryptography") is None:
            raise CoterieError("Secure sums need the package cryptography: pip install 'coterie[secure]'.")
        if not 1 <= self.fraction <= 126:
            raise CoterieError(f"fraction must be a number of bits from 1 to 126, not {self.fraction}.")
        if self.threshold < 0 or self.min_sites < 0:
            raise CoterieError("threshold and min_sites must not be negative.")

    def opening(self, sites: int) -> int:
        """The threshold among ``sites``; a CoterieError if it is no majority of them, or more than there are."""
        t = self.threshold or sites // 2 + 1
        if not sites < 2 * t <= 2 * sites:
            raise CoterieError(
                f"A secure sum over {sites} sites needs a threshold from {sites // 2 + 1} to {sites}, not {t}."
            )
        return t

    def least(self, sites: int) -> int:
        """How many of ``sites`` every group of a sum must cover."""
        return self.min_sites or max(min(self.opening(sites) + 1, sites), LEAST)

    def withstands(self, sites: int) -> tuple[int, int]:
        """How many of ``sites`` may help a coordinator that still reads no other site; negative: it needs no help.

        Returns
        -------
        (int, int)
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


class Identity:
    """A site's long-term keys: an Ed25519 key that signs, and an X25519 key that shares are encrypted to.

    Parameters
    ----------
    secret : bytes
        64 of them: both private keys.
    """

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if len(secret) != 64:
            raise CoterieError(f"An identity has 64 bytes, not {len(secret)}.")
        self._secret = secret
        self._signing = Ed25519PrivateKey.from_private_bytes(secret[:32])
        self.public = self._signing.public_key().public_bytes_raw() + crypto.public(secret[32:])

    @classmethod
    def new(cls, entropy: Callable[[int], bytes] = os.urandom) -> Identity:
        """A fresh identity."""
        return cls(entropy(64))

    @classmethod
    def load(cls, path: str | Path) -> Identity:
        """The identity in a file that :meth:`save` wrote; a CoterieError names a file that holds none."""
        path = files.local(path)
        try:
            title, secret = path.read_text(encoding="ascii").splitlines()
            if title != _TITLE:
                raise ValueError
            return cls(bytes.fromhex(secret))
        except OSError as problem:
            raise CoterieError(f"The identity {path} cannot be read: {problem.strerror or problem}.") from problem
        except ValueError as problem:
            raise CoterieError(f"{path} is not an identity: copy the site's own folder again.") from problem

    def save(self, path: str | Path) -> None:
        """Write the private keys to a new file that only its owner may read."""
        descriptor = os.open(files.local(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{_TITLE}\n{self._secret.hex()}\n")

    def sign(self, data: bytes) -> bytes:
        """64 bytes that :func:`signed` accepts."""
        return self._signing.sign(data)

    def channel(self, peer: bytes, purpose: bytes) -> bytes:
        """The key that this site and the owner of the public identity ``peer`` share for ``purpose``."""
        return crypto.agree(self._secret[32:], peer[32:], purpose)


def signed(signature: bytes, data: bytes, public: bytes) -> bool:
    """Whether the owner of a public identity signed ``data``."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public[:32]).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def context(secure: Secure, run: str, peers: Mapping[str, bytes], lives: Mapping[str, bytes]) -> bytes:
    """32 bytes that all that is signed or encrypted is bound to: settings, run, sites, and the lives of those there."""
    agreed: list[Any] = [secure.fraction, secure.opening(len(peers)), secure.least(len(peers)), run]
    agreed += [dict(sorted(peers.items())), dict(sorted(lives.items()))]
    return hashlib.sha256(wire.encode(agreed)).digest()
