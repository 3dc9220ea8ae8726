"""Cryptography of secure sums: keys, masks, encryption and identities, by ``cryptography``, and secret sharing.

Keys are X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305. Secrets are shared after Shamir (1979): any t of n shares
give the secret, fewer tell nothing. The secret is the value at 0 of a random polynomial of degree t - 1 over the
integers modulo a prime; share x is its value at x.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from coterie import files
from coterie.engines.secure_sum.fixed_point import Words
from coterie.errors import CoterieError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as problem:
    raise CoterieError("Secure sums need the package cryptography: pip install 'coterie[secure]'.") from problem

NONCE = 12


def public(secret: bytes) -> bytes:
    """The public half of the X25519 key of 32 secret bytes (RFC 7748)."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, other: bytes, purpose: bytes) -> bytes:
    """32 bytes for one purpose that only the owners of two X25519 keys know: HKDF-SHA256 (RFC 5869) of their secret."""
    try:
        common = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as problem:  # a point of small order, which makes the secret known to all
        raise CoterieError("A public key of a secure sum is not sound: its site must join again.") from problem
    return derive(common, purpose)


def derive(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes for one purpose from secret bytes: HKDF-SHA256 without salt."""
    return HKDF(SHA256(), 32, None, purpose).derive(secret)


def seed_check(seed: bytes) -> bytes:
    """What a mask seed is told by once it is put together again; it tells nothing of the masks."""
    return derive(seed, b"coterie secure sum check")


def stream(key: bytes, n: int) -> Words:
    """A mask of n numbers, (n, 2) uint64: the ChaCha20 key stream (RFC 7539, nonce 0), for a key that is used once."""
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    words = np.frombuffer(encryptor.update(bytes(16 * n)), "<u8").reshape(n, 2)
    return words.astype(np.uint64, copy=False)


def seal(key: bytes, data: bytes, bound: bytes, nonce: bytes) -> bytes:
    """``data`` encrypted for the other owner of ``key``, readable only together with the same ``bound`` bytes."""
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, data, bound)


def unseal(key: bytes, sealed: bytes, bound: bytes) -> bytes:
    """What :func:`seal` was given; a CoterieError where key, bytes or bound bytes are others."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE], sealed[NONCE:], bound)
    except (InvalidTag, ValueError) as problem:
        raise CoterieError("An encrypted share cannot be opened.") from problem


_TITLE = "coterie identity 1"


class Identity:
    """A site's long-term keys, 64 secret bytes: an Ed25519 key signs, and shares are encrypted to an X25519 key."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 64:
            raise CoterieError(f"An identity has 64 bytes, not {len(secret)}.")
        self._secret = secret
        self._signing = Ed25519PrivateKey.from_private_bytes(secret[:32])
        self.public = self._signing.public_key().public_bytes_raw() + public(secret[32:])

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
        return agree(self._secret[32:], peer[32:], purpose)


def signed(signature: bytes, data: bytes, public: bytes) -> bool:
    """Whether the owner of a public identity signed ``data``."""
    try:
        Ed25519PublicKey.from_public_bytes(public[:32]).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


PRIME = 2**256 + 297  # the first above 2^256, so that every 32 bytes are a number below it
SECRET, SHARE = 32, 33  # bytes of a secret, and of a share


def split_secret(secret: bytes, t: int, n: int, entropy: Callable[[int], bytes] = os.urandom) -> list[bytes]:
    """Shares 1 to n of a secret of 32 bytes, of which t open it: 33 bytes each; position x - 1 holds share x."""
    if len(secret) != SECRET or not 1 <= t <= n:
        raise CoterieError(f"A secret of {len(secret)} bytes cannot be shared among {n} so that {t} open it.")
    # 16 bytes more than the prime has: the remainder is uniform to 2^-127.
    line = [int.from_bytes(secret, "big"), *(int.from_bytes(entropy(49), "big") % PRIME for _ in range(t - 1))]
    shares = []
    for x in range(1, n + 1):
        value = 0
        for coefficient in reversed(line):
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE, "big"))
    return shares


def join_secret(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares ``{x: bytes}``, of which there must be t or more; a CoterieError where they give none."""
    values = {x: int.from_bytes(share, "big") for x, share in shares.items()}
    if not values or any(len(s) != SHARE for s in shares.values()) or max(values.values()) >= PRIME:
        raise CoterieError("Bytes that are no shares cannot be joined.")
    secret = 0
    for x, weight in weights(list(values)).items():
        secret = (secret + weight * values[x]) % PRIME
    if secret >= 2**256:
        raise CoterieError("These shares do not belong together, or are too few.")
    return secret.to_bytes(SECRET, "big")


def weights(places: list[int]) -> dict[int, int]:
    """Weight of each share in the value at 0: Lagrange's formula."""
    found = {}
    for x in places:
        over = under = 1
        for other in places:
            if other != x:
                over, under = over * other % PRIME, under * (other - x) % PRIME
        found[x] = over * pow(under, -1, PRIME) % PRIME
    return found
