"""Several inputs, several targets, and series of any length: the same numbers batched, alone and from a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import coterie
from coterie.errors import CoterieError
from coterie.objectives.deep import Deep
from coterie.objectives.gradient_steps import Draws, Walk
from tests.messages import names

RNG = np.random.default_rng(5)
N = 60
STARTS, STOPS = np.array([0, 10, 35]), np.array([10, 35, 60])
WORDS = [RNG.integers(1, 9, n) for n in RNG.integers(1, 7, N)]
AGE, Y = RNG.normal(size=(N, 2)), RNG.integers(0, 3, N)
TWO = (RNG.normal(size=N), RNG.integers(0, 2, N))


class Words(nn.Module):
    """The mean of words' vectors, of those that are there."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask=None):
        seen = self.embedding(input_ids)
        there = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.head((seen * there[..., None]).sum(-2) / there.sum(-1, keepdim=True))


class Blind(Words):
    """Cannot be told what is there: zeros are words, too."""

    def forward(self, words):
        return super().forward(words)


class Counted(Words):
    def forward(self, series, lengths):
        return super().forward(series, (torch.arange(series.shape[-1]) < lengths[..., None]).long())


class Both(Words):
    """Words and a person's age; as transformers do, an object with logits."""

    def __init__(self):
        super().__init__()
        self.age = nn.Linear(2, 3)

    def forward(self, input_ids, age, attention_mask=None):
        return type("Output", (), {"logits": super().forward(input_ids, attention_mask) + self.age(age)})()


class OfDict(Both):
    def forward(self, given):
        return super().forward(given["words"], given["years"], given["words"] > 0)


class OfTuple(Both):
    def forward(self, *given):
        return super().forward(given[0], given[1], given[0] > 0)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)


def both_targets(outputs, targets):
    dose, ill = targets
    return (outputs[:, 0] - dose) ** 2 + nn.functional.binary_cross_entropy_with_logits(
        outputs[:, 1], ill.to(outputs.dtype), reduction="none"
    )


FIXED = [np.pad(words, (0, 6 - len(words))) for words in WORDS]
CASES = {
    "series": (Words, WORDS, Y, {}, lambda net, r: net(torch.tensor(WORDS[r])[None])),
    "blind": (Blind, WORDS, Y, {}, lambda net, r: net(torch.tensor(FIXED[r])[None])),
    "lengths": (Counted, WORDS, Y, {}, lambda net, r: Words.forward(net, torch.tensor(WORDS[r])[None])),
    "dict": (
        Both,
        {"input_ids": WORDS, "age": AGE},
        Y,
        {},
        lambda net, r: net(torch.tensor(WORDS[r])[None], torch.tensor(AGE[r])[None]).logits,
    ),
    "one dict": (
        OfDict,
        {"words": np.stack(FIXED), "years": AGE},
        Y,
        {},
        lambda net, r: Both.forward(net, torch.tensor(WORDS[r])[None], torch.tensor(AGE[r])[None]).logits,
    ),
    "places": (
        OfTuple,
        (np.stack(FIXED), AGE),
        Y,
        {},
        lambda net, r: Both.forward(net, torch.tensor(WORDS[r])[None], torch.tensor(AGE[r])[None]).logits,
    ),
    "targets": (Pair, AGE, TWO, {"loss": both_targets}, lambda net, r: net(torch.tensor(AGE[r])[None])),
}


def loop(objective, theta, case):
    """Two full steps of each client by torch.optim.SGD, one row at a time."""
    one = CASES[case][4]
    out = []
    for i in range(3):
        net = objective.module(theta[i]).train()
        optimizer = torch.optim.SGD(net.parameters(), 0.3)
        for _ in range(2):
            optimizer.zero_grad()
            total = 0.0
            for r in range(STARTS[i], STOPS[i]):
                outputs = one(net, r)
                if case == "targets":
                    loss = both_targets(outputs, tuple(torch.as_tensor(part[r : r + 1]) for part in TWO))
                else:
                    loss = nn.functional.cross_entropy(outputs, torch.tensor(Y[r : r + 1]), reduction="none")
                total = total + loss.sum() / (STOPS[i] - STARTS[i])
            total.backward()
            optimizer.step()
        out.append(objective.flat(net))
    return np.stack(out)


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_a_plain_loop_batched_and_alone(case):
    make, X, y, options, _ = CASES[case]
    found = {}
    for batched in (True, False):
        objective = Deep.of(make, X, y, STARTS, STOPS, dtype="float64", batched=batched, **options)
        assert (objective.batched is not None) == batched  # nothing of it stands in the way of vmap
        theta = np.tile(objective.start(0), (3, 1))
        steps = Walk(np.full(3, 0.3), np.full(3, 2, dtype=np.int64), Draws.of_all(3))
        found[batched] = objective.walk(theta, steps), objective.row_losses(theta)
    expected = loop(objective, theta, case)
    for moved, _ in found.values():
        np.testing.assert_allclose(moved, expected, atol=1e-12)
    np.testing.assert_allclose(found[True][1], found[False][1], atol=1e-12)


class Items(Dataset):
    def __init__(self, rows, form):
        self.rows, self.form = rows, form

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return self.form(self.rows[k]), int(Y[self.rows[k]])


@pytest.mark.soak("OfTuple-<lambda>-X2")
@pytest.mark.parametrize(
    ("make", "form", "X"),
    [
        (Words, lambda r: torch.tensor(WORDS[r]), WORDS),
        (Both, lambda r: {"input_ids": torch.tensor(WORDS[r]), "age": AGE[r]}, {"input_ids": WORDS, "age": AGE}),
        (OfTuple, lambda r: (torch.tensor(FIXED[r]), AGE[r]), (np.stack(FIXED), AGE)),
    ],
)
def test_datasets_and_pairs_of_clients_give_the_same(make, form, X):
    rows = [np.arange(a, b) for a, b in zip(STARTS, STOPS, strict=True)]
    given = {str(i): Items(rows[i].tolist(), form) for i in range(3)}
    loaded = Deep.of_clients(make, given)
    pick = lambda v, r: [v[k] for k in r] if isinstance(v, list) else v[r]  # noqa: E731

    def own(r):
        if isinstance(X, dict):
            return {name: pick(part, r) for name, part in X.items()}
        return tuple(pick(part, r) for part in X) if isinstance(X, tuple) else pick(X, r)

    pairs = Deep.of_clients(make, [(own(r), Y[r]) for r in rows])
    held = Deep.of(make, X, Y, STARTS, STOPS)
    theta = np.tile(held.start(0), (3, 1))
    for other in (loaded, pairs):
        np.testing.assert_allclose(other.gradient(theta), held.gradient(theta), atol=1e-5)
    front = coterie.fit(given, coterie.Torch(make), method="local", rounds=1)
    again = coterie.fit(
        {str(i): (own(r), Y[r]) for i, r in enumerate(rows)}, coterie.Torch(make), method="local", rounds=1
    )
    np.testing.assert_array_equal(front.theta, again.theta)


@pytest.mark.soak("series", "one dict")
@pytest.mark.parametrize("case", ["series", "dict", "one dict", "places", "targets"])
def test_results_over_a_wire_are_those_in_process_and_models_are_kept(case, tmp_path):
    make, X, y, options, _ = CASES[case]
    net, rows = coterie.Torch(make, **options), {"X": X, "y": y, "client": np.repeat([3, 1, 2], [10, 25, 25])}
    how = {"method": "ditto", "rounds": {"rounds": 3, "B": 4, "eta": 0.1}}
    here, wired = (
        coterie.fit(rows, net, engine=engine, **how) for engine in ("inprocess", {"kind": "loopback", "sites": 2})
    )
    np.testing.assert_allclose(here.theta, wired.theta, atol=1e-6)
    some = (
        X[:4]
        if isinstance(X, list | np.ndarray)
        else type(X)({k: v[:4] for k, v in X.items()} if isinstance(X, dict) else (v[:4] for v in X))
    )
    said = here.predict(some, 1)
    assert len(said) == 4
    here.save(tmp_path / "kept")
    kept = coterie.load(tmp_path / "kept", model=make, allow=["tests.objectives.deep.test_input_tensors:both_targets"])
    np.testing.assert_array_equal(kept.predict(some, 1), said)
    if case != "targets":
        assert here.adapt(some, y[:4], steps=2).models.shape == here.client(1)[None].shape


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ({"input_ids": WORDS, "age": AGE[:5]}, "parts X one row other age (5, 2)"),
        ({"input_ids": WORDS, "age": [["a", "b"]] * N}, "age real numbers"),
        ({}, "no part"),
        ([*WORDS[:-1], [[1, 2]]], "length alone"),
    ],
)
def test_what_cannot_be_inputs_is_said(X, message):
    with pytest.raises(CoterieError, match=names(message)):
        Deep.of(Both, X, Y, STARTS, STOPS)


def test_what_else_is_said():
    with pytest.raises(CoterieError, match=names("several targets 'mse' function (n, k)")):
        Deep.of(Pair, AGE, TWO, STARTS, STOPS, loss="mse")
    result = coterie.fit(
        {"X": WORDS, "y": Y, "client": np.arange(N) % 3}, coterie.Torch(Words), method="local", rounds=1
    )
    with pytest.raises(CoterieError, match=names("Rows predict input_ids")):
        result.predict({"input_ids": WORDS, "age": AGE}, 1)
    with pytest.raises(CoterieError, match=names("softmax one array several")):
        coterie.fit(
            {"X": WORDS, "y": Y, "client": np.arange(N) % 3}, coterie.Torch("softmax"), method="local", rounds=1
        )
