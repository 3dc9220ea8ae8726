"""Hospitals for the examples: slices of bodies and lungs drawn by keys, and the scanners that see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coterie.data.partition import PartitionedRows, by_column
from coterie.numerics import keyed_random
from coterie.numerics.keyed_random import uniform

F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

BOXES = 3
"""Most nodules of a slice."""


@dataclass(frozen=True)
class Scanner:
    """How a hospital's machine sees tissue; brightness of what is seen is around 0 to 1.

    Attributes
    ----------
    contrast : float, default 1
        Factor of brightness around its middle, 0.5; below 0, bright is dark.
    brightness : float, default 0
        Added to it.
    blur : float, default 0
        Standard deviation of the point spread, in pixels.
    field : float, default 0
        How far the gain strays from 1 across the image, as the field of a coil does.
    noise : float, default 0.05
        Standard deviation of white noise.
    """

    contrast: float = 1.0
    brightness: float = 0.0
    blur: float = 0.0
    field: float = 0.0
    noise: float = 0.05

    def scan(self, truth: F64, ids: U64, seed: int) -> npt.NDArray[np.float32]:
        """What the machine shows of some slices.

        Parameters
        ----------
        truth : (n, h, w)
            Brightness of the tissue.
        ids : (n,) uint64
            Numbers of the slices, by which noise and field are drawn.
        seed : int

        Returns
        -------
        (n, h, w) float32
        """
        from scipy.ndimage import gaussian_filter

        n, h, w = truth.shape
        seen = 0.5 + self.contrast * (truth - 0.5) + self.brightness
        if self.blur > 0.0:
            seen = gaussian_filter(seen, (0.0, self.blur, self.blur), mode="nearest")
        turn = 2.0 * np.pi * keyed_random.uniform(seed, "field", ids, 0, 1)
        y, x = np.linspace(-1.0, 1.0, h)[:, None], np.linspace(-1.0, 1.0, w)[None, :]
        slope = np.cos(turn)[:, :, None] * x + np.sin(turn)[:, :, None] * y
        noise = keyed_random.normal(keyed_random.starts(seed, "noise", ids), 0, h * w).reshape(n, h, w)
        return (seen * (1.0 + self.field * slope) + self.noise * noise).astype(np.float32)


def ellipses(centre: F64, radii: F64, angle: F64, side: int) -> F64:
    """How far inside ellipses the pixels of square images are.

    Parameters
    ----------
    centre, radii : (n, 2)
        x and y, in pixels.
    angle : (n,)
        Radians, from x towards y.
    side : int
        Height and width.

    Returns
    -------
    (n, side, side)
        The share of each pixel that is inside, going from 0 to 1 over about a pixel.
    """
    at = np.arange(side) + 0.5
    x, y = at[None, None, :] - centre[:, 0, None, None], at[None, :, None] - centre[:, 1, None, None]
    c, s = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    u, v = (c * x + s * y) / radii[:, 0, None, None], (c * y - s * x) / radii[:, 1, None, None]
    edge = (1.0 - np.hypot(u, v)) * radii.min(axis=1)[:, None, None]
    return np.asarray(np.clip(edge + 0.5, 0.0, 1.0))


def owners(images: int | Sequence[int], hospitals: int) -> npt.NDArray[np.int64]:
    """The hospital of each image (n,)."""
    return np.repeat(np.arange(hospitals), images)


SCANNERS = (
    Scanner(contrast=1.0, noise=0.08),
    Scanner(contrast=-0.6, brightness=0.1, blur=0.8, field=0.3, noise=0.12),
)
"""A clean scanner, and one of another weighting (what is bright there is dark here), blurred, uneven and noisy."""


def two_hospitals(
    images: int | Sequence[int] = 40,
    scanners: Sequence[Scanner] = SCANNERS,
    side: int = 32,
    seed: int = 0,
    test_fraction: float = 0.5,
) -> PartitionedRows:
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
    PartitionedRows
        X (n, 1, side, side) float32, y (n, 1, side, side) uint8 masks of 0 and 1.
    """
    hospital = owners(images, len(scanners))
    ids = np.arange(len(hospital), dtype=np.uint64)
    truth, mask, _ = two_organs(len(ids), side, ids, seed)
    X = np.empty(truth.shape, dtype=np.float32)
    for h, scanner in enumerate(scanners):
        own = hospital == h
        X[own] = scanner.scan(truth[own], ids[own], seed)
    return by_column(hospital, seed, test_fraction).take(X[:, None], mask[:, None])


def two_organs(n: int, side: int, ids: U64, seed: int) -> tuple[F64, Bytes, Bytes]:
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
    bright, dark : (n, side, side) uint8
        1 in the bright organ, and in the dark one.
    """
    u = uniform(seed, "anatomy", ids, 0, 40)
    middle = side * (0.5 + 0.06 * (u[:, 0:2] - 0.5))
    radii = side * (0.38 + 0.08 * u[:, 2:4])
    turn = 2.0 * np.pi * u[:, 4]
    seen = 0.1 + 0.35 * ellipses(middle, radii, np.pi * u[:, 5], side)
    masks = []
    for k, (brightness, opposite) in enumerate(((0.7, 0.0), (0.2, np.pi))):
        at = turn + opposite + 0.8 * (u[:, 6 + k] - 0.5)
        centre = middle + side * 0.18 * np.stack([np.cos(at), np.sin(at)], axis=1)
        size = side * (0.08 + 0.08 * u[:, 8 + 2 * k : 10 + 2 * k])
        inside = ellipses(centre, size, np.pi * u[:, 12 + k], side)
        seen += inside * (brightness - seen)
        masks.append(inside >= 0.5)
    mask = masks[0] & ~masks[1]
    for k in range(14, 30, 4):  # vessels, some bright and some dark
        centre = middle + side * 0.6 * (u[:, k : k + 2] - 0.5)
        inside = ellipses(centre, np.full((n, 2), 0.03 * side), np.zeros(n), side) * (1 - mask)
        seen += inside * ((0.2 + 0.5 * u[:, k + 2])[:, None, None] - seen)
    return seen, mask.astype(np.uint8), masks[1].astype(np.uint8)


@dataclass(frozen=True)
class Hospital:
    """Whom a hospital sees, with what, and how its readers mark what they find.

    Attributes
    ----------
    scanner : Scanner
    radius : (least, most), default (1.5, 3.5)
        Of nodules, in pixels.
    brightness : (least, most), default (0.5, 0.9)
        Of nodules; lungs are at 0.15, the chest at 0.6.
    nodules : float, default 1.2
        How many a slice has on average, 3 at most.
    margin : float, default 0
        Pixels that readers leave around a nodule on each side of its box.
    """

    scanner: Scanner = field(default_factory=Scanner)
    radius: tuple[float, float] = (1.5, 3.5)
    brightness: tuple[float, float] = (0.5, 0.9)
    nodules: float = 1.2
    margin: float = 0.0


HOSPITALS = (
    Hospital(Scanner(noise=0.05), radius=(2.0, 3.5), nodules=1.5),
    Hospital(Scanner(noise=0.12, field=0.2), radius=(1.5, 2.5), brightness=(0.4, 0.7), nodules=1.0, margin=1.0),
    Hospital(Scanner(contrast=0.6, blur=0.8, noise=0.08), radius=(2.0, 4.5), nodules=0.6, margin=2.0),
)
"""A clean scanner and large nodules; a noisy one with small, faint ones; a soft one with few; boxes of three habits."""


def three_hospitals(
    images: int | Sequence[int] = 60,
    hospitals: Sequence[Hospital] = HOSPITALS,
    side: int = 48,
    seed: int = 0,
    test_fraction: float = 0.5,
) -> PartitionedRows:
    """Slices of lungs with nodules; each hospital is a client.

    Parameters
    ----------
    images : int or one for each hospital, default 60
        Slices of each.
    hospitals : sequence of Hospital, default ``HOSPITALS``
        There may be any number.
    side : int, default 48
        Height and width, at least 24.
    seed : int, default 0
    test_fraction : float, default 0.5
        Share of every hospital's slices that is held out.

    Returns
    -------
    PartitionedRows
        X (n, 1, side, side) float32, y (n, 3, 5) float64 boxes (presence, x, y, width, height) in pixels, filled up
        with zeros; ``boxes.to_grid`` makes targets of them.
    """
    hospital = owners(images, len(hospitals))
    ids = np.arange(len(hospital), dtype=np.uint64)
    X, y = np.empty((len(ids), side, side), dtype=np.float32), np.empty((len(ids), BOXES, 5))
    for h, one in enumerate(hospitals):
        own = hospital == h
        truth, y[own] = slices(one, side, ids[own], seed)
        X[own] = one.scanner.scan(truth, ids[own], seed)
    return by_column(hospital, seed, test_fraction).take(X[:, None], y)


def slices(hospital: Hospital, side: int, ids: U64, seed: int) -> tuple[F64, F64]:
    """Brightness (n, side, side) of a hospital's slices before they are scanned, and their boxes (n, 3, 5)."""
    n, u = len(ids), uniform(seed, "lungs", ids, 0, 40)
    middle = side * (0.5 + 0.04 * (u[:, 0:2] - 0.5))
    none = np.zeros(n)
    seen = 0.6 * ellipses(middle, side * np.full((n, 2), (0.48, 0.42)), none, side)
    lungs = np.stack([middle + side * np.array([s * 0.21, 0.0]) for s in (-1.0, 1.0)], axis=1)
    size = side * np.array([0.15, 0.29])
    for k in range(2):
        seen += ellipses(lungs[:, k], np.tile(size, (n, 1)), none, side) * (0.15 - seen)
    for k in range(4):  # vessels: as bright as nodules, but long and thin
        v = u[:, 4 + 4 * k : 8 + 4 * k]
        centre = lungs[:, k % 2] + size * 0.8 * (2.0 * v[:, :2] - 1.0) * np.sqrt(0.5)
        inside = ellipses(centre, side * np.full((n, 2), (0.08, 0.012)), np.pi * v[:, 2], side)
        seen = np.maximum(seen, inside * (0.4 + 0.4 * v[:, 3])[:, None, None])
    return _nodules(hospital, seen, lungs, size, ids, seed)


def _nodules(hospital: Hospital, seen: F64, lungs: F64, size: F64, ids: U64, seed: int) -> tuple[F64, F64]:
    """Put nodules into lungs: one a zone at most (left, upper right, lower right), so that none hides another."""
    n, side = len(ids), seen.shape[1]
    u = uniform(seed, "nodules", ids, 0, 6 * BOXES).reshape(n, BOXES, 6)
    zones = np.array([[0.0, 0.0, 0.45], [1.0, -0.5, 0.1], [1.0, 0.5, 0.1]])  # lung, middle, half height
    boxes = np.zeros((n, BOXES, 5))
    (r0, r1), (b0, b1) = hospital.radius, hospital.brightness
    for k, (lung, up, half) in enumerate(zones):
        there = u[:, k, 0] < hospital.nodules / BOXES
        shift = np.stack([0.5 * (2.0 * u[:, k, 1] - 1.0), up + half * (2.0 * u[:, k, 2] - 1.0)], axis=1)
        centre = lungs[:, int(lung)] + size * shift
        radii = (r0 + (r1 - r0) * u[:, k, 3])[:, None] * np.stack([np.ones(n), 0.8 + 0.4 * u[:, k, 4]], axis=1)
        inside = ellipses(centre, radii, np.zeros(n), side) * there[:, None, None]
        seen = np.maximum(seen, inside * (b0 + (b1 - b0) * u[:, k, 5])[:, None, None])
        width = 2.0 * (radii + hospital.margin)
        boxes[:, k] = np.concatenate([np.ones((n, 1)), centre, width], axis=1) * there[:, None]
    return seen, boxes
