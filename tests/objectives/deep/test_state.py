"""What a module holds beside its trained weights: each client's as torch leaves it, and nobody else's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbn import FedBN
from coterie.objectives.deep import Deep
from tests.messages import names

M, N = 3, 10
RNG = np.random.default_rng(0)
X = RNG.normal(size=(M * N, 6)).astype("f4") + np.repeat(np.arange(M), N)[:, None].astype("f4")
Y = RNG.integers(0, 3, M * N)
LO = N * np.arange(M)


class Net(nn.Module):
    """A layer of inputs that ``change`` has seen, with buffers and attributes."""

    def __init__(self, change: Callable[[Any, Tensor], Tensor], attributes: Any = (), **buffers: Any) -> None:
        super().__init__()
        self.body, self.change = nn.Linear(6, 3), change
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=name != "quiet")
        for name, value in dict(attributes).items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.change(self, x))


def reassigned(s: Any, x: Tensor) -> Tensor:
    if s.training:
        s.mu = 0.9 * s.mu + 0.1 * x.detach().mean(0)
    return x - s.mu


def in_place(s: Any, x: Tensor) -> Tensor:
    if s.training:
        s.mu.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x - s.mu


def registered(s: Any, x: Tensor) -> Tensor:
    s.register_buffer("mu", s.mu + 0.1 * x.detach().mean(0) if s.training else s.mu)
    return x - s.mu


def counted(s: Any, x: Tensor) -> Tensor:
    if s.training:
        s.steps += 1
        s.seen = s.seen + (x.detach() > 1).sum(0)
    return x / (1 + s.steps) + 0.01 * s.seen


def quiet(s: Any, x: Tensor) -> Tensor:
    if s.training:
        s.quiet = x.detach().amax(0).maximum(s.quiet)
    return x - s.quiet


def masked(s: Any, x: Tensor) -> Tensor:
    return x * torch.softmax(s.mask + s.low, 0) + torch.view_as_real(s.phase).mean() + s.open.sum()


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    net[2].weight = net[0].weight
    return net


def frozen_norm() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    net[1].eval()
    return net


def scaled() -> nn.Module:
    net = Net(lambda s, x: s.scale * x)
    net.scale = nn.Parameter(torch.tensor(2.0))
    return net


def hooked() -> nn.Module:
    """A layer of which a row does not move, as a hook on its gradient says."""
    net = nn.Linear(6, 3)
    net.weight.register_hook(lambda g: g * torch.tensor([[1.0], [0.0], [1.0]]))
    return net


def clamped(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        s.body.weight.clamp_(-0.1, 0.1)
    return x


KINDS: dict[str, Callable[[], nn.Module]] = {
    "cumulative": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3)),
    "batch": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    "reassigned": lambda: Net(reassigned, mu=torch.zeros(6)),
    "in place": lambda: Net(in_place, mu=torch.zeros(6)),
    "registered": lambda: Net(registered, mu=torch.zeros(6)),
    "counts": lambda: Net(counted, steps=torch.tensor(0), seen=torch.zeros(6, dtype=torch.int64)),
    "not persistent": lambda: Net(quiet, quiet=torch.full((6,), -9.0)),
    "masks": lambda: Net(
        masked,
        mask=torch.tensor([0.0, 0, 0, 0, 0, -torch.inf]),
        low=torch.tensor([torch.finfo(torch.float32).min, 0, 0, 0, 0, 0]),
        phase=torch.ones(2, dtype=torch.complex64),
        open=torch.tensor([True, False]),
        nothing=None,
    ),
    "tied": tied,
    "spectral": lambda: parametrizations.spectral_norm(nn.Linear(6, 3)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(6, 3)),
    "frozen norm": frozen_norm,
    "scalar": scaled,
    "hook on a gradient": hooked,
    "clamped": lambda: Net(clamped),
    "training differs": lambda: Net(lambda s, x: 2 * x if s.training else x),
}


def steps(objective: Deep, rounds: int = 4, method: Any = None, **engine: Any) -> Any:
    fed, method = InProcess(objective, **engine), method or FedAvg(eta=0.1, personal=("*",))
    state = method.init(fed)
    for _ in range(rounds):
        state = method.step(fed, state)
    return method.models(fed, state), state


@pytest.mark.parametrize("name", KINDS)
def test_every_client_s_model_is_torch_s_alone(name: str) -> None:
    objective = Deep.of(KINDS[name], X, Y, LO, LO + N)
    models, _ = steps(objective)
    rested = [objective.architecture.module().get_submodule(n) for n in objective.architecture.resting]
    for i, (a, b) in enumerate(zip(LO, LO + N, strict=True)):
        ours = objective.module(models[i])
        torchs = objective.module(objective.start(0)).train()
        for layer in objective.architecture.resting:
            torchs.get_submodule(layer).eval()
        sgd = torch.optim.SGD(torchs.parameters(), lr=0.1)
        x, y = torch.tensor(X[a:b]), torch.tensor(Y[a:b])
        for _ in range(4):
            sgd.zero_grad()
            F.cross_entropy(torchs(x), y).backward()
            sgd.step()
        np.testing.assert_allclose(objective.flat(ours), objective.flat(torchs), rtol=1e-4, atol=1e-6)
        loss = F.cross_entropy(torchs.eval()(x), y, reduction="sum").item()
        assert objective.value(models)[i] == pytest.approx(loss, rel=1e-4)
    alone, _ = steps(objective.take(np.array([2])))
    np.testing.assert_allclose(models[2], alone[0], rtol=1e-5, atol=1e-7)
    assert all(isinstance(layer, nn.BatchNorm1d) for layer in rested)


def kept_for_evaluation(s: Any, x: Tensor) -> Tensor:
    if s.training:
        s.seen = x.detach().mean(0)
    return x - (0 if s.seen is None else s.seen)


def test_what_is_kept_for_evaluation_alone_is_said() -> None:
    with pytest.warns(UserWarning, match=r"keeps numbers \(seen\).*or is evaluated"):
        Deep.of(lambda: Net(kept_for_evaluation, {"seen": None}), X, Y, LO, LO + N)


def last(s: Any, x: Tensor) -> Tensor:
    s.seen = [*s.seen, 0.1 * x.detach().mean()] if isinstance(s.seen, list) else s.seen + 1.0
    return x * (1 + sum(s.seen) if isinstance(s.seen, list) else s.seen)


@pytest.mark.parametrize("first", [[], 0.0, torch.zeros(1)])
def test_what_is_no_buffer_is_nobody_else_s_and_the_run_says_so(first: Any) -> None:
    with pytest.warns(UserWarning, match=r"keeps numbers \(seen\).*Register them in __init__ as buffers"):
        objective = Deep.of(lambda: Net(last, {"seen": copy.copy(first)}), X, Y, LO, LO + N)
    one, other = steps(objective)[0], steps(objective.take(np.array([2, 1, 0])))[0]
    np.testing.assert_allclose(one, other[::-1], rtol=1e-5, atol=1e-7)


def test_a_buffer_that_moves_from_infinity_is_refused() -> None:
    def largest(s: Any, x: Tensor) -> Tensor:
        s.top = torch.maximum(s.top, x.detach().amax(0))
        return x - s.top

    with pytest.raises(CoterieError, match=names("buffer top moves model trains")):
        Deep.of(lambda: Net(largest, top=torch.full((6,), -torch.inf)), X, Y, LO, LO + N)


class RootMeanSquare(nn.Module):
    """As language models bring it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / x.square().mean(-1, keepdim=True).add(1e-5).sqrt()


class LlamaRMSNorm(RootMeanSquare):
    """The same by its own name."""


class PreNorm(nn.Module):
    """A block whose name ends so and that holds more than a layer that normalises."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.lin = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(self.scale(x))


@pytest.mark.parametrize(
    ("layer", "own"),
    [
        (nn.BatchNorm1d(6), {"0.weight", "0.bias", "0.running_mean", "0.running_var"}),
        (nn.LayerNorm(6), {"0.weight", "0.bias"}),
        (nn.RMSNorm(6), {"0.weight"}),
        (LlamaRMSNorm(), {"0.weight"}),
        (PreNorm(), {"0.scale.weight", "0.scale.bias"}),
        (nn.Sequential(nn.Unflatten(1, (3, 2)), nn.GroupNorm(3, 3), nn.Flatten()), {"0.1.weight", "0.1.bias"}),
    ],
)
def test_fedbn_knows_layers_by_type(layer: nn.Module, own: set[str]) -> None:
    objective = Deep.of(lambda: nn.Sequential(copy.deepcopy(layer), nn.Linear(6, 3)), X, Y, LO, LO + N)
    models, _ = steps(objective, method=FedBN(eta=0.1))
    ends = np.cumsum(list(objective.names.values()))
    differ = {
        name
        for (name, k), end in zip(objective.names.items(), ends, strict=True)
        if np.ptp(models[:, end - k : end], axis=0).any()
    }
    assert set(objective.normalising) == differ == own


@pytest.mark.parametrize("where", ["X", "y"])
def test_a_client_with_a_broken_row_never_takes_part(where: str) -> None:
    rows, targets = X.copy(), Y.astype("f4")
    (rows if where == "X" else targets).reshape(M * N, -1)[N + 2, 0] = np.nan
    objective = Deep.of(lambda: nn.Linear(6, 1), rows, targets, LO, LO + N, loss="mse")
    _, state = steps(objective, 1, FedAvg(eta=0.01, B=1, C=0.4))
    assert state["quarantined"].tolist() == [0, 1, 0]
    rest = np.array([0, 2])
    ids = InProcess(objective).clients.ids
    _, without = steps(objective.take(rest), 3, FedAvg(eta=0.01, B=2), ids=ids[rest])
    _, beside = steps(objective, 3, FedAvg(eta=0.01, B=2), ids=ids)
    np.testing.assert_allclose(beside["w"], without["w"], rtol=1e-6)
    assert steps(objective, 1, FedAvg(eta=0.01, strict=True))[1]["status"].startswith("ended by step 1: the data")


def test_a_client_without_rows_beside_a_broken_one_has_not_diverged() -> None:
    rows = X.copy()
    rows[0] = np.nan
    objective = Deep.of(lambda: nn.Linear(6, 3), rows, Y, [0, N, N], [N, N, 2 * N])
    _, state = steps(objective, 2, FedAvg(eta=0.1))
    assert state["quarantined"].tolist() == [1, 0, 0]


def contrast(outputs: Tensor, targets: Tensor) -> Tensor:
    """Depends on who else is in the batch."""
    far = torch.cdist(outputs, outputs).sum(1)
    return F.cross_entropy(outputs, targets, reduction="none") - 0.1 * far


def untracked() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))


def test_a_row_alone_is_normalised_to_the_layer_s_bias() -> None:
    objective = Deep.of(untracked, X[:5], Y[:5], [0, 4], [4, 5])
    module, x = objective.module(objective.start(0)), torch.tensor(X[:4], dtype=torch.float32)
    normed = F.batch_norm(module[0](x), None, None, module[1].weight, module[1].bias, training=True)
    outputs = torch.cat([module[2](normed), module[2](module[1].bias[None])])  # a row alone has no variance
    losses = F.cross_entropy(outputs, torch.tensor(Y[:5]), reduction="none")
    theta = objective.start(0)
    assert not objective.batched
    np.testing.assert_allclose(objective.row_losses(theta), losses.detach(), rtol=1e-5)
    whole, alone = objective.gradient(theta)
    assert np.abs(whole[:24]).max() > 1e-3
    assert np.abs(alone[:32]).max() < 1e-5  # nothing reaches what is before the bias, nor the scale
    assert np.abs(alone[32:]).min() > 0.0


@pytest.mark.parametrize("what", ["loss", "centred", "untracked"])
def test_rows_that_depend_on_their_batch_are_kept_by_client(what: str) -> None:
    make = {
        "loss": lambda: nn.Linear(6, 3),
        "centred": lambda: Net(lambda s, x: x - x.mean(0) if s.training else x),
        "untracked": untracked,
    }[what]
    lo, hi = np.array([0, 4, N]), np.array([4, N, 3 * N])  # of unequal sizes: batches are padded
    loss = contrast if what == "loss" else lambda o, t: F.cross_entropy(o, t, reduction="none")
    objective = Deep.of(make, X, Y, lo, hi, loss=loss)
    assert not objective.batched
    models, _ = steps(objective, 2)
    for i in range(3):
        here = Deep.of(make, X[lo[i] : hi[i]], Y[lo[i] : hi[i]], [0], [hi[i] - lo[i]], loss=loss)
        np.testing.assert_allclose(models[i], steps(here, 2)[0][0], rtol=1e-5, atol=1e-7)
        assert objective.value(models[0])[i] == pytest.approx(here.value(models[0])[0], rel=1e-5)
