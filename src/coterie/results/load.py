"""What every result has, whatever a client's model is; and a result that was saved, of either kind."""

from __future__ import annotations

import os
from typing import Any, Protocol

import pandas as pd

from coterie import files
from coterie.errors import CoterieError, listed
from coterie.results import saved_fit
from coterie.results.fit_result import FitResult
from coterie.results.training_result import TrainingResult


class Result(Protocol):
    """What :class:`FitResult` and :class:`~coterie.results.training_result.TrainingResult` share.

    ``comparison`` has a row for each method, ``recommended`` is the best one and ``reason`` says why; ``method`` is the
    one of the models. ``theory`` is what was promised beside what was measured.
    """

    comparison: pd.DataFrame
    recommended: str
    method: str
    reason: str
    notes: list[str]
    ledger: dict[str, Any]
    theory: dict[str, Any]

    def client(self, label: Any) -> Any:
        """A client's parameters: coefficients by term, or a row of numbers."""

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML page."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result into a folder, which :func:`coterie.load` reads."""

    def config(self) -> dict[str, Any]:
        """The call written down as sections, which :func:`coterie.fit` takes again."""


def load(path: str | os.PathLike[str], folder: str | os.PathLike[str] = ".", **code: Any) -> FitResult | TrainingResult:
    """Read a result that was saved: :class:`FitResult`, or :class:`~coterie.results.training_result.TrainingResult`.

    Nothing in the folder runs. A net's code of a user's own is taken only from this call, and only if its file is the
    one that was there in training.

    Parameters
    ----------
    path : path
        The directory.
    folder : path, default "."
        Of a net: where modules that ``allow`` names are imported from, before other places.
    model : callable, optional
        What makes the torch module, where that was a function or class of the user's own. It is called with the
        ``args`` that the configuration had.
    allow : iterable of str
        Import paths "module:name" that may be imported: of the net, the loss, the score and the method, as they were
        named.
    changed : bool, default False
        Take that code also if its file has changed since.

    Raises
    ------
    CoterieError
        If there is no result, if it is damaged, or if a newer coterie wrote it. Code that is not allowed, or that has
        changed, is refused when it is needed: by ``predict``, ``module`` and ``adapt``.
    """
    place, home = files.local(path), files.local(folder)
    if (place / "training.json").exists() and not (place / saved_fit.MODEL.file).exists():
        from coterie.results import saved_training, training_result

        nets: TrainingResult = saved_training.load(training_result.TrainingResult, place, home, **code)
        return nets
    if code:
        raise CoterieError(f"There are no nets in '{place}' that {listed(code)} could be of: leave that out.")
    found: FitResult = saved_fit.load(place, FitResult)
    return found
