"""Nodules made here, their boxes on a grid and back, and how many are found."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from coterie.data.boxes import average_precision, from_grid, hits, sensitivity, shares, to_grid
from coterie.data.images import Scanner
from coterie.data.nodules import HOSPITALS, Hospital, three_hospitals
from coterie.errors import CoterieError


def boxes_of(part, i):
    return part.y[part.starts[i] : part.stops[i]]


def test_hospitals_are_not_alike():
    dealt = three_hospitals(400, side=48)
    assert dealt.train.X.shape == (600, 1, 48, 48) and dealt.train.y.shape == (600, 3, 5) and len(dealt.group) == 3
    for i, hospital in enumerate(HOSPITALS):
        boxes = np.concatenate([boxes_of(p, i) for p in (dealt.train, dealt.test)])
        there = boxes[:, :, 0] > 0
        sd = np.sqrt(hospital.nodules / 400)  # three coins a slice vary less than a Poisson number
        assert abs(there.sum(axis=1).mean() - hospital.nodules) < 4 * sd
        width = boxes[there][:, 3]
        low, high = (2 * (r + hospital.margin) for r in hospital.radius)
        assert low <= width.min() < width.max() <= high
        assert not boxes[~there].any()


def test_nodules_are_bright_and_in_their_boxes():
    clear = Hospital(Scanner(noise=0.0), radius=(2.0, 4.0), brightness=(0.9, 0.9), nodules=3.0)
    part = three_hospitals(20, [clear], side=48).train
    for image, boxes in zip(part.X[:, 0], part.y, strict=True):
        bright = image > 0.85
        for _, x, y, w, h in boxes:
            inside = image[int(y - h / 2 + 1) : int(y + h / 2), int(x - w / 2 + 1) : int(x + w / 2)]
            assert image[int(y), int(x)] == pytest.approx(0.9) and inside.mean() > 0.6
            bright[int(y - h / 2) : int(y + h / 2 + 1), int(x - w / 2) : int(x + w / 2 + 1)] = False
        assert not bright.any()
        assert not np.triu(shares(boxes[None], boxes[None])[0], 1).any()  # none hides another


def test_slices_are_functions_of_the_seed():
    a, b, c = (three_hospitals(4, seed=s).train for s in (0, 0, 1))
    np.testing.assert_array_equal(a.X, b.X)
    assert not np.array_equal(a.X, c.X) and not np.array_equal(a.y, c.y)


def test_a_grid_and_back():
    truth = three_hospitals(50).train.y
    grid = to_grid(truth, 48, 12)
    assert grid.shape == (75, 5, 12, 12) and grid[:, 0].sum() == truth[:, :, 0].sum()
    logits = grid.copy()
    logits[:, 0] = np.where(grid[:, 0] > 0, 9.0, -9.0)
    found = from_grid(logits, 48, keep=3)
    assert hits(found, truth, 0.99).sum() == truth[:, :, 0].sum()
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
    np.testing.assert_allclose(shares(a, b), [[[1 / 3, 1, 0, 0]]])


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
    assert hits(found, truth).tolist() == [[True, False]]
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
        (lambda: three_hospitals(0), "images must be a whole number of at least 1"),
        (lambda: three_hospitals((5, 5)), "one number of images for each hospital: 2 for 3"),
        (lambda: three_hospitals(5, side=12), "at least 24 pixels wide, not 12"),
        (lambda: Hospital(radius=(3.0, 2.0)), "from least to most"),
        (lambda: Hospital(radius=(0.0, 2.0)), "radii above 0"),
        (lambda: Hospital(brightness=(np.nan, 1.0)), "must be finite"),
        (lambda: Hospital(nodules=4.0), "from 0 to 3 a slice"),
        (lambda: Hospital(margin=-1.0), "margin not negative"),
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
