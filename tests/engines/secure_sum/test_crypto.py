"""Known answers of the library, as it is used here (RFC 7748, 5869 and 7539), and secret sharing."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from coterie.engines.secure_sum import crypto
from coterie.engines.secure_sum.crypto import PRIME, join_secret, split_secret
from coterie.errors import CoterieError

# RFC 7748, section 6.1
ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
COMMON = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")


def test_x25519():
    assert crypto.public(ALICE) == ALICE_PUBLIC and crypto.public(BOB) == BOB_PUBLIC
    assert crypto.agree(ALICE, BOB_PUBLIC, b"p") == crypto.agree(BOB, ALICE_PUBLIC, b"p") == crypto.derive(COMMON, b"p")
    assert crypto.agree(ALICE, BOB_PUBLIC, b"q") != crypto.agree(ALICE, BOB_PUBLIC, b"p")


def test_a_public_key_that_makes_the_secret_known_is_refused():
    with pytest.raises(CoterieError, match="not sound"):
        crypto.agree(ALICE, bytes(32), b"p")


def test_hkdf():
    """RFC 5869, test case 3: no salt, no info; the first 32 bytes of its output."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert crypto.derive(b"\x0b" * 22, b"").hex() == expected


def test_chacha20():
    """RFC 7539, appendix A.1, test vectors 1 and 2: key and nonce 0, blocks 0 and 1."""
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    words = crypto.stream(bytes(32), 8)
    assert words.shape == (8, 2) and words.astype("<u8").tobytes().hex() == expected
    assert crypto.stream(bytes(32), 0).shape == (0, 2)


def test_chacha20_poly1305():
    """RFC 7539, section 2.8.2."""
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    bound = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
        b"sunscreen would be it."
    )
    sealed = crypto.seal(key, text, bound, nonce)
    assert sealed[:12] == nonce and sealed[12:28].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"
    assert crypto.unseal(key, sealed, bound) == text
    for broken in (sealed[:-1] + b"\0", sealed[:5], b""):
        with pytest.raises(CoterieError, match="cannot be opened"):
            crypto.unseal(key, broken, bound)
    with pytest.raises(CoterieError, match="cannot be opened"):
        crypto.unseal(key, sealed, b"other")


# -- secret sharing: any t shares give the secret, and t - 1 give nothing

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
