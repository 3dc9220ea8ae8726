"""Hospitals made for the examples are as their numbers say, and see what others see in other ways."""

from __future__ import annotations

import numpy as np
import pytest
from boxes import iou
from simulated_hospitals import HOSPITALS, Hospital, Scanner, ellipses, three_hospitals, two_hospitals


def test_hospitals_see_the_same_bodies_otherwise():
    partitioned = two_hospitals(30, side=32)
    assert partitioned.train.X.shape == (30, 1, 32, 32) and partitioned.train.X.dtype == np.float32
    assert partitioned.train.y.shape == (30, 1, 32, 32) and set(np.unique(partitioned.train.y)) == {0, 1}
    assert (partitioned.train.stops - partitioned.train.starts).tolist() == [15, 15] and partitioned.classes == 0
    gap = []
    for a, b in zip(partitioned.train.starts, partitioned.train.stops, strict=True):
        X, inside = partitioned.train.X[a:b], partitioned.train.y[a:b] > 0
        assert 0.01 < inside.mean() < 0.15 and inside.any(axis=(1, 2, 3)).all()
        gap.append(X[inside].mean() - X[~inside].mean())
    assert gap[0] > 0.2 and gap[1] < -0.1  # bright in one, dark in the other


def test_slices_are_functions_of_seed_and_number():
    one, again, other = two_hospitals(6, seed=1), two_hospitals(6, seed=1), two_hospitals(6, seed=2)
    np.testing.assert_array_equal(one.train.X, again.train.X)
    assert not np.array_equal(one.train.X, other.train.X)
    few = two_hospitals((6, 3), seed=1)  # as first slices do not depend on how many follow
    assert {x.tobytes() for x in few.train.X[:3]} <= {x.tobytes() for x in (*one.train.X, *one.test.X)}


def test_a_scanner_does_what_its_numbers_say():
    flat, ids = np.full((400, 8, 8), 0.75), np.arange(400, dtype=np.uint64)
    plain = Scanner(contrast=-0.5, brightness=0.1, noise=0.2).scan(flat, ids, 0)
    assert plain.mean() == pytest.approx(0.5 - 0.5 * 0.25 + 0.1, abs=0.005)  # 25,600 draws of sd 0.2
    assert plain.std() == pytest.approx(0.2, abs=0.005)
    uneven = Scanner(noise=0.0, field=0.3).scan(flat, ids, 0)
    assert uneven.max() == pytest.approx(0.75 * (1 + 0.3 * np.sqrt(2)), rel=0.01) and uneven.std() > 0.05
    edge = np.zeros((1, 8, 8))
    edge[:, :, 4:] = 1.0
    assert np.ptp(np.diff(Scanner(noise=0.0, blur=1.0).scan(edge, ids[:1], 0)[0, 4])) < 0.6


def test_an_ellipse_has_its_area_and_place():
    inside = ellipses(np.array([[20.0, 12.0]]), np.array([[8.0, 4.0]]), np.zeros(1), 40)[0]
    assert inside.sum() == pytest.approx(np.pi * 32, rel=0.03)
    y, x = np.nonzero(inside > 0.5)
    assert (x + 0.5).mean() == pytest.approx(20.0) and (y + 0.5).mean() == pytest.approx(12.0)
    assert np.ptp(x) > 1.7 * np.ptp(y)


def boxes_of(part, i):
    return part.y[part.starts[i] : part.stops[i]]


def test_hospitals_are_not_alike():
    partitioned = three_hospitals(400, side=48)
    assert partitioned.train.X.shape == (600, 1, 48, 48) and partitioned.train.y.shape == (600, 3, 5)
    assert len(partitioned.group) == 3
    for i, hospital in enumerate(HOSPITALS):
        boxes = np.concatenate([boxes_of(p, i) for p in (partitioned.train, partitioned.test)])
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
        assert not np.triu(iou(boxes[None], boxes[None])[0], 1).any()  # none hides another


def test_slices_are_functions_of_the_seed():
    a, b, c = (three_hospitals(4, seed=s).train for s in (0, 0, 1))
    np.testing.assert_array_equal(a.X, b.X)
    assert not np.array_equal(a.X, c.X) and not np.array_equal(a.y, c.y)
