"""Boxes on a grid and back, and how many are found."""

from __future__ import annotations

import numpy as np
import pytest
from boxes import average_precision, from_grid, iou, matched_boxes, sensitivity, to_grid
from simulated_hospitals import three_hospitals
from sklearn.metrics import average_precision_score

from coterie.errors import CoterieError


def test_a_grid_and_back():
    truth = three_hospitals(50).train.y
    grid = to_grid(truth, 48, 12)
    assert grid.shape == (75, 5, 12, 12) and grid[:, 0].sum() == truth[:, :, 0].sum()
    logits = grid.copy()
    logits[:, 0] = np.where(grid[:, 0] > 0, 9.0, -9.0)
    found = from_grid(logits, 48, keep=3)
    assert matched_boxes(found, truth, 0.99).sum() == truth[:, :, 0].sum()
    assert average_precision(found, truth) == pytest.approx(1.0)


def test_of_two_boxes_in_a_cell_the_larger_is_kept():
    grid = to_grid([[[1, 1.0, 1.0, 6.0, 6.0], [1, 2.0, 2.0, 2.0, 2.0], [0, 0, 0, 0, 0]]], 8, 2)
    np.testing.assert_allclose(grid[0, :, 0, 0], [1, -0.25, -0.25, np.log(1.5), np.log(1.5)], rtol=1e-6)
    assert grid.sum() == grid[0, :, 0, 0].sum()


def test_the_likelier_of_two_boxes_of_one_place_is_kept():
    logits = np.full((1, 5, 4, 4), 0.0)
    logits[:, 0] = -9.0
    logits[0, :, 1, 1], logits[0, :, 1, 2], logits[0, :, 3, 3] = [2, 0.5, 0, 1, 1], [3, -0.5, 0, 1, 1], [1, 0, 0, 0, 0]
    found = from_grid(logits, 16, keep=3)[0]
    np.testing.assert_allclose(found[:, 0], [1 / (1 + np.exp(-3)), 1 / (1 + np.exp(-1)), 0.0])
    np.testing.assert_allclose(found[:2, 1:], [[8, 6, 4 * np.e, 4 * np.e], [14, 14, 4, 4]])


def test_shared_area():
    """Squares of side 2 moved by one pixel share 2 of 6."""
    a, b = np.array([[[1.0, 5, 5, 2, 2]]]), np.array([[[1.0, 6, 5, 2, 2], [1, 5, 5, 2, 2], [1, 9, 9, 2, 2], [0] * 5]])
    np.testing.assert_allclose(iou(a, b), [[[1 / 3, 1, 0, 0]]])


def found_of(scores, right):
    """Images of one box each: score and whether it lies on the truth."""
    truth = np.tile([1.0, 5, 5, 2, 2], (len(scores), 1, 1))
    found = truth.copy()
    found[:, 0, 0] = scores
    found[~np.asarray(right), 0, 1] = 9.0
    return found, truth


def test_average_precision_is_the_area_of_the_envelope():
    found, truth = found_of([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    # precisions 1, 1/2, 2/3, 1/2 at recalls 1/4, 1/4, 2/4, 2/4: area 1/4 * 1 + 1/4 * 2/3
    assert average_precision(found, truth) == pytest.approx(0.25 + 0.25 * 2 / 3)
    rng = np.random.default_rng(0)
    right = np.sort(rng.random(200)) > 0.4  # no dips of precision, so that the envelope is the curve
    found, truth = found_of(np.linspace(0.1, 0.9, 200), right)
    expected = average_precision_score(right, np.linspace(0.1, 0.9, 200)) * right.mean()
    assert average_precision(found, truth) == pytest.approx(expected)


def test_a_nodule_counts_once():
    truth = np.array([[[1.0, 5, 5, 2, 2], [0] * 5]])
    found = np.array([[[0.9, 5, 5, 2, 2], [0.8, 5, 5, 2, 2]]])
    assert matched_boxes(found, truth).tolist() == [[True, False]]
    assert average_precision(found, truth) == 1.0


def test_sensitivity_at_false_positives_an_image():
    found, truth = found_of([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    np.testing.assert_allclose(sensitivity(found, truth, (0, 0.24, 0.25, 0.5, 8)), [0.25, 0.25, 0.5, 0.5, 0.5])
    found[:, 0, 0] = 0.5  # ties: all four together have two false ones
    np.testing.assert_allclose(sensitivity(found, truth, (0.25, 0.5)), [0.0, 0.5])


def test_nothing_to_find_and_nothing_found():
    found, truth = found_of([0.9], [True])
    assert np.isnan(average_precision(found, 0 * truth)) and np.isnan(sensitivity(found, 0 * truth)).all()
    found[:, 0, 0] = 0.0
    assert average_precision(found, truth) == 0.0 and not sensitivity(found, truth).any()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: to_grid(np.zeros((2, 3, 4)), 48, 12), r"\(images, boxes, 5\), not \(2, 3, 4\)"),
        (lambda: to_grid(np.full((1, 1, 5), np.nan), 48, 12), "finite numbers"),
        (lambda: to_grid([[[1, 48.0, 5, 2, 2]]], 48, 12), "box of image 1 has its centre outside the image"),
        (lambda: to_grid([[[1, 5.0, 5, 0, 2]]], 48, 12), "box of image 1 has .* no size"),
        (lambda: to_grid(np.zeros((1, 1, 5)), 48, 13), "48 pixels does not divide into 13 cells"),
        (lambda: from_grid(np.zeros((1, 4, 3, 3)), 48), r"\(images, 5, cells, cells\), not \(1, 4, 3, 3\)"),
        (lambda: from_grid(np.full((1, 5, 3, 3), np.nan), 48), "not finite: its training diverged, take smaller steps"),
    ],
)
def test_what_cannot_be_is_said(call, sentence):
    with pytest.raises(CoterieError, match=sentence):
        call()
