"""Keys and masks: X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305, all of them from ``cryptography``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coterie.engines.secure_sum.fixed_point import Words
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

NONCE = 12


def private(secret: bytes) -> X25519PrivateKey:
    """The X25519 key of 32 secret bytes (RFC 7748)."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret)


def public(secret: bytes) -> bytes:
    """The public half of the X25519 key of 32 secret bytes."""
    return private(secret).public_key().public_bytes_raw()


def agree(secret: bytes, other: bytes, purpose: bytes) -> bytes:
    """32 bytes that only the owners of two X25519 keys know: HKDF-SHA256 (RFC 5869) of their common secret.

    Parameters
    ----------
    secret, other : bytes
        One's private key and the other's public one.
    purpose : bytes
        What the bytes are for: other purposes give unrelated bytes.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        common = private(secret).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as problem:  # a point of small order, which makes the secret known to all
        raise CoterieError("A public key of a secure sum is not sound: its site must join again.") from problem
    return derive(common, purpose)


def derive(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes for one purpose from secret bytes: HKDF-SHA256 without salt."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, None, purpose).derive(secret)


def seed_check(seed: bytes) -> bytes:
    """What a mask seed is told by once it is put together again; it tells nothing of the masks."""
    return derive(seed, b"coterie secure sum check")


def stream(key: bytes, n: int) -> Words:
    """A mask of n numbers, (n, 2) uint64: the ChaCha20 key stream (RFC 7539, nonce 0), for a key that is used once."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    words = np.frombuffer(encryptor.update(bytes(16 * n)), "<u8").reshape(n, 2)
    return words.astype(np.uint64, copy=False)


def seal(key: bytes, data: bytes, bound: bytes, nonce: bytes) -> bytes:
    """``data`` encrypted for the other owner of ``key``, readable only together with the same ``bound`` bytes."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return nonce + ChaCha20Poly1305(key).encrypt(nonce, data, bound)


def unseal(key: bytes, sealed: bytes, bound: bytes) -> bytes:
    """What :func:`seal` was given; a CoterieError where key, bytes or bound bytes are others."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE], sealed[NONCE:], bound)
    except (InvalidTag, ValueError) as problem:
        raise CoterieError("An encrypted share cannot be opened.") from problem
