"""Secret sharing after Shamir (1979): any t of n shares give the secret, fewer tell nothing.

The secret is the value at 0 of a random polynomial of degree t - 1 over the integers modulo a prime; share x is its
value at x.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from coterie.errors import CoterieError

PRIME = 2**256 + 297  # the first above 2^256, so that every 32 bytes are a number below it
SECRET, SHARE = 32, 33
"""Bytes of a secret, and of a share."""


def split(secret: bytes, t: int, n: int, entropy: Callable[[int], bytes] = os.urandom) -> list[bytes]:
    """Shares 1 to n of ``secret``.

    Parameters
    ----------
    secret : bytes
        32 of them.
    t, n : int
        How many shares open it, and how many there are: 1 <= t <= n.
    entropy : callable
        ``entropy(size)`` gives that many random bytes.

    Returns
    -------
    list of bytes
        33 bytes each; position x - 1 holds share x.
    """
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


def join(shares: Mapping[int, bytes]) -> bytes:
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
