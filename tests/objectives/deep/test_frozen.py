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
from coterie.objectives.mixed import Mixed
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
def test_what_trains_moves_as_in_torch_and_the_rest_is_no_part_of_a_model(batched: bool) -> None:
    objective = deep(batched=batched, ridge=0.1, clip=0.5)
    assert objective.names == {"0.bias": 4, "2.weight": 12, "2.bias": 3}
    first = np.tile(objective.start(0), (3, 1))
    draws = Draws(np.zeros(3, dtype=np.uint64), np.zeros(3, dtype=np.int64))
    assert objective.mean_gradient(first, draws).all()
    module, end = net(), objective.walk(first, Walk(np.full(3, 0.1), np.full(3, 2), draws, fresh=False))
    for _ in range(2):
        module.zero_grad()
        moving = [p for p in module.parameters() if p.requires_grad]
        square = sum(p.square().sum() for p in moving)
        loss = nn.functional.cross_entropy(module(torch.tensor(X[:8])), torch.tensor(y[:8])) + 0.05 * square
        loss.backward()
        nn.utils.clip_grad_norm_(moving, 0.5)
        torch.optim.SGD(moving, 0.1).step()
    np.testing.assert_allclose(end[0], objective.flat(module), atol=1e-6)  # flat refuses another frozen layer


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "pfedme", "apfl", "ifca", "group-models"])
def test_methods_leave_it_alone(name: str) -> None:
    objective, trainer = deep(unseeded), TRAINED[name]
    before = objective.module(objective.start(0))[0].weight.detach().clone()
    fed = InProcess(objective, np.zeros(3, dtype=np.int64) if trainer.groups else None)
    method = trainer.make(0)
    state = method.step(fed, method.init(fed))
    models, first = np.asarray(method.models(fed, state)), objective.start(0)
    assert models.shape == (3, 19)
    assert np.abs(models - first).max() > 1e-4
    for theta in models:
        assert torch.equal(objective.module(theta)[0].weight, before)


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
def test_a_pretrained_module_starts_as_it_is_and_only_what_trains_travels(module: nn.Module) -> None:
    objective = deep(module)
    fed, method = InProcess(objective), TRAINED["fedavg"].make(1)
    before, state = objective.flat(module), method.init(fed)
    moving = torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad]).numpy()
    np.testing.assert_array_equal(objective.start(7), before)
    np.testing.assert_array_equal(state["w"], moving)
    up = fed.ledger.bytes_up
    state = method.step(fed, state)
    assert fed.ledger.bytes_up - up == 3 * (4 * len(moving) + 3 * 8)  # beside x: w, diverged and broken
    after = method.models(fed, state)[0]
    assert (after != before).any()
    made = dict(objective.module(after).named_parameters())
    for name, layer in module.named_parameters():
        assert layer.requires_grad or torch.equal(layer, made[name])


def big(seed: int = 3, size: int = 200_000) -> nn.Module:
    torch.manual_seed(seed)
    inner = nn.Linear(5, 3)
    inner.register_buffer("mask", torch.ones(size))
    return LoRA(inner)


def test_a_process_holds_it_once_and_the_user_gets_a_copy() -> None:
    one, other = deep(big, batched=False), deep(big(), batched=True)
    assert one.base is other.base
    assert set(one.base.tensors) == {"inner.weight", "inner.bias", "inner.mask"}
    workspaces = [one.sequential.workspace.module, other.sequential.workspace.module]
    for name, tensor in one.base.tensors.items():
        assert all(dict(w.inner.named_parameters()).get(name[6:], w.inner.mask) is tensor for w in workspaces)
    theirs = one.module(one.start(0))
    theirs.inner.weight.data += 1.0
    np.testing.assert_array_equal(one.value(one.start(0)), other.value(one.start(0)))
    assert deep(lambda: big(4)).base is not one.base
    with pytest.raises(CoterieError, match=names("inner.weight train other numbers objective module")):
        one.flat(theirs)


def test_clients_of_other_bases_do_not_train_together() -> None:
    mixed = Mixed.of([deep(big), deep(lambda: big(4))])
    for name, words in (("fedavg", "other numbers layers train same pretrained"), ("group-sgd", "different layers")):
        with pytest.raises(CoterieError, match=names(words)):
            TRAINED[name].make(0).init(InProcess(mixed, np.zeros(6, dtype=np.int64)))


class Counter(nn.Module):
    """A layer whose buffer moves only where rows are large."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 2:
            self.seen += 1.0
        return self.inner(x)


def test_what_moves_after_all_is_refused() -> None:
    with pytest.raises(CoterieError, match=names("seen train writes first")):
        objective = deep(Counter)
        objective.walk(np.tile(objective.start(0), (3, 1)), Walk(np.ones(3), np.ones(3, dtype=int), Draws.of_all(3)))


def test_a_model_of_frozen_layers_alone_is_refused() -> None:
    with pytest.raises(CoterieError, match="All parameters of the model are frozen"):
        deep(net().requires_grad_(False))


def test_groups_cannot_all_begin_at_one_pretrained_module() -> None:
    with pytest.raises(CoterieError, match=names("2 groups begin apart give function makes module")):
        TRAINED["ifca"].make(0, k=2).init(InProcess(deep(nn.Linear(5, 3))))
