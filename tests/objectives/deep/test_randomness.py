"""Whatever a module or a Dataset draws from: runs are repeated bit for bit, and the caller's generators stay."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import Dataset

from coterie.engines import InProcess
from coterie.engines.checkpoint_and_journal import read_durable, save_checkpoint
from coterie.methods.fedavg import FedAvg
from coterie.objectives.deep import Deep
from coterie.objectives.deep.random_generators import held
from coterie.objectives.gradient_steps import Draws
from tests.messages import names

M, N = 5, 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=(M * N, 6)).astype("f4")
Y = X[:, :3].argmax(1)
LO = N * np.arange(M)
COMMON = np.random.RandomState(5)  # a module's own, as scripts have it


class Net(nn.Module):
    """A layer, what a function makes of what comes out, and a head."""

    def __init__(self, change: Callable[[Any, Tensor], Tensor], normal: bool = False, **more: Any) -> None:
        super().__init__()
        self.body, self.head, self.change = nn.Linear(6, 8), nn.Linear(8, 3), change
        self.norm = nn.BatchNorm1d(8) if normal else nn.Identity()
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(self, torch.tanh(self.norm(self.body(x)))))


def np_noise(rng: Any, h: Tensor) -> Tensor:
    return h + torch.tensor(rng.normal(size=h.shape), dtype=h.dtype)


def depth(s: Any, h: Tensor) -> Tensor:
    return h if random.random() < 0.5 else 2 * h  # noqa: S311


def late(s: Any, h: Tensor) -> Tensor:
    """Draws where a client's rows look so, which no trial can know."""
    return F.dropout(h, 0.5) if s.training and float(h.detach().sum()) > 0 else h


def closure() -> nn.Module:
    rng = np.random.default_rng(4)
    return Net(lambda s, h: np_noise(rng, h))


class Slotted:
    """Holds a generator, and has no ``__dict__``."""

    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = np.random.default_rng()


def forked(s: Any, h: Tensor) -> Tensor:
    """Draws, and puts the generator back."""
    with torch.random.fork_rng():
        return h + torch.randn(h.shape)


def drawn_anew() -> nn.Module:
    net = nn.Linear(6, 3)
    nn.init.constant_(net.weight, np.random.default_rng().normal())
    return net


MODULES: dict[str, Callable[[], nn.Module]] = {
    "functional dropout": lambda: Net(lambda s, h: F.dropout(h, 0.5, s.training)),
    "dropout behind BatchNorm": lambda: Net(lambda s, h: F.dropout(h, 0.5, s.training), normal=True),
    "dropout layer": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)),
    "rrelu": lambda: nn.Sequential(nn.Linear(6, 8), nn.RReLU(), nn.Linear(8, 3)),
    "randn": lambda: Net(lambda s, h: h + torch.randn(h.shape)),
    "python": lambda: Net(lambda s, h: h * random.random()),  # noqa: S311
    "numpy": lambda: Net(lambda s, h: np_noise(np.random, h)),
    "stochastic depth": lambda: Net(depth),
    "gumbel": lambda: Net(lambda s, h: h * F.gumbel_softmax(h)),
    "bernoulli": lambda: Net(lambda s, h: h * torch.empty_like(h).bernoulli_(0.5)),
    "mixup": lambda: Net(lambda s, h: 0.7 * h + 0.3 * h[torch.randperm(len(h))]),
    "own torch": lambda: Net(lambda s, h: h + torch.randn(h.shape, generator=s.rng), rng=torch.Generator()),
    "own numpy": lambda: Net(lambda s, h: np_noise(s.rng, h), rng=np.random.default_rng(3)),
    "own python in a list": lambda: Net(lambda s, h: h * s.rng[0].random(), rng=[random.Random(3)]),  # noqa: S311
    "own in slots": lambda: Net(lambda s, h: np_noise(s.own.rng, h), own=Slotted()),
    "forked": lambda: Net(forked),
    "forked in evaluation": lambda: Net(lambda s, h: h if s.training else forked(s, h)),
    "closure": closure,
    "global": lambda: Net(lambda s, h: np_noise(COMMON, h)),
    "late": lambda: Net(late),
}


class Noisy(Dataset):  # type: ignore[type-arg]
    """Items that are others whenever they are asked for."""

    def __init__(self, client: int, kind: str) -> None:
        self.rows, self.kind, self.rng = slice(N * client, N * client + N), kind, torch.Generator()

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        noise = {
            "torch": lambda: torch.randn(6),
            "numpy": lambda: np.random.normal(size=6).astype("f4"),  # noqa: NPY002
            "python": lambda: np.float32(random.gauss(0, 1)),
            "own": lambda: torch.randn(6, generator=self.rng),
        }[self.kind]()
        return torch.as_tensor(X[self.rows][i] + np.asarray(noise)), int(Y[self.rows][i])


def of(name: str) -> Deep:
    if name in MODULES:
        return Deep.of(MODULES[name], X, Y, LO, LO + N)
    return Deep.of_clients(lambda: nn.Linear(6, 3), [Noisy(i, name.split()[-1]) for i in range(M)])


def states() -> tuple[Any, ...]:
    kept = [list(map(str, np.ravel(g.get_state(legacy=True)[1]))) for g in (np.random, COMMON)]
    return random.getstate(), kept, torch.random.get_rng_state().tolist()


def trained(objective: Deep, rounds: int = 3, order: Any = None, **engine: Any) -> tuple[Any, Any]:
    order = np.arange(M) if order is None else order
    fed = InProcess(objective.take(order), ids=10 + order.astype(np.uint64), seed=0, **engine)
    method = FedAvg(eta=0.3, B=4)
    state = method.init(fed)
    for _ in range(rounds):
        state = method.step(fed, state)
    return fed, state


@pytest.mark.parametrize("name", [*MODULES, *(f"dataset {kind}" for kind in ("torch", "numpy", "python", "own"))])
def test_runs_are_repeated_bit_for_bit(name: str, tmp_path: Path) -> None:
    objective, before = of(name), states()
    fed, straight = trained(objective)
    models = FedAvg(eta=0.3, B=4).models(fed, straight)
    score = objective.value(models)
    assert states() == before
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002 - whatever else a script does
    again, method = of(name), FedAvg(eta=0.3, B=4)
    part, state = trained(again, 2)
    np.testing.assert_array_equal(again.value(models), score)
    save_checkpoint(tmp_path / "c", part, {"state": state})
    saved = read_durable(tmp_path / "c")
    fresh = InProcess(of(name), ids=part.clients.ids, seed=0)
    fresh.resume(saved["engine"])
    resumed = method.step(fresh, dict(saved["state"]["state"]))
    np.testing.assert_array_equal(resumed["w"], straight["w"])
    np.testing.assert_array_equal(method.models(fresh, resumed), models)


@pytest.mark.parametrize("name", ["dropout behind BatchNorm", "numpy", "own torch", "dataset torch"])
def test_draws_depend_on_the_client_and_not_on_its_place(name: str) -> None:
    order = np.array([3, 0, 4, 1, 2])
    w = [trained(of(name), order=order)[1]["w"], trained(of(name))[1]["w"]]
    np.testing.assert_allclose(*w, rtol=1e-5, atol=1e-6)  # sums are formed in another order


def test_steps_draw_anew_and_clients_draw_apart() -> None:
    rows = np.tile(X[:N], (2, 1)), np.tile(Y[:N], 2), [0, N], [N, 2 * N]
    objective = Deep.of(lambda: Net(lambda s, h: 0 * h + torch.rand(1)), *rows)
    theta = np.tile(objective.start(0), (2, 1))
    g = [objective.mean_gradient(theta, Draws(np.array([7, 9], dtype=np.uint64), np.full(2, t))) for t in (0, 0, 1)]
    np.testing.assert_array_equal(g[0], g[1])
    assert (g[0][0] != g[0][1]).any()
    assert (g[0] != g[2]).any()


@pytest.mark.parametrize("make", [lambda: Net(lambda s, h: np_noise(np.random.default_rng(), h)), drawn_anew])
def test_what_no_seed_reaches_is_said(make: Callable[[], nn.Module]) -> None:
    with pytest.warns(UserWarning, match=names("Two runs not alike")):
        objective = Deep.of(make, X, Y, LO, LO + N)
    assert len(objective.notes) == 1


def test_small_models_that_draw_nothing_run_batched() -> None:
    objective = Deep.of(lambda: Net(lambda s, h: h), X, Y, LO, LO + N)
    trained(objective)
    assert objective.batched and objective.batched.works and not objective.architecture.random
    assert not Deep.of(lambda: Net(depth), X, Y, LO, LO + N).batched


def test_generators_are_found_where_objects_hold_them() -> None:
    rng, other = np.random.default_rng(0), torch.Generator()
    assert held({"a": [rng]}, Net(lambda s, h: h + other.initial_seed())) == [rng, other]
    assert held(torch.default_generator, random.SystemRandom()) == []
