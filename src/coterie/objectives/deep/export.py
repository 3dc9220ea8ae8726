"""Torch modules as files that other programs read: numbers in safetensors, the whole net in ONNX."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coterie.errors import RAISED, CoterieError
from coterie.objectives.deep.architecture import short

CLOSE = 1e-5
"""How far what onnxruntime answers may be from torch's answers, as a share of the largest of them, or of 1."""


def linear(theta: npt.NDArray[Any], classes: int) -> nn.Module:
    """The module of a softmax model: its constant column, which is the first, becomes the bias."""
    table = torch.from_numpy(np.array(theta, dtype=np.float64).reshape(-1, classes))
    layer = nn.Linear(len(table) - 1, classes, device="meta")  # draws nothing
    layer.weight, layer.bias = nn.Parameter(table[1:].T.contiguous()), nn.Parameter(table[0].clone())
    return nn.Sequential(nn.Flatten(), layer).eval()


def as_safetensors(module: nn.Module, about: Mapping[str, str]) -> bytes:
    """A module's ``state_dict`` with what a reader should know ``about`` it; tensors that it shares are there twice."""
    from safetensors.torch import save

    state = {name: values.detach().cpu().clone().contiguous() for name, values in module.state_dict().items()}
    return save(state, metadata={"format": "pt", **about})


def as_onnx(module: nn.Module, rows: npt.NDArray[Any]) -> Any:
    """A module as an ONNX model of any number of rows, of the shape and kind of ``rows`` (n, ...).

    A CoterieError where ONNX is not installed, or has no words for what the module does.
    """
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise CoterieError(f"ONNX models need the package {missing[0]}: pip install 'coterie[onnx]'.")
    given = _tensor(module, rows)
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    told = logging.getLogger("torch.onnx")
    level = told.level
    told.setLevel(logging.ERROR)  # of what else might be installed
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                module,
                (given,),
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=["rows"],
                output_names=["outputs"],
                optimize=False,  # numbers keep their names, by which those of another client take their place
                verbose=False,
            )
            return made.model_proto  # type: ignore[union-attr]
    except RAISED as problem:
        raise CoterieError(
            f"The model cannot be written as ONNX: {short(problem)}. Write its weights as .safetensors instead."
        ) from problem
    finally:
        told.setLevel(level)


def refilled(model: Any, module: nn.Module) -> Any:
    """The same ONNX model with the numbers of another module of the same layers."""
    from onnx import ModelProto, numpy_helper

    out = ModelProto()
    out.CopyFrom(model)
    state = module.state_dict()
    for tensor in out.graph.initializer:
        if tensor.name in state:
            tensor.CopyFrom(numpy_helper.from_array(state[tensor.name].detach().cpu().numpy(), tensor.name))
    return out


def checked(model: Any, module: nn.Module, rows: npt.NDArray[Any]) -> bytes:
    """An ONNX model in bytes, once onnxruntime has answered rows (n, ...) as the module does; else a CoterieError."""
    from onnxruntime import InferenceSession

    content: bytes = model.SerializeToString()
    given = _tensor(module, rows)
    with torch.no_grad():
        expected = module(given).cpu().numpy()
    try:
        session = InferenceSession(content, providers=["CPUExecutionProvider"])
        found = session.run(None, {session.get_inputs()[0].name: given.cpu().numpy()})[0]
    except RAISED as problem:
        raise CoterieError(f"The ONNX model does not run: {short(problem)}. Write .safetensors instead.") from problem
    off = np.abs(found - expected).max(initial=0.0) / max(np.abs(expected).max(initial=0.0), 1.0)
    if not off <= CLOSE:
        raise CoterieError(f"The ONNX model's answers are off the module's by {off:.1e}: write .safetensors instead.")
    return content


def _tensor(module: nn.Module, rows: npt.NDArray[Any]) -> torch.Tensor:
    """Rows as a module takes them: whole numbers as they are, others in the type of its parameters."""
    first = next(module.parameters())
    return torch.from_numpy(rows).to(first.device, None if rows.dtype.kind in "iu" else first.dtype)
