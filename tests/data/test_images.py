"""Folders of images of a user's own: what is in them, and what is said of what is not."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
from matplotlib.image import imsave

from coterie.data.images import read_folder, read_image, resized, standardised
from coterie.errors import CoterieError


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
        r"6 x 8 and its mask .* is 6 x 7",
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
    with pytest.raises(CoterieError, match=r"s2.png cannot be read as an image"):
        read_folder(folder)


def test_without_matplotlib_the_remedy_is_said(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.image", None)
    with pytest.raises(CoterieError, match=r"s0.png needs matplotlib: pip install matplotlib, or save images as .npy"):
        read_folder(folder)
