"""Coded updates that somebody meant to break: decoded as finite vectors or refused, in the room of the vectors."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import zstandard

from coterie.codecs import by_name
from coterie.codecs.codec import frame, unframe
from coterie.errors import CoterieError
from coterie.federation import Ragged
from tests.messages import names
from tests.property.fuzzing import damaged

NAMES = (
    *("none", "float32", "float16", "qsgd:4", "qsgd:2:coded", "qsgd:8:l2", "topk:2", "topk:0.5:32", "sign", "kmeans:2"),
    *("kmeans:200", "lowrank:1", "lowrank:2", "tv:2", "tv:200", "tv:all"),
)
LENGTHS = (1, 2, 40, 300)
TABLE = 700_000  # frequencies of 256 labels after each of 256 are half a megabyte, however short the row
FULL = pytest.mark.skipif("NUMBA_BOUNDSCHECK" in os.environ, reason="one form is enough where kernels check bounds")


def decoded(name, d, bodies, flags):
    """Rows of some bodies in frames that hold; None where they are refused; and the room that took."""
    codec = by_name(name)
    head = np.uint8(codec.identity << 3 | codec.version << 1)
    payload = frame(bodies, head | flags, codec._order_and_salts(len(bodies), d, None)[1])
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        rows = codec.decode(payload, d)
    except CoterieError:
        rows = None
    return rows, tracemalloc.get_traced_memory()[1] - before


def tried(name, many):
    """How many of ``many`` damaged messages were decoded all the same."""
    rng, found = np.random.default_rng(0), 0
    for turn in range(many):
        d = LENGTHS[turn % len(LENGTHS)]
        x = np.round(rng.normal(size=(3, d)), 1) * 10.0 ** rng.integers(-30, 30)
        sent = by_name(name).encode(x, np.arange(3), turn).payload
        whole, heads, sound = unframe(sent, by_name(name)._order_and_salts(3, d, None)[1])
        assert sound.all()
        parts, flags = [whole[i].tobytes() for i in range(3)], heads & np.uint8(1)
        hit = rng.integers(3)
        parts[hit] = damaged(rng, parts[hit], [*parts, b"\0", rng.bytes(12)])
        if rng.random() < 0.1:
            flags[hit] ^= 1
        rows, room = decoded(name, d, Ragged.of(parts), flags)
        assert room < 200 * d + 40 * sum(map(len, parts)) + TABLE
        if rows is not None:
            found += 1
            assert rows.shape == (3, d) and np.isfinite(rows).all()
    return found


@pytest.fixture
def watched():
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("many", [30, pytest.param(2000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", NAMES)
def test_whatever_arrives_is_a_finite_vector_or_refused_in_little_room(name, many, watched):
    assert tried(name, many) > 0


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_decoded_whose_checksum_does_not_hold(name):
    rng = np.random.default_rng(1)
    sent = by_name(name).encode(rng.normal(size=(2, 40)), np.arange(2), 0).payload
    whole = [sent[i].tobytes() for i in range(2)]
    for _ in range(40):
        other = damaged(rng, whole[0], [*whole, b"\0"])
        if other != whole[0] and other != whole[1]:
            with pytest.raises(CoterieError, match="Row 0"):
                by_name(name).decode(Ragged.of([other, whole[1]]), 40)


@pytest.mark.parametrize("name", ["none", "float32", "float16"])
@pytest.mark.parametrize("said", [True, False], ids=["its length said", "not said"])
def test_a_body_that_would_unpack_to_a_hundred_megabytes_is_refused_in_little_room(name, said, watched):
    form = zstandard.ZstdCompressionParameters.from_level(
        3, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_checksum=False, write_content_size=said, write_dict_id=False
    )
    bomb = zstandard.ZstdCompressor(compression_params=form).compress(bytes(100_000_000))
    assert len(bomb) < 20_000
    tracemalloc.clear_traces()
    rows, room = decoded(name, 12, Ragged.of([bomb]), np.ones(1, np.uint8))
    assert rows is None
    assert room < TABLE


@pytest.mark.parametrize(("name", "kind"), [("none", "<f8"), ("float32", "<f4")])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused_by_row(name, kind, bad):
    rows = np.ones((2, 5))
    rows[1, 3] = bad
    bodies = Ragged.of([row.astype(kind).tobytes() for row in rows])
    codec = by_name(name)
    payload = frame(bodies, np.full(2, codec.identity << 3, np.uint8), codec._order_and_salts(2, 5, None)[1])
    with pytest.raises(CoterieError, match=names("Row 1 holds NaN infinite numbers")):
        codec.decode(payload, 5)


@FULL
@pytest.mark.soak
def test_compiled_decoders_stay_within_their_arrays(tmp_path):
    """The same in a process whose kernels check every index."""
    checks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "finite_vector"]
    done = subprocess.run(command, env=os.environ | checks, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout
