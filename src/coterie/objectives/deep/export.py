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
from coterie.objectives.deep.input_tensors import Several, called

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


class InOrder(nn.Module):
    """A module of several inputs that is given them one after another, as ONNX has it."""

    def __init__(self, module: nn.Module, like: Several) -> None:
        super().__init__()
        self.module, self.form, self.names = module, like.form, [*like.tensors]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """What the module makes of them."""
        return called(self.module, Several(dict(zip(self.names, tensors, strict=True)), self.form))


def inputs_of(x: Any) -> dict[str, torch.Tensor]:
    """The tensors of some rows, as the inputs of an ONNX model are called: those by place rows_0, rows_1, ..."""
    if not isinstance(x, Several):
        return {"rows": x}
    return {f"rows_{name}" if name.isdigit() else name: values for name, values in x.tensors.items()}


def as_onnx(module: nn.Module, rows: tuple[Any, Any]) -> Any:
    """A module as an ONNX model of the inputs that it is given; what differs in two examples of ``rows`` may be any.

    A CoterieError where ONNX is not installed, or has no words for what the module does.
    """
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise CoterieError(f"ONNX models need the package {missing[0]}: pip install 'coterie[onnx]'.")
    given, other = map(inputs_of, rows)
    pairs = [
        zip(x.shape, given_too.shape, strict=True) for x, given_too in zip(given.values(), other.values(), strict=True)
    ]
    shapes: Any = tuple({j: torch.export.Dim.DYNAMIC for j, (a, b) in enumerate(pair) if a != b} for pair in pairs)
    told = logging.getLogger("torch.onnx")
    level = told.level
    told.setLevel(logging.ERROR)  # of what else might be installed
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                in_order(module, rows[0]),
                tuple(given.values()),
                dynamo=True,
                dynamic_shapes=(shapes,) if isinstance(rows[0], Several) else shapes,
                input_names=[*given],
                output_names=["outputs"],
                optimize=False,  # numbers keep their names, by which those of another client take their place
                verbose=False,
            )
            return made.model_proto  # type: ignore[union-attr]
    except RAISED as problem:
        why = problem.__cause__ or problem  # what torch's exporter says of it begins with its own hints
        fixed = "some of its steps are for one number of rows, or one length, alone"
        said = fixed if any(word in str(why) for word in ("specialized", "inferred ranges")) else short(why)
        raise CoterieError(
            f"The model cannot be written as ONNX: {said}. Write its weights as .safetensors instead."
        ) from problem
    finally:
        told.setLevel(level)


def in_order(module: nn.Module, x: Any) -> nn.Module:
    """What is written: the module, or one that is given its several inputs in order."""
    return InOrder(module, x).eval() if isinstance(x, Several) else module


def refilled(model: Any, module: nn.Module, about: Mapping[str, str]) -> Any:
    """The same ONNX model with the numbers of another module of the same layers, and what to know ``about`` it."""
    from onnx import ModelProto, helper, numpy_helper

    out = ModelProto()
    out.CopyFrom(model)
    state = module.state_dict()
    state |= {f"module.{name}": values for name, values in state.items()}
    for tensor in out.graph.initializer:
        if tensor.name in state:
            tensor.CopyFrom(numpy_helper.from_array(state[tensor.name].detach().cpu().numpy(), tensor.name))
    helper.set_model_props(out, dict(about))
    return out


def checked(model: Any, module: nn.Module, rows: tuple[Any, Any]) -> bytes:
    """An ONNX model in bytes, once onnxruntime has answered both rows as the module does; else a CoterieError."""
    from onnxruntime import InferenceSession

    content: bytes = model.SerializeToString()
    for x in rows:
        with torch.no_grad():
            expected = called(module, x).cpu().numpy()
        try:
            session = InferenceSession(content, providers=["CPUExecutionProvider"])
            taken = {one.name for one in session.get_inputs()}  # what says nothing is no input
            given = {name: values.cpu().numpy() for name, values in inputs_of(x).items() if name in taken}
            found = session.run(None, given)[0]
        except RAISED as problem:
            raise CoterieError(
                f"The ONNX model does not run: {short(problem)}. Write .safetensors instead."
            ) from problem
        off = np.abs(found - expected).max(initial=0.0) / max(np.abs(expected).max(initial=0.0), 1.0)
        if not off <= CLOSE:
            raise CoterieError(
                f"The ONNX model's answers are off the module's by {off:.1e}: write .safetensors instead."
            )
    return content


def as_given(module: nn.Module, rows: npt.NDArray[Any]) -> torch.Tensor:
    """Rows as a module takes them: whole numbers as they are, others in the type of its parameters."""
    first = next(module.parameters())
    return torch.from_numpy(rows).to(first.device, None if rows.dtype.kind in "iu" else first.dtype)
