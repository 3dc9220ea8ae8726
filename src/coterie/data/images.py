"""Images with masks of a user's own, one client a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.partition import Array, PartitionedRows, by_column, positive_int
from coterie.errors import CoterieError
from coterie.files import local

KINDS = (".png", ".npy")


def read_folder(
    folder: str | Path, size: tuple[int, int] | None = None, seed: int = 0, test_fraction: float = 0.2
) -> PartitionedRows:
    """A user's own images and masks, one client a sub-folder.

    ``folder/north/images/a.png`` belongs to ``folder/north/masks/a.png``; either may be a NumPy file instead. In masks,
    whatever is not 0 is inside.

    Parameters
    ----------
    folder : path
    size : (height, width), optional
        Images of other sizes are brought to this one; by default all must have the same.
    seed : int, default 0
    test_fraction : float, default 0.2
        Share of every client's images that is held out.

    Returns
    -------
    PartitionedRows
        X (n, 1, h, w) float32, y (n, 1, h, w) uint8, and ``names`` of the sub-folders in natural order.

    Raises
    ------
    CoterieError
        For a folder without clients or images, an image without a mask or the other way round, files that cannot be
        read, and images of several sizes.
    """
    home = local(folder)
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
            raise CoterieError(
                f"{image} is {_size(pixels)} and its mask {mask} is {_size(inside)}: they must be of one size."
            )
        if size is None and X and pixels.shape != X[0].shape:
            raise CoterieError(
                f"{image} is {_size(pixels)} and {pairs[0][1]} is {_size(X[0])}: name a size=(height, width) to bring "
                "all images to."
            )
        X.append(pixels if size is None else resized(pixels, size, 1))
        y.append(inside.astype(np.uint8) if size is None else resized(inside.astype(np.uint8), size, 0))
    partition = by_column([name for name, _, _ in pairs], seed, test_fraction)
    return partition.take(np.stack(X)[:, None], np.stack(y)[:, None])


def _pairs(place: Path) -> list[tuple[Path, Path]]:
    """Images and masks of one client, matched by name."""
    for part in ("images", "masks"):
        if not (place / part).is_dir():
            raise CoterieError(f"{place} has no folder '{part}': a client is a folder with 'images' and 'masks'.")
    images, masks = files(place / "images"), files(place / "masks")
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

    height, width = (positive_int("size", side) for side in size)
    factor: Any = (height / pixels.shape[0], width / pixels.shape[1])
    return np.asarray(zoom(pixels, factor, order=order, mode="nearest", grid_mode=True))


def read_image(path: Path) -> npt.NDArray[np.float32]:
    """One grey image (h, w) from a PNG (colours averaged, 0 to 1) or a NumPy file (numbers as they are).

    Raises
    ------
    CoterieError
        Where the file cannot be read, is no grey or coloured image, or has numbers that are not finite; for a PNG also
        where matplotlib, which reads it, is not installed.
    """
    try:
        pixels = np.load(path, allow_pickle=False) if path.suffix.lower() == ".npy" else _png(path)
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
    return pixels.astype(np.float32)


def _png(path: Path) -> Array:
    try:
        from matplotlib.image import imread
    except ImportError:
        raise CoterieError(
            f"Reading {path} needs matplotlib: pip install matplotlib, or save images as .npy."
        ) from None
    return np.asarray(imread(path, format="png"))


def files(folder: Path) -> dict[str, Path]:
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
