"""What the user of a torch model is told: one sentence, with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from coterie.errors import CoterieError
from coterie.objectives import parts
from coterie.objectives.deep import Deep
from coterie.objectives.steps import Draws

X = np.random.default_rng(0).normal(size=(10, 6))
y = np.arange(10) % 3


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def deep(model: Any = mlp, X: Any = X, y: Any = y, lo: Any = (0, 5), hi: Any = (5, 10), **how: Any) -> Deep:
    return Deep.of(model, X, y, lo, hi, **how)


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([])


class Uneven(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return torch.ones(6 + i), 0


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "not a module": (lambda: deep(lambda: 3), "must be a torch.nn.Module, or a function that makes one"),
    "no parameters": (lambda: deep(nn.Flatten()), "no parameters, so there is nothing to train"),
    "other inputs": (lambda: deep(X=X[:, :5]), r"cannot take rows of shape \(5,\)"),
    "text": (lambda: deep(X=np.full((10, 6), "a")), "must be numbers"),
    "too many classes": (lambda: deep(y=y + 1), "has 3 classes and targets go from 1 to 3"),
    "negative classes": (lambda: deep(y=y - 1), "targets go from -1 to 1"),
    "half classes": (lambda: deep(y=y + 0.5), "Classes must be whole numbers"),
    "one row too few": (lambda: deep(y=y[:9]), "one row for each other"),
    "outside": (lambda: deep(hi=(5, 11)), "within 10 rows"),
    "loss unknown": (lambda: deep(loss="cross_entrop"), "cross_entropy"),
    "loss means": (lambda: deep(loss=nn.CrossEntropyLoss()), 'reduction="none"'),
    "loss misfits": (lambda: deep(y=X[:, :2], loss="mse"), "cannot compare outputs"),
    "whole numbers": (lambda: deep(X=np.ones((10, 6), dtype=np.uint8)), "measurements as float32"),
    "loss without gradient": (lambda: deep(loss=lambda o, t: torch.zeros(len(t))), "The loss has no gradient"),
    "score means": (lambda: deep(score=lambda o, t: o.mean()), "The score must give"),
    "score fails": (lambda: deep(score=lambda o, t: o[:, 7]), "The score cannot compare outputs of shape"),
    "uneven items": (lambda: Deep.of_clients(mlp, [Uneven()]).sound(), "of the same shapes"),
    "dtype": (lambda: deep(dtype="int8"), "dtype must be one of"),
    "buffers": (lambda: deep(buffers="mine"), "buffers must be one of"),
    "refused": (lambda: deep(normed, buffers="refused"), "1.running_mean"),
    "weights": (lambda: deep(weights=-np.ones(10)), "10 finite numbers from 0"),
    "clip": (lambda: deep(clip=0.0), "clip must be a number above 0"),
    "ridge": (lambda: deep(ridge=-1.0), "ridge must be"),
    "momentum": (lambda: deep(momentum=1.0), "momentum must be"),
    "device": (lambda: deep(device="gpu0"), "There is no device 'gpu0'"),
    "no clients": (lambda: Deep.of_clients(mlp, []), "no clients"),
    "stream": (lambda: Deep.of_clients(mlp, [Stream()]), "can only be read in order"),
    "no score": (lambda: deep(y=X[:, :3], loss="mse").accuracy(np.zeros((2, 43))), "no score"),
    "gradients of statistics": (
        lambda: deep(normed).mean_gradient(np.zeros((2, 59)), Draws(np.zeros(2, np.uint64), np.zeros(2, np.int64))),
        "a method that takes steps at home",
    ),
    "pattern": (lambda: parts.where(deep(), ["conv*"]), "0.weight, 0.bias, 1.weight, 1.bias"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_sentence(name: str) -> None:
    run, says = CASES[name]
    with pytest.raises(CoterieError, match=says) as found:
        run()
    assert "\n" not in str(found.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_cuda_asked_for_and_not_there() -> None:
    with pytest.raises(CoterieError, match='CUDA is not there: say device="cpu"'):
        deep(device="cuda")


def test_pairs_beside_datasets() -> None:
    beside = Deep.of_clients(mlp, [TensorDataset(torch.tensor(X[:5]), torch.tensor(y[:5])), (X[5:], y[5:])])
    theta = beside.start(0)
    np.testing.assert_allclose(beside.value(theta), deep().value(theta), rtol=1e-6)


def test_small_clients_and_absent_classes_are_no_error() -> None:
    objective = deep(lo=(0, 1, 1), hi=(1, 1, 10), y=np.zeros(10, dtype=int))
    theta = np.tile(objective.start(0), (3, 1))
    draws = Draws(np.arange(3, dtype=np.uint64), np.zeros(3, dtype=np.int64), 64)
    found = objective.walk(theta, theta, np.full(3, 0.1), 0.0, np.full(3, 2), draws, True)
    assert np.isfinite(found).all() and (found[1] == theta[1]).all() and (found[[0, 2]] != theta[[0, 2]]).any()
