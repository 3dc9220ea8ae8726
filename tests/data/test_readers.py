"""Rows that lie as other projects write them: what is read is what was written, nothing runs, and faults are said."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import coterie
from coterie.data.readers import Columns, read, unpickled_array
from coterie.errors import CoterieError
from tests.messages import names

RNG = np.random.default_rng(3)
SOFT = coterie.Torch("softmax")


def pfllib(folder, clients=(0, 2, 10), x=None):
    """As PFLlib's utils/dataset_utils.py: ``np.savez_compressed(f, data=dict)``; a client's x is its number."""
    for side, n in (("train", 6), ("test", 2)):
        (folder / side).mkdir(parents=True)
        for i in clients:
            held = {"x": np.full((n, 1, 2, 2), i, np.float32) if x is None else x, "y": np.arange(n) % 2}
            np.savez_compressed(folder / side / f"{i}.npz", data=held)
    (folder / "config.json").write_text("{}")
    return folder


def leaf(path, users=("ann", "bob"), **more):
    data = {u: {"x": [[float(k), j] for j in range(4)], "y": [0, 1, 1, 0]} for k, u in enumerate(users)}
    held = {"users": [*users], "num_samples": [4] * len(users), "user_data": data} | more
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(held))
    return path


def saved(place, table, features):
    """As ``Dataset.save_to_disk`` of the package datasets writes it (compared with its version 4)."""
    place.mkdir(parents=True)
    with (
        pa.OSFile(str(place / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table)
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (place / "dataset_info.json").write_text(json.dumps({"features": features}))


def hugging_face(folder):
    features = {"label": {"names": ["cat", "owl"], "_type": "ClassLabel"}}
    for split, n in (("train", 9), ("test", 6)):
        columns = {
            "pixels": RNG.normal(size=(n, 3)).tolist(),
            "age": np.arange(n),
            "size": np.arange(n) * 1.0,
            "label": [0, 1, 1] * (n // 3),
        }
        columns |= {"user": ["u", "v", "w"] * (n // 3), "words": ["a b"] * n, "gap": [None, *range(n - 1)]}
        columns |= {"ids": [list(range(1 + k % 3)) for k in range(n)]}
        saved(folder / split, pa.table(columns), features)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    return folder


def images(folder, sides=("",), clients=("north", "south"), size=(4, 5), colours=3):
    for side in sides:
        for client in clients:
            for k, kind in enumerate(("cat", "owl")):
                (folder / side / client / kind).mkdir(parents=True)
                for n in range(3):
                    pixels = np.full((*size, colours)[: 3 if colours > 1 else 2], 50 * k + n, np.uint8)
                    Image.fromarray(pixels).save(folder / side / client / kind / f"{n}.png")
    return folder


def test_folders_of_pfllib(tmp_path):
    found = read(pfllib(tmp_path / "MNIST"), Columns(), {})
    assert found["X"].shape == (24, 1, 2, 2) and (found["X"][:, 0, 0, 0] == found["client"]).all()
    assert [*dict.fromkeys(found["client"].tolist())] == [0, 2, 10] and (found["split"] == "test").sum() == 6
    result = coterie.fit(str(tmp_path / "MNIST"), SOFT, method="local", rounds=1)
    assert result.labels == ("0", "2", "10") and result.clients["test_rows"].tolist() == [2, 2, 2]


class Runs:
    def __reduce__(self):
        return (exec, ("print('it ran')",))


@pytest.mark.parametrize("evil", [Runs(), {"x": Runs(), "y": 1}, np.array([Runs()], dtype=object)])
def test_no_pickle_runs(tmp_path, capsys, evil):
    pfllib(tmp_path)
    np.savez_compressed(tmp_path / "train" / "2.npz", data=np.array(evil, dtype=object).reshape(-1)[0])
    with pytest.raises(CoterieError, match=names("2.npz PFLlib builtins.exec arrays containers")):
        read(tmp_path, Columns(), {})
    assert not capsys.readouterr().out
    for protocol in range(3, pickle.HIGHEST_PROTOCOL + 1):  # NumPy writes no older one
        with zipfile.ZipFile(tmp_path / "train" / "2.npz", "w") as out, out.open("data.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
            file.write(pickle.dumps(np.array({"x": np.ones((3, 1, 2, 2), np.float32), "y": [1, 0, 1]}), protocol))
        assert (read(tmp_path, Columns(), {})["client"] == 2).sum() == 5
    with pytest.raises(CoterieError, match=names("posix.system arrays")):
        unpickled_array(_npy(b"cposix\nsystem\n(S'true'\ntR."))


def _npy(data):
    import io

    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "|O", "fortran_order": False, "shape": ()})
    return out.getvalue() + data


def test_files_of_leaf(tmp_path):
    one = leaf(tmp_path / "all.json", hierarchies=["east", "west"])
    found = read(one, Columns(), {})
    assert found["client"].tolist() == ["ann"] * 4 + ["bob"] * 4 and (found["X"][:, 0] == [0] * 4 + [1] * 4).all()
    assert found["group"].tolist() == ["east"] * 4 + ["west"] * 4 and "split" not in found
    for side in ("train", "test"):
        leaf(tmp_path / "data" / side / f"{side}_a.json")
        leaf(tmp_path / "data" / side / f"{side}_b.json", users=("cat",))
    result = coterie.fit(str(tmp_path / "data"), SOFT, method="local", rounds=1)
    assert result.labels == ("ann", "bob", "cat") and result.clients["test_rows"].tolist() == [4, 4, 4]


def test_data_sets_of_hugging_face(tmp_path):
    hugging_face(tmp_path / "hf")
    found = read(tmp_path / "hf", Columns(None, ["pixels"], ["user", "client"]), {})
    assert found["X"].shape == (15, 3) and found["y"][:3].tolist() == ["cat", "owl", "owl"]
    assert found["user"][:4].tolist() == ["u", "v", "w", "u"] and (found["split"] == "test").sum() == 6
    flat = read(tmp_path / "hf" / "test", Columns("label", ["age", "size"]), {})
    both = read(tmp_path / "hf", Columns(None, ["pixels", "ids"]), {})["X"]
    assert both.dtype.names == ("pixels", "ids") and [*map(len, both["ids"][:3])] == [1, 2, 3]
    assert flat["X"].tolist() == [[k, k] for k in range(6)] and "split" not in flat
    net = coterie.Torch("softmax", target="label", inputs=["pixels"])
    result = coterie.fit(str(tmp_path / "hf"), net, client="user", method="fedavg", rounds=1)
    assert result.class_names == ("cat", "owl") and result.clients["test_rows"].tolist() == [2, 2, 2]
    with pytest.raises(coterie.CoterieError, match=r"has no column 'usr', as client says\. Did you mean 'user'"):
        coterie.fit(str(tmp_path / "hf"), net, client="usr", method="fedavg", rounds=1)


def test_images_in_folders_of_clients_and_classes(tmp_path):
    found = read(images(tmp_path / "a"), Columns(), {})
    assert found["X"].shape == (12, 3, 4, 5) and found["client"].tolist() == ["north"] * 6 + ["south"] * 6
    np.testing.assert_allclose(found["X"][:, 0, 0, 0] * 255, [0, 1, 2, 50, 51, 52] * 2, rtol=1e-6)
    assert found["y"][:6].tolist() == ["cat"] * 3 + ["owl"] * 3
    sided = read(images(tmp_path / "b", sides=("train", "test"), colours=1), Columns(), {"size": 8})
    assert sided["X"].shape == (24, 1, 8, 8) and (sided["split"] == "test").sum() == 12
    plain = images(tmp_path / "c", clients=("",))
    lines = [f"{kind}/{n}.png,{who}" for kind in ("cat", "owl") for n, who in enumerate("xyx")]
    (plain / "clients.csv").write_text("\n".join(["file,client", *lines]))
    listed = read(plain, Columns(), {"mode": "L"})
    assert listed["X"].shape == (6, 1, 4, 5) and listed["client"].tolist() == [*"xyxxyx"]


def test_classes_of_any_type_come_back_as_they_were(tmp_path):
    X, y = RNG.normal(size=(60, 2)), np.array(["low", "high", "Mittel"])[RNG.integers(0, 3, 60)]
    X[:, 0] += 3.0 * (y == "low")
    who = np.arange(60) % 3
    net = coterie.Torch("mlp", args={"sizes": [2, 4, 3]})
    codes = np.unique(y, return_inverse=True)[1]
    named, coded = (coterie.fit((X, v), net, client=who, method="local", rounds=2) for v in (y, codes))
    assert (named.theta == coded.theta).all() and named.class_names == ("Mittel", "high", "low")
    assert (named.predict(X, 1) == np.array(named.class_names)[coded.predict(X, 1)]).all()
    np.testing.assert_array_equal(coded.predict_proba([[1, 2]], 1), coded.predict_proba([[1.0, 2.0]], 1))
    with pytest.raises(CoterieError, match=r"y of the first argument has no value in 1 row \(data row 1\)"):
        coterie.fit((X, np.array([None, *y[1:]], dtype=object)), net, client=who)
    named.save(tmp_path / "kept")
    assert (coterie.load(tmp_path / "kept").predict(X, 1) == named.predict(X, 1)).all()
    assert (named.adapt(X, y, steps=2).models == coded.adapt(X, codes, steps=2).models).all()
    with pytest.raises(CoterieError, match=names("'none' class Mittel")):
        named.adapt(X[:1], ["none"])
    with pytest.raises(CoterieError, match=names("y text cross_entropy")):
        coterie.fit((X, y), coterie.Torch("mlp", "mse", args={"sizes": [2, 1]}), client=who, method="local", rounds=1)
    with pytest.raises(CoterieError, match=names("y value row")):
        coterie.fit((X, [*y[:59].tolist(), None]), net, client=who, method="local", rounds=1)


def ragged(folder):
    for side in ("train", "test"):
        np.savez(folder / side / "2.npz", data={"x": np.ones((3, 1, 9, 9), np.float32), "y": np.zeros(3)})


SPOILT = [
    (pfllib, lambda p: (p / "train/2.npz").write_bytes(b"PK"), {}, "2.npz PFLlib BadZipFile"),
    (pfllib, lambda p: np.savez(p / "train/2.npz", X=np.zeros(3)), {}, "2.npz PFLlib KeyError"),
    (pfllib, lambda p: np.savez(p / "train/2.npz", data=np.zeros(3)), {}, "2.npz array numbers dict"),
    (pfllib, lambda p: np.savez(p / "train/2.npz", data={"x": np.zeros(3), "y": [1]}), {}, "2.npz x y shape"),
    (pfllib, ragged, {}, "X one shape 9, 2.npz 0.npz"),
    (pfllib, lambda p: None, {"size": 3}, "PFLlib no args 'size'"),
    (hugging_face, lambda p: (p / "test/state.json").write_text("["), {}, "state.json read save again"),
    (hugging_face, lambda p: (p / "test/data-00000-of-00001.arrow").unlink(), {}, "test read save again"),
    (images, lambda p: (p / "north/cat/1.png").write_bytes(b"no"), {}, "1.png image write again"),
    (images, lambda p: Image.new("RGB", (9, 9)).save(p / "south/cat/1.png"), {}, "1.png channels size mode"),
    (images, lambda p: Image.new("RGB", (5, 4)).save(p / "south/1.png"), {}, "client/class/a.png alike"),
    (images, lambda p: None, {"size": [0, 4]}, "size height width"),
    (
        images,
        lambda p: (p / "clients.csv").write_text("file,client\nnorth/cat/0.png,a"),
        {},
        "clients.csv north/cat/1.png",
    ),
    (images, shutil.rmtree, {}, "there name folder"),
]


@pytest.mark.parametrize(("make", "spoil", "args", "message"), SPOILT)
def test_what_is_wrong_in_a_folder_is_said(tmp_path, make, spoil, args, message):
    folder = make(tmp_path / "rows")
    spoil(folder)
    with pytest.raises(CoterieError, match=names(message)):
        read(folder, Columns(None, ["pixels"] if make is hugging_face else None), args)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns("lable", ["age"]), "no column 'lable' mean 'label'"),
        (Columns(None, ["words"]), "'words' no number tokenizer"),
        (Columns(None, ["gap"]), "'gap' missing values"),
    ],
)
def test_columns_that_a_net_cannot_take(tmp_path, columns, message):
    with pytest.raises(CoterieError, match=names(message)):
        read(hugging_face(tmp_path / "hf"), columns, {})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.write_text("{"), "no file of LEAF JSONDecodeError"),
        (lambda p: p.write_text("{}"), "no file of LEAF KeyError"),
        (lambda p: leaf(p, num_samples=[4, 3]), "user bob 4 rows 3"),
        (
            lambda p: leaf(p, user_data={"ann": {"x": ["ab"], "y": [1]}}, users=["ann"], num_samples=[1]),
            "ann text code",
        ),
        (lambda p: leaf(p, users=[], num_samples=[]), "no user rows"),
    ],
)
def test_what_is_wrong_in_a_file_of_leaf_is_said(tmp_path, spoil, message):
    spoil(tmp_path / "a.json")
    with pytest.raises(CoterieError, match=names(message)):
        read(tmp_path / "a.json", Columns(), {})


def test_a_place_that_holds_something_else(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CoterieError, match=names("no rows known PFLlib LEAF images")):
        coterie.fit(str(tmp_path), SOFT, rounds=1)
    with pytest.raises(CoterieError, match=names("target named columns PFLlib")):
        coterie.fit(str(pfllib(tmp_path / "p")), coterie.Torch("softmax", target="y"), rounds=1)
