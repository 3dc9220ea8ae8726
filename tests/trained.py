"""Results of a single run, as tests make them."""

from __future__ import annotations

from coterie.evidence.training_comparison import TrainingComparison
from coterie.results.training_result import TrainingResult
from coterie.runs.training import Trained
from coterie.runs.training_problem import TrainingProblem


def result_of(problem: TrainingProblem, run: Trained) -> TrainingResult:
    """The result of one method on one seed."""
    groups = [problem.data.group if problem.data.known else None]
    return TrainingResult.of(TrainingComparison(problem.config, {run.method: [run]}, groups, {}, problem), run.method)
