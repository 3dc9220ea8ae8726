"""What really travels: rows of numbers as bytes, and back, by codecs that have names (``"float16"``, ``"tv:4"``)."""

from __future__ import annotations

from coterie.codecs.codec import Codec, Encoded
from coterie.errors import CoterieError, nearest
from coterie.options import Option
from coterie.user_code import import_object

__all__ = ["DEFAULT", "DEFAULT_FEEDBACK", "DEFAULT_ORDER", "Codec", "Encoded", "by_name", "codec_option"]

CODECS = {
    "none": "quantisation:Float64",
    "float64": "quantisation:Float64",
    "float32": "quantisation:Float32",
    "float16": "quantisation:Float16",
    "qsgd": "quantisation:QSGD",
    "topk": "sparse_and_low_rank:TopK",
    "sign": "quantisation:SignScale",
    "kmeans": "quantisation:KMeans",
    "lowrank": "sparse_and_low_rank:LowRank",
    "tv": "total_variation:TotalVariation",
}
"""Module and class of each; a class has a classmethod ``of(*parameters: str)`` where it takes any."""

DEFAULT, DEFAULT_FEEDBACK, DEFAULT_ORDER = "tv:2", "ef", "magnitude"
"""What needs the fewest bytes to 1.01 times the optimal loss (``benchmarks/bytes.py``, fresh seeds, against float32).

Two values on the runs of the pinned prox, with error feedback, in the order of what the reader last had of the client.
Uplink: 1/18 to 1/20 at d = 57 with full, label-skewed and batch-32 gradients; signs need 1/15 to 1/17, k-means to two
values without runs 1/15 to 1/18, four values on runs (the paper) 1/13 to 1/15, QSGD with 4 bits 1/7. At d = 20,000,
most irrelevant, 1/126, and 1/152 with ``tv:2:relative=1``; ``tv:4:relative=1`` 1/140, EF21 with the top 1% 1/92.
EF21 needs as little with full gradients; with those of batches it needs more, or does not get there.

Where the downlink is compressed too, two values each way need 1/16 to 1/18 at d = 57, but do not get there at
d = 20,000 in 100 steps: take ``tv:4:relative=1`` both ways for long vectors, 1/67.
"""


def by_name(name: str | None) -> Codec:
    """The codec called ``name``, with its parameters after colons: ``"qsgd:4"`` has 4 bits a coordinate.

    None is ``"none"``: float64, nothing lost; ``"auto"`` is ``DEFAULT``. A CoterieError for a name or a parameter that
    is not known.
    """
    name = DEFAULT if name == "auto" else name
    kind, *parameters = (name or "none").strip().lower().split(":")
    if kind not in CODECS:
        raise CoterieError(f"There is no codec {name!r}; there are {', '.join(CODECS)}.{nearest(kind, CODECS)}")
    make = import_object(f"coterie.codecs.{CODECS[kind]}")
    try:
        return make.of(*parameters) if parameters else make()  # type: ignore[no-any-return]
    except CoterieError as error:
        raise CoterieError(f"Codec {name!r}: {error}") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise CoterieError(f"Codec {name!r} has parameters that {kind!r} does not take.") from error


def codec_option(text: str) -> Option:
    """An option that names a codec."""
    return Option(text, what="the name of a codec, such as tv:4 or float16", read=_known)


def _known(name: str | None) -> str | None:
    if name is not None and not name.strip():
        raise ValueError("an empty name")
    by_name(name)
    return name
