"""Fashion-MNIST: 70,000 grey images of clothes in ten classes, as Debian's package ``dataset-fashion-mnist`` has them.

References
----------
Xiao, Rasul, Vollgraf (2017), Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie import files
from coterie.errors import CoterieError

I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


@dataclass(frozen=True)
class Fashion:
    """The images as they come.

    Attributes
    ----------
    images : (60000, 28, 28) uint8
        To train on, 0 to 255.
    labels : (60000,) int64
        0 to 9, see ``CLASSES``.
    test_images : (10000, 28, 28) uint8
    test_labels : (10000,) int64
    """

    images: Bytes
    labels: I64
    test_images: Bytes
    test_labels: I64


def fashion(folder: str | Path | None = None) -> Fashion:
    """Read the four files of Fashion-MNIST.

    Parameters
    ----------
    folder : path, optional
        Where the files ``train-images-idx3-ubyte.gz`` and so on are; by default where Debian puts them.

    Raises
    ------
    CoterieError
        Where a file is missing, cut off or something else.
    """
    home = FOLDER if folder is None else files.local(folder)
    images, labels = _pair(home, "train")
    return Fashion(images, labels, *_pair(home, "t10k"))


def read_idx(path: str | Path) -> Bytes:
    """An array of bytes from an idx file, compressed with gzip or not.

    The header is two zeros, the type (8: bytes), the number of axes, and the length of each as a big-endian integer.

    Raises
    ------
    CoterieError
        Where the file is no idx file of bytes, or has more or fewer bytes than its header says.
    """
    try:
        raw = files.local(path).read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as fault:
        raise CoterieError(f"{path} cannot be read ({fault}): get the file again.") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise CoterieError(f"{path} is not an idx file of bytes: its header is wrong.")
    start = 4 + 4 * data[3]
    shape = tuple(int(length) for length in np.frombuffer(data[4:start], dtype=">u4"))
    if len(data) - start != int(np.prod(shape, dtype=np.int64)):
        raise CoterieError(f"{path} should hold {shape} bytes but has {len(data) - start:,}: get the file again.")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape).copy()


def _pair(home: Path, name: str) -> tuple[Bytes, I64]:
    """Images and labels of one half."""
    images = read_idx(_found(home, f"{name}-images-idx3-ubyte.gz"))
    labels = read_idx(_found(home, f"{name}-labels-idx1-ubyte.gz"))
    if images.ndim != 3 or labels.shape != (len(images),) or labels.max(initial=0) >= len(CLASSES):
        raise CoterieError(
            f"{home} has {name} images of shape {images.shape} with labels of shape {labels.shape}, which is not "
            "Fashion-MNIST: put its four files there."
        )
    return images, labels.astype(np.int64)


def _found(home: Path, name: str) -> Path:
    """The file, compressed or not."""
    for path in (home / name, home / name.removesuffix(".gz")):
        if path.is_file():
            return path
    raise CoterieError(
        f"Fashion-MNIST is not in {home}: {name} is missing; on Debian and Ubuntu, 'apt install dataset-fashion-mnist' "
        "puts it there, otherwise name the folder that has its four files."
    )
