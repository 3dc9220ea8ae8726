"""Torch models as objectives: against torch's own optimiser, batched against one after another, buffers, rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from coterie.errors import CoterieError
from coterie.numerics import keyed_random
from coterie.objectives.deep import Deep, sequential
from coterie.objectives.deep.input_tensors import called
from coterie.objectives.gradient_steps import Draws, Sampled, Walk
from coterie.objectives.mixed import Mixed
from coterie.runs.scores_over_clients import Rule, Scores
from tests.objectives.deep.twin import flat, load, rows_of, shuffled_rows_of, walked

COUNTS = np.array([7, 1, 12, 0, 5, 30])
STOPS = np.cumsum(COUNTS)
STARTS = STOPS - COUNTS
IDS = np.array([9, 3, 5, 11, 2, 7], dtype=np.uint64)
M, N = len(COUNTS), int(STOPS[-1])


def mlp(inputs: int = 6, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, classes))


def cnn(norm: bool = False) -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), *([nn.BatchNorm2d(4)] if norm else []), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 2 * 2, 3))


def data(*shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, *shape)), rng.integers(0, 3, N)


def deep(make: Any = mlp, shape: tuple[int, ...] = (6,), **how: Any) -> Deep:
    X, y = data(*shape)
    return Deep.of(make, X, y, STARTS, STOPS, **{"dtype": "float64"} | how)


def draws(size: int, first: int = 4) -> Draws:
    return Draws(keyed_random.starts(0, "rows", IDS), np.full(M, first), size)


def models(objective: Deep, seed: int = 3, spread: float = 0.1) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(M, objective.dim))
    return (objective.start(seed) + spread * noise * (np.arange(objective.dim) < objective.architecture.p)).astype(
        objective.dtype
    )


KINDS = {"mlp": (mlp, (6,)), "cnn": (cnn, (2, 6, 6))}
STEPS = np.array([3, 5, 0, 2, 4, 1])
ETA = np.array([0.1, 0.2, 0.3, 0.1, 0.05, 0.2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("how", [{}, {"clip": 0.3}, {"ridge": 0.2}, {"momentum": 0.7}, {"clip": 0.4, "momentum": 0.5}])
def test_walk_is_what_torchs_optimiser_does(kind: str, batched: bool, how: dict[str, Any]) -> None:
    make, shape = KINDS[kind]
    objective, (X, y) = deep(make, shape, batched=batched, **how), data(*shape)
    theta = models(objective)
    found = objective.walk(theta, Walk(ETA, STEPS, draws(4)))
    for i in range(M):
        module = make().double()
        steps = int(STEPS[i]) if COUNTS[i] else 0
        rows = [rows_of(IDS, i, 4 + s, 4, STARTS[i], STOPS[i]) for s in range(steps)]
        expected = walked(module, theta[i], X, y, rows, float(ETA[i]), F.cross_entropy, **how)
        np.testing.assert_allclose(found[i], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("extras", ["none", "pull", "shift", "on", "all"])
def test_batched_and_one_after_another_agree(kind: str, size: int, extras: str) -> None:
    make, shape = KINDS[kind]
    one, other = (deep(make, shape, batched=b, clip=0.5, ridge=0.1, momentum=0.3) for b in (True, False))
    theta, rng = models(one), np.random.default_rng(5)
    anchor, shift = rng.normal(size=(2, *theta.shape))
    some = {"pull": extras in ("pull", "all"), "shift": extras in ("shift", "all"), "on": extras in ("on", "all")}
    more = {"shift": shift} if some["shift"] else {}
    more |= {"on": 1.0 * (np.arange(one.dim) % 3 > 0)} if some["on"] else {}
    by = Walk(ETA, STEPS, draws(size), anchor, 0.4 * some["pull"], **more)
    a, b = (o.walk(theta, by) for o in (one, other))
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    moved = a != theta
    assert moved[(STEPS > 0) & (COUNTS > 0)].any(axis=1).all()
    assert not moved[STEPS == 0].any()
    if some["on"]:
        assert not moved[:, np.arange(one.dim) % 3 == 0].any()
    np.testing.assert_allclose(one.gradient(theta), other.gradient(theta), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(one.value(theta), other.value(theta), rtol=1e-12)
    np.testing.assert_array_equal(one.predict(theta), other.predict(theta))
    np.testing.assert_array_equal(one.accuracy(theta), other.accuracy(theta))


def test_extras_go_where_the_formula_says() -> None:
    objective = deep()
    theta, rng = models(objective), np.random.default_rng(1)
    anchor, shift = rng.normal(size=(2, *theta.shape))
    on = 1.0 * (np.arange(objective.dim) < 20)
    one = np.ones(M, dtype=np.int64)
    found = objective.walk(theta, Walk(ETA, one, draws(4), anchor, 0.4, shift, on))
    g = objective.mean_gradient(theta, draws(4))
    expected = theta - ETA[:, None] * on * (g + shift + 0.4 * (theta - anchor))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce"])
def test_gradients_are_those_of_the_values(loss: str) -> None:
    X, y = data(6)
    targets = {"cross_entropy": y, "mse": X[:, :3] ** 2, "bce": (y > 0).astype(int)}[loss]
    make = partial(mlp, classes=1 if loss == "bce" else 3)
    weights = np.random.default_rng(2).uniform(0.0, 2.0, N)
    objective = Deep.of(make, X, targets, STARTS, STOPS, loss=loss, weights=weights, ridge=0.3, dtype="float64")
    theta, h = models(objective), 1e-6
    along = np.random.default_rng(4).normal(size=theta.shape)
    slope = (objective.value(theta + h * along) - objective.value(theta - h * along)) / (2 * h)
    np.testing.assert_allclose((objective.gradient(theta) * along).sum(axis=1), slope, rtol=1e-6, atol=1e-7)


def test_a_minibatch_gradient_is_unbiased() -> None:
    many = 2000
    objective = deep(batched=True).take(np.zeros(many, dtype=np.int64))
    theta = models(deep())[:1]
    keys = np.repeat(keyed_random.starts(0, "rows", np.array([1])), many)
    every = objective.mean_gradient(np.tile(theta, (many, 1)), Draws(keys, np.arange(many), 2))
    exact = deep().gradient(theta.repeat(M, axis=0))[0] / COUNTS[0]
    error = np.std(every, axis=0) / np.sqrt(many)
    assert np.all(np.abs(np.mean(every, axis=0) - exact) < 4.5 * error + 1e-12)


def test_one_model_for_all_and_the_same_row_by_row() -> None:
    objective = deep(cnn, (2, 6, 6))
    theta = objective.start(0)
    wide = np.tile(theta, (M, 1))
    np.testing.assert_allclose(objective.value(theta), objective.value(wide), rtol=1e-12)
    np.testing.assert_allclose(objective.row_losses(theta), objective.row_losses(wide), rtol=1e-12)
    assert objective.row_losses(theta).shape == (N,)
    assert np.isnan(objective.accuracy(theta)[3]) and np.isfinite(np.delete(objective.accuracy(theta), 3)).all()


@pytest.mark.parametrize("how", [{"batched": True}, {"batched": False, "ridge": 0.1}])
def test_scores_take_loss_and_accuracy_from_one_pass(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many rows would pass, and their numbers are those of torch's functions, client by client."""
    made = deep(**how)
    theta, passed, per_row = models(made), list[int](), Deep._per_row
    monkeypatch.setattr(Deep, "_per_row", lambda self, *more: passed.append(len(self)) or per_row(self, *more))
    for objective, clients in ((made, M), (Mixed([made], np.zeros(M), np.arange(M)), M)):
        passed.clear()
        scores = Scores.of(objective, theta, Rule("accuracy"))
        assert passed == [clients]
        for i in np.flatnonzero(COUNTS):
            module, rows = mlp().double(), slice(STARTS[i], STOPS[i])
            load(module, theta[i])
            X, y = (torch.as_tensor(part[rows]) for part in data(6))
            outputs, decay = module(X), how.get("ridge", 0.0) / 2 * float(np.square(theta[i]).sum())
            np.testing.assert_allclose(scores.loss[i], F.cross_entropy(outputs, y).item() + decay, rtol=1e-10)
            np.testing.assert_allclose(scores.score[i], float((outputs.argmax(1) == y).double().mean()), rtol=1e-12)


def test_take_gives_views_in_any_order_with_repeats() -> None:
    objective = deep()
    theta, rows = models(objective), np.array([5, 0, 0, 3])
    view = objective.take(rows)
    np.testing.assert_allclose(view.gradient(theta[rows]), objective.gradient(theta)[rows], rtol=1e-12)
    np.testing.assert_array_equal(view.counts, COUNTS[rows])
    assert view.rows is objective.rows
    assert isinstance(view, Sampled)


def test_statistics_move_with_training_and_are_used_in_evaluation() -> None:
    make, (X, y) = partial(cnn, norm=True), data(2, 6, 6)
    objective = deep(make, (2, 6, 6))
    assert not objective.batched and objective.kept == ("1.running_mean", "1.running_var")
    theta = np.tile(objective.start(0), (M, 1))
    found = objective.walk(theta, Walk(ETA, STEPS, draws(4)))
    for i in (0, 4, 5):
        module = make().double()
        rows = [rows_of(IDS, i, 4 + s, 4, STARTS[i], STOPS[i]) for s in range(int(STEPS[i]))]
        np.testing.assert_allclose(
            found[i], walked(module, theta[i], X, y, rows, float(ETA[i]), F.cross_entropy), rtol=1e-9, atol=1e-12
        )
        module.eval()
        here = slice(STARTS[i], STOPS[i])
        loss = F.cross_entropy(module(torch.tensor(X[here])), torch.tensor(y[here]), reduction="sum")
        np.testing.assert_allclose(objective.value(found)[i], loss.item(), rtol=1e-9)
    on = 1.0 * (np.arange(objective.dim) < objective.architecture.p)
    still = objective.walk(theta, Walk(ETA, STEPS, draws(4), on=on))
    np.testing.assert_array_equal(still[:, objective.architecture.p :], theta[:, objective.architecture.p :])
    averaged = deep(make, (2, 6, 6), buffers="averaged")
    assert averaged.kept == () and averaged.dim == objective.dim


def test_statistics_rest_where_a_step_has_one_row() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    objective = deep(make)
    theta = np.tile(objective.start(0), (M, 1))
    found = objective.walk(theta, Walk(ETA, STEPS, draws(0)))  # all rows: client 1 has one, client 3 none
    p, alone = objective.architecture.p, np.isin(np.arange(M), (1, 3)) | (STEPS == 0)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[alone, p:], theta[alone, p:])
    assert (found[~alone, p:] != theta[~alone, p:]).all()
    assert (found[1, :p] != theta[1, :p]).any()


def test_dropout_depends_on_client_and_step_alone() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    objective = deep(make)
    theta = models(objective)
    state = torch.random.get_rng_state()
    whole = objective.walk(theta, Walk(ETA, STEPS, draws(4)))
    assert torch.equal(state, torch.random.get_rng_state())
    alone = Walk(ETA[4:5], STEPS[4:5], Draws(draws(4).keys[4:5], np.array([4]), 4))
    part = objective.take(np.array([4])).walk(theta[4:5], alone)
    np.testing.assert_allclose(whole[4], part[0], rtol=1e-5, atol=1e-7)  # which is not batched
    other = objective.walk(theta, Walk(ETA, STEPS, draws(4, first=5)))
    assert (other[4] != whole[4]).any()
    np.testing.assert_array_equal(objective.value(theta), objective.value(theta))


class Unruly(nn.Module):
    """Draws what is not keyed, in a function instead of a layer, or does what its numbers say."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.body, self.draws = nn.Linear(6, 3), draws

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.draws:
            return self.body(x + x[torch.randperm(len(x))] if self.training else x)
        return self.body(x) if float(x.sum()) > 0.0 else self.body(2.0 * x)


@pytest.mark.parametrize("draws_numbers", [True, False])
def test_what_cannot_be_batched_runs_one_after_another(draws_numbers: bool) -> None:
    objective = deep(partial(Unruly, draws_numbers), batched=True)
    assert not objective.batched and objective.architecture.random == draws_numbers
    theta = models(objective)
    state = torch.random.get_rng_state()
    found = [objective.walk(theta, Walk(ETA, STEPS, draws(4))) for _ in range(2)]
    np.testing.assert_array_equal(*found)
    assert torch.equal(state, torch.random.get_rng_state())


def test_datasets_loaders_and_arrays_are_the_same_clients() -> None:
    X, y = data(6)
    pairs = [(X[lo:hi], y[lo:hi]) for lo, hi in zip(STARTS, STOPS, strict=True)]
    sets = [TensorDataset(torch.tensor(a), torch.tensor(b)) for a, b in pairs]
    loaders = [DataLoader(s, batch_size=2) if len(s) else s for s in sets]
    arrays = deep()
    theta = models(arrays)
    expected = arrays.walk(theta, Walk(ETA, STEPS, draws(4)))
    for clients in (pairs, sets, loaders):
        objective = Deep.of_clients(mlp, clients, dtype="float64")
        np.testing.assert_allclose(objective.walk(theta, Walk(ETA, STEPS, draws(4))), expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(objective.value(theta), arrays.value(theta), rtol=1e-10)
        assert objective.has_finite_gradient().all()


def test_first_models_are_a_function_of_the_seed() -> None:
    objective, state = deep(mlp), torch.random.get_rng_state()
    np.testing.assert_array_equal(objective.start(1), objective.start(1))
    assert (objective.start(1) != objective.start(2)).mean() > 0.9
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_first_model_is_made_once_for_all_blocks_of_clients() -> None:
    """10,000 clients in blocks of 28 asked for it 1,100 times a round, each time a module of its own."""
    made: list[nn.Module] = []
    objective = deep(lambda: made.append(mlp()) or made[-1])
    first, many = objective.start(1), len(made)
    first[:] = 0.0  # a caller's own
    assert objective.take(slice(0, 2)).start(1).any() and len(made) == many
    assert (objective.start(2) != objective.start(1)).any() and (objective.start(1) == deep().start(1)).all()


def test_rows_of_an_evaluation_are_as_many_as_the_largest_layer_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the CNN the first layer gives 4 * 4 * 4 = 64 numbers for a row, more than the 72 of the input leave."""
    objective, theta = deep(cnn, (2, 6, 6), batched=False), deep(cnn, (2, 6, 6)).start(0)
    whole, sizes = objective.value(theta), list[int]()
    monkeypatch.setattr(sequential, "NUMBERS", 10 * 64)
    monkeypatch.setattr(sequential, "called", lambda module, x: sizes.append(len(x)) or called(module, x))
    np.testing.assert_allclose(objective.value(theta), whole, rtol=1e-12)
    assert sizes == [10] * 5 + [5] and sum(sizes) == N


def test_a_module_is_its_own_start_and_is_never_changed() -> None:
    module = mlp()
    before = flat(module)
    objective = deep(module)
    np.testing.assert_array_equal(objective.start(1), before)
    np.testing.assert_array_equal(deep(lambda: module).start(2), before)
    objective.walk(models(objective), Walk(ETA, STEPS, draws(4)))
    np.testing.assert_array_equal(before, flat(module))
    load(module, before)


def test_rows_and_modules_are_made_of_each_other() -> None:
    objective = deep(partial(cnn, norm=True), (2, 6, 6))
    pretrained = cnn(norm=True).double()
    theta = objective.flat(pretrained)
    np.testing.assert_array_equal(theta, flat(pretrained))
    again, x = objective.module(theta), torch.tensor(data(2, 6, 6)[0])
    assert not again.training
    assert torch.equal(again(x), pretrained.eval()(x))
    with pytest.raises(CoterieError, match="has shape"):
        objective.flat(mlp())
    with pytest.raises(CoterieError, match="one row"):
        objective.module(theta[None])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_numbers_are_near(dtype: str) -> None:
    exact, narrow = deep(cnn, (2, 6, 6)), deep(cnn, (2, 6, 6), dtype=dtype)
    theta = models(exact)
    a = exact.walk(theta, Walk(ETA, STEPS, draws(4)))
    b = narrow.walk(theta.astype(np.float32), Walk(ETA, STEPS, draws(4)))
    assert b.dtype == np.float32
    error = np.abs(a - b).max()
    assert 0.0 < error < (1e-6 if dtype == "float32" else 2e-2)
    if dtype == "bfloat16":
        assert error > 1e-6


def test_embeddings_are_told_whole_numbers() -> None:
    _, y = data(6)
    words = np.random.default_rng(3).integers(0, 20, (N, 4))

    def make() -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Linear(12, 3))

    one, other = (Deep.of(make, words, y, STARTS, STOPS, dtype="float64", batched=b) for b in (True, False))
    theta = models(one)
    np.testing.assert_allclose(one.gradient(theta), other.gradient(theta), atol=1e-12)


def test_threads_share_out_clients_and_change_nothing() -> None:
    objective = deep(cnn, (2, 6, 6), dtype="float32", batched=False)
    theta, before = models(objective), torch.get_num_threads()
    try:
        found = []
        for cores in (2, 1):
            torch.set_num_threads(cores)
            found.append(objective.walk(theta, Walk(ETA, STEPS, draws(4))))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(*found)


@pytest.mark.soak("0.0")
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_first_models_and_dropout_in_threads_do_not_disturb_each_other(dropout: float) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.Linear(8, 3))

    objective = deep(make if dropout else mlp)
    theta = models(objective)

    def run(i: int) -> tuple[Any, ...]:
        here = objective.take(slice(i % M, i % M + 1))
        some = slice(i % M, i % M + 1)
        drawn = Draws(draws(4).keys[some], draws(4).first[some], 4)
        at = theta[some]
        return here.start(i % 4), here.walk(at, Walk(ETA[some], STEPS[some], drawn))

    expected = [run(i) for i in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for i, found in enumerate(pool.map(run, range(240))):
            for a, b in zip(found, expected[i % 12], strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("batched", [True, False])
def test_blocks_in_threads_do_not_disturb_each_other(batched: bool) -> None:
    objective = deep(batched=batched)
    theta = models(objective)

    def run(i: int) -> tuple[Any, Any]:
        some = slice(2 * (i % 3), 2 * (i % 3) + 2)
        drawn = Draws(draws(4).keys[some], draws(4).first[some], 4)
        here, at = objective.take(some), theta[some]
        return here.walk(at, Walk(ETA[some], STEPS[some], drawn)), here.value(at)

    expected = [run(i) for i in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for i, found in enumerate(pool.map(run, range(60))):
            for a, b in zip(found, expected[i % 3], strict=True):
                np.testing.assert_array_equal(a, b)


def test_broken_rows_are_known() -> None:
    X, y = data(6)
    X[STARTS[2] + 3, 1] = np.nan
    objective = Deep.of(mlp, X, y, STARTS, STOPS)
    np.testing.assert_array_equal(objective.has_finite_gradient(), np.arange(M) != 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(("size", "how"), [(4, {}), (5, {"optimizer": "AdamW"}), (50, {})])
def test_shuffled_epochs_are_a_loop_over_batches_of_them(
    kind: str, batched: bool, size: int, how: dict[str, Any]
) -> None:
    """Torch's mean loss over each batch, the last of an epoch a short one; runs begin and end inside of epochs."""
    make, shape = KINDS[kind]
    objective, (X, y) = deep(make, shape, batched=batched, batches="shuffled", **how), data(*shape)
    theta = models(objective)
    eta = np.full(M, 0.1)
    found = objective.walk(theta, Walk(eta, STEPS, draws(size)))
    assert not batched or (objective.batched is not None and objective.batched.works)
    for i in np.flatnonzero(COUNTS):
        steps = -(-COUNTS[i] // size)
        once = [r for s in range(steps) for r in shuffled_rows_of(IDS, i, 7 * steps + s, size, STARTS[i], STOPS[i])]
        assert sorted(once) == list(range(STARTS[i], STOPS[i]))
        module = make().double()
        load(module, theta[i])
        made = torch.optim.AdamW if "optimizer" in how else torch.optim.SGD
        optimizer = made(module.parameters(), lr=0.1)
        for s in range(STEPS[i]):
            here = shuffled_rows_of(IDS, i, 4 + s, size, STARTS[i], STOPS[i])
            optimizer.zero_grad()
            F.cross_entropy(module(torch.as_tensor(X[here])), torch.as_tensor(y[here])).backward()
            optimizer.step()
        np.testing.assert_allclose(found[i], flat(module), rtol=0, atol=1e-12)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"betas": [0.8, 0.9], "amsgrad": True},
    "AdamW": {"weight_decay": 0.3},
    **{"NAdam": {}, "RAdam": {}, "Adamax": {}, "Adadelta": {"rho": 0.7}},
    **{"RMSprop": {"alpha": 0.8, "momentum": 0.5, "centered": True}, "Adagrad": {"lr_decay": 0.1}},
}


@pytest.mark.soak(
    "mlp-float32-NAdam",
    "mlp-float32-RAdam",
    "mlp-float32-Adamax",
    "mlp-float32-Adadelta",
    "mlp-float32-RMSprop",
    "mlp-float32-Adagrad",
    "cnn-float64-NAdam",
    "cnn-float64-RAdam",
    "cnn-float64-Adamax",
    "cnn-float64-Adadelta",
    "cnn-float64-Adagrad",
)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("kind", "dtype"), [("mlp", "float64"), ("mlp", "float32"), ("cnn", "float64")])
def test_optimisers_are_torchs_batched_and_alone(name: str, kind: str, dtype: str) -> None:
    """A loop of torch's own optimiser for each client, whose gradient has a pull, and whose middle layer rests."""
    (make, shape), args = KINDS[kind], OPTIMIZERS[name]
    (X, y), eta = data(*shape), np.full(M, 0.05)
    how = {"dtype": dtype, "clip": 0.4, "optimizer": name, "optimizer_args": args}
    found, tolerance = [], 1e-12 if dtype == "float64" else 1e-6
    for batched in (True, False):
        objective = deep(make, shape, batched=batched, **how)
        assert (objective.batched is not None) == batched
        theta = models(objective)
        anchor = models(objective, 8)
        rests = np.arange(objective.dim) < next(iter(objective.names.values()))  # the first layer's weights
        by = Walk(eta, STEPS, draws(4), anchor=anchor, pull=0.3, on=1.0 * ~rests)
        found.append(objective.walk(theta, by))
        assert objective.batched is None or objective.batched.works
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=tolerance)
    for i in np.flatnonzero(COUNTS):
        module = make().to(getattr(torch, dtype))
        load(module, theta[i])
        first, *trained = module.parameters()
        towards = make().to(getattr(torch, dtype))
        load(towards, anchor[i])
        optimizer = getattr(torch.optim, name)(trained, lr=0.05, **args)
        for s in range(STEPS[i]):
            here = rows_of(IDS, i, 4 + s, 4, STARTS[i], STOPS[i])
            module.zero_grad()
            F.cross_entropy(module(torch.as_tensor(X[here]).to(first.dtype)), torch.as_tensor(y[here])).backward()
            norm = torch.stack([p.grad.square().sum() for p in trained]).sum().sqrt()  # of what moves
            for p, a in zip(module.parameters(), towards.parameters(), strict=True):
                p.grad = p.grad * min(1.0, 0.4 / float(norm)) + 0.3 * (p.detach() - a.detach())
            optimizer.step()
        np.testing.assert_allclose(found[0][i], flat(module), rtol=0, atol=tolerance)


def test_plain_walks_and_steps_of_several_sizes_of_an_optimiser() -> None:
    plain, adam = deep(batched=True), deep(batched=True, optimizer="Adam")
    theta, alone = models(plain), deep(batched=False, optimizer="Adam")
    same = [o.walk(theta, Walk(ETA, STEPS, draws(4), plain=True)) for o in (plain, adam)]
    np.testing.assert_array_equal(*same)
    several = [o.walk(theta, Walk(ETA, STEPS, draws(4))) for o in (adam, alone)]  # batched, they would need one size
    np.testing.assert_array_equal(*several)
    assert not np.allclose(several[0], same[0])


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"optimizer": "Adma"}, "optimizer of a net must be SGD, .* not 'Adma'. Did you mean 'Adamax', 'Adam'"),
        ({"optimizer": "Adam", "optimizer_args": {"lr": 0.1}}, "optimizer_args of Adam has no argument 'lr'"),
        ({"optimizer": "Adam", "optimizer_args": {"beta": 0.1}}, "no argument 'beta'. Did you mean 'betas'"),
        ({"optimizer": "Adam", "optimizer_args": {"eps": -1.0}}, "Adam cannot be made of .*eps.*: Invalid epsilon"),
        ({"optimizer": "Adam", "optimizer_args": {"betas": 0.5}}, "Adam cannot be made of"),
        ({"optimizer_args": {"nesterov": True}}, "SGD cannot be made of .*Nesterov momentum requires a momentum"),
        ({"optimizer": "Adam", "momentum": 0.9}, "momentum is that of plain steps"),
    ],
)
def test_optimisers_that_cannot_be_are_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises(CoterieError, match=says):
        deep(**how)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 5])
def test_a_step_in_parts_is_the_step(kind: str, size: int) -> None:
    """Of unequal parts, where clients have fewer rows than one, or none; no part sees more rows than it may."""
    make, shape = KINDS[kind]
    seen: list[int] = []

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return self.inner(x)

    how = {"ridge": 0.2, "clip": 0.4, "optimizer": "Adam"}
    whole = deep(make, shape, batched=False, **how)
    parts = deep(Counts, shape, batched=True, at_once=3, **how)
    assert parts.batched is None
    theta, by = models(whole), Walk(np.full(M, 0.1), STEPS, draws(size))
    seen.clear()
    np.testing.assert_allclose(
        parts.walk(theta, by), whole.walk(theta, by), rtol=0, atol=1e-10
    )  # Adam divides by small gradients
    np.testing.assert_allclose(parts.gradient(theta), whole.gradient(theta), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(parts.predict(theta), whole.predict(theta))
    assert max(seen) == 3


def test_a_step_in_parts_draws_for_each_part() -> None:
    """All rows are alike, so that equal masks would make parts alike: a part twice as heavy has twice the gradient."""
    X, y = np.ones((8, 6)), np.zeros(8, dtype=int)
    net = lambda: nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3))  # noqa: E731
    g = []
    for rows, at_once in ((4, 4), (8, 4)):
        o = Deep.of(net, X[:rows], y[:rows], [0], [rows], dtype="float64", batched=False, at_once=at_once)
        g.append(o.mean_gradient(o.start(0)[None], Draws(keyed_random.starts(0, "rows", IDS[:1]), np.zeros(1, int))))
    assert np.abs(g[0] - g[1]).max() > 1e-3


def test_a_step_in_parts_needs_rows_that_do_not_mix() -> None:
    with pytest.raises(CoterieError, match="BatchNorm: leave at_once out"):
        deep(partial(cnn, norm=True), (2, 6, 6), at_once=3)


def test_a_step_in_parts_of_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(6, 3), nn.Linear(2, 3)

        def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return self.one(one) * self.other(other).tanh()

    (X, y), Z = data(6), data(2, seed=1)[0]
    inputs, found = {"one": X, "other": Z}, []
    for at_once in (0, 3):
        objective = Deep.of(Two, inputs, y, STARTS, STOPS, dtype="float64", batched=False, at_once=at_once)
        found.append(objective.walk(models(objective), Walk(ETA, STEPS, draws(5))))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-12)
