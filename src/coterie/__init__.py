"""A model for each client of a federation, informed by how the clients are related.

The public names load when they are first used, so that `import coterie` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.api import compare as compare
    from coterie.api import fit as fit
    from coterie.api_advise import advise as advise
    from coterie.data.auxiliary_tasks import stack_tasks as stack_tasks
    from coterie.data.table_files import read_table as read_table
    from coterie.errors import CoterieError as CoterieError
    from coterie.estimators import HierarchicalClassifier as HierarchicalClassifier
    from coterie.estimators import HierarchicalRegressor as HierarchicalRegressor
    from coterie.results.advice import Advice as Advice
    from coterie.results.fit_result import FitResult as FitResult
    from coterie.results.likelihood_tests_and_profiles import compare_fits as compare_fits
    from coterie.results.saved_results import load as load
    from coterie.results.simulate import bootstrap as bootstrap
    from coterie.results.training_result import TrainingResult as TrainingResult
    from coterie.runs.config_keys import Torch as Torch

__version__ = "0.2.0"

_HOMES = {
    "Advice": "coterie.results.advice",
    "CoterieError": "coterie.errors",
    "FitResult": "coterie.results.fit_result",
    "HierarchicalClassifier": "coterie.estimators",
    "HierarchicalRegressor": "coterie.estimators",
    "Torch": "coterie.runs.config_keys",
    "TrainingResult": "coterie.results.training_result",
    "advise": "coterie.api_advise",
    "bootstrap": "coterie.results.simulate",
    "compare": "coterie.api",
    "compare_fits": "coterie.results.likelihood_tests_and_profiles",
    "fit": "coterie.api",
    "load": "coterie.results.saved_results",
    "read_table": "coterie.data.table_files",
    "stack_tasks": "coterie.data.auxiliary_tasks",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
