"""Images: Fashion-MNIST's files, digits at the angles of hidden groups, and folders of a user's own."""

from __future__ import annotations

import gzip
import shutil
import struct
import sys

import numpy as np
import pytest
from matplotlib.image import imsave
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

from coterie.data.images import (
    FOLDER,
    fashion,
    read_folder,
    read_idx,
    read_image,
    resized,
    rotated_digits,
    standardised,
)
from coterie.errors import CoterieError
from tests.messages import names


def idx(array):
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder, name, array):
    (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))


@pytest.fixture
def small(tmp_path):
    images = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)
    for name, n in (("train", 3), ("t10k", 2)):
        write(tmp_path, f"{name}-images-idx3-ubyte", images[:n])
        write(tmp_path, f"{name}-labels-idx1-ubyte", np.array([9, 0, 4], dtype=np.uint8)[:n])
    return tmp_path


def test_fashion_in_a_folder_of_one_s_own(small):
    found = fashion(small)
    np.testing.assert_array_equal(found.images, np.arange(48).reshape(3, 4, 4))
    assert found.labels.tolist() == [9, 0, 4] and found.labels.dtype == np.int64
    assert found.test_images.shape == (2, 4, 4) and found.test_labels.tolist() == [9, 0]


@pytest.mark.skipif(not FOLDER.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_the_whole_of_it():
    found = fashion()
    assert found.images.shape == (60_000, 28, 28) and found.test_images.shape == (10_000, 28, 28)
    assert (np.bincount(found.labels) == 6_000).all() and (np.bincount(found.test_labels) == 1_000).all()
    assert found.labels[:5].tolist() == [9, 0, 0, 3, 0]  # an ankle boot, a T-shirt, ...: as its authors list them


def test_a_missing_file_says_how_to_get_it(small, tmp_path):
    with pytest.raises(CoterieError, match=r"train-images.* is missing; .*apt install dataset-fashion-mnist"):
        fashion(tmp_path / "nowhere")
    (small / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(CoterieError, match=r"t10k-labels-idx1-ubyte\.gz is missing"):
        fashion(small)
    (small / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(2, dtype=np.uint8)))  # unpacked is fine
    assert fashion(small).test_labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is not an idx file"),
        (b"hello, world", "is not an idx file"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "is not an idx file of bytes"),  # floats
        (b"\0\0\x08\x03\0\0\0\x01", "is not an idx file"),  # header cut off
        (idx(np.zeros((2, 3), dtype=np.uint8))[:-1], "should hold \\(2, 3\\) bytes but has 5: get the file again"),
        (gzip.compress(idx(np.zeros(9, dtype=np.uint8)), mtime=0)[:-4], "cannot be read"),
        (b"\x1f\x8b" + b"x" * 30, "cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path, data, sentence):
    path = tmp_path / "images"
    path.write_bytes(data)
    with pytest.raises(CoterieError, match=sentence) as fault:
        read_idx(path)
    assert str(path) in str(fault.value)


def test_something_else_is_not_fashion(small):
    write(small, "train-labels-idx1-ubyte", np.array([9, 0], dtype=np.uint8))
    with pytest.raises(CoterieError, match="which is not Fashion-MNIST"):
        fashion(small)


def owners(part):
    return np.repeat(np.arange(len(part.starts)), part.stops - part.starts)


def both(partitioned):
    """X, y and client of train and test rows, aligned with ``partitioned.row``."""
    X, y = (np.concatenate([getattr(p, name) for p in (partitioned.train, partitioned.test)]) for name in ("X", "y"))
    return X, y, np.concatenate([owners(partitioned.train), owners(partitioned.test)])


@pytest.mark.parametrize(("clients", "rotations"), [(40, (0, 90, 180, 270)), (7, (0, 30)), (1, (0,)), (898, (0, 180))])
def test_every_image_is_one_client_s_at_its_angle(clients, rotations):
    found, digits = rotated_digits(clients, rotations, seed=3), load_digits()
    X, y, client = both(found)
    np.testing.assert_array_equal(np.sort(found.row), np.arange(1797))
    np.testing.assert_array_equal(y, digits.target[found.row])
    np.testing.assert_array_equal(X[:, 0], 1.0)
    for r in range(0, 1797, 13):
        angle = rotations[found.group[client[r]]]
        image = rotate(digits.images[found.row[r]] / 16, angle, reshape=False, order=1)
        np.testing.assert_allclose(X[r, 1:].reshape(8, 8), image, atol=1e-9)
    sizes = np.bincount(found.group, minlength=len(rotations))
    assert sizes.max() - sizes.min() <= 1 and len(found.group) == clients
    counts = np.bincount(client, minlength=clients)
    assert counts.max() - counts.min() <= 1
    for part in (found.train, found.test):
        assert (part.stops > part.starts).all() and part.stops[-1] == len(part.y)
        np.testing.assert_array_equal(part.starts[1:], part.stops[:-1])


def test_a_quarter_turn_is_counter_clockwise():
    plain, turned = rotated_digits(2, (0,)), rotated_digits(2, (90,))
    up, left = (d.train.X[5, 1:].reshape(8, 8) for d in (plain, turned))
    np.testing.assert_array_equal(left, np.rot90(up))
    assert not np.array_equal(left, up)


def test_the_share_held_out_and_the_seed():
    a, b, c = (rotated_digits(40, seed=s, test_fraction=0.25) for s in (1, 1, 2))
    assert abs(len(a.test.y) / 1797 - 0.25) < 0.01
    np.testing.assert_array_equal(a.train.X, b.train.X)
    np.testing.assert_array_equal(a.group, b.group)
    assert not np.array_equal(a.row, c.row) and not np.array_equal(a.group, c.group)
    assert not np.array_equal(a.group, np.sort(a.group))  # hidden: not by the clients' numbers


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: rotated_digits(0), "clients must be a whole number from 1"),
        (lambda: rotated_digits(2.5), "clients must be a whole number from 1"),
        (lambda: rotated_digits(899), "1,797 rows are too few for 899 clients"),
        (lambda: rotated_digits(4, ()), "rotations must be angles"),
        (lambda: rotated_digits(4, (np.nan,)), "rotations must be angles in degrees"),
        (lambda: rotated_digits(4, test_fraction=1.0), "test_fraction must be a number between 0 and 1"),
    ],
)
def test_what_cannot_be_partitioned_is_named(call, sentence):
    with pytest.raises(CoterieError, match=sentence):
        call()


def test_standardised_images():
    X = np.random.default_rng(0).normal(3.0, 5.0, (4, 1, 6, 6))
    X[2] = 7.0
    out = standardised(X)
    np.testing.assert_allclose(out.mean(axis=(1, 2, 3)), 0.0, atol=1e-6)
    np.testing.assert_allclose(out.std(axis=(1, 2, 3)), [1, 1, 0, 1], atol=1e-6)


@pytest.fixture
def folder(tmp_path):
    """Two clients: north with 4 PNG images, south with 3 NumPy images; masks the other way round."""
    rng = np.random.default_rng(0)
    for client, n in (("north", 4), ("south", 3)):
        for part in ("images", "masks"):
            (tmp_path / client / part).mkdir(parents=True)
            for k in range(n):
                pixels = rng.random((6, 8)) if part == "images" else (rng.random((6, 8)) > 0.5) * 1.0
                path = tmp_path / client / part / f"s{k}"
                if (client == "north") == (part == "images"):
                    imsave(path.with_suffix(".png"), pixels, cmap="gray", vmin=0, vmax=1)
                else:
                    np.save(path.with_suffix(".npy"), pixels)
    return tmp_path


def test_a_folder_of_one_s_own(folder):
    partitioned = read_folder(folder, test_fraction=0.5)
    assert partitioned.names == ("north", "south")
    assert partitioned.train.X.shape[1:] == (1, 6, 8) and len(partitioned.train.X) + len(partitioned.test.X) == 7
    X, y = (np.concatenate([getattr(p, name) for p in (partitioned.train, partitioned.test)]) for name in ("X", "y"))
    k = int(np.flatnonzero(partitioned.row == 5)[0])  # south's second
    np.testing.assert_allclose(X[k, 0], np.load(folder / "south/images/s1.npy"), atol=1e-6)
    np.testing.assert_array_equal(y[k, 0], read_image(folder / "south/masks/s1.png") > 0.5)
    k = int(np.flatnonzero(partitioned.row == 0)[0])
    np.testing.assert_array_equal(y[k, 0], np.load(folder / "north/masks/s0.npy"))
    assert X[k].max() <= 1.0 and X[k].min() >= 0.0


def test_other_sizes_are_brought_to_one(folder):
    for part in ("images", "masks"):
        np.save(folder / "south" / part / "big.npy", np.ones((12, 16)))
    with pytest.raises(CoterieError, match=r"big.npy is 12 x 16 and .*s0.png is 6 x 8: name a size"):
        read_folder(folder)
    partitioned = read_folder(folder, size=(12, 16))
    assert partitioned.train.X.shape[2:] == (12, 16) and set(np.unique(partitioned.train.y)) == {0, 1}
    mask = np.zeros((4, 4), dtype=np.uint8)
    mask[:, 2:] = 1
    np.testing.assert_array_equal(resized(mask, (8, 8), 0)[0], [0, 0, 0, 0, 1, 1, 1, 1])


def empty(folder):
    for path in (folder / "south/images").iterdir():
        path.unlink()


BREAK = {
    "no mask": (lambda f: (f / "north/masks/s2.npy").unlink(), r"s2.png has no mask: put one of the same name into"),
    "no masks": (
        lambda f: [(f / f"north/masks/s{k}.npy").unlink() for k in (1, 2)],
        r"no mask \(nor have 1 more\)",
    ),
    "no image": (lambda f: (f / "south/images/s1.npy").unlink(), r"s1.png is the mask of no image: add the image"),
    "no images": (empty, r"images has no images: files that end in .png or .npy"),
    "no masks folder": (lambda f: shutil.rmtree(f / "south/masks"), r"south has no folder 'masks': a client is"),
    "sizes": (
        lambda f: np.save(f / "north/masks/s2.npy", np.ones((6, 7))),
        r"6 x 8 and its mask .* 6 x 7",
    ),
    "twice": (lambda f: np.save(f / "north/images/s2.npy", np.ones((6, 8))), r"s2.npy and .*s2.png have the same name"),
    "no PNG": (lambda f: (f / "north/images/s2.png").write_bytes(b"hello"), r"s2.png cannot be read as an image"),
    "no NPY": (lambda f: (f / "south/images/s2.npy").write_bytes(b"hello"), r"s2.npy cannot be read as an image"),
    "empty file": (lambda f: (f / "south/images/s2.npy").write_bytes(b""), r"s2.npy cannot be read as an image"),
    "NaN": (
        lambda f: np.save(f / "south/images/s2.npy", np.full((6, 8), np.nan)),
        r"s2.npy has pixels that are not",
    ),
    "text": (lambda f: np.save(f / "south/images/s2.npy", np.full((6, 8), "a")), r"s2.npy has no numbers"),
    "volume": (lambda f: np.save(f / "south/images/s2.npy", np.ones((6, 8, 9))), r"s2.npy has the shape \(6, 8, 9\)"),
    "no clients": (
        lambda f: [shutil.rmtree(f / c) for c in ("north", "south")],
        r"has no clients: each is a",
    ),
    "nothing": (shutil.rmtree, r"is not a folder: name the one that has a sub-folder for each client"),
}


@pytest.mark.parametrize("what", BREAK)
def test_what_a_folder_lacks_is_said(folder, what):
    spoil, sentence = BREAK[what]
    spoil(folder)
    with pytest.raises(CoterieError, match=sentence):
        read_folder(folder)


def test_a_cut_off_png_is_named(folder):
    path = folder / "north/images/s2.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(CoterieError, match=names("s2.png cannot read image")):
        read_folder(folder)


def test_without_matplotlib_the_remedy_is_said(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.image", None)
    with pytest.raises(CoterieError, match=names("s0.png needs matplotlib pip install save images npy")):
        read_folder(folder)
