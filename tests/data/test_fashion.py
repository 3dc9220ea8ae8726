"""Fashion-MNIST's files: read as they are, and said what is wrong with them."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from coterie.data.fashion import FOLDER, fashion, read_idx
from coterie.errors import CoterieError


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


def test_a_folder_of_one_s_own(small):
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
