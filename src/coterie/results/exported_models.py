"""A client's net as a file that other programs read, from a result that was trained or that was loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote

import numpy as np
import pandas as pd

from coterie import files
from coterie.data import net_inputs
from coterie.errors import CoterieError, or_say

if TYPE_CHECKING:
    from coterie.results.training_result import TrainingResult

Form = Literal["onnx", "safetensors"]
INDEX = "clients.csv"
_ROWS = (3, 2)
"""Rows on which an ONNX model must answer as the module does, twice."""


def export(result: TrainingResult, client: Any, path: str | os.PathLike[str]) -> None:
    """Write a client's net to ``path``, which ends in .onnx or .safetensors; see its ``export``."""
    place = files.local(path)
    form = place.suffix.removeprefix(".").lower()
    if form not in get_args(Form):
        raise CoterieError(f"'{place.name}' must end in .onnx (the whole net) or .safetensors (its numbers).")
    _write(place, next(contents(result, form, [str(client)])))


def export_all(result: TrainingResult, folder: str | os.PathLike[str], form: Form = "onnx") -> pd.DataFrame:
    """Write the net of every client into a folder, and which is whose; see its ``export_all``."""
    if form not in get_args(Form):
        raise CoterieError(f"form must be onnx or safetensors, not {form!r:.40}.")
    place = files.local(folder)
    labels = [label for label in result.labels if label not in result.run.helpers]
    index = pd.DataFrame({"client": labels, "file": [f"{quote(label, safe=' ')}.{form}" for label in labels]})
    with or_say(f"'{place}' cannot be made"):
        place.mkdir(parents=True, exist_ok=True)
    for name, content in zip(index["file"], contents(result, form, labels), strict=True):
        _write(place / name, content)
    _write(place / INDEX, index.to_csv(index=False).encode())
    return index


def contents(result: TrainingResult, form: str, labels: list[str]) -> Iterator[bytes]:
    """The files of some clients. In ONNX a net is put into words once for each shape, and then filled anew."""
    result.client(labels[0])  # says who is not known, before torch is asked for
    written: dict[str, Any] = {}
    from coterie.objectives.deep import export as write

    for label in labels:
        module = result.module(label)
        if form == "safetensors":
            yield write.as_safetensors(module, {"client": label, "method": result.method})
            continue
        head, rows = result.heads[result.labels.index(label)] if result.heads else "", _examples(result, label, module)
        if head not in written:
            written[head] = write.as_onnx(module, rows)
        about = {"client": label, "method": result.method, "classes": json.dumps(result.class_names)}
        about |= {"columns": json.dumps(result.inputs)} if result.inputs else {}
        yield write.checked(write.refilled(written[head], module, about), module, rows)


def _examples(result: TrainingResult, label: str, module: Any) -> tuple[Any, Any]:
    """Rows as they were trained, and others of other numbers and lengths: normal ones; and zeros, of whole numbers.

    Nobody knows how many whole numbers there are. What a mask says is there: 1.
    """
    from coterie.objectives.deep.export import as_given

    rng = np.random.default_rng(0)
    if not result.layout:
        shape = (max(_ROWS), *result.shape)
        rows = np.zeros(shape, np.int64) if result.whole else rng.normal(size=shape)
        return as_given(module, rows), as_given(module, rows[: min(_ROWS)])
    found = []
    for count in _ROWS:
        made: dict[str, Any] = {}
        for name, kind, size in (one.rsplit(":", 2) for one in result.layout):
            sides = [
                [count + k if side[0] == "*" else int(side) for side in size.split("x") if side] for k in range(count)
            ]
            whole = np.ones if "mask" in name else np.zeros
            part = [rng.normal(size=s).astype(np.float32) if kind == "f" else whole(s, np.int64) for s in sides]
            made[name] = part if "*" in size else np.stack(part)
        values = made[""] if [*made] == [""] else made
        here = result.objective(net_inputs.as_laid_out(values, result.layout, "Rows"), of=label)
        found.append(here.rows.gather(np.arange(count))[0])
    return found[0], found[1]


def _write(place: Path, content: bytes) -> None:
    with or_say(f"'{place}' cannot be written"):
        files.write(place, [content])
