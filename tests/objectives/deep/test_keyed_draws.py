"""What torch draws in a forward pass: the same for a client alone as beside others, and as a literal loop has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from coterie.numerics import keyed_random
from coterie.objectives.deep import Deep
from coterie.objectives.deep.keyed_draws import KeyedDraws
from coterie.objectives.gradient_steps import Draws, Walk
from tests.objectives.deep.test_randomness import LO, M, N, Net, X, Y
from tests.objectives.deep.twin import flat, load, rows_of

IDS = np.arange(20, 20 + M, dtype=np.uint64)
KEYS = keyed_random.starts(0, "rows", IDS)
ETA, STEPS = np.full(M, 0.2), np.array([2, 0, 3, 1, 3])
CPU = torch.device("cpu")


class Sequence(nn.Module):
    """What takes rows as sequences of three numbers, and a head."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x.unflatten(1, (2, 3)))
        return self.head((out[0] if isinstance(out, tuple) else out).flatten(1))


def attention() -> nn.Module:
    return Sequence(nn.TransformerEncoderLayer(3, 1, 4, dropout=0.3, batch_first=True))


BATCHED: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    "twice, in place": lambda: Net(lambda s, h: F.dropout(F.dropout(h, 0.2, s.training), 0.3, s.training, True)),
    "of channels": lambda: Net(lambda s, h: F.dropout1d(h[..., None], 0.5, s.training)[..., 0]),
    "alpha": lambda: Net(lambda s, h: F.alpha_dropout(h, 0.5, s.training)),
    "kernel of accelerators": lambda: Net(lambda s, h: torch.native_dropout(h, 0.4, s.training)[0]),
    "attention": attention,
    "randn": lambda: Net(lambda s, h: h + torch.randn(h.shape) + torch.randn_like(h)),
    "rand": lambda: Net(lambda s, h: h * torch.rand(h.shape[-1]) + torch.empty_like(h).normal_(1.0, 0.5)),
    "gumbel": lambda: Net(lambda s, h: h * F.gumbel_softmax(h)),
    "bernoulli": lambda: Net(lambda s, h: h * torch.bernoulli(torch.sigmoid(h.detach()))),
    "also evaluated": lambda: Net(lambda s, h: F.dropout(h, 0.5)),
}


def walk(size: int = 4, fresh: bool = True) -> Walk:
    return Walk(ETA, STEPS, Draws(KEYS, np.arange(M), size), fresh=fresh)


def starts(objective: Deep) -> Any:
    return objective.start(0) + np.random.default_rng(1).normal(size=(M, objective.dim)) * 0.1


@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("name", BATCHED)
def test_clients_that_draw_are_batched_and_get_what_they_get_alone(name: str, size: int) -> None:
    counts = np.array([8, 3, 5, 8, 1])
    objective = Deep.of(BATCHED[name], X, Y, LO, LO + counts, batched=True)
    assert objective.batched and objective.architecture.keyed and not objective.architecture.random
    alone, theta, by = replace(objective, batched=None), starts(objective), walk(size)
    whole = objective.walk(theta, by)
    assert objective.batched.works
    np.testing.assert_allclose(whole, alone.walk(theta, by), rtol=1e-5, atol=1e-6)
    assert not alone.architecture.random
    for i in (2, 4):
        one = objective.take(np.array([i])).walk(theta[[i]], by.of(np.array([i])))
        np.testing.assert_allclose(one[0], whole[i], rtol=1e-5, atol=1e-6)
    again = [o.mean_gradient(theta, by.draws) for o in (objective, alone)]
    np.testing.assert_allclose(*again, rtol=1e-5, atol=1e-6)


def fractions(i: int, step: int, call: int, many: int) -> np.ndarray:
    """SplitMix64 in Python's whole numbers, from the client's key: state (key of the step) ^ call, then its outputs."""

    def mixed(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    at = mixed(mixed((int(KEYS[i]) + step * golden) % 2**64) ^ call)
    return np.array([(mixed((at + (j + 1) * golden) % 2**64) >> 11) * 2.0**-53 for j in range(many)])


@pytest.mark.parametrize("batched", [True, False])
def test_dropout_is_that_of_a_plain_loop(batched: bool) -> None:
    objective = Deep.of(lambda: Net(lambda s, h: F.dropout(h, 0.3, s.training)), X, Y, LO, LO + N, batched=batched)
    theta, found = starts(objective), []
    made = objective.walk(theta, walk())
    for i in range(M):
        masks: list[Tensor] = []
        module = Net(lambda s, h, masks=masks: h * masks[-1] / 0.7)
        load(module, theta[i].astype("f4"))
        optimiser = torch.optim.SGD(module.parameters(), lr=0.2)
        for step in range(i, i + STEPS[i]):
            rows = rows_of(IDS, i, step, 4, LO[i], LO[i] + N)
            masks.append(torch.from_numpy(fractions(i, step, 1, 4 * 8) < 0.7).view(4, 8))
            optimiser.zero_grad()
            F.cross_entropy(module(torch.from_numpy(X[rows])), torch.from_numpy(Y[rows])).backward()
            optimiser.step()
        found.append(flat(module))
    np.testing.assert_allclose(made, np.array(found), rtol=1e-5, atol=1e-6)


def test_clients_steps_and_calls_draw_apart_and_never_as_rows_are_drawn() -> None:
    with KeyedDraws(KEYS[:2], np.array([3, 3]), CPU) as draws:
        both, other = torch.rand(2, 50), torch.rand(2, 50)
    with KeyedDraws(KEYS[:1], np.array([4]), CPU):
        later = torch.rand(50)
    rows = torch.from_numpy(keyed_random.uniform(0, "rows", IDS[:1], 3, 50)[0])
    numbers = torch.cat([both, other, later[None], rows[None].float()])
    assert draws.calls == 2 and len(numbers.unique()) == numbers.numel()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_drawn_has_the_distribution_of_torchs(dtype: torch.dtype) -> None:
    n = 40_000
    with KeyedDraws(KEYS[:1], np.array([0]), CPU):
        found = {
            "uniform": (torch.rand(n, dtype=dtype), 0.5, 1 / 12),
            "within": (torch.empty(n, dtype=dtype).uniform_(-1.0, 3.0), 1.0, 16 / 12),
            "normal": (torch.randn(n, dtype=dtype), 0.0, 1.0),
            "exponential": (torch.empty(n, dtype=dtype).exponential_(2.0), 0.5, 0.25),
            "bernoulli": (torch.empty(n, dtype=dtype).bernoulli_(0.25), 0.25, 0.1875),
        }
    assert float(found["uniform"][0].max()) < 1.0 and float(found["within"][0].max()) < 3.0
    for values, mean, variance in found.values():
        wide = values.double()
        assert values.dtype == dtype and abs(float(wide.mean()) - mean) < 5.0 * (variance / n) ** 0.5 + 2e-3 * variance
        assert abs(float(wide.var()) - variance) < 0.05 * variance


def test_masks_that_a_batch_would_change_are_drawn_client_after_client() -> None:
    lstm = Deep.of(lambda: Sequence(nn.LSTM(3, 3, 2, batch_first=True, dropout=0.5)), X, Y, LO, LO + N, batched=True)
    of = lstm.architecture  # the layers' masks have time first, so that a row's depend on how many rows there are
    assert of.keyed and of.mixes_in_training and not (lstm.batched or of.random or of.mixes)
    np.testing.assert_array_equal(*(lstm.walk(starts(lstm), walk()) for _ in range(2)))


def test_masks_that_are_drawn_again_on_the_way_back_are_the_same_there() -> None:
    def kept(s: Any, h: Tensor) -> Tensor:
        return checkpoint(lambda v: F.dropout(v, 0.5, s.training).square(), h, use_reentrant=False)

    objective = Deep.of(lambda: Net(kept), X, Y, LO, LO + N, batched=True)
    assert objective.architecture.random and not (objective.architecture.keyed or objective.batched)
    theta = starts(objective)
    found = objective.mean_gradient(theta, walk(0).draws)
    plain = Deep.of(lambda: Net(lambda s, h: F.dropout(h, 0.5, s.training).square()), X, Y, LO, LO + N, batched=False)
    plain.architecture.keyed, plain.architecture.random = False, True  # by generators, too
    np.testing.assert_allclose(found, plain.mean_gradient(theta, walk(0).draws), rtol=1e-5, atol=1e-6)


def test_few_clients_run_one_after_another_and_what_rests_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = Deep.of(lambda: Net(lambda s, h: h), X, Y, LO, LO + N, batched=True)
    theta, head = starts(objective), np.arange(objective.dim) >= objective.dim - 27
    whole, asked = objective.walk(theta, replace(walk(), on=1.0 * head)), []
    grad = torch.autograd.grad

    def counted(loss: Tensor, layers: list[Tensor], **more: Any) -> Any:
        asked.append(len(layers))
        return grad(loss, layers, **more)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    few = objective.take(np.arange(4))
    monkeypatch.setattr(type(objective.batched), "walk", None)
    found = few.walk(theta[:4], replace(walk().of(np.arange(4)), on=1.0 * head))
    np.testing.assert_allclose(found, whole[:4], rtol=1e-5, atol=1e-6)
    assert asked == [2] * STEPS[:4].sum() and (found[:, ~head] == theta[:4, ~head].astype("f4")).all()
