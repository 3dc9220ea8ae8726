"""Images: Fashion-MNIST, images that groups of clients hold at other angles, and a folder of a user's own with masks.

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
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coterie.data.partition import Array, Number, PartitionedRows, by_column, iid, whole_labels
from coterie.errors import CoterieError
from coterie.files import local
from coterie.numerics.arrays import Ints
from coterie.options import Option, checked

Bytes = npt.NDArray[np.uint8]


def _some(angles: tuple[float, ...]) -> tuple[float, ...]:
    if not angles:
        raise ValueError("no angle")
    return angles


Angles = Annotated[tuple[float, ...], Option(what="angles in degrees, finite, one for each group", read=_some)]
TestShare = Annotated[float, Option("Share of every client's rows that is held out.", above=0.0, below=1.0)]
Size = Annotated[tuple[int, int] | None, Option("Height and width that images are brought to.", low=1)]

KINDS = (".png", ".npy")
FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


@dataclass(frozen=True)
class Fashion:
    """The images as they come, 0 to 255, with labels 0 to 9, see ``CLASSES``."""

    images: Bytes  # (60000, 28, 28) to train on
    labels: Ints  # (60000,)
    test_images: Bytes  # (10000, 28, 28)
    test_labels: Ints  # (10000,)


def fashion(folder: str | Path | None = None) -> Fashion:
    """Read the four files of Fashion-MNIST, ``train-images-idx3-ubyte.gz`` and so on, by default where Debian has them.

    A CoterieError where a file is missing, cut off or something else.
    """
    home = FOLDER if folder is None else local(folder)
    images, labels = _pair(home, "train")
    return Fashion(images, labels, *_pair(home, "t10k"))


def read_idx(path: str | Path) -> Bytes:
    """An array of bytes from an idx file, compressed with gzip or not.

    The header is two zeros, the type (8: bytes), the number of axes, and the length of each as a big-endian integer. A
    CoterieError where it is something else, or the file has more or fewer bytes than it says.
    """
    try:
        raw = local(path).read_bytes()
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


def _pair(home: Path, name: str) -> tuple[Bytes, Ints]:
    images = read_idx(_found(home, f"{name}-images-idx3-ubyte.gz"))
    labels = read_idx(_found(home, f"{name}-labels-idx1-ubyte.gz"))
    if images.ndim != 3 or labels.shape != (len(images),) or labels.max(initial=0) >= len(CLASSES):
        raise CoterieError(
            f"{home} has {name} images of shape {images.shape} with labels of shape {labels.shape}, which is not "
            "Fashion-MNIST: put its four files there."
        )
    return images, labels.astype(np.int64)


def _found(home: Path, name: str) -> Path:
    for path in (home / name, home / name.removesuffix(".gz")):
        if path.is_file():
            return path
    raise CoterieError(
        f"Fashion-MNIST is not in {home}: {name} is missing; on Debian and Ubuntu, 'apt install dataset-fashion-mnist' "
        "puts it there, otherwise name the folder that has its four files."
    )


@checked
def rotated(
    images: npt.ArrayLike,
    labels: npt.ArrayLike,
    clients: Number = 40,
    rotations: Angles = (0, 90, 180, 270),
    seed: int = 0,
    test_fraction: TestShare = 0.5,
) -> PartitionedRows:
    """Images (n, h, h) partitioned evenly among clients in hidden groups that hold them at other angles.

    ``labels`` (n,) are classes, whole numbers from 0; ``rotations`` degrees, counter-clockwise, of each hidden group.
    Groups are as large as each other, give or take a client. Angles other than quarter turns are interpolated, with
    empty corners. Of every client's rows at least one is held out, and one is not.

    A CoterieError for more clients than two rows each allow, no rotation, images that are not square or not finite, and
    labels and numbers that cannot be.
    """
    images, codes = np.asarray(images), whole_labels(labels)
    if images.ndim != 3 or images.shape[1] != images.shape[2]:
        raise CoterieError(f"Images to turn must be square, (rows, height, height), not {images.shape}.")
    if 2 * clients > len(codes):
        raise CoterieError(f"{len(codes):,} rows are too few for {clients:,} clients: each trains and tests on one.")
    partition = iid(len(codes), clients, seed, test_fraction, len(rotations))
    partitioned = partition.take(images, codes)
    group = partition.group[partition.client]
    turned = np.concatenate([partitioned.train.X, partitioned.test.X])
    for g, angle in enumerate(rotations):
        turned[group == g] = _turn(turned[group == g], angle)
    return partition.take_sorted(turned, codes[partition.row])


def rotated_digits(
    clients: int = 40, rotations: Sequence[float] = (0, 90, 180, 270), seed: int = 0, test_fraction: float = 0.5
) -> PartitionedRows:
    """Scikit-learn's 1,797 handwritten digits (8 x 8), seen by clients that hold them at other angles.

    Arguments are those of :func:`rotated`; columns are a constant 1 and the 64 pixels, from 0 to 1.
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
    if angle % 90.0 == 0.0:
        return np.rot90(images, int(angle // 90.0) % 4, axes=(1, 2))
    from scipy.ndimage import rotate

    return np.asarray(rotate(images, angle, axes=(2, 1), reshape=False, order=1))


@checked
def read_folder(folder: str | Path, size: Size = None, seed: int = 0, test_fraction: float = 0.2) -> PartitionedRows:
    """A user's own images and masks, one client a sub-folder: X (n, 1, h, w) float32, y (n, 1, h, w) uint8.

    ``folder/north/images/a.png`` belongs to ``folder/north/masks/a.png``; either may be a NumPy file instead. In masks,
    whatever is not 0 is inside. Images of other sizes are brought to ``size`` (height, width); by default all must have
    the same. ``names`` are those of the sub-folders in natural order.

    A CoterieError for a folder without clients or images, an image without a mask or the other way round, files that
    cannot be read, and images of several sizes.
    """
    found = image_pairs(local(folder), size)
    return by_column(found["client"], seed, test_fraction).take(found["X"], found["y"])


def image_pairs(home: Path, size: tuple[int, int] | None = None) -> dict[str, Array]:
    """The images of :func:`read_folder` as X, their masks as y, and the client of each."""
    if not home.is_dir():
        raise CoterieError(f"{home} is not a folder: name the one that has a sub-folder for each client.")
    places = [p for p in sorted(home.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    pairs = [(place.name, *pair) for place in places for pair in _pairs(place)]
    if not pairs:
        raise CoterieError(f"{home} has no clients: each is a sub-folder with the folders 'images' and 'masks'.")
    X: list[Array] = []
    y: list[Array] = []
    for _, image, mask in pairs:
        pixels, inside = read_image(image), read_image(mask) != 0
        if pixels.shape != inside.shape:
            raise CoterieError(f"{image} is {_size(pixels)} and its mask {mask} {_size(inside)}: make them one size.")
        if size is None and X and pixels.shape != X[0].shape:
            raise CoterieError(
                f"{image} is {_size(pixels)} and {pairs[0][1]} is {_size(X[0])}: name a size=(height, width) to bring "
                "all images to."
            )
        X.append(pixels if size is None else resized(pixels, size, 1))
        y.append(inside.astype(np.uint8) if size is None else resized(inside.astype(np.uint8), size, 0))
    names = np.array([name for name, _, _ in pairs])
    return {"X": np.stack(X)[:, None], "y": np.stack(y)[:, None], "client": names}


def _pairs(place: Path) -> list[tuple[Path, Path]]:
    for part in ("images", "masks"):
        if not (place / part).is_dir():
            raise CoterieError(f"{place} has no folder '{part}': a client is a folder with 'images' and 'masks'.")
    images, masks = _files(place / "images"), _files(place / "masks")
    if missing := [name for name in images if name not in masks]:
        raise CoterieError(
            f"{images[missing[0]]} has no mask{_more(missing)}: put one of the same name into {place / 'masks'}, all 0 "
            "where there is nothing to mark."
        )
    if missing := [name for name in masks if name not in images]:
        raise CoterieError(f"{masks[missing[0]]} is the mask of no image{_more(missing)}: add the image, or remove it.")
    return [(images[name], masks[name]) for name in images]


def _more(names: Sequence[str]) -> str:
    return f" (nor have {len(names) - 1:,} more)" if len(names) > 1 else ""


def _size(pixels: Array) -> str:
    return f"{pixels.shape[0]} x {pixels.shape[1]}"


def resized(pixels: Array, size: tuple[int, int], order: Any) -> Array:
    """An image (h, w) brought to another size by splines of this order (0: nearest, 1: linear)."""
    from scipy.ndimage import zoom

    factor: Any = (size[0] / pixels.shape[0], size[1] / pixels.shape[1])
    return np.asarray(zoom(pixels, factor, order=order, mode="nearest", grid_mode=True))


def read_image(path: Path) -> npt.NDArray[np.float32]:
    """One grey image (h, w) from a PNG (colours averaged, 0 to 1) or a NumPy file (numbers as they are).

    A CoterieError where the file cannot be read, is no grey or coloured image, or has numbers that are not finite; for
    a PNG also where matplotlib, which reads it, is not installed.
    """
    pixels: Any
    try:
        if path.suffix.lower() == ".npy":
            pixels = np.load(path, allow_pickle=False)
        else:
            from matplotlib.image import imread

            pixels = np.asarray(imread(path, format="png"))
    except ImportError:
        raise CoterieError(f"Reading {path} needs matplotlib: pip install it, or save images as .npy.") from None
    except (OSError, ValueError, EOFError, SyntaxError) as fault:
        raise CoterieError(f"{path} cannot be read as an image ({fault}): write it again as PNG or NPY.") from None
    if not isinstance(pixels, np.ndarray) or pixels.dtype.kind not in "biuf":
        raise CoterieError(f"{path} has no numbers: an image is an array (height, width) of them.")
    if pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4):
        pixels = pixels[:, :, : min(pixels.shape[2], 3)].mean(axis=2)
    if pixels.ndim != 2 or not pixels.size:
        raise CoterieError(f"{path} has the shape {pixels.shape}: an image is (height, width), one slice a file.")
    if not np.isfinite(pixels).all():
        raise CoterieError(f"{path} has pixels that are not finite numbers: fill them first.")
    return np.asarray(pixels, dtype=np.float32)


def _files(folder: Path) -> dict[str, Path]:
    """The images of a folder by name without ending, sorted; a CoterieError for two of one name, or none at all."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in KINDS and not path.name.startswith("."):
            if path.stem in found:
                raise CoterieError(f"{found[path.stem]} and {path} have the same name: leave one of them out.")
            found[path.stem] = path
    if not found:
        raise CoterieError(f"{folder} has no images: files that end in .png or .npy are looked for.")
    return found


def standardised(X: Array) -> npt.NDArray[np.float32]:
    """Every image (n, ...) with mean 0 and standard deviation 1; images of one colour become 0."""
    axes = tuple(range(1, X.ndim))
    centred = X - X.mean(axis=axes, keepdims=True, dtype=np.float64)
    spread = centred.std(axis=axes, keepdims=True)
    return np.asarray(centred / np.where(spread > 1e-12, spread, 1.0), dtype=np.float32)
