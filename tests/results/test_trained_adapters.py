"""Adapters of a model that does not train, on tokens: shared, personal, or of groups, beside one base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.errors import CoterieError
from coterie.objectives.deep.frozen_base import Base
from coterie.objectives.deep.objective import Deep
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem

WORDS, LENGTH, WIDTH, RANK = 40, 6, 8, 2
ADAPTERS, HEAD = 2 * WIDTH * RANK, 3 * WIDTH + 3

rng = np.random.default_rng(0)
X = rng.integers(0, WORDS, (80, LENGTH))
y = X.sum(axis=1) % 3
client, group = np.repeat(["a", "b", "c", "d"], 20), np.repeat(["north", "south"], 40)


class Adapted(nn.Module):
    """The mean of frozen embeddings through a frozen layer with low-rank factors (Hu et al. 2022), and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("place", torch.arange(LENGTH))
        self.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(RANK, WIDTH)), nn.Parameter(torch.zeros(WIDTH, RANK))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (n, 3) of whole numbers (n, length)."""
        at = (self.embed(tokens) * (1.0 + self.place[:, None])).mean(dim=1)
        return self.head(torch.tanh(self.inner(at) + at @ self.lora_A.T @ self.lora_B.T))


def pretrained(seed: int = 5) -> Adapted:
    torch.manual_seed(seed)
    return Adapted()


def fit(method: str, model: Any = None, **more: Any) -> Any:
    net = coterie.Torch(pretrained() if model is None else model)
    return coterie.fit((X, y), net, client=client, group=group, method=method, **({"rounds": 2} | more))


@pytest.mark.parametrize(
    ("method", "how", "sent"),
    [
        ("fedavg", {}, ADAPTERS + HEAD),
        ("fedper", {"personal": ["lora*"]}, HEAD),
        ("group-sgd", {"shared": ["head*"]}, ADAPTERS + HEAD),
    ],
)
def test_only_what_trains_is_sent_and_kept(method: str, how: dict[str, Any], sent: int) -> None:
    found = fit(method, **how)
    assert found.theta.shape[1] == ADAPTERS + HEAD
    once, twice = (fit(method, **how, rounds=r).ledger for r in (1, 2))
    down, up = (twice[name] - once[name] for name in ("bytes_down", "bytes_up"))
    assert 4 * 4 * sent <= up <= 4 * (4 * sent + 64)  # float32 of 4 clients, and each one's few words
    assert 4 * sent <= down <= 4 * (4 * sent + 600)  # a message of names beside it
    lora = found.theta[:, :ADAPTERS]
    apart = {"fedavg": 1, "fedper": 4, "group-sgd": 2}[method]
    assert len(np.unique(lora, axis=0)) == apart


def test_saved_models_bring_the_base_along(tmp_path: Path) -> None:
    found = fit("fedper", personal=["lora*"])
    found.save(tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    frozen = WORDS * WIDTH + WIDTH * WIDTH + WIDTH
    assert size < 4 * (frozen + 4 * (ADAPTERS + HEAD)) + 4000  # the base once, beside four models
    again = coterie.load(tmp_path, model=lambda: pretrained(6), changed=True)  # whose own base is another
    np.testing.assert_array_equal(again.predict(X, "b"), found.predict(X, "b"))
    assert torch.equal(again.module("b").embed.weight, pretrained().embed.weight)


def test_a_run_goes_on_with_its_own_base_alone(tmp_path: Path) -> None:
    long = TrainingProblem.of(fit("fedavg").configuration, 0)
    other = replace(long)  # where the file that the model comes from has other numbers by now
    other.objective.architecture.base = Base({"embed.weight": torch.ones(WORDS, WIDTH)})
    short = replace(long, config=replace(long.config, run=long.config.run | {"rounds": 1}))
    train(short, "fedavg", {}, [], tmp_path)
    with pytest.raises(CoterieError, match=r"data\.base"):
        train(other, "fedavg", {}, [], tmp_path, resume=True)
    resumed = train(long, "fedavg", {}, [], tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.theta, train(long, "fedavg", {}).theta)


@pytest.mark.parametrize(("width", "batched"), [(8, True), (320, False)])
def test_what_does_not_train_counts_in_how_clients_are_worked_on(width: int, batched: bool) -> None:
    net = nn.Sequential(nn.Linear(2, width), nn.Linear(width, width).requires_grad_(False), nn.Linear(width, 2))
    of = Deep.of(net, np.eye(2, dtype=np.float32), np.array([0, 1]), [0], [2])
    assert (of.batched is not None) == batched  # 320 x 320 numbers are more than 100,000


def test_a_frozen_layer_is_none_that_can_be_personal() -> None:
    with pytest.raises(CoterieError, match=r"'embed\*', .* matches no layer of the model that trains"):
        fit("fedper", personal=["embed*"])
