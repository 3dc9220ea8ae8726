"""What nets of clients say of rows: outputs, and probabilities of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.data.columns import at_rows
from coterie.errors import CoterieError, fitting
from coterie.objectives.wide_models import means

if TYPE_CHECKING:
    from coterie.results.training_result import TrainingResult

DAMAGED = "They are damaged: train them again."
"""The remedy where what was read of trained models cannot be used."""


def outputs(result: TrainingResult, X: npt.ArrayLike, client: Any) -> npt.NDArray[Any]:
    """Outputs (n, ...) of a client's model, or of the model of each row's client, by labels (n,)."""
    rows = result.rows_like_these(X, "predict")
    if isinstance(client, str) or np.ndim(client) == 0:
        return _of_one(result, rows, client)
    labels = np.array([str(label) for label in np.asarray(client, dtype=object).ravel()], dtype=object)
    if len(labels) != len(rows) or np.ndim(client) != 1:
        raise CoterieError(
            f"client must be a label, or one for each of the {len(rows):,} rows, not {len(labels):,} labels."
        )
    names, code = np.unique(labels, return_inverse=True)
    found: npt.NDArray[Any] | None = None
    for k, name in enumerate(names):
        at = np.flatnonzero(code == k)
        part = _of_one(result, rows[at], name)
        if found is None:
            found = np.empty((len(rows), *part.shape[1:]), part.dtype)
        if part.shape[1:] != found.shape[1:]:
            raise CoterieError("These clients' nets have outputs of other shapes: predict for one of them at a time.")
        found[at] = part
    return _of_one(result, rows, result.labels[0]) if found is None else found


def _of_one(result: TrainingResult, rows: npt.NDArray[Any], client: Any) -> npt.NDArray[Any]:
    """A CoterieError for rows of which the client's model says nothing."""
    some = rows if len(rows) else result.blank(rows.dtype)  # the answer's shape is the model's to say
    theta = result.client(client)
    with fitting("What was read of these trained models", DAMAGED):
        found = np.asarray(result.objective(some, of=client).outputs(theta[None]))[: len(rows)]
    if (bad := np.isnan(found).any(axis=tuple(range(1, found.ndim)))).any():
        raise CoterieError(f"The model of client '{client}' gives no number in {at_rows(bad)}: leave them out.")
    return found


def probabilities(loss: str, outputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What outputs say of classes under a packaged loss: "cross_entropy" or "bce"."""
    if loss not in ("cross_entropy", "bce"):
        raise CoterieError(f"The loss {loss} has no classes that there could be probabilities of: take predict().")
    return means(np.asarray(outputs, dtype=np.float64), loss)
