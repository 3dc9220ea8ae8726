"""Image datasets: Fashion-MNIST out of its four files, and images that hidden groups of clients hold at other angles.

References
----------
Xiao, Rasul, Vollgraf (2017), Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie import files
from coterie.data.partition import Array, PartitionedRows, iid_tested, whole_labels
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


def rotated(
    images: npt.ArrayLike,
    labels: npt.ArrayLike,
    clients: int = 40,
    rotations: Sequence[float] = (0, 90, 180, 270),
    seed: int = 0,
    test_fraction: float = 0.5,
) -> PartitionedRows:
    """Images partitioned evenly among clients in hidden groups that hold them at other angles.

    Parameters
    ----------
    images : (n, h, h)
    labels : (n,)
        Classes, whole numbers from 0.
    clients : int, default 40
    rotations : sequence of float, default (0, 90, 180, 270)
        Degrees, counter-clockwise, of each hidden group; groups are as large as each other, give or take a client.
        Angles other than quarter turns are interpolated, with empty corners.
    seed : int, default 0
    test_fraction : float, default 0.5
        Share of every client's rows that is held out, between 0 and 1; at least one row is, and one is not.

    Returns
    -------
    Dealt
        X (n, h, h) of the type of the images.

    Raises
    ------
    CoterieError
        For more clients than two rows each allow, no rotation, images that are not square or not finite, labels that
        are no whole numbers, and numbers out of range.
    """
    angles = np.atleast_1d(np.asarray(rotations, dtype=np.float64))
    if not angles.size or not np.isfinite(angles).all():
        raise CoterieError("rotations must be angles in degrees, one for each group at least.")
    images, codes = np.asarray(images), whole_labels(labels)
    if images.ndim != 3 or images.shape[1] != images.shape[2]:
        raise CoterieError(f"Images to turn must be square, (rows, height, height), not {images.shape}.")
    partition = iid_tested(len(codes), clients, len(angles), seed, test_fraction)
    partitioned = partition.take(images, codes)
    group = partition.group[partition.client]
    turned = np.concatenate([partitioned.train.X, partitioned.test.X])
    for g, angle in enumerate(angles):
        turned[group == g] = _turn(turned[group == g], angle)
    return partition.take_sorted(turned, codes[partition.row])


def rotated_digits(
    clients: int = 40,
    rotations: Sequence[float] = (0, 90, 180, 270),
    seed: int = 0,
    test_fraction: float = 0.5,
) -> PartitionedRows:
    """Scikit-learn's 1,797 handwritten digits (8 x 8), seen by clients that hold them at other angles.

    Arguments are those of :func:`rotated`.

    Returns
    -------
    Dealt
        Columns are a constant 1 and the 64 pixels, from 0 to 1.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    partitioned = rotated(digits.images / 16.0, digits.target, clients, rotations, seed, test_fraction)
    train, test = (
        replace(part, X=np.insert(part.X.reshape(len(part.X), -1), 0, 1.0, axis=1))
        for part in (partitioned.train, partitioned.test)
    )
    return replace(partitioned, train=train, test=test)


def _turn(images: Array, angle: float) -> Array:
    """Images (n, h, h) turned counter-clockwise."""
    if angle % 90.0 == 0.0:
        return np.rot90(images, int(angle // 90.0) % 4, axes=(1, 2))
    from scipy.ndimage import rotate

    return np.asarray(rotate(images, angle, axes=(2, 1), reshape=False, order=1))
