"""Parameters that do not require gradients stay where they are, as batches and one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.registry import TRAINED
from coterie.objectives.deep import Deep
from coterie.objectives.gradient_steps import Draws, Walk
from tests.messages import names

rng = np.random.default_rng(0)
X, y = rng.normal(size=(24, 5)).astype(np.float32), np.arange(24) % 3
LO, HI = np.arange(0, 24, 8), np.arange(8, 32, 8)


def net() -> nn.Module:
    torch.manual_seed(3)
    return unseeded()


def unseeded() -> nn.Module:
    made = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    made[0].weight.requires_grad_(False)
    return made


def deep(model: object = net, **how: object) -> Deep:
    return Deep.of(model, X, y, LO, HI, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("batched", [True, False])
def test_what_is_frozen_does_not_move_and_the_rest_does_as_in_torch(batched: bool) -> None:
    objective = deep(batched=batched, ridge=0.1, clip=0.5)
    first = np.tile(objective.start(0), (3, 1))
    draws = Draws(np.zeros(3, dtype=np.uint64), np.zeros(3, dtype=np.int64))
    steps = np.full(3, 2)
    there = objective.walk(first, Walk(np.full(3, 0.1), steps, draws, first * 0.0, 0.2, first, fresh=False))
    np.testing.assert_array_equal(there[:, :20], first[:, :20])
    assert np.all(there[:, 20:] != first[:, 20:])
    g = objective.mean_gradient(first, draws)
    assert not g[:, :20].any()
    assert g[:, 20:].all()

    module, end = net(), objective.walk(first, Walk(np.full(3, 0.1), steps, draws, fresh=False))
    for _ in range(2):
        module.zero_grad()
        moving = [p for p in module.parameters() if p.requires_grad]
        square = sum(p.square().sum() for p in moving)
        loss = nn.functional.cross_entropy(module(torch.tensor(X[:8])), torch.tensor(y[:8])) + 0.05 * square
        loss.backward()
        nn.utils.clip_grad_norm_(moving, 0.5)
        torch.optim.SGD(moving, 0.1).step()
    flat = torch.cat([p.detach().flatten() for p in module.parameters()]).numpy()
    np.testing.assert_allclose(end[0], flat, atol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "pfedme", "apfl", "ifca", "group-models"])
def test_methods_leave_it_alone(name: str) -> None:
    objective, trainer = deep(unseeded), TRAINED[name]
    fed = InProcess(objective, np.zeros(3, dtype=np.int64) if trainer.groups else None)
    method = trainer.make(0)
    state = method.step(fed, method.init(fed))
    models, first = np.asarray(method.models(fed, state)), objective.start(0)
    np.testing.assert_allclose(models[:, :20], np.tile(first[:20], (3, 1)), rtol=1e-6)
    assert np.abs(models[:, 20:] - first[20:]).max() > 1e-4


class LoRA(nn.Module):
    """A frozen layer and two trained factors."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.A, self.B = nn.Parameter(torch.ones(2, 5)), nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + x @ self.A.T @ self.B.T


def bitfit() -> nn.Module:
    module = nn.Linear(5, 3)
    module.weight.requires_grad_(False)
    return module


@pytest.mark.parametrize("module", [bitfit(), LoRA(nn.Linear(5, 3)), nn.Sequential(nn.Linear(5, 3))])
def test_a_pretrained_module_starts_as_it_is_and_what_is_frozen_stays(module: nn.Module) -> None:
    objective = deep(module)
    fed, method = InProcess(objective), TRAINED["fedavg"].make(1)
    before, state = objective.flat(module), method.init(fed)
    np.testing.assert_array_equal(objective.start(7), before)
    still = np.concatenate([np.full(p.numel(), not p.requires_grad) for p in module.parameters()])
    np.testing.assert_array_equal(state["w"], before[~still])  # what is frozen does not travel
    after = method.models(fed, method.step(fed, state))[0]
    np.testing.assert_array_equal(after[still], before[still])
    assert (after[~still] != before[~still]).any()


def test_a_model_of_frozen_layers_alone_is_refused() -> None:
    with pytest.raises(CoterieError, match="All parameters of the model are frozen"):
        deep(net().requires_grad_(False))


def test_groups_cannot_all_begin_at_one_pretrained_module() -> None:
    with pytest.raises(CoterieError, match=names("2 groups begin apart give function makes module")):
        TRAINED["ifca"].make(0, k=2).init(InProcess(deep(nn.Linear(5, 3))))
