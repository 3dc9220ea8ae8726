"""The one file that asks formulaic to compute columns, and its state as plain JSON values."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.expansion import formulaic_terms
from coterie.data.expressions import SPLINES
from coterie.errors import CoterieError

if TYPE_CHECKING:
    import pandas as pd


def materialise(frame: pd.DataFrame, side: str, state: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Compute one side of a formula.

    Parameters
    ----------
    frame : DataFrame
        Float64 columns, and categoricals with all their levels.
    side : str
        A right side, such as ``1 + x + center(z)``.
    state : dict
        What stateful terms remember; they learn it from the frame where it is empty.

    Returns
    -------
    columns : DataFrame
    state : dict

    Raises
    ------
    CoterieError
        If a term cannot be computed.
    """
    from formulaic import ModelSpec
    from formulaic.materializers import PandasMaterializer

    quoted = [c for c in map(str, frame.columns) if f"`{c}`" in side and not c.isidentifier()]
    aliases = {f"column_{list(frame.columns).index(c)}_": c for c in quoted}
    spec = ModelSpec(
        formula=formulaic_terms(_replace(side, aliases), side),
        transform_state=copy.deepcopy(state),
        na_action="ignore",
        output="pandas",
    )
    context = {"sqrt": np.sqrt, "abs": np.abs} | {name: _within(name) for name in SPLINES}
    try:
        with np.errstate(all="ignore"):
            renamed = frame.rename(columns={name: alias for alias, name in aliases.items()})
            matrix = PandasMaterializer(renamed, context=context).get_model_matrix(spec)
    except Exception as e:  # whatever a term raises is about the user's formula and table
        reason = _restore(str(e), aliases).strip().split("\n")[0].rstrip(".")
        if absent := re.match(r"Value `(.*)` for `\w+\.base` is not among the provided levels", reason):
            raise CoterieError(
                f"A contrast in '{side.strip()}' names the level {absent[1]}, which the column does not have."
            ) from e
        if told := re.match(r"Unable to evaluate factor `(.*)`\. \[\w+: (.*)\]$", reason):
            names = [
                c for c in frame.columns if frame[c].dtype == "category" and re.search(rf"\b{re.escape(c)}\b", told[1])
            ]
            reason = f"'{told[1]}': " + (f"'{names[0]}' is a category" if names else told[2].rstrip("."))
        raise CoterieError(f"The formula cannot be computed on this table: {reason}.") from e
    state = dict(matrix.model_spec.transform_state)
    columns = matrix.__wrapped__
    columns.columns = [_restore(str(c), aliases) for c in columns.columns]
    return columns, state


def _within(name: str) -> Callable[..., Any]:
    """A spline of formulaic's that is NaN outside its range, where formulaic would refuse all rows for one."""
    from formulaic.transforms import TRANSFORMS

    spline: Callable[..., Any] = TRANSFORMS[name]
    default = "raise" if name == "bs" else "extend"

    @functools.wraps(spline)
    def computed(x: Any, *args: Any, _state: dict[str, Any], **kwargs: Any) -> Any:
        if kwargs.get("extrapolation", default) != "raise":
            return spline(x, *args, _state=_state, **kwargs)
        columns = spline(x, *args, _state=_state, **kwargs | {"extrapolation": "clip"})
        values = np.asarray(x, dtype=np.float64)
        outside = (values < float(_state["lower_bound"])) | (values > float(_state["upper_bound"]))
        for column in columns.values() if outside.any() else ():
            column[outside] = np.nan
        return columns

    return computed


def _replace(side: str, aliases: dict[str, str]) -> str:
    """Aliases for names that are no identifiers: formulaic would draw random ones where such a name occurs twice."""
    for alias, name in aliases.items():
        side = side.replace(f"`{name}`", alias)
    return side


def _restore(text: str, aliases: dict[str, str]) -> str:
    """The names behind the aliases, in backticks inside functions."""
    for alias, name in aliases.items():
        text = re.sub(rf"(?<![^:]){alias}(?![^:\[])", lambda _, name=name: name, text)  # type: ignore[misc]
        text = text.replace(alias, f"`{name}`")
    return text


def plain(value: Any) -> Any:
    """Formulaic's state in JSON's types; `unplain` gives it back."""
    if isinstance(value, dict):
        return {"dict": [[plain(k), plain(v)] for k, v in value.items()]}
    if isinstance(value, np.ndarray):
        return {"array": value.astype(np.float64).tolist()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CoterieError(f"A term of the formula remembers {type(value).__name__}, which cannot be saved.")


def unplain(value: Any) -> Any:
    """What `plain` was given."""
    if isinstance(value, dict) and "array" in value:
        return np.array(value["array"], dtype=np.float64)
    if isinstance(value, dict):
        return {unplain(k): unplain(v) for k, v in value["dict"]}
    if isinstance(value, list):
        return [unplain(v) for v in value]
    return value
