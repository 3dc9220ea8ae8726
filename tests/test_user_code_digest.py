"""Digests of code see what it holds, and name what they cannot see."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch

from coterie.user_code_digest import digest

VALUES = [
    (1, 2),
    ("a", "b"),
    (0.5, 0.25),
    ((1, "x"), (1, "y")),
    ([1, 2], [1, 3]),
    ({"a": 1}, {"a": 2}),
    ({1, 2}, {1, 3}),
    (np.array([1.0, 2.0]), np.array([1.0, 3.0])),
    (np.array([1.0, 2.0]), np.array([1.0, 2.0], dtype=np.float32)),
    (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])),
    (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
    (torch.float32, torch.float64),
    (lambda o: o + 1, lambda o: o + 2),
    (partial(max, 1), partial(max, 2)),
    (torch.relu, torch.tanh),
    (torch.nn.ReLU, torch.nn.Tanh),
    (torch.nn.Dropout(0.1), torch.nn.Dropout(0.2)),
    (torch.nn.CrossEntropyLoss(torch.ones(3)), torch.nn.CrossEntropyLoss(torch.arange(3.0))),
]


def closure(value):
    def inner(outputs):
        return outputs, value

    return inner


def default(value):
    def inner(outputs, held=value):
        return outputs, held

    return inner


def keyword(value):
    return lambda outputs, *, held=value: (outputs, held)


def nested(value):
    return closure(closure(value))


class Held:
    def __init__(self, value):
        self.value = value

    def __call__(self, outputs):
        return outputs, self.value


def method(value):
    return Held(value).__call__


def inside(value):
    class Made:
        held = value

    return Made


def bound(value):
    return partial(closure, value)


WAYS = [closure, default, keyword, nested, Held, method, inside, bound]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(("one", "other"), VALUES, ids=lambda value: type(value).__name__)
def test_what_code_holds_has_a_part_in_its_digest(way, one, other):
    found = digest(way(one))
    assert found == digest(way(one)) and found.unseen == ()
    assert found.sha256 != digest(way(other)).sha256


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_has_no_digest_is_named(way):
    for value in (threading.Lock(), iter([1]), np.array([object()]), torch.ones(2).to_sparse(), object()):
        found = digest(way([value]))
        assert len(found.unseen) == 1 and f"[0] ({type(value).__name__})" in found.unseen[0]


def test_a_module_s_numbers_count_where_they_are_no_models():
    torch.manual_seed(0)
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert digest(one) != digest(other) and digest(one, numbers=False) == digest(other, numbers=False)
    other.scale = 3.0
    assert digest(one, numbers=False) != digest(other, numbers=False)


def test_what_holds_itself_or_no_end_ends():
    own = Held(None)
    own.value = own
    assert digest(own) == digest(own)
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert digest(closure(deep)).unseen
    assert digest(closure([[] for _ in range(20_000)])).unseen


def test_a_notebook_s_function_is_told_by_what_it_calls():
    def made(scale):
        cell = {"np": np}
        exec(f"def half(x): return x * {scale}\ndef loss(o, y): return half(o) + np.abs(y)", cell)  # noqa: S102
        cell["loss"].__module__ = cell["half"].__module__ = "__nowhere__"
        return digest(cell["loss"])

    assert made(0.5) == made(0.5) != made(0.25)


def test_another_process_finds_the_same():
    code = (
        "import torch, functools\nfrom coterie.user_code_digest import digest\n"
        "def of(v):\n    return lambda o: (o, v)\n"
        "print(digest(of([{'a', 'b', 'c'}, torch.nn.Linear, torch.float32, {'x': frozenset('pq')}, 1.5])).sha256)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
