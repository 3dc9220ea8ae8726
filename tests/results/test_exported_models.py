"""What other programs get of trained nets: modules, probabilities, tensors and ONNX, from a fit and from a folder."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from scipy.special import expit, softmax
from torch import nn

import coterie
from coterie import Torch
from coterie.errors import CoterieError
from coterie.objectives.deep import export
from coterie.results.net_predictions import probabilities
from tests.cli.harness import coterie as command
from tests.messages import names

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 1, 5, 5)).astype(np.float32)
Y, CLIENT = (X[:, 0, :2].sum(axis=(1, 2)) > 0).astype(int), np.repeat(["a/b", "basel", "bern"], 40)
FRESH = RNG.normal(size=(7, 1, 5, 5)).astype(np.float32)


def net():
    """A layer that never trains, statistics that move, noise in training."""
    base = nn.Conv2d(1, 3, 3)
    base.requires_grad_(False)
    return nn.Sequential(base, nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(27, 2))


@pytest.fixture(scope="module")
def result():
    return coterie.fit((X, Y), Torch(net), client=CLIENT, method="local", rounds=2)


@pytest.fixture(scope="module")
def linear():
    return coterie.fit((X, Y), Torch("softmax"), client=CLIENT, method="local", rounds=2)


def answers(file, rows):
    """What onnxruntime says, of a net of any number of rows."""
    from onnxruntime import InferenceSession

    session = InferenceSession(file, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    kind = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}[given.type]
    return session.run(["outputs"], {given.name: rows.astype(kind)})[0]


def outputs(module, rows):
    with torch.no_grad():
        return module(torch.from_numpy(rows)).numpy()


def test_a_module_is_the_clients_and_shares_nothing(result):
    first, other, again = (result.module(name) for name in ("basel", "bern", "basel"))
    assert not first.training and not torch.equal(first[5].weight, other[5].weight)
    held = [{t.data_ptr() for t in (*m.parameters(), *m.buffers()) if t.numel()} for m in (first, other, again)]
    assert not held[0] & held[1] and not held[0] & held[2] and not held[1] & held[2]
    before, theta = outputs(again, FRESH), result.client("basel").copy()
    with torch.no_grad():
        for tensor in (*first.parameters(), *first.buffers()):
            tensor.zero_()
    np.testing.assert_array_equal(outputs(again, FRESH), before)
    np.testing.assert_array_equal(outputs(result.module("basel"), FRESH), before)
    np.testing.assert_array_equal(result.client("basel"), theta)
    np.testing.assert_array_equal(result.predict(FRESH, "basel"), before.argmax(axis=1))


def test_probabilities_are_those_of_the_outputs(result, linear):
    for one in (result, linear):
        z = outputs(one.module("bern"), FRESH.astype(np.float64 if one is linear else np.float32))
        np.testing.assert_allclose(one.predict_proba(FRESH, "bern"), softmax(z, axis=1), rtol=1e-5)
        assert one.predict_proba(FRESH[:0], "bern").shape == (0, 2)
    one = Torch(lambda: nn.Sequential(nn.Flatten(), nn.Linear(25, 1)), "bce")
    odds = coterie.fit((X, Y.astype(float)), one, client=CLIENT, method="fedavg", rounds=1)
    np.testing.assert_allclose(odds.predict_proba(FRESH, "bern"), expit(outputs(odds.module("bern"), FRESH)), rtol=1e-5)
    with pytest.raises(CoterieError, match="mse has no classes"):
        probabilities("mse", FRESH)


def test_each_row_is_predicted_by_its_own_client(result, monkeypatch):
    whose = np.array(["bern", "basel"] * len(FRESH))[: len(FRESH)]
    asked = []
    with monkeypatch.context() as patch:
        objective = type(result).objective
        patch.setattr(type(result), "objective", lambda *args, **of: asked.append(of) or objective(*args, **of))
        found = result.predict_proba(FRESH, pd.Series(whose))
    assert [of["counts"].tolist() for of in asked] == [[3, 4]]  # all clients' rows in one objective
    for name in ("bern", "basel"):
        np.testing.assert_array_equal(found[whose == name], result.predict_proba(FRESH[whose == name], name))
    assert result.predict(FRESH[:0], []).shape == (0,)
    with pytest.raises(CoterieError, match=names("one for each of the rows not 1 labels")):
        result.predict(FRESH, ["bern"])
    with pytest.raises(CoterieError, match=names("no client 'bernn' 'bern'")):
        result.predict(FRESH, ["bernn", *whose[1:]])
    with pytest.raises(CoterieError, match=names("one method compare methods")):
        coterie.fit((X, Y), Torch("softmax"), client=CLIENT, method=["fedavg", "ditto"])


def test_tensors_go_into_a_module_of_anyones(result, tmp_path):
    result.export("bern", tmp_path / "bern.safetensors")
    loaded, fresh = load_file(tmp_path / "bern.safetensors"), net()
    assert loaded.keys() == result.state_dict("bern").keys() == fresh.state_dict().keys()
    fresh.load_state_dict(loaded)
    np.testing.assert_array_equal(outputs(fresh.eval(), FRESH), outputs(result.module("bern"), FRESH))
    with safe_open(tmp_path / "bern.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "client": "bern", "method": "local"}


def test_onnx_says_what_torch_says_of_every_client(result, tmp_path):
    result.export("bern", tmp_path / "bern.onnx")
    index = result.export_all(tmp_path / "all")
    assert list(csv.DictReader((tmp_path / "all" / "clients.csv").read_text().splitlines())) == index.to_dict("records")
    for label, file in zip(index["client"], index["file"], strict=True):
        expected = outputs(result.module(label), FRESH)
        np.testing.assert_allclose(answers(tmp_path / "all" / file, FRESH), expected, atol=1e-5)
        off = np.abs(answers(tmp_path / "bern.onnx", FRESH) - expected).max()
        assert off < 1e-5 if label == "bern" else off > 1e-3
    assert set(index["file"]) == {"a%2Fb.onnx", "basel.onnx", "bern.onnx"}
    fresh = torch.from_numpy(FRESH)
    made = export.as_onnx(result.module("bern"), (fresh, fresh[:2]))
    with pytest.raises(CoterieError, match="are off the module's by"):
        export.checked(made, result.module("basel"), (fresh, fresh[:2]))


def test_the_command_writes_what_a_folder_holds(linear, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    linear.save("trained")
    assert command("export", "trained", "--client", "bern", "--to", "bern.onnx").code == 0
    module = linear.module("bern")
    expected = outputs(module, FRESH.astype(np.float64))
    np.testing.assert_allclose(answers("bern.onnx", FRESH), expected, atol=1e-5)
    np.testing.assert_array_equal(expected.argmax(axis=1), linear.predict(FRESH, "bern"))
    assert command("export", "trained", "--client", "bern", "--to", "bern.onnx").code == 0  # its own, again
    assert "3 clients" in command("export", "trained", "--to", "all", "--form", "safetensors").out
    assert load_file("all/a%2Fb.safetensors")["1.weight"].shape == (2, 25)
    assert "must end in .onnx" in command("export", "trained", "--client", "bern", "--to", "bern.pt").message
    assert "no client 'brn'" in command("export", "trained", "--client", "brn", "--to", "brn.onnx").message
    (tmp_path / "mine.onnx").write_text("other")
    assert "--force" in command("export", "trained", "--client", "bern", "--to", "mine.onnx").message
    assert (tmp_path / "mine.onnx").read_text() == "other" and not (tmp_path / "brn.onnx").exists()


def test_code_of_a_users_own_is_exported_only_where_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_export_net.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(4, 2)\n")
    np.savez("rows.npz", X=X[:, 0, 0, :4], y=Y, client=CLIENT)
    tables = {"data": {"source": "rows.npz"}, "model": {"path": "my_export_net:make"}, "run": {"rounds": 1}}
    coterie.fit(tables | {"method": {"name": "fedavg"}}).save("trained")
    export = ("export", "trained", "--client", "basel", "--to", "basel.safetensors")
    assert "my_export_net:make" in command(*export).message
    assert command(*export, "--allow", "my_export_net:make").code == 0
    assert load_file("basel.safetensors").keys() == {"weight", "bias"}
    document = json.loads((tmp_path / "trained" / "training.json").read_text())
    assert document["config"]["model"]["path"] == "my_export_net:make"


class Branches(nn.Module):
    """One that ONNX has no words for: what it does hangs on the numbers of rows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, rows):
        return self.layer(rows) if float(rows.sum()) > 0 else -self.layer(rows)


def test_what_onnx_has_no_words_for_is_refused():
    with pytest.raises(CoterieError, match=r"cannot be written as ONNX: .*safetensors"):
        export.as_onnx(Branches().eval(), (torch.ones(3, 3), torch.ones(2, 3)))


class Words(nn.Module):
    """A net of texts of any length and of numbers beside them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(10, 2)

    def forward(self, input_ids, age, attention_mask):
        there = attention_mask[..., None]
        return self.head(torch.cat([(self.embedding(input_ids) * there).sum(-2) / there.sum(-2), age], -1))


class Pair(nn.Module):
    """A net that is given a mapping, or a pair, of arrays."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, batch):
        return self.layer(torch.cat([*batch.values()] if isinstance(batch, dict) else list(batch), -1))


@pytest.mark.parametrize("form", ["keywords", "dict", pytest.param("tuple", marks=pytest.mark.soak)])
def test_nets_of_several_inputs_and_of_texts_of_any_length(form, tmp_path):
    from onnxruntime import InferenceSession

    a, b = RNG.normal(size=(60, 2)).astype(np.float32), RNG.normal(size=(60, 3)).astype(np.float32)
    words = [RNG.integers(1, 50, n) for n in RNG.integers(2, 9, 60)]
    X = {"keywords": {"input_ids": words, "age": a}, "dict": {"a": a, "b": b}, "tuple": (a, b)}[form]
    made = coterie.fit(
        {"X": X, "y": np.where(a[:, 0] > 0, "yes", "no"), "client": np.repeat(["basel", "bern"], 30)},
        Torch(Words if form == "keywords" else Pair),
        method="local",
        rounds=2,
    )
    made.export_all(tmp_path)
    session = InferenceSession(tmp_path / "bern.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["no", "yes"] and about["client"] == "bern"
    if form == "keywords":
        texts = [RNG.integers(1, 50, n) for n in (11, 1, 4, 20)]
        ids, mask = np.zeros((4, 20), np.int64), np.zeros((4, 20), np.int64)
        for k, text in enumerate(texts):
            ids[k, : len(text)], mask[k, : len(text)] = text, 1
        asked, given = {"input_ids": texts, "age": a[:4]}, {"input_ids": ids, "age": a[:4], "attention_mask": mask}
    else:
        names = ("a", "b") if form == "dict" else ("rows_0", "rows_1")
        given = dict(zip(names, (a[:4], b[:4]), strict=True))
        asked = {"a": a[:4], "b": b[:4]} if form == "dict" else (a[:4], b[:4])
    (scores,) = session.run(["outputs"], given)
    np.testing.assert_allclose(softmax(scores, axis=1), made.predict_proba(asked, "bern"), atol=1e-5)
    assert np.array(["no", "yes"])[scores.argmax(axis=1)].tolist() == made.predict(asked, "bern").tolist()


@pytest.mark.soak
def test_rows_of_tokens(tmp_path):
    tokens = RNG.integers(0, 9, (60, 6))
    made = coterie.fit(
        (tokens, (tokens[:, 0] > 4).astype(int)),
        Torch(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 2))),
        client=np.repeat([0, 1], 30),
        method="fedavg",
        rounds=1,
    )
    made.export("1", tmp_path / "1.onnx")
    np.testing.assert_allclose(answers(tmp_path / "1.onnx", tokens), outputs(made.module("1"), tokens), atol=1e-5)


class Roots(nn.Module):
    """A net that gives no number for rows below 0."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(torch.sqrt(x))


@pytest.mark.parametrize("ask", ["predict", "predict_proba"])
def test_rows_of_which_a_net_says_nothing_are_refused_not_put_into_a_class(ask):
    rows = np.abs(RNG.normal(size=(20, 2))).astype(np.float32)
    found = coterie.fit(
        (rows, np.arange(20) % 2), Torch(Roots), client=np.repeat(["a", "b"], 10), method="local", rounds=1
    )
    assert len(getattr(found, ask)(rows[:3], "a")) == 3
    with pytest.raises(CoterieError, match=r"client 'a' gives no number in .*row 2\): leave"):
        getattr(found, ask)(np.float32([[1, 2], [1, -2]]), "a")
