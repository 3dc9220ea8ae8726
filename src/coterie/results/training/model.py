"""The objective that a configuration names: Softmax, one of the package's nets, or a user's own torch module."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.dealing import Part
from coterie.errors import CoterieError, nearest
from coterie.objectives.softmax import Softmax
from coterie.results.training.config import Config

Array = npt.NDArray[Any]
SCORED = ("cross_entropy", "bce")
"""Losses whose outcomes are classes, so that there is an accuracy."""


def objective(config: Config, rows: Part, classes: int, held: bool = False) -> Any:
    """The clients' rows as an objective; without its ridge where they are held out.

    Raises
    ------
    CoterieError
        For a model that cannot be imported, a missing torch, or what the objective refuses.
    """
    model = config.model
    ridge = 0.0 if held else model["ridge"]
    if model["path"] == "softmax":
        if not classes:
            raise CoterieError("The model softmax needs classes: whole numbers from 0 as y.")
        return Softmax.of(with_constant(rows.X), rows.y, rows.starts, rows.stops, classes, ridge=ridge)
    made = network(config)
    deep = _deep()
    options = {key: model[key] for key in ("dtype", "device", "buffers", "clip", "momentum")} | {"ridge": ridge}
    loss, score = model["loss"], model["score"]
    options["loss"] = config.load(loss, "The loss") if ":" in loss else loss
    options["score"] = None if score is None else config.load(score, "The score")
    return deep.Deep.of(made, rows.X, rows.y, rows.starts, rows.stops, **options)


def network(config: Config) -> Any:
    """A function without arguments that makes the torch module."""
    path, args = config.model["path"], config.model["args"]
    if ":" in path:
        made = config.load(path, "The model")
    else:
        _deep()
        from coterie.objectives.deep import nets

        named = {name: value for name, value in vars(nets).items() if callable(value) and not name.startswith("_")}
        made = named.get(path)
        if made is None:
            known = ["softmax", *(name for name, value in named.items() if value.__module__ == nets.__name__)]
            hint = nearest(path, known) or f" There are {', '.join(known)}, and package.module:name."
            raise CoterieError(f"There is no model called '{path}'.{hint}")
    return partial(_called, made, path, args)


def _called(made: Any, path: str, args: dict[str, Any]) -> Any:
    if not callable(made):
        raise CoterieError(f"The model '{path}' is no function or class that makes one.")
    try:
        return made(**args)
    except TypeError as e:
        raise CoterieError(f"The model '{path}' does not take these args: {e}.") from e


def _deep() -> Any:
    """The package of deep objectives, imported only here and only when a model needs it."""
    try:
        from coterie.objectives import deep
    except ModuleNotFoundError as e:
        raise CoterieError("This model needs PyTorch: pip install 'coterie[torch]'.") from e
    return deep


def with_constant(X: Array) -> npt.NDArray[np.float64]:
    """Rows flattened, with a constant 1 before them."""
    flat = np.asarray(X, dtype=np.float64).reshape(len(X), -1)
    return np.concatenate([np.ones((len(X), 1)), flat], axis=1)


def scored(config: Config) -> bool:
    """Whether there is an accuracy, or a score of the user's own; else the loss is all there is."""
    model = config.model
    return model["path"] == "softmax" or model["score"] is not None or model["loss"] in SCORED
