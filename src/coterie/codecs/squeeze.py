"""zstandard where it makes a body shorter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Ragged

SHORTEST, LONGEST = 48, 1 << 30
"""Bodies tried, and the longest one a message may unfold to, in bytes."""


def squeeze(bodies: Ragged) -> tuple[Ragged, npt.NDArray[np.uint8]]:
    """Bodies, each compressed where that is shorter, and a flag (m,) that says where."""
    import zstandard

    settings = zstandard.ZstdCompressionParameters.from_level(
        3, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_checksum=False, write_dict_id=False
    )
    tool = zstandard.ZstdCompressor(compression_params=settings)
    rows, flags = [bodies[i] for i in range(len(bodies))], np.zeros(len(bodies), dtype=np.uint8)
    for i, row in enumerate(rows):
        if len(row) >= SHORTEST:
            short = tool.compress(row.tobytes())
            if len(short) < len(row):
                rows[i], flags[i] = np.frombuffer(short, np.uint8), 1
    return (Ragged.of(rows) if flags.any() else bodies), flags


def unsqueeze(bodies: Ragged, flags: npt.NDArray[np.bool_]) -> Ragged:
    """The inverse of :func:`squeeze`; a CoterieError where a flagged body is none of zstandard's."""
    if not flags.any():
        return bodies
    import zstandard

    tool = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    rows = [bodies[i] for i in range(len(bodies))]
    for i in np.flatnonzero(flags):
        try:
            rows[i] = np.frombuffer(tool.decompress(rows[i].tobytes(), max_output_size=LONGEST), np.uint8)
        except zstandard.ZstdError as error:
            raise CoterieError(f"Row {i} cannot be unpacked by zstandard: its bytes were damaged.") from error
    return Ragged.of(rows)
