"""zstandard where it makes a body shorter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Ragged

SHORTEST = 48
"""Bodies tried, in bytes."""


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


def unsqueeze(bodies: Ragged, flags: npt.NDArray[np.bool_], longest: int) -> Ragged:
    """The inverse of :func:`squeeze`; a CoterieError where a flagged body is none of zstandard's, or ``longest`` bytes.

    The length is read before anything is unpacked: zstandard would make room for whatever a body says it holds.
    """
    if not flags.any():
        return bodies
    import zstandard

    style = zstandard.FORMAT_ZSTD1_MAGICLESS
    tool = zstandard.ZstdDecompressor(format=style)
    rows = [bodies[i] for i in range(len(bodies))]
    for i in np.flatnonzero(flags):
        data = rows[i].tobytes()
        try:
            if zstandard.get_frame_parameters(data, format=style).content_size > longest:
                raise CoterieError(f"Row {i} would unpack to more than its {longest} bytes: its bytes were damaged.")
            rows[i] = np.frombuffer(tool.decompress(data), np.uint8)
        except zstandard.ZstdError as error:
            raise CoterieError(f"Row {i} cannot be unpacked by zstandard: its bytes were damaged.") from error
    return Ragged.of(rows)
