"""Boxes around what is to be found in images: coded on a grid, with a loss, and read back; how many were found.

A box is five numbers: presence (1 or 0, or a score), x and y of its centre, width and height, in pixels. Images have
arrays of as many boxes (n, boxes, 5), filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from coterie.errors import CoterieError

BOX = 1.0  # what a box counts beside a nodule's presence
FOCUS = 2.0  # exponent of the focal loss
F64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

RATES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives an image at which LUNA16 asks for the sensitivity (Setio et al. 2017)."""


def to_grid(boxes: npt.ArrayLike, side: int, cells: int) -> Floats:
    """What a detector should say of each cell of images: (n, 5, cells, cells) float32, from boxes (n, boxes, 5).

    Of each cell, presence of a centre, its distance (x, y) from the middle of the cell in cells, and the logarithms of
    width and height in cells. Of several centres in a cell the largest box is kept. Images have ``side`` pixels a side.
    A CoterieError for centres outside the image, and boxes without width or height.
    """
    given = np.asarray(boxes, dtype=np.float64)
    if given.ndim != 3 or given.shape[2] != 5 or not np.isfinite(given).all():
        raise CoterieError(f"Boxes must be finite numbers (images, boxes, 5), not {given.shape}.")
    if side < 1 or cells < 1 or side % cells:
        raise CoterieError(f"A side of {side} pixels does not divide into {cells} cells.")
    image, place = np.nonzero(given[:, :, 0])
    some = given[image, place]
    bad = (some[:, 1:3] < 0.0).any(axis=1) | (some[:, 1:3] >= side).any(axis=1) | (some[:, 3:] <= 0.0).any(axis=1)
    if bad.any():
        raise CoterieError(
            f"A box of image {image[bad.argmax()] + 1} has its centre outside the image or no size: boxes are "
            "(1, x, y, width, height) in pixels."
        )
    order = np.argsort(some[:, 3] * some[:, 4], kind="stable")  # the largest is written last
    image, some = image[order], some[order]
    wide = side / cells
    cell = np.floor(some[:, 1:3] / wide).astype(np.int64)
    out = np.zeros((len(given), 5, cells, cells), dtype=np.float32)
    coded = [np.ones((len(some), 1)), some[:, 1:3] / wide - cell - 0.5, np.log(some[:, 3:] / wide)]
    out[image, :, cell[:, 1], cell[:, 0]] = np.concatenate(coded, axis=1)
    return out


def from_grid(outputs: npt.ArrayLike, side: int, keep: int = 10, overlap: float = 0.3) -> F64:
    """The likeliest boxes (n, keep, 5) of a detector's answers (n, 5, cells, cells), likeliest first.

    Answers are as :func:`to_grid` has them, with logits of presence; the first number of a box is its probability.
    Boxes that share more than ``overlap`` (intersection over union) with a likelier one are left out: they have 0. A
    CoterieError for answers that are not finite: the model diverged.
    """
    grid = np.asarray(outputs, dtype=np.float64)
    if grid.ndim != 4 or grid.shape[1] != 5 or grid.shape[2] != grid.shape[3]:
        raise CoterieError(f"A detector's answers must be (images, 5, cells, cells), not {grid.shape}.")
    if not np.isfinite(grid).all():
        raise CoterieError("A detector's answers are not finite: its training diverged, take smaller steps.")
    n, _, cells, _ = grid.shape
    flat = grid.reshape(n, 5, -1).transpose(0, 2, 1)
    best = np.argsort(-flat[:, :, 0], axis=1, kind="stable")[:, :keep]
    some = np.take_along_axis(flat, best[:, :, None], axis=1)
    wide = side / cells
    middle = np.stack([best % cells, best // cells], axis=2) + 0.5
    size = np.exp(np.clip(some[:, :, 3:], -5.0, np.log(cells)))  # no box is larger than the image
    score = 1.0 / (1.0 + np.exp(-np.clip(some[:, :, :1], -500.0, 500.0)))
    out = np.concatenate([score, wide * (middle + some[:, :, 1:3]), wide * size], axis=2)
    return _likeliest(out, overlap)


def _likeliest(boxes: F64, overlap: float) -> F64:
    """Scores of boxes that share too much with a likelier one of their image become 0; they go last."""
    shared = iou(boxes, boxes)
    for k in range(boxes.shape[1] - 1):
        hidden = (boxes[:, k, None, 0] > 0.0) & (shared[:, k, k + 1 :] > overlap)
        boxes[:, k + 1 :, 0] *= ~hidden
    order = np.argsort(-boxes[:, :, 0], axis=1, kind="stable")
    return np.take_along_axis(boxes, order[:, :, None], axis=1)


def iou(a: F64, b: F64) -> F64:
    """Intersection over union (n, p, q) of boxes (n, p, 5) and (n, q, 5); 0 for boxes without size."""
    low = [boxes[:, :, 1:3] - boxes[:, :, 3:] / 2.0 for boxes in (a, b)]
    high = [boxes[:, :, 1:3] + boxes[:, :, 3:] / 2.0 for boxes in (a, b)]
    sides = np.minimum(high[0][:, :, None], high[1][:, None]) - np.maximum(low[0][:, :, None], low[1][:, None])
    both = np.maximum(sides, 0.0).prod(axis=3)
    areas = (a[:, :, 3:].prod(axis=2), b[:, :, 3:].prod(axis=2))
    union = areas[0][:, :, None] + areas[1][:, None] - both
    return np.where(union > 0.0, both / np.where(union > 0.0, union, 1.0), 0.0)


def matched_boxes(found: F64, truth: npt.ArrayLike, overlap: float = 0.5) -> Mask:
    """Which of the boxes found (n, k, 5), likeliest first, are right, (n, k).

    Each takes the free true box with which it shares most, if that is at least ``overlap`` (intersection over union); a
    box found twice is wrong once (Everingham et al. 2010).
    """
    real = np.asarray(truth, dtype=np.float64)
    shared = iou(found, real) * (real[:, None, :, 0] > 0.0)
    out, rows = np.zeros(found.shape[:2], dtype=bool), np.arange(len(found))
    for k in range(found.shape[1]):
        best = shared[:, k].argmax(axis=1)
        out[:, k] = (shared[rows, k, best] >= overlap) & (found[:, k, 0] > 0.0)
        shared[rows[out[:, k]], :, best[out[:, k]]] = 0.0  # taken
    return out


def average_precision(found: F64, truth: npt.ArrayLike, overlap: float = 0.5) -> float:
    """Area under the curve of precision over recall, with precision made monotone; NaN where nothing is to be found.

    Boxes found (n, k, 5) are as :func:`from_grid` gives them, true ones (n, boxes, 5); for ``overlap`` see
    :func:`matched_boxes`.

    References
    ----------
    Everingham et al. (2010), The Pascal visual object classes challenge, IJCV (all points, as since 2010).
    """
    right, _, total = _curve(found, truth, overlap)
    if not total or not len(right):
        return 0.0 if total else float("nan")
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(best[right].sum() / total)


def sensitivity(
    found: F64, truth: npt.ArrayLike, at: Sequence[float] = RATES, overlap: float = 0.5
) -> npt.NDArray[np.float64]:
    """Share of true boxes found (len(at),) where ``at`` false ones are allowed an image (FROC).

    Their mean is LUNA16's score; NaN where nothing is to be found. Arguments are those of :func:`average_precision`.
    """
    right, score, total = _curve(found, truth, overlap)
    if not total:
        return np.full(len(at), np.nan)
    last = np.append(score[1:] != score[:-1], True) if len(score) else np.zeros(0, dtype=bool)  # ties go together
    wrong, got = np.append(0, np.cumsum(~right)[last]), np.append(0, np.cumsum(right)[last])
    place = np.searchsorted(wrong, np.asarray(at, dtype=np.float64) * len(found), side="right") - 1
    return np.asarray(got[place] / total)


def _curve(found: F64, truth: npt.ArrayLike, overlap: float) -> tuple[Mask, F64, int]:
    """Boxes of all images by score: which are right, their scores; how many there are to be found."""
    right, score = matched_boxes(found, truth, overlap).ravel(), found[:, :, 0].ravel()
    order = np.argsort(-score, kind="stable")
    order = order[score[order] > 0.0]
    return right[order], score[order], int(np.count_nonzero(np.asarray(truth)[:, :, 0]))


def grid_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Focal loss of a nodule's presence in each cell plus the distance of the boxes of cells that have one, (rows,).

    Both are divided by the image's number of nodules, or 1 where it has none. Outputs and targets (rows, 5, cells,
    cells) are presence and box of each cell, targets as :func:`to_grid` makes them.

    References
    ----------
    Lin et al. (2017), Focal loss for dense object detection, ICCV; smooth L1 as in Girshick (2015), Fast R-CNN.
    """
    targets = targets.to(outputs.dtype)
    truth = targets[:, 0]
    entropy = functional.binary_cross_entropy_with_logits(outputs[:, 0], truth, reduction="none")
    missed = 1.0 - torch.exp(-entropy)  # one minus the probability of the truth
    off = functional.smooth_l1_loss(outputs[:, 1:], targets[:, 1:], reduction="none").sum(1) * truth
    many = truth.flatten(1).sum(1).clamp(min=1.0)
    return (missed**FOCUS * entropy + BOX * off).flatten(1).sum(1) / many
