"""Secret sharing: any t shares give the secret, and t - 1 give nothing."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.engines.secure_sum.crypto import PRIME, join_secret, split_secret
from coterie.errors import CoterieError

SECRETS = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32]))


@given(data=st.data(), secret=SECRETS, n=st.integers(1, 12))
def test_any_t_shares_give_the_secret(data, secret, n):
    t = data.draw(st.integers(1, n))
    shares = dict(enumerate(split_secret(secret, t, n), 1))
    some = data.draw(st.permutations(sorted(shares)))[: data.draw(st.integers(t, n))]
    assert join_secret({x: shares[x] for x in some}) == secret


def test_the_modulus_is_prime():
    """Pocklington's test would need the factors of p - 1; Miller and Rabin's errs once in 4^40."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, PRIME)
        assert x in (1, PRIME - 1) or any((x := x * x % PRIME) == PRIME - 1 for _ in range(twos - 1))


@given(secret=SECRETS, other=SECRETS, t=st.integers(2, 6))
def test_fewer_shares_fit_every_secret(secret, other, t):
    """For t - 1 shares of one secret there is a polynomial through them for any other: Lagrange's through 0."""
    shares = split_secret(secret, t, t)
    points = {0: int.from_bytes(other, "big")} | {x: int.from_bytes(shares[x - 1], "big") for x in range(1, t)}
    last = 0
    for x, y in points.items():
        over = under = 1
        for z in points:
            if z != x:
                over, under = over * (t - z) % PRIME, under * (x - z) % PRIME
        last = (last + y * over * pow(under, -1, PRIME)) % PRIME
    forged = {x: shares[x - 1] for x in range(1, t)} | {t: last.to_bytes(33, "big")}
    assert join_secret(forged) == other


def test_fixed_coefficients_give_fixed_shares():
    """Secret 1, slope 2, curvature 3: 1 + 2 x + 3 x^2."""
    drawn = iter([(2).to_bytes(49, "big"), (3).to_bytes(49, "big")])
    shares = split_secret((1).to_bytes(32, "big"), 3, 4, lambda size: next(drawn))
    assert [int.from_bytes(s, "big") for s in shares] == [6, 17, 34, 57]
    assert {len(s) for s in shares} == {33}


def test_what_is_no_share_is_refused():
    for shares in ({}, {1: b"short"}, {1: b"\xff" * 33}):
        with pytest.raises(CoterieError, match="no shares"):
            join_secret(shares)
    with pytest.raises(CoterieError, match="do not belong together"):
        join_secret({1: (PRIME - 1).to_bytes(33, "big")})
    for secret, t, n in ((b"short", 1, 2), (os.urandom(32), 3, 2), (os.urandom(32), 0, 2)):
        with pytest.raises(CoterieError, match="cannot be shared"):
            split_secret(secret, t, n)
