"""Models of many clients, row by row, are the numbers that they are all at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.methods.local_training import rounds
from coterie.objectives import client_models
from coterie.objectives.client_models import ClientModels, by_block, finite, is_one, mean
from tests.results.test_trained_adapters import client, fit, pretrained

rng = np.random.default_rng(0)


def models() -> ClientModels:
    own = np.array([False, True, True, False, True])
    return ClientModels(rng.normal(size=5).astype(np.float32), own, rng.normal(size=(4, 3)).astype(np.float32))


def whole(of: ClientModels) -> np.ndarray:
    """A literal loop over clients."""
    out = np.array([of.common] * len(of))
    for i in range(len(of)):
        out[i, of.own] = of.personal[i]
    return out


def test_rows_means_and_finiteness_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    some = models()
    all_ = whole(some)
    np.testing.assert_array_equal(np.asarray(some), all_)
    for key in (1, slice(1, 3), np.array([3, 0]), (2, slice(1, None)), (slice(None), slice(2))):
        np.testing.assert_array_equal(some[key], all_[key])
    which = np.array([True, False, True, True])
    np.testing.assert_allclose(mean(some, which), all_[which].mean(axis=0), rtol=1e-6)
    some.personal[1, 0] = np.nan
    np.testing.assert_array_equal(finite(some), [True, False, True, True])
    monkeypatch.setattr(client_models, "AT_ONCE", 10)  # two rows at a time
    told: list[slice] = []
    sums = by_block(lambda rows, part: told.append(rows) or part.sum(axis=1), all_)
    np.testing.assert_array_equal(sums, all_.sum(axis=1))
    assert len(told) == 2
    one = np.broadcast_to(all_[0], (4, 5))
    assert is_one(one)
    assert len(by_block(lambda rows, part: told.append(rows) or part[:, 0], one)) == 4
    assert len(told) == 3


def test_fedper_by_rows_is_fedper_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    straight = fit("fedper", personal=["lora*"])
    monkeypatch.setattr(rounds, "LARGE", 0)
    monkeypatch.setattr(client_models, "AT_ONCE", 100)
    by_rows = fit("fedper", personal=["lora*"])
    assert isinstance(by_rows.theta, ClientModels)
    np.testing.assert_array_equal(np.asarray(by_rows.theta), straight.theta)
    np.testing.assert_allclose(by_rows.comparison["loss"], straight.comparison["loss"], rtol=1e-6)
    by_rows.save(tmp_path)
    again = coterie.load(tmp_path, model=pretrained, changed=True)
    np.testing.assert_array_equal(np.asarray(again.theta), straight.theta)
    np.testing.assert_array_equal(again.client(client[-1]), straight.client(client[-1]))
