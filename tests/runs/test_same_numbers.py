"""Every method and optimiser of a net: the same numbers by any number of threads and sites, and where it is resumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import coterie
from coterie.methods.registry import TRAINED
from coterie.objectives.torch_names import Optimizer
from coterie.options import Declared, Option
from coterie.results.call_as_config import net_call_sections
from coterie.runs.config import Config
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem
from tests.cells import arrays, net, of_net

NAMES = Declared("optimizer", Optimizer, Option()).names
QUICK = [("fedavg", "Adam"), ("ditto", "AdamW"), ("fedadam", "SGD")]
CELLS = [(name, one) for name, row in TRAINED.items() for one in (["SGD"] if "optimizer" in row.idle else NAMES)]
CELLS = [*QUICK, *(pytest.param(*cell, marks=pytest.mark.soak) for cell in CELLS if cell not in QUICK)]


def problem(name: str, optimizer: str) -> TrainingProblem:
    """Six clients, whose epochs are shuffled, and whose steps get shorter from round to round."""
    method, (X, y, client) = TRAINED[name], arrays()
    takes = {"B": 3, "schedule": "ExponentialLR", "schedule_args": {"gamma": 0.8}, "eta": 0.05}
    rounds = {"rounds": 4} | {key: value for key, value in takes.items() if key in method.hyper_parameters}
    norm = {"norm": True} if method.normalises else {}
    model = coterie.Torch(net, args=norm, dtype="float64", optimizer=optimizer, batches="shuffled")
    call = of_net(method) | {"client": client, "method": name, "rounds": rounds}
    return TrainingProblem.of(Config.of(net_call_sections((X, y), model, call)), 0)


def run(given: TrainingProblem, name: str, *more, rounds: int = 4, **engine):
    """Models after some rounds on an engine."""
    config = given.config
    told = replace(config, engine=config.engine | engine, run=config.run | {"rounds": rounds, "checkpoint_every": 1})
    (setting,) = TRAINED[name].settings(config.given(name))
    return train(replace(given, config=told), name, setting, [], *more).theta


@pytest.mark.parametrize(("name", "optimizer"), CELLS)
def test_threads_sites_and_resuming_change_no_number(name, optimizer, tmp_path):
    given = problem(name, optimizer)
    here = run(given, name)
    assert len(np.unique(here)) > 1 and np.isfinite(here).any()
    np.testing.assert_array_equal(run(given, name, threads=3), here)
    # a bias before BatchNorm has gradients of rounding alone, which Adam makes steps of 1e-8
    near = {"rtol": 1e-6, "atol": 1e-7} if TRAINED[name].normalises else {"rtol": 1e-9, "atol": 1e-12}
    for sites in (1, 3):
        np.testing.assert_allclose(run(given, name, kind="loopback", sites=sites), here, **near)
    run(given, name, tmp_path, rounds=2)
    np.testing.assert_array_equal(run(given, name, tmp_path, True), here)
