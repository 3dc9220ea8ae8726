"""What of a module never moves: frozen parameters, and buffers such as masks. A process holds it once, by its digest.

Models are the rest of the module, so that it is neither sent nor saved with any of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor, from_numpy, nn

from coterie.errors import CoterieError


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """All that a module holds, by name: parameters and buffers."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@dataclass
class Copies:
    """Makes copies of a module, which have its frozen parameters in common."""

    module: nn.Module

    def __call__(self) -> nn.Module:
        """One of them."""
        return copy.deepcopy(self.module, {id(p): p for p in self.module.parameters() if not p.requires_grad})


_HELD: WeakValueDictionary[tuple[str, str], Base] = WeakValueDictionary()


class Base:
    """Tensors by name that all modules of an architecture, and of others with the same numbers, have in common.

    No forward pass may write to them.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)
        self._versions = {name: tensor._version for name, tensor in self.tensors.items()}

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    @cached_property
    def digest(self) -> str:
        """Of names, types, shapes and numbers; "" where there are none."""
        return _digest(self.tensors)

    @classmethod
    def held(cls, tensors: Mapping[str, Tensor]) -> Base:
        """The one that this process holds already, or else that of these tensors."""
        made = cls(tensors)
        return _HELD.setdefault((made.digest, str({str(t.device) for t in tensors.values()})), made)

    def put_into(self, module: nn.Module) -> nn.Module:
        """Let a module have these very tensors, in all places of its own."""
        if self.tensors:
            parts = tensors(module)
            own: dict[int, Any] = {id(parts[n]): tensor for n, tensor in self.tensors.items() if n in parts}
            for layer in module.modules():
                layer._parameters.update({n: own[id(p)] for n, p in layer._parameters.items() if id(p) in own})
                layer._buffers.update({n: own[id(b)] for n, b in layer._buffers.items() if id(b) in own})
        return module

    def need_unchanged(self) -> None:
        """A CoterieError where a forward pass wrote to what did not move in the first one."""
        for name, version in self._versions.items():
            if self.tensors[name]._version != version:
                for key in [key for key, base in _HELD.items() if base is self]:
                    del _HELD[key]
                raise CoterieError(
                    f"'{name}' does not train, and some forward pass writes to it, which the first one did not: let "
                    "every pass write to it, as a buffer, and it becomes a part of clients' models."
                )

    def need_same(self, parts: Mapping[str, Tensor]) -> None:
        """A CoterieError where something else stands in the ``parts`` of a module."""
        for name, tensor in self.tensors.items():
            given = parts.get(name)
            if given is not tensor and (given is None or not _equal(given, tensor)):
                raise CoterieError(
                    f"'{name}' does not train here, and the module given has other numbers in it: make the objective "
                    "of a module that has them."
                )


def stored(bases: Iterable[Base]) -> npt.NDArray[np.uint8] | None:
    """Bases, each once, as bytes of safetensors, whose names begin with digests; None where nothing is in any."""
    arrays = {f"{b.digest}/{n}": _array(t) for b in {b.digest: b for b in bases}.values() for n, t in b.tensors.items()}
    return np.frombuffer(save(arrays), np.uint8) if arrays else None


def restored(data: npt.NDArray[np.uint8], digest: str) -> dict[str, Tensor]:
    """The tensors of a digest out of what :func:`stored` gave. A ValueError where they are not in it."""
    try:
        arrays = load(data.tobytes())
    except SafetensorError as problem:
        raise ValueError from problem
    found = {n.partition("/")[2]: from_numpy(a) for n, a in arrays.items() if n.partition("/")[0] == digest}
    if _digest(found) != digest:
        raise ValueError
    return found


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).reshape(tensor.shape)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    if not tensors:
        return ""
    found = blake2b(digest_size=16)
    for name in sorted(tensors):
        array = _array(tensors[name])
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and np.array_equal(_array(a), _array(b).astype(_array(a).dtype), equal_nan=False)
