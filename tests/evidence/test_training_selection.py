"""Choices before and within a training: methods that can be used, settings that see no test row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.evidence.training_comparison import compare
from coterie.evidence.training_selection import chosen, pick, usable
from coterie.runs.training_problem import TrainingProblem
from tests.runs.test_training import config


def test_a_setting_is_chosen_without_test_rows(monkeypatch):
    settled = config(methods={"fedavg": {"eta": [1e-9, 0.3]}})
    problem = TrainingProblem.of(settled, 0)
    labels = problem.data.test.y
    spoiled = replace(problem, data=replace(problem.data, test=replace(problem.data.test, y=(labels + 1) % 10)))
    assert pick(problem.inside(), "fedavg") == pick(spoiled.inside(), "fedavg") == {"eta": 0.3, "B": 10}


def test_a_setting_that_diverges_is_not_chosen():
    problem = TrainingProblem.of(config(methods={"pfedme": {"alpha": [1e60, 0.05], "lam": [1e60, 1.0]}}), 0)
    with np.errstate(all="ignore"):
        assert pick(problem.inside(), "pfedme")["alpha"] == 0.05


def test_all_is_what_can_be_used():
    plain = chosen(TrainingProblem.of(config(), 0), ["all"])
    assert {"local", "pooled", "fedavg", "group-models"} <= set(plain)
    assert {"fedper", "fedbn", "group-sgd"} & set(plain) == set()
    headed = TrainingProblem.of(config(methods={"all": {"head": ["1*"]}}), 0)
    assert {"fedrod", "fedproto"}.isdisjoint(chosen(headed, ["all"]))  # nothing is their bias
    layered = TrainingProblem.of(config(layout={"personal": ["1*"]}), 0)
    assert {"fedper", "fedrep", "group-sgd"} <= set(chosen(layered, ["all"]))
    ungrouped = TrainingProblem.of(config(data={"partition": "iid"}), 0)
    assert "group-models" not in chosen(ungrouped, ["all"])
    with pytest.raises(CoterieError, match="needs known groups"):
        compare(ungrouped.config, ["group-models"])


@pytest.mark.parametrize(("path", "more"), [("softmax", {}), ("mlp", {"loss": "mse", "args": {"sizes": [64, 3, 1]}})])
def test_all_leaves_out_what_adds_scores_of_heads_where_there_are_none(path, more):
    problem = TrainingProblem.of(config(model={"path": path, **more}), 0)
    assert not usable(problem, "fedrod") and usable(problem, "ditto")


def test_all_has_what_adds_scores_of_a_named_head():
    problem = TrainingProblem.of(config(model={"path": "mlp", "args": {"sizes": [64, 3, 10]}}), 0)
    assert usable(problem, "fedrod")
