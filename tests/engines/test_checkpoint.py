"""A site's folder: after a fault it holds what it held before, and nothing beside."""

import os

import numpy as np
import pytest

from coterie.engines import checkpoint
from coterie.engines.checkpoint import Folder


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def full(*_):
    raise OSError(28, "No space left on device")


def saved(path, value=0.0):
    folder = Folder(path)
    folder.save({"v": 0}, {"state": {"a": np.full(10, value)}})
    return folder


@pytest.mark.parametrize("file", ["head", "array-2"])
def test_a_save_that_fails_leaves_nothing_however_often_it_is_tried(file, tmp_path, monkeypatch):
    folder, write = saved(tmp_path), checkpoint.write

    def failing(path, parts):
        if path.name.startswith(file[:5]) and (file == "head" or len(names(tmp_path)) == 3):
            full()
        write(path, parts)

    for value in range(5):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(checkpoint, "write", failing)
            folder.save({"v": value}, {"state": {"a": np.full(1000, value), "b": np.zeros(10)}})
        assert names(tmp_path) == ["array-0", "head"]
        head, sets = Folder(tmp_path).load()
        assert head == {"v": 0} and not sets["state"]["a"].any()
    folder.save({"v": 9}, {"state": {"a": np.ones(10)}})
    assert len(names(tmp_path)) == 2
    assert Folder(tmp_path).load()[1]["state"]["a"].all()


def test_a_head_that_is_in_place_and_not_known_to_be_durable_keeps_its_arrays(tmp_path, monkeypatch):
    folder, replace, fsync = saved(tmp_path), os.replace, os.fsync
    placed = []
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "replace", lambda a, b: (replace(a, b), placed.append(b.name)))
        patch.setattr(os, "fsync", lambda f: full() if "head" in placed else fsync(f))
        folder.save({"v": 1}, {"state": {"a": np.ones(10)}})
    assert Folder(tmp_path).load()[0] == {"v": 1}
    folder.save({"v": 2}, {"state": {"a": np.full(10, 2.0)}})
    head, sets = Folder(tmp_path).load()
    assert head == {"v": 2} and sets["state"]["a"][0] == 2.0


@pytest.mark.parametrize("begun", [True, False])
def test_what_a_killed_save_left_is_removed(begun, tmp_path):
    if begun:
        saved(tmp_path)
    for name in ("array-1", "array-7", ".array-8.0a1b2c3d.part", ".head.0a1b2c3d.part"):
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "mine").touch()
    Folder(tmp_path).load()
    assert names(tmp_path) == (["array-0", "head", "mine"] if begun else ["mine"])


def test_an_array_in_two_sets_is_one_file(tmp_path):
    array = np.ones(3)
    Folder(tmp_path).save({}, {"state": {"a": array}, "mark c": {"a": array}})
    assert names(tmp_path) == ["array-0", "head"]
    sets = Folder(tmp_path).load()[1]
    assert sets["state"]["a"] is sets["mark c"]["a"]
