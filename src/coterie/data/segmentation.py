"""Images with masks of several hospitals: made here, with other scanners, or read from a user's own folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.dealing import Array, Dealt, whole
from coterie.data.images import F64, U64, Scanner, ellipses, files, read_image
from coterie.data.partition import by_column
from coterie.errors import CoterieError
from coterie.files import local
from coterie.numerics.keyed import uniform

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

SCANNERS = (
    Scanner(contrast=1.0, noise=0.08),
    Scanner(contrast=-0.6, brightness=0.1, blur=0.8, field=0.3, noise=0.12),
)
"""A clean scanner, and one of another weighting (what is bright there is dark here), blurred, uneven and noisy."""


def two_organs(n: int, side: int, ids: U64, seed: int) -> tuple[F64, Bytes]:
    """Slices through a body with two organs, one brighter than the tissue and one darker, and a few vessels.

    Parameters
    ----------
    n, side : int
        How many slices, and their height and width.
    ids : (n,) uint64
        Numbers of the slices, by which shapes are drawn.
    seed : int

    Returns
    -------
    brightness : (n, side, side)
        From 0 to 1.
    mask : (n, side, side) uint8
        1 in the bright organ.
    """
    u = uniform(seed, "anatomy", ids, 0, 40)
    middle = side * (0.5 + 0.06 * (u[:, 0:2] - 0.5))
    radii = side * (0.38 + 0.08 * u[:, 2:4])
    turn = 2.0 * np.pi * u[:, 4]
    seen = 0.1 + 0.35 * ellipses(middle, radii, np.pi * u[:, 5], side)
    mask = np.zeros(seen.shape, dtype=np.uint8)
    for k, (brightness, opposite) in enumerate(((0.7, 0.0), (0.2, np.pi))):
        at = turn + opposite + 0.8 * (u[:, 6 + k] - 0.5)
        centre = middle + side * 0.18 * np.stack([np.cos(at), np.sin(at)], axis=1)
        size = side * (0.08 + 0.08 * u[:, 8 + 2 * k : 10 + 2 * k])
        inside = ellipses(centre, size, np.pi * u[:, 12 + k], side)
        seen += inside * (brightness - seen)
        mask = (inside >= 0.5).astype(np.uint8) if k == 0 else mask * (inside < 0.5)
    for k in range(14, 30, 4):  # vessels, some bright and some dark
        centre = middle + side * 0.6 * (u[:, k : k + 2] - 0.5)
        inside = ellipses(centre, np.full((n, 2), 0.03 * side), np.zeros(n), side) * (1 - mask)
        seen += inside * ((0.2 + 0.5 * u[:, k + 2])[:, None, None] - seen)
    return seen, mask.astype(np.uint8)


def two_hospitals(
    images: int | Sequence[int] = 40,
    scanners: Sequence[Scanner] = SCANNERS,
    side: int = 32,
    seed: int = 0,
    test_fraction: float = 0.5,
) -> Dealt:
    """The bright organ of bodies that hospitals see through other scanners; each hospital is a client.

    Parameters
    ----------
    images : int or one for each hospital, default 40
        Slices of each.
    scanners : sequence of Scanner, default ``SCANNERS``
        One for each hospital: there may be any number.
    side : int, default 32
        Height and width.
    seed : int, default 0
    test_fraction : float, default 0.5
        Share of every hospital's slices that is held out.

    Returns
    -------
    Dealt
        X (n, 1, side, side) float32, y (n, 1, side, side) uint8 masks of 0 and 1.

    Raises
    ------
    CoterieError
        For no scanner, other than one number of images for each, and numbers out of range.
    """
    hospital = owners(images, len(scanners), "scanner")
    ids = np.arange(len(hospital), dtype=np.uint64)
    truth, mask = two_organs(len(ids), whole("side", side), ids, seed)
    X = np.empty(truth.shape, dtype=np.float32)
    for h, scanner in enumerate(scanners):
        own = hospital == h
        X[own] = scanner.scan(truth[own], ids[own], seed)
    return by_column(hospital, seed, test_fraction).of(X[:, None], mask[:, None])


def owners(images: int | Sequence[int], hospitals: int, what: str) -> npt.NDArray[np.int64]:
    """The hospital of each image (n,), or a CoterieError where there is not one number of images for each."""
    counts = [images] * hospitals if isinstance(images, (int, np.integer)) else list(images)
    if not hospitals or len(counts) != hospitals:
        raise CoterieError(f"There must be one number of images for each {what}: {len(counts)} for {hospitals}.")
    return np.repeat(np.arange(hospitals), [whole("images", count) for count in counts])


def read_folder(
    folder: str | Path, size: tuple[int, int] | None = None, seed: int = 0, test_fraction: float = 0.2
) -> Dealt:
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
    Dealt
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
    deal = by_column([name for name, _, _ in pairs], seed, test_fraction)
    return deal.of(np.stack(X)[:, None], np.stack(y)[:, None])


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

    height, width = (whole("size", side) for side in size)
    factor: Any = (height / pixels.shape[0], width / pixels.shape[1])
    return np.asarray(zoom(pixels, factor, order=order, mode="nearest", grid_mode=True))
