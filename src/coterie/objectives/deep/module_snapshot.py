"""A module brought back to how it was made: buffers and attributes that a forward pass leaves others."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from coterie.objectives.deep.random_generators import KINDS, held

_TORCHS = set(vars(nn.Module()))
_FIXED = (str, bytes, int, float, complex, type(None), type, torch.dtype, torch.device, ModuleType)
_KEPT = (*_FIXED, *KINDS, FunctionType, MethodType, BuiltinFunctionType, nn.Module, Tensor)
_ABSENT = object()


class Snapshot:
    """Brings a module back to how it was made, but for its parameters and ``still`` tensors, which nobody writes to.

    A model is one flat row; what else a forward pass leaves in a module would be the next client's. Tensors are written
    back where they were written to, attributes where they are others, and lists and the like always.
    """

    def __init__(self, module: nn.Module, still: Iterable[Tensor] = ()) -> None:
        subs = list(module.modules())
        self.buffers = [(sub, dict(sub._buffers)) for sub in subs]
        self.own = [(sub, _own(sub)) for sub in subs if not type(sub).__module__.startswith("torch.")]
        tensors = [v for _, part in (*self.buffers, *self.own) for v in part.values() if isinstance(v, Tensor)]
        rest = {id(t) for t in still}
        self.tensors = [(t, t.detach().clone(), [t._version]) for t in tensors if id(t) not in rest]
        self.memo = {id(x): x for x in (*subs, *module.parameters(), *tensors, *held(module))}
        loose = [(sub, {k: v for k, v in part.items() if not _fixed(v)}) for sub, part in self.own]
        self.loose = [(sub, self._copied(part)) for sub, part in loose if part]

    def _copied(self, part: dict[str, Any]) -> dict[str, Any]:
        out = {}
        for name, value in part.items():
            try:
                out[name] = copy.deepcopy(value, dict(self.memo))
            except Exception:  # what cannot be copied stays
                out[name] = value
        return out

    def changed(self) -> list[str]:
        """Names of buffers and attributes that are others than as the module was made, or were written to."""
        wrote = {id(t) for t, _, version in self.tensors if t._version != version[0]}
        pairs = [(was, sub._buffers) for sub, was in self.buffers] + [(was, _own(sub)) for sub, was in self.own]
        out = []
        for was, now in pairs:
            moved = (k for k in {**was, **now} if now.get(k, _ABSENT) is not was.get(k, _ABSENT) or id(now[k]) in wrote)
            out += list(moved)
        return list(dict.fromkeys(out))

    @torch.no_grad()
    def restore(self) -> None:
        """Buffers and attributes as they were made."""
        for sub, was in self.buffers:
            if len(sub._buffers) != len(was) or any(sub._buffers.get(k, _ABSENT) is not v for k, v in was.items()):
                sub._buffers.clear()
                sub._buffers.update(was)
        for sub, was in self.own:
            for name in [k for k in vars(sub) if k not in was and k not in _TORCHS]:
                delattr(sub, name)
            vars(sub).update(was)
        for sub, part in self.loose:
            vars(sub).update(self._copied(part))
        for tensor, numbers, version in self.tensors:
            if tensor._version != version[0]:
                tensor.detach().copy_(numbers)
                version[0] = tensor._version


def _own(sub: nn.Module) -> dict[str, Any]:
    """Attributes that are no parameters, buffers or layers."""
    return {k: v for k, v in vars(sub).items() if k not in _TORCHS}


def _fixed(value: Any) -> bool:
    return isinstance(value, _KEPT) or (isinstance(value, tuple) and all(map(_fixed, value)))
