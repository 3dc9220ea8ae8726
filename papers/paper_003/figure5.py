"""Figure 5: an update with clusters of elements has sparse differences, and is coded in fewer bits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.codecs import by_name
from coterie.codecs.total_variation import TotalVariation
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.pictures import BLUE, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D, LEVELS, NOISE, RELATIVE, K = 48, (0.4, -0.6, 0.9, -0.1, 0.4, -0.6), 0.25, 1.5, 3
NOTES = (
    f"The paper gives no numbers: here are {D} elements at six levels with noise, and what the pinned total-variation "
    f"prox with gamma {RELATIVE} times their root mean square and k-means to {K} values make of them.",
    "Messages are the library's own: one byte of header and two of checksum are in them. Differences are those of "
    "Lambda, whose last one is the last element.",
)


def run(settings: Settings) -> Outcome:
    """Both vectors in all encodings."""
    noise = keyed_random.normal(keyed_random.starts(0, "figure5", [0]), np.zeros(1, dtype=np.int64), D)
    plain = np.repeat(LEVELS, D // len(LEVELS))[None] + NOISE * noise
    clustered = TotalVariation(k=K, relative=RELATIVE).encode(plain, 0, 0).claimed
    without, with_ = all_bits(plain), all_bits(clustered)
    bits = {name: (without[name], with_[name]) for name in without}
    numbers = {"plain": plain[0], "clustered": clustered[0], "bits": bits, "nonzero": [*map(jumps, (plain, clustered))]}
    settled = {"d": D, "levels": LEVELS, "noise": NOISE, "relative": RELATIVE, "k": K, "seed": 0}
    return Outcome((table(plain, clustered, bits),), partial(draw, plain[0], clustered[0]), settled, numbers, NOTES)


def jumps(q: Floats) -> int:
    """Differences of Lambda that are not 0."""
    return int(np.count_nonzero(np.diff(q[0], append=0.0)))


def runs_in_words(q: Floats) -> int:
    """A value of 32 bits and a length for each run."""
    n = 1 + np.count_nonzero(np.diff(q[0]))
    return int(n * (32 + np.ceil(np.log2(D))))


def codebook_in_words(q: Floats) -> int:
    """Values of 32 bits, and a number of as many bits as are needed for each element."""
    k = len(np.unique(q))
    return int(32 * k + D * np.ceil(np.log2(k)))


COUNTED = {
    "32 bits an element": lambda q: 32 * D,
    "value and length of each run": runs_in_words,
    "values, and which one each element is": codebook_in_words,
}
MESSAGES = {
    f"message of codec {words}": name
    for words, name in (
        ("float32", "float32"),
        ("float16", "float16"),
        ("qsgd:4", "qsgd:4"),
        ("tv:all, gamma 0", "tv:all:gamma=0"),
        (f"tv:{K}, gamma 0", f"tv:{K}:gamma=0"),
    )
}


def all_bits(q: Floats) -> dict[str, int]:
    """Bits of one vector (1, d) by encoding: counted, and those of real messages."""
    counted = {name: count(q) for name, count in COUNTED.items()}
    sent = {name: by_name(codec).encode(q, 0, 0).payload.offsets[-1] for name, codec in MESSAGES.items()}
    return counted | {name: 8 * int(n) for name, n in sent.items()}


def table(plain: Floats, clustered: Floats, bits: dict[str, tuple[int, int]]) -> Table:
    """Bits by encoding."""
    return Table(
        title="Code length in bits",
        columns=("encoding", "without clusters", "with clusters", "ratio"),
        rows=tuple((name, f"{a:,}", f"{b:,}", f"{a / b:.1f}") for name, (a, b) in bits.items()),
        note=(
            f"{jumps(plain)} of {D} differences are not 0 without clusters, {jumps(clustered)} with. Codec float32 "
            f"leaves repeated values to zstandard; qsgd:4 and, on the vector without clusters, tv:{K} lose something."
        ),
    )


def draw(plain: Floats, clustered: Floats) -> Figure:
    """Elements and differences of both."""
    figure, axes = panels(4, width=2.6, height=2.6)
    shown = (
        (plain, "(a) without clusters", BLUE),
        (np.diff(plain, append=0.0), "(b) its differences: dense", BLUE),
        (clustered, "(c) with clusters", ORANGE),
        (np.diff(clustered, append=0.0), "(d) its differences: sparse", ORANGE),
    )
    for ax, (values, title, colour) in zip(axes, shown, strict=True):
        ax.stem(np.arange(1, D + 1), values, linefmt=colour, markerfmt=".", basefmt=" ")
        ax.set_title(title)
        ax.set_xlabel("element")
        ax.set_ylim(-2.0, 2.0)
    return figure
