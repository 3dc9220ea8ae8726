"""Keyed random numbers against Python's unbounded integers, written from the papers' constants."""

import hashlib

import numpy as np

from coterie.numerics import keyed_random

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def literal_key(seed, stream, client, step):
    start = int.from_bytes(hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest(), "little")
    return mix((mix(start ^ client) + step * GOLDEN) & MASK)


def literal_uniform(seed, stream, client, step, n):
    key = literal_key(seed, stream, client, step)
    return [(mix((key + (c + 1) * GOLDEN) & MASK) >> 11) * 2.0**-53 for c in range(n)]


IDS = [0, 1, 2**63, 2**64 - 1, 1234567890123456789]


def test_splitmix_as_published():
    """First outputs of SplitMix64 from state 0 (Vigna's splitmix64.c)."""
    state, out = 0, []
    for _ in range(3):
        state = (state + GOLDEN) & MASK
        out.append(mix(state))
    assert out == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_keys():
    for seed, stream, step in ((0, "coins", 0), (7, "split", 3), (-1, "ünïcode", 10**9)):
        ours = keyed_random.keys(seed, stream, np.array(IDS, dtype=np.uint64), step)
        assert [int(k) for k in ours] == [literal_key(seed, stream, i, step) for i in IDS]


def test_keys_of_own_steps():
    ours = keyed_random.keys(3, "a", np.array(IDS, dtype=np.uint64), np.arange(5))
    assert [int(k) for k in ours] == [literal_key(3, "a", i, s) for s, i in enumerate(IDS)]


def test_shuffles():
    """Fisher and Yates, one swap after another; over many keys every order comes as often (chi squared, 23 degrees)."""
    cases, expected = [(0, 1), (3, 2), (7, 0), (5, 9), (10**9, 40)], []
    for step, n in cases * 8:
        order = []
        for b, u in enumerate(literal_uniform(5, "rows", IDS[3], step, n)):
            at = int(u * (b + 1))
            order.append(b)
            order[b], order[at] = order[at], order[b]
        expected += order
    for repeats in (1, 8):  # few keys, and many
        steps, counts = np.tile(np.array(cases).T, repeats)
        found = keyed_random.shuffles(keyed_random.keys(5, "rows", [IDS[3]], steps), counts)
        assert found.tolist() == expected[: len(found)] and len(found) == 52 * repeats
    orders = keyed_random.shuffles(keyed_random.keys(0, "rows", np.arange(4800)), np.full(4800, 4)).reshape(-1, 4)
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24 and ((counts - 200) ** 2 / 200).sum() < 53.0  # 3 in 10,000 are larger


def test_uniform():
    ours = keyed_random.uniform(5, "coins", np.array(IDS, dtype=np.uint64), 2, 6)
    assert ours.tolist() == [literal_uniform(5, "coins", i, 2, 6) for i in IDS]


def test_uniform_rows():
    counts = [3, 0, 1, 5, 2]
    ours = keyed_random.uniform_rows(5, "split", np.array(IDS, dtype=np.uint64), 1, counts)
    expected = [u for i, k in zip(IDS, counts, strict=True) for u in literal_uniform(5, "split", i, 1, k)]
    assert ours.tolist() == expected


def test_generator():
    ours = keyed_random.generator(5, "noise", IDS[4], 3).normal(size=4)
    theirs = np.random.Generator(np.random.PCG64(literal_key(5, "noise", IDS[4], 3))).normal(size=4)
    np.testing.assert_array_equal(ours, theirs)
