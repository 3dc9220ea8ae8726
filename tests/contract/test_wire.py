"""Messages as bytes: what goes in comes out, and what was changed on the way never comes out as something else."""

import contextlib
import pickle
from zlib import crc32

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.engines import wire
from coterie.engines.message_checks import ReplyFault, read_reply
from coterie.errors import CoterieError
from coterie.federation import PerCluster, PerRow, Ragged
from tests.property.fuzzing import body, seal

DTYPES = st.sampled_from(
    ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "<U3", "S2"]
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
ROWS = st.lists(st.binary(max_size=5), max_size=5).map(Ragged.of)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    ARRAYS,
    hnp.from_dtype(np.dtype("f4")),
    ROWS,
    hnp.arrays("f8", hnp.array_shapes(min_dims=1, max_dims=2)).map(PerRow),
    st.lists(hnp.arrays("f8", hnp.array_shapes(min_dims=1, max_dims=2)), max_size=3).map(PerCluster),
    st.dictionaries(st.text(max_size=2), ARRAYS, max_size=2).map(PerRow),
)
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3), max_leaves=6
)


def check(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray | np.generic):
        np.testing.assert_array_equal(a, b, strict=True)
    elif isinstance(a, Ragged):
        check(a.values, b.values)
        check(a.offsets, b.offsets)
    elif isinstance(a, PerRow | PerCluster):
        check(a.value, b.value)
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            check(x, y)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for name in a:
            check(a[name], b[name])
    else:
        assert a == b or (a != a and b != b)


@given(VALUES)
@example([-0.0, 2**200, -(2**63), "\ud800", np.float64(3), np.str_("a"), [[]], {}])
def test_what_goes_in_comes_out(value):
    check(value, wire.decode(wire.encode(value)))


@given(VALUES, st.data())
def test_a_message_cut_short_is_refused(value, data):
    message = wire.encode(value)
    with pytest.raises(CoterieError):
        wire.decode(message[: data.draw(st.integers(0, len(message) - 1))])


@given(VALUES, st.data())
def test_a_changed_byte_is_seen(value, data):
    message = bytearray(wire.encode(value))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CoterieError):
        wire.decode(bytes(message))


@given(VALUES, st.data())
def test_a_wrong_body_with_a_right_checksum_gives_one_clear_error_or_a_value(value, data):
    whole = bytearray(body(wire.encode(value)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CoterieError):
        wire.decode(seal(bytes(whole)))


@given(st.binary(max_size=80))
def test_any_bytes_are_refused(data):
    with pytest.raises(CoterieError):
        wire.decode(data)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (object(), "cannot hold a object"),
        ({1: 2}, "needs text keys"),
        (np.array([None]), "cannot travel"),
        (np.array(["2020-01-01"], "M8[D]"), "cannot travel"),
        (lambda: 0, "cannot hold a function"),
        ({1, 2}, "cannot hold a set"),
    ],
    ids=["object", "number-key", "object-array", "date", "function", "set"],
)
def test_what_cannot_travel_is_named(value, sentence):
    with pytest.raises(CoterieError, match=sentence):
        wire.encode(value)


def test_nesting_without_end_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(CoterieError, match="deep"):
        wire.encode(loop)


def other_version(message, version=9):
    """A message as that version would send it: its checksum is right."""
    whole = bytes([message[0] - wire.VERSION + version]) + message[1:-4]
    return whole + crc32(whole).to_bytes(4, "little")


def test_another_version_is_named():
    with pytest.raises(wire.OtherVersion, match="format 9, not 3"):
        wire.decode(other_version(wire.encode(1)))


def test_every_bit_that_flips_is_damage_and_never_another_version():
    message = wire.encode({"kind": "ask", "x": np.arange(3.0), "n": 7})
    for place in range(len(message)):
        for bit in range(8):
            flipped = message[:place] + bytes([message[place] ^ 1 << bit]) + message[place + 1 :]
            with pytest.raises(CoterieError, match=r"changed on the way.*send it again") as caught:
                wire.decode(flipped)
            assert type(caught.value) is CoterieError
            reply = read_reply(flipped, {"kind": "ask"}, "here", b"12345678")
            assert isinstance(reply, ReplyFault) and reply.kind == "unreadable"


def test_a_pickle_is_not_a_message():
    with pytest.raises(CoterieError, match="not a coterie message"):
        wire.decode(pickle.dumps(list(range(100))))


def test_arrays_arrive_read_only_aligned_and_in_native_order():
    value = np.arange(6, dtype=">f8").reshape(2, 3).T
    array = wire.decode(wire.encode({"a": "odd", "x": value}))["x"]
    assert array.flags.aligned and array.flags.c_contiguous and not array.flags.writeable
    assert array.dtype == np.float64 and array.dtype.isnative
    np.testing.assert_array_equal(array, value)
    assert wire.decode(wire.encode(value), writable=True).flags.writeable


def test_lengths_of_short_rows_take_a_byte_each():
    rows = Ragged.of([b"ab", b"", b"cde"])
    back = wire.decode(wire.encode(rows))
    np.testing.assert_array_equal(back.offsets, rows.offsets)
    np.testing.assert_array_equal(back.values, rows.values)
    more = len(wire.encode(Ragged.of([b"ab"] * 103))) - len(wire.encode(Ragged.of([b"ab"] * 3)))
    assert more <= 100 * 3 + 2  # and the counts themselves
