"""What the user of a torch model is told: one sentence, with the remedy."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.objectives import parameters
from coterie.objectives.deep import Deep
from coterie.objectives.gradient_steps import Draws, Walk

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


class Items(Dataset):  # type: ignore[type-arg]
    """Ten items that a function makes."""

    def __init__(self, item: Callable[[int], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


class Odd(nn.Linear):
    """A layer whose outputs a function changes."""

    def __init__(self, change: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__(6, 3)
        self.change = change

    def forward(self, x: Any) -> Any:
        return self.change(self, super().forward(x), x)


class Late(nn.Module):
    """A model that makes a layer, or a parameter, when rows first pass, or anew whenever they do."""

    def __init__(self, name: str, made: Callable[[], Any], anew: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.name, self.made, self.anew = nn.Linear(6, 3), nn.Linear(3, 3), name, made, anew

    def forward(self, x: Any) -> Any:
        if self.anew or not hasattr(self, self.name):
            setattr(self, self.name, self.made())
        late = getattr(self, self.name)
        x = self.first(x)
        return late(x) if isinstance(late, nn.Module) else x * late


class Anew(nn.Linear):
    """A layer before others that the module does not hold: made whenever rows pass, or kept in a list."""

    def __init__(self, others: Any = ()) -> None:
        super().__init__(6, 3)
        self.others = others

    def forward(self, x: Any) -> Any:
        for layer in self.others or [nn.Linear(3, 3)]:
            x = layer(super().forward(x))
        return x


class Order(nn.Linear):
    """A layer with a parameter that cannot be trained."""

    def __init__(self, order: Any) -> None:
        super().__init__(6, 3)
        self.order = nn.Parameter(order, requires_grad=False)


def fails(*_: Any) -> Any:
    raise KeyError("lost")


def leaves(*_: Any) -> Any:
    sys.exit("bye")


def odd(change: Callable[[Any, Any, Any], Any], **how: Any) -> Callable[[], Any]:
    return lambda: deep(lambda: Odd(change), **how)


def grows(s: Any, out: Any, x: Any) -> Any:
    """A buffer that each batch makes longer."""
    if s.training:
        s.seen = torch.cat([s.seen, x.detach()])
    return out + s.seen.mean()


def growing() -> nn.Module:
    net = Odd(grows)
    net.register_buffer("seen", torch.zeros(1, 6))
    return net


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's, of what is still much in use
        return torch.jit.script(nn.Linear(6, 3))  # type: ignore[no-any-return]


def hooked(name: str) -> nn.Module:
    net = nn.Linear(6, 3)
    getattr(net.weight, name)(lambda g: None)
    return net


def clients(*data: Any) -> Callable[[], Any]:
    return lambda: Deep.of_clients(mlp, list(data))


def items(item: Callable[[int], Any]) -> Callable[[], Any]:
    return clients(Items(item))


def walked(objective: Deep) -> Any:
    """Two steps of each client."""
    m = len(objective)
    theta = np.tile(objective.start(0), (m, 1))
    draws = Draws(np.arange(m, dtype=np.uint64), np.zeros(m, dtype=np.int64), 0)
    return objective.walk(theta, Walk(np.full(m, 0.1), np.full(m, 2), draws))


def begun(w: Any) -> Any:
    return FedAvg(eta=0.1).init(InProcess(deep()), w)


tensors = torch.tensor(X), torch.tensor(y)
more = torch.where(torch.arange(10) == 7, 5, tensors[1])

CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "not a module": (lambda: deep(lambda: 3), "must be a torch.nn.Module, or a function that makes one"),
    "no parameters": (lambda: deep(nn.Flatten()), "no parameters, so there is nothing to train"),
    "other inputs": (lambda: deep(X=X[:, :5]), r"cannot take rows of shape \(5,\)"),
    "text": (lambda: deep(X=np.full((10, 6), "a")), "must be real numbers"),
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
    "score is no tensor": (lambda: deep(score=lambda o, t: t.numpy()), "The score must give .* not an array of shape"),
    "score fails": (lambda: deep(score=lambda o, t: o[:, 7]), "The score cannot compare outputs of shape"),
    "uneven items": (lambda: Deep.of_clients(mlp, [Uneven()]).has_finite_gradient(), "of the same shapes"),
    "dtype": (lambda: deep(dtype="int8"), "dtype must be float32"),
    "half": (lambda: deep(dtype="float16"), "not 'float16'.* For half precision take bfloat16"),
    "buffers": (lambda: deep(buffers="mine"), "buffers must be personal"),
    "refused": (lambda: deep(normed, buffers="refused"), "1.running_mean"),
    "weights": (lambda: deep(weights=-np.ones(10)), "10 finite numbers from 0"),
    "clip": (lambda: deep(clip=0.0), "clip of a net must be a number above 0"),
    "ridge": (lambda: deep(ridge=-1.0), "ridge of a net must be"),
    "momentum": (lambda: deep(momentum=1.0), "momentum of a net must be"),
    "device": (lambda: deep(device="gpu0"), "There is no device 'gpu0'"),
    "no clients": (lambda: Deep.of_clients(mlp, []), "no clients"),
    "stream": (lambda: Deep.of_clients(mlp, [Stream()]), "can only be read in order"),
    "no score": (lambda: deep(y=X[:, :3], loss="mse").accuracy(np.zeros((2, 43))), "no score"),
    "gradients of statistics": (
        lambda: deep(normed).mean_gradient(np.zeros((2, 59)), Draws(np.zeros(2, np.uint64), np.zeros(2, np.int64))),
        "a method that takes steps at home",
    ),
    "a module's class": (lambda: deep(nn.Linear), r"The model Linear cannot be made.*as Linear\(...\)"),
    "no model": (lambda: deep("mlp"), "must be a torch.nn.Module, or a function"),
    "a function with arguments": (lambda: deep(lambda n: n), "a function without arguments"),
    "a function that fails": (lambda: deep(fails), "The model fails cannot be made: it raises KeyError: 'lost'"),
    "lazy": (lambda: deep(lambda: nn.LazyLinear(3)), r"'weight' has no shape before it has seen rows"),
    "whole parameter": (lambda: deep(lambda: Order(torch.arange(6))), "'order' holds torch.int64.*register_buffer"),
    "complex parameter": (lambda: deep(lambda: Order(torch.zeros(2, dtype=torch.cfloat))), "of real and imaginary"),
    "no forward": (lambda: deep(nn.ModuleList([nn.Linear(6, 3)])), "cannot take rows of shape"),
    "meta device": (lambda: deep(device="meta"), "There is no device 'meta'"),
    "a tuple": (odd(lambda s, o, x: (o, o)), "one tensor of outputs, and gives a tuple of 2:"),
    "a tuple in training": (odd(lambda s, o, x: (o, o) if s.training else o), "a tuple of 2 while it trains"),
    "a dict in training": (odd(lambda s, o, x: {"out": o} if s.training else o), "a dict of out while it trains"),
    "nothing": (odd(lambda s, o, x: None), "gives None: return what the loss"),
    "squeezed": (odd(lambda s, o, x: o.squeeze()), r"shape \(3,\) for 1 row.*squeeze\(\) drops it"),
    "means over rows": (odd(lambda s, o, x: o.mean(0, keepdim=True)), r"shape \(1, 3\) for 2 rows"),
    "late layer": (lambda: deep(Late("late", lambda: nn.Linear(3, 3))), r"makes 'late.weight' .* in __init__"),
    "late parameter": (lambda: deep(lambda: Late("w", lambda: nn.Parameter(torch.ones(3)))), "makes 'w' while rows"),
    "layer made anew": (lambda: deep(Late("second", lambda: nn.Linear(3, 3), True)), "makes 'second.weight' while"),
    "layer never assigned": (lambda: deep(Anew()), r"shape \(3, 3\) that is none of its own.*__init__"),
    "plain list of layers": (lambda: deep(Anew([nn.Linear(3, 3)])), r"shape \(3, 3\) .*nn\.ModuleList"),
    "classes": (odd(lambda s, o, x: o.argmax(1)), "return scores in floating numbers"),
    "detached": (odd(lambda s, o, x: o.detach() if s.training else o), "no gradient while it trains"),
    "in place": (odd(lambda s, o, x: torch.sigmoid(o).mul_(2) if o.sum() else o), r"not x.add_\(1\)"),
    "two rows alone": (odd(lambda s, o, x: o if len(x) > 1 else fails()), "It takes two rows and not one alone"),
    "many rows": (
        lambda: walked(deep(lambda: Odd(lambda s, o, x: o if len(x) < 3 else fails()), batched=False)),
        "A step of client 0 fails: the model or its loss raises KeyError: 'lost'",
    ),
    "many rows at once": (
        lambda: walked(deep(lambda: Odd(lambda s, o, x: o if len(x) < 3 else fails()))),
        "A step of client 0 fails.*KeyError: 'lost'",
    ),
    "many rows evaluated": (
        lambda: deep(lambda: Odd(lambda s, o, x: o if len(x) < 3 else fails()), batched=False).value(np.zeros((2, 21))),
        "Evaluating the model of client 0 fails",
    ),
    "sparse": (lambda: deep(X=scipy.sparse.csr_matrix(X)), r"give X.toarray\(\)"),
    "sparse tensor": (lambda: deep(X=tensors[0].to_sparse()), "to_dense"),
    "ragged lists": (lambda: deep(X=[[1.0] * 6] * 9 + [[1.0]]), "X have several lengths, up to 6: pad them"),
    "masked": (lambda: deep(X=np.ma.masked_less(X, 0)), "must not be masked"),
    "complex": (lambda: deep(X=tensors[0].to(torch.cfloat)), "must be real numbers"),
    "a table with text": (lambda: deep(X=pd.DataFrame(X).assign(town="Bern")), r"\(such as 'Bern'\)"),
    "names of classes": (lambda: deep(y=np.repeat(["cat", "dog"], 5)), "targets y must be real numbers.*'cat'"),
    "channels last": (lambda: deep(lambda: nn.Conv2d(3, 2, 3), np.zeros((10, 8, 8, 3))), "channels first"),
    "no channels": (
        lambda: deep(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)), np.zeros((10, 8, 8))),
        r"X\[:, None\]",
    ),
    "images for a vector": (lambda: deep(X=np.zeros((10, 2, 3))), r"nn.Flatten\(\)"),
    "a column of classes": (lambda: deep(y=y[:, None]), r"give y\[:, 0\]"),
    "one-hot": (lambda: deep(y=np.eye(3)[y]), r"y.argmax\(axis=1\).*bce"),
    "classes last": (lambda: deep(lambda: nn.Linear(3, 4), X.reshape(10, 2, 3), np.zeros((10, 2), int)), "movedim"),
    "which class": (lambda: deep(y=np.where(np.arange(10) == 7, -100, y)), "-100 in row 2 of client 1"),
    "whose class": (lambda: deep(y=y + 1, labels=["Basel", "Bern"]), "3 in a row of client Basel"),
    "missing class": (lambda: deep(y=np.where(np.arange(10) == 7, np.nan, y)), "nan in row 2 of client 1 is not"),
    "no two classes": (lambda: deep(nn.Linear(6, 1), y=y, loss="bce"), "from 0 to 1, which 2 in row 2 of client 0"),
    "turned targets": (
        lambda: deep(
            lambda: nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3))), y=np.zeros((10, 3, 2)), loss="mse"
        ),
        "are not of the targets'",
    ),
    "loss of one": (lambda: deep(loss=lambda o: o), "takes 1 positional argument"),
    "loss gives none": (lambda: deep(loss=lambda o, t: None), "one number for each row, not None"),
    "loss of columns": (lambda: deep(y=np.eye(3)[y], loss=nn.MSELoss(reduction="none")), r"gives the shape \(1, 3\)"),
    "ranges in text": (lambda: deep(lo=["a", "b"]), "must be row ranges"),
    "one Dataset": (lambda: Deep.of_clients(mlp, TensorDataset(*tensors)), "Give a list with the data of each client"),
    "not iterable": (lambda: Deep.of_clients(mlp, None), "Give a list with the data of each client"),
    "three of a pair": (clients((X, y, y)), "The data of client 0 must be a pair"),
    "unequal pair": (clients((X, y), (X, y[:3])), "Client 1: X and y must have one row for each other"),
    "other widths": (clients((X, y), (X[:, :5], y)), r"X are \(5,\) at client 1 and \(6,\) at client 0"),
    "other widths by name": (lambda: Deep.of_clients(mlp, {"a": (X, y), "b": (X, np.eye(3)[y])}), "at client b"),
    "other widths of items": (
        clients(TensorDataset(*tensors), TensorDataset(tensors[0][:, :5], tensors[1])),
        r"X are \(5,\) at client 1",
    ),
    "no rows": (clients((X[:0], y[:0])), "No client has a row"),
    "no items": (clients(TensorDataset(tensors[0][:0], tensors[1][:0])), "No client has a row"),
    "items are dicts": (items(lambda i: {"x": tensors[0][i], "y": 0}), "row 0 of client 0 is a dict of x, y"),
    "items of three": (items(lambda i: (tensors[0][i], 0, i)), "is a list of 3"),
    "items are nothing": (items(lambda i: None), r"those of row 0 of client 0 \(None\) are not"),
    "items with text": (items(lambda i: (tensors[0][i], "cat")), "The targets of row 0 of client 0"),
    "items of two inputs": (items(lambda i: ((tensors[0][i], tensors[0][i]), 0)), "must be Tensor, not tuple"),
    "items that fail": (
        lambda: items(lambda i: fails() if i == 7 else (tensors[0][i], 0))().has_finite_gradient(),
        "does not give row 7 of client 0: it raises KeyError: 'lost'",
    ),
    "class of an item": (
        lambda: clients(TensorDataset(tensors[0], more))().has_finite_gradient(),
        "5 in row 7 of client 0",
    ),
    "class of a drawn item": (lambda: walked(clients(TensorDataset(tensors[0], more))()), "5 in row 7 of client 0"),
    "collate fails": (clients(DataLoader(TensorDataset(*tensors), collate_fn=fails)), "KeyError: 'lost'"),
    "a name": (clients("abc"), "must be a Dataset, a DataLoader or a pair"),
    "buffer grows": (
        lambda: deep(growing),
        r"takes another shape .*, \(6, 6\) after \(1, 6\)",
    ),
    "no numbers": (lambda: deep(lambda: nn.Linear(6, 3, device="meta")), "has no numbers"),
    "clip is text": (lambda: deep(clip="a"), "clip of a net must be a number above 0, not 'a'"),
    "rows between rows": (lambda: deep(lo=(0.5, 5)), "starts and stops must be row ranges"),
    "other models": (lambda: deep().value(np.zeros(5)), r"not an array of shape \(5,\)"),
    "no targets": (lambda: walked(deep(y=None)), "no targets, so that nothing can be trained"),
    "scripted": (lambda: deep(scripted), "Scripted layers"),
    "hook of an instance": (lambda: deep(hooked("register_hook")), "'weight' has a hook"),
    "late hook": (lambda: deep(lambda: hooked("register_post_accumulate_grad_hook")), "use register_hook"),
    "exits when made": (lambda: deep(leaves), "The model leaves cannot be made: it raises SystemExit: bye"),
    "exits": (odd(leaves), "cannot take rows of shape .*SystemExit: bye"),
    "exits later": (
        lambda: walked(deep(lambda: Odd(lambda s, o, x: o if len(x) < 3 else leaves()), batched=False)),
        "A step of client 0 fails: the model or its loss raises SystemExit: bye",
    ),
    "exits at once": (lambda: walked(deep(lambda: Odd(lambda s, o, x: o if len(x) < 3 else leaves()))), "SystemExit"),
    "loss exits": (lambda: deep(loss=leaves), "The loss cannot compare .*SystemExit: bye"),
    "score exits": (lambda: deep(score=leaves), "The score cannot compare .*SystemExit: bye"),
    "items exit": (items(leaves), "does not give row 0 of client 0: it raises SystemExit: bye"),
    "collate exits": (clients(DataLoader(TensorDataset(*tensors), collate_fn=leaves)), "SystemExit: bye"),
    "a table of a client": (clients(pd.DataFrame(X)), "a DataLoader or a pair .X, y., not a DataFrame"),
    "nothing of a client": (clients((X, y), None), "The data of client 1 must be .* not None"),
    "a list of losses": (lambda: deep(loss=["mse"]), "There is no loss"),
    "a list of types": (lambda: deep(dtype=["float32"]), "dtype must be float32"),
    "a row of text": (lambda: deep().flat("mlp"), "made of a torch.nn.Module, not of a str"),
    "a row of a state": (lambda: deep().flat(mlp().state_dict()), "not of a OrderedDict: load a state_dict"),
    "models of text": (lambda: deep().predict("mlp"), "Models must be one row of 43 numbers"),
    "a start of text": (lambda: begun("mlp"), "The first model must be a row of numbers, not a str"),
    "a start of a module": (lambda: begun(mlp()), r"objective.flat\(module\) is that of a torch module"),
    "pattern": (lambda: parameters.parameter_mask(deep(), ["conv*"]), "0.weight, 0.bias, 1.weight, 1.bias"),
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


def test_targets_of_a_dataset_may_be_numbers() -> None:
    data = [TensorDataset(torch.tensor(X[:5]), torch.tensor(X[:5, 0])), (X[5:], X[5:, 0])]
    beside = Deep.of_clients(lambda: nn.Linear(6, 1), data, loss="mse")
    theta = beside.start(0)
    assert beside.has_finite_gradient().all()
    np.testing.assert_allclose(
        beside.value(theta), deep(lambda: nn.Linear(6, 1), y=X[:, 0], loss="mse").value(theta), rtol=1e-6
    )


def test_what_torch_does_not_batch_is_no_warning_to_users() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        objective = deep(lambda: weight_norm(nn.Linear(6, 3)))
        walked(objective)
    assert objective.batched
    assert [str(w.message) for w in said] == []


class Compiled(nn.Module):
    """A module as ``torch.compile`` hands it back."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def forward(self, x: Any) -> Any:
        raise AssertionError("every copy would be compiled")


@pytest.mark.parametrize("given", [False, True])
def test_a_compiled_module_is_taken_as_it_is_written(given: bool) -> None:
    layer = nn.Linear(6, 3)
    layer._compiled_call_impl = fails  # as layer.compile() sets it
    objective = deep(Compiled(layer) if given else lambda: Compiled(nn.Linear(6, 3)))
    walked(objective)
    assert objective.names == {"weight": 18, "bias": 3}
    assert layer._compiled_call_impl is fails
    assert objective.flat(Compiled(objective.module(np.arange(21.0)))).tolist() == list(range(21))


def test_small_clients_and_absent_classes_are_no_error() -> None:
    objective = deep(lo=(0, 1, 1), hi=(1, 1, 10), y=np.zeros(10, dtype=int))
    theta = np.tile(objective.start(0), (3, 1))
    draws = Draws(np.arange(3, dtype=np.uint64), np.zeros(3, dtype=np.int64), 64)
    found = objective.walk(theta, Walk(np.full(3, 0.1), np.full(3, 2), draws))
    assert np.isfinite(found).all() and (found[1] == theta[1]).all() and (found[[0, 2]] != theta[[0, 2]]).any()


KINDS: dict[str, Any] = {
    "lists": X.tolist(),
    "objects": X.astype(object),
    "a table": pd.DataFrame(X),
    "the other byte order": X.astype(">f8"),
    "long": X.astype(np.longdouble),
    "not to be written": np.broadcast_to(X, (10, 6)),
    "with a gradient": torch.tensor(X, requires_grad=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_any_kind_are_read(kind: str) -> None:
    made = deep(X=KINDS[kind])
    np.testing.assert_allclose(made.rows.gather(np.arange(10))[0].numpy(), X.astype(np.float32))


def test_a_function_that_always_gives_the_same_module_leaves_it_alone() -> None:
    shared = nn.Linear(6, 3)
    before = shared.weight.detach().clone()
    theta = walked(deep(lambda: shared, batched=False))
    assert torch.equal(shared.weight, before) and np.ptp(theta, axis=0).max() > 0


def test_a_client_without_rows_keeps_its_model_and_statistics() -> None:
    for objective in (deep(normed, lo=(0, 5), hi=(5, 5)), Deep.of_clients(normed, [(X, y), (X[:0], y[:0])])):
        assert (walked(objective)[1] == objective.start(0)).all()
    sets = Deep.of_clients(mlp, [TensorDataset(*tensors), TensorDataset(tensors[0][:0], tensors[1][:0])])
    assert (walked(sets)[1] == sets.start(0)).all()
