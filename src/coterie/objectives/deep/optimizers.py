"""Local steps by torch's own optimisers, which treat every number by itself: one of them steps for many clients.

And step sizes over rounds, by torch's own schedulers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from inspect import signature
from typing import Any, get_args

import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.objectives.deep.architecture import short
from coterie.objectives.torch_names import COMBINED, Schedule
from coterie.options import need_names

_OURS = ("params", "lr", "maximize", "foreach", "fused", "capturable", "differentiable")
"""Arguments that are not the user's: the step size is eta, and the others are of how torch runs."""
_RUNS = ("optimizer", "last_epoch", "verbose")


def need_optimizer(name: str, args: Mapping[str, Any]) -> None:
    """Raise for arguments that a class of ``torch.optim`` does not take, or not with these values."""
    known = [key for key in signature(getattr(torch.optim, name)).parameters if key not in _OURS]
    need_names(f"optimizer_args of {name}", args, known, "argument")
    try:
        StackedOptimizer(name, args, [torch.zeros(1, 1)], 0.1).step([torch.zeros(1, 1)])
    except Exception as problem:
        raise CoterieError(f"optimizer_args: {name} cannot be made of {dict(args)}: {short(problem)}.") from problem


class StepSizes:
    """Step sizes over rounds from eta on, by a scheduler of ``torch.optim.lr_scheduler``; OneCycleLR rises to eta."""

    def __init__(self, name: str, args: Mapping[str, Any], eta: float) -> None:
        self.name, self.eta, self.optimizer = name, eta, torch.optim.SGD([torch.zeros(1)], lr=eta)
        self.scheduler = self._made(name, args)
        self.sizes = [self._now]

    def _made(self, name: str, args: Mapping[str, Any]) -> Any:
        """A scheduler; one of several has them as tables with a ``name`` each."""
        made, args = getattr(torch.optim.lr_scheduler, name), dict(args)
        known = [key for key in signature(made).parameters if key not in _RUNS]
        need_names(f"schedule_args of {name}", args, known, "argument")
        if several := name in COMBINED:
            tables = args.get("schedulers") or ()
            if not all(isinstance(one, Mapping) and one.get("name") in get_args(Schedule) for one in tables):
                names = ", ".join(sorted({*get_args(Schedule)} - {*COMBINED}))
                raise CoterieError(f"schedulers of {name} must be tables with a name each, of {names}.")
            args["schedulers"] = [
                self._made(one["name"], {k: v for k, v in one.items() if k != "name"}) for one in tables
            ]
        elif name == "OneCycleLR":
            args = {"max_lr": self.eta, "cycle_momentum": False, **args}
        try:
            return made(*([] if name == "ChainedScheduler" else [self.optimizer]), **args)
        except Exception as problem:
            what = f"{name} cannot be made of {list(args) if several else args}"
            raise CoterieError(f"schedule_args: {what}: {short(problem)}.") from problem

    @property
    def _now(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def at(self, t: int) -> float:
        """That of round t, from 0."""
        while len(self.sizes) <= t:
            self.optimizer.step()  # of nothing: a scheduler steps after it
            try:
                self.scheduler.step()
            except Exception as problem:
                raise CoterieError(
                    f"schedule {self.name} ends after {len(self.sizes)} rounds: {short(problem)}."
                ) from (problem)
            self.sizes.append(self._now)
        return self.sizes[t]


@lru_cache(maxsize=64)
def step_sizes(name: str, args: str, eta: float) -> StepSizes:
    """The same, once for each arguments, which are JSON."""
    return StepSizes(name, json.loads(args), eta)


class StackedOptimizer:
    """An optimiser of ``torch.optim`` on layers (m, ...) of m clients, which move in place, from its first step on."""

    def __init__(self, name: str, args: Mapping[str, Any], layers: Sequence[Tensor], eta: float) -> None:
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in args.items()}
        self.make: Callable[..., torch.optim.Optimizer] = partial(getattr(torch.optim, name), lr=eta, **given)
        self.optimizer = self.make(list(layers))

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """One step of the first k clients, from their gradients (k, ...); k must not rise."""
        if len(grads[0]) < len(self._layers[0]):
            self._keep(len(grads[0]))
        for layer, g in zip(self._layers, grads, strict=True):
            layer.grad = g
        self.optimizer.step()

    @property
    def _layers(self) -> list[Tensor]:
        layers: list[Tensor] = self.optimizer.param_groups[0]["params"]
        return layers

    def _keep(self, k: int) -> None:
        """Go on with the first k clients, on views of their layers and of what is remembered of each number."""
        before, state = self._layers, self.optimizer.state
        self.optimizer = self.make([layer[:k] for layer in before])
        for layer, was in zip(self._layers, before, strict=True):
            self.optimizer.state[layer] = {
                name: value[:k] if isinstance(value, Tensor) and value.shape == was.shape else value
                for name, value in state[was].items()
            }
