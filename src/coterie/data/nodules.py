"""Bright nodules in noisy slices of lungs, made here, with boxes as targets, of hospitals that are not alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.data.dealing import Dealt, whole
from coterie.data.images import F64, U64, Scanner, ellipses
from coterie.data.partition import by_column
from coterie.data.segmentation import owners
from coterie.errors import CoterieError
from coterie.numerics.keyed import uniform

BOXES = 3
"""Most nodules of a slice."""


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

    def __post_init__(self) -> None:
        ranges = (*self.radius, *self.brightness)
        if not np.isfinite(ranges).all() or not 0.0 < self.radius[0] <= self.radius[1]:
            raise CoterieError("A hospital's ranges must be finite, from least to most, and radii above 0.")
        if not 0.0 <= self.nodules <= BOXES or not 0.0 <= self.margin < np.inf:
            raise CoterieError(f"A hospital's nodules must be from 0 to {BOXES} a slice, and its margin not negative.")


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
) -> Dealt:
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
    Dealt
        X (n, 1, side, side) float32, y (n, 3, 5) float64 boxes (presence, x, y, width, height) in pixels, filled up
        with zeros; ``boxes.to_grid`` makes targets of them.

    Raises
    ------
    CoterieError
        For no hospital, other than one number of images for each, and numbers out of range.
    """
    hospital = owners(images, len(hospitals), "hospital")
    if whole("side", side) < 24:
        raise CoterieError(f"Slices must be at least 24 pixels wide, not {side}.")
    ids = np.arange(len(hospital), dtype=np.uint64)
    X, y = np.empty((len(ids), side, side), dtype=np.float32), np.empty((len(ids), BOXES, 5))
    for h, one in enumerate(hospitals):
        own = hospital == h
        truth, y[own] = slices(one, side, ids[own], seed)
        X[own] = one.scanner.scan(truth, ids[own], seed)
    return by_column(hospital, seed, test_fraction).of(X[:, None], y)


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
