"""Messages that somebody meant to break: read as some value or refused in one sentence, in little room."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from coterie.engines import wire
from coterie.errors import CoterieError
from coterie.federation import PerCluster, PerRow, Ragged
from tests.property.fuzzing import body, damaged, seal

ROOM = 128  # bytes that a byte of a message may need, the most in dicts without items; refusing has a traceback beside
SAMPLES = [
    None,
    {"kind": "ask", "work": "a:b", "exchange": [3, 1], "counted": [0, 0], "rows": np.arange(9, dtype=np.uint8)},
    {"values": {"g": np.ones((5, 3)), "n": np.arange(5)}, "gradients": 7, "text": "\N{GREEK SMALL LETTER ALPHA}"},
    {"message": {"x": PerRow(np.eye(3)), "w": PerCluster([np.zeros(2), np.zeros((1, 3))]), "s": -(2**70)}},
    [Ragged.of([b"abc", b"", b"de"]), PerRow(Ragged.of([[1.0, 2.0], []])), PerCluster({"a": np.ones(2)})],
    [np.array(["one", "three"]), np.array([b"x", b"yz"]), np.array([True, False]), np.float32(0.5), 1.5, b"raw"],
    [[[[{"deep": [[], {}, [None, True, False]]}]]], np.zeros((0, 4)), np.complex64(1j), np.float16([1, 2])],
]
BODIES = [body(wire.encode(value)) for value in SAMPLES]


def read(data: bytes):
    """The value, None if it was refused, and the room that took."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        value = wire.decode(data)
    except CoterieError as problem:
        assert len(str(problem)) < 400 + 2 * len(data)
        value = None
    return value, tracemalloc.get_traced_memory()[1] - before


@pytest.fixture(autouse=True)
def watched():
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("many", [1500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_whatever_arrives_is_a_value_or_refused_in_little_room(many):
    rng, values = np.random.default_rng(0), 0
    for _ in range(many):
        data = seal(damaged(rng, BODIES[rng.integers(len(BODIES))], BODIES))
        value, room = read(data)
        assert room < ROOM * len(data) + 100_000
        if value is not None:
            values += 1
            again = wire.encode(value)
            assert wire.encode(wire.decode(again)) == again
    assert values > many // 50


@pytest.mark.parametrize("many", [500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_nothing_is_read_whose_checksum_does_not_hold(many):
    rng = np.random.default_rng(1)
    whole = [wire.encode(value) for value in SAMPLES]
    for _ in range(many):
        data = whole[rng.integers(len(whole))]
        other = damaged(rng, data, whole)
        if other not in whole:
            value, room = read(other)
            assert value is None
            assert room < ROOM * len(other) + 100_000


def many(n: int) -> bytes:
    return wire._number(n)


def text(s: bytes) -> bytes:
    return many(len(s)) + s


def kind(dtype: bytes, axes: int) -> bytes:
    return text(dtype) + many(axes)


def shape(*axes: int) -> bytes:
    return b"".join(map(many, axes))


def message(form: bytes, data: bytes = b"") -> bytes:
    return seal(text(form) + data)


LINES = b"l" + many(2001) + 2001 * b"b", text(b"x" * 60_000) + 2000 * many(0)
HOSTILE = {
    "a list of 2^60": (b"l" + many(2**60),),
    "a dict of 2^60": (b"d" + many(2**60),),
    "text of 2^60": (b"s" + many(2**60),),
    "bytes of 2^60": (b"b", many(2**60)),
    "a length without end": (b"l" + b"\xff" * 50,),
    "a number without end": (b"i", b"\xff" * 50),
    "lists in lists": (b"l\x01" * 5000 + b"N",),
    "rows of rows": (b"P" * 5000 + b"N",),
    "a name twice": (b"d\x02" + 2 * (text(b"rows") + b"N"),),
    "an array of 2^62": (b"a" + kind(b"<f8", 1), shape(2**62)),
    "zero times huge": (b"a" + kind(b"<f8", 3), shape(0, 2**63, 2**63)),
    "huge times huge": (b"a" + kind(b"<f8", 2), shape(2**32, 2**32)),
    "axes without end": (b"a" + kind(b"<f8", 3000), shape(*(2**62,) * 3000)),
    "thirty-three axes": (b"a" + kind(b"|u1", 33), shape(*(1,) * 33) + b"\0"),
    "text of no length": (b"a" + kind(b"<U0", 1), shape(2**33)),
    "bytes of no length": (b"a" + kind(b"|S0", 1), shape(2**33)),
    "text too long": (b"a" + kind(b"<U999999999", 1), shape(1)),
    "bytes too long": (b"a" + kind(b"|S999999999", 1), shape(2**20)),
    "a type unknown": (b"a" + kind(b"|O", 1), shape(1) + bytes(8)),
    "a type of fields": (b"a" + kind(b"<f8,<f8", 1), shape(1) + bytes(16)),
    "a type of dates": (b"a" + kind(b"<M8[ns]", 1), shape(1) + bytes(8)),
    "big ends": (b"a" + kind(b">f8", 1), shape(1) + bytes(8)),
    "bools that are none": (b"a" + kind(b"|b1", 1), shape(2) + b"\x01\x02"),
    "a character that is none": (b"a" + kind(b"<U1", 1), shape(1) + struct.pack("<I", 0x110000)),
    "a number with axes": (b"g" + kind(b"<f8", 1), shape(1) + bytes(8)),
    "rows longer than values": (b"R" + kind(b"<f8", 1), shape(1) + bytes(8) + b"\x01\x01\x02"),
    "rows around the corner": (
        b"R" + kind(b"<f8", 1),
        shape(1) + bytes(8) + b"\x08\x03" + struct.pack("<3Q", 2**63 - 1, 2**63 - 1, 3),
    ),
    "rows of nothing": (b"R" + kind(b"<f8", 0), bytes(8) + b"\x01\x01\x01"),
    "rows of 2^60": (b"R" + kind(b"<f8", 1), shape(0) + b"\x08" + many(2**60)),
    "lengths of three bytes": (b"R" + kind(b"<f8", 1), shape(0) + b"\x03\x01" + bytes(3)),
    "lengths of no bytes": (b"R" + kind(b"<f8", 1), shape(0) + b"\x00" + many(2**40)),
    "rows that numpy would make long": (b"P" + LINES[0], LINES[1]),
    "clusters that numpy would make long": (b"C" + LINES[0], LINES[1]),
    "rows that are a number": (b"PN",),
    "not hexadecimal": (b"I" + text(b"zz"),),
    "text that is none": (b"s" + text(b"\xff\xfe"),),
    "more than a value": (b"NN",),
    "more numbers than a value has": (b"i", b"\x01\x01"),
    "nothing": (b"",),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_messages_are_refused_in_little_room(name):
    data = message(*HOSTILE[name])
    value, room = read(data)
    assert value is None
    assert room < 4 * len(data) + 50_000


@pytest.mark.parametrize(
    "small",
    [(b"d\x00",), (b"l\x00",), (b"l\x01N",), (b"Pa" + kind(b"|u1", 1), b"\0"), (b"R" + kind(b"|u1", 1), b"\0\1\0")],
)
def test_many_small_things_take_little_room(small):
    form, *rest = small
    data = message(b"l" + many(5000) + 5000 * form, 5000 * b"".join(rest))
    value, room = read(data)
    assert len(value) == 5000
    assert room < ROOM * len(data)


def test_lengths_of_one_byte_take_the_room_of_their_offsets():
    data = message(b"R" + kind(b"|u1", 1), shape(0) + b"\x01" + many(100_000) + bytes(100_000))
    value, room = read(data)
    assert len(value) == 100_000
    assert room < 20 * len(data)
