"""A torch module whose parameters are one flat row: where each layer lies in it, and how losses come of it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coterie.errors import RAISED, CoterieError, nearest
from coterie.objectives.deep.frozen_base import Base, Copies, tensors
from coterie.objectives.deep.losses import LOSSES, SCORES, Loss
from coterie.objectives.deep.random_generators import Generators
from coterie.objectives.torch_names import HALF
from coterie.options import Option, checked

Make = Callable[[], nn.Module]


MOVING = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
NORMALISING = (*MOVING, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)
NORM = re.compile(r"norm(ali[sz]ation|ali[sz]e|layer)?(\dd)?$", re.IGNORECASE)
"""How classes of others' normalisation are called: FrozenBatchNorm2d, LlamaRMSNorm, ..."""


@dataclass(frozen=True)
class Place:
    """Where a layer lies in the flat row."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


class Architecture:
    """What all clients of an objective have in common: the module, its loss, its number type and where it runs.

    The module, or what a function makes with seed 0, is copied, never changed. ``loss`` and ``score`` are functions
    ``(outputs, targets) -> (rows,)``, or names. The flat row has what moves, ``base`` the rest: the module's, or given.
    """

    @checked
    def __init__(
        self,
        model: nn.Module | Make,
        loss: str | Loss = "cross_entropy",
        score: Loss | None = None,
        dtype: Annotated[
            Literal["float32", "float64", "bfloat16"],
            Option("Of parameters; with bfloat16 layers compute in it, and parameters are float32.", remedy=HALF),
        ] = "float32",
        device: str = "cpu",
        buffers: Annotated[
            Literal["personal", "averaged", "refused"], Option("What becomes of BatchNorm's statistics and the like.")
        ] = "personal",
        base: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.loss, self.score = _named(loss, LOSSES, "loss"), score or SCORES.get(loss if isinstance(loss, str) else "")
        self.named = loss if isinstance(loss, str) else None
        self.labels = self.named == "cross_entropy"
        self.dtype, self.half = torch.float64 if dtype == "float64" else torch.float32, dtype == "bfloat16"
        self.device = _device(device)
        self.common = Generators(self.device)
        with self.common.begun(0):
            self.make = _maker(model)
        self.given = self.make, loss, score, dtype, device, buffers, base
        self.base = Base({})
        self.with_heads: dict[Any, Any] = {}  # what works on these models with a second head, by its layers
        self.first: tuple[int, np.ndarray[Any, np.dtype[Any]]] | None = None  # the last :meth:`start`, and its seed
        module = self.module()
        layers = dict(module.named_parameters())
        if not any(p.numel() for p in layers.values()):
            raise CoterieError("The model has no parameters, so there is nothing to train: give one that has.")
        self.parameters = _places([(name, p) for name, p in layers.items() if p.requires_grad], 0)
        if not self.parameters:
            raise CoterieError("All parameters of the model are frozen: leave requires_grad of some at True.")
        self.p = self.parameters[-1].stop
        self.hooked = any(map(_hooks, layers.values()))  # by gradient hooks, which torch.func does not call
        self.policy, self.all_buffers = buffers, {name for name, _ in module.named_buffers()}
        self.widest = 1  # numbers that one layer gives for a row at most, as validate.py saw them
        self._look_at_layers(module)
        if self.images:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.base = Base(self._settled(module, self.all_buffers))

    def settle(self, moving: Collection[str]) -> None:
        """Leave statistics of layers that train in the row, and buffers that are ``moving``: others are the base's."""
        if still := not self.all_buffers <= {*moving, *self.statistics}:
            module = self.module()
        self.base = Base.held(self._settled(module, moving) if still else self.base.tensors)
        if isinstance(self.make, Copies):
            self.base.put_into(self.make.module)
        if self.policy == "refused" and self.buffers:
            raise CoterieError(
                f"The model has buffers ({', '.join(b.name for b in self.buffers)}) and they are refused: leave the "
                'layers out, or say buffers="personal" or buffers="averaged".'
            )

    def _settled(self, module: nn.Module, moving: Collection[str]) -> dict[str, Tensor]:
        """Which buffers are in the row, those that train or are ``moving``; and what of the module never moves."""
        unread = {
            f"{n}.num_batches_tracked" for n, m in module.named_modules() if getattr(m, "momentum", None) is not None
        }
        named = dict(module.named_buffers())
        move = {name for name in named if name in moving or name in self.statistics}
        held = [(n, b) for n, b in named.items() if n in move and n not in unread and self._holds(b)]
        self.buffers = _places(held, self.p)
        self.d = self.buffers[-1].stop if self.buffers else self.p
        own = (n for n, b in held if self.policy == "personal" or not b.is_floating_point())
        self.kept = tuple(own)  # what never leaves a client
        self.normalising = _normalising(module, [place.name for place in self.places])
        frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        still = {**frozen, **{name: b for name, b in named.items() if name not in move}}
        if (given := self.given[-1]) is not None:
            for name in still.keys() - self.base.tensors.keys():
                if name not in given or given[name].shape != still[name].shape:
                    raise CoterieError(f"The layer {name} does not train, and is not in what was saved of such layers.")
                put(still[name], given[name])
        return still

    def __reduce__(self) -> Any:
        return Architecture, self.given  # generators of this process do not travel

    def _look_at_layers(self, module: nn.Module) -> None:
        """What the types of a module's layers say of how it trains."""
        # layers that are in evaluation mode while the module trains, such as a frozen BatchNorm: they stay so
        self.resting = tuple(n for n, m in module.named_modules() if module.training and not m.training)
        self.train(module)
        named = {name: m for name, m in module.named_modules() if isinstance(m, MOVING) and m.training}
        self.statistics = {f"{name}.{b}".lstrip(".") for name, m in named.items() for b in m._buffers}
        # as far as is known (see side_effects): whether buffers move in training, whether the output or loss of a row
        # depends on other rows (untracked: on those beside it, in evaluation too; mixes_in_training), and whether
        # anything draws, by key (keyed) or what no key reaches (random)
        self.moving = any(bool(m.track_running_stats) for m in named.values())
        norms = (m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
        self.untracked = self.mixes = any(m.running_mean is None for m in norms)
        self.mixes_in_training = self.keyed = self.random = self.random_in_evaluation = False
        self.images = any(isinstance(m, nn.Conv2d) for m in module.modules()) and self.dtype is torch.float32
        self.convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())

    @property
    def places(self) -> tuple[Place, ...]:
        """Where every layer lies in the flat row."""
        return (*self.parameters, *self.buffers)

    @property
    def names(self) -> dict[str, int]:
        """How many numbers each layer has, in the order of the flat row."""
        return {place.name: place.stop - place.start for place in self.places}

    def module(self, seed: int = 0) -> nn.Module:
        """A new copy of the module on the base, of the right type and place; its draws depend on the seed alone."""
        with self.common.begun(seed):
            module = self.make()
        if not any(b.is_complex() for b in module.buffers()):
            return self.base.put_into(module.to(device=self.device, dtype=self.dtype))
        wide = torch.complex128 if self.dtype is torch.float64 else torch.complex64

        def placed(t: Tensor) -> Tensor:
            return t.to(self.device, self.dtype if t.is_floating_point() else wide if t.is_complex() else t.dtype)

        module._apply(placed)  # type: ignore[no-untyped-call]
        return self.base.put_into(module)

    def start(self, seed: int) -> np.ndarray[Any, np.dtype[Any]]:
        """First parameters (d,): what the function that makes the module makes with this seed, on the one base.

        A module that was given instead of a function is its own start, whatever the seed.
        """
        first = self.first  # another thread may ask for another one
        if first is None or first[0] != seed:
            first = self.first = seed, self.flat(self.module(seed))
        return first[1].copy()

    def train(self, module: nn.Module) -> None:
        """Training mode, but for layers that rest."""
        module.train()
        for name in self.resting:
            module.get_submodule(name).training = False

    def _holds(self, buffer: Tensor) -> bool:
        """Whether the flat row can hold a buffer: real numbers, within bounds, and whole ones without rounding."""
        if buffer.is_complex() or not buffer.numel():
            return False
        wide = self.dtype is torch.float64
        most = (1e100 if wide else 1e30) if buffer.is_floating_point() else 2.0 ** (53 if wide else 24)
        return bool((buffer.double().abs() < most).all())

    def flat(self, module: nn.Module) -> np.ndarray[Any, np.dtype[Any]]:
        """What moves of a module as one row (d,); a CoterieError where its layers, or its base, are others."""
        if not isinstance(module, nn.Module):
            raise CoterieError(
                f"A row of numbers is made of a torch.nn.Module, not of a {type(module).__name__}: load a state_dict "
                "or a file into a module first (module.load_state_dict)."
            )
        layers, row = tensors(_plain(module)), torch.empty(self.d, dtype=self.dtype)
        for place in self.places:
            layer = layers.get(place.name)
            if layer is None or tuple(layer.shape) != place.shape:
                has = "no such layer" if layer is None else f"shape {tuple(layer.shape)}"
                raise CoterieError(f"The layer {place.name} has shape {place.shape}, and the module given has {has}.")
            row[place.start : place.stop] = layer.detach().flatten().cpu()
        self.base.need_same(layers)
        return np.asarray(row.numpy())

    def filled(self, theta: Any) -> nn.Module:
        """A new module with the numbers of a row (d,), and a base of its own, in evaluation mode."""
        if np.shape(theta) != (self.d,):
            raise CoterieError(f"A model is one row of {self.d} numbers, not of shape {np.shape(theta)}.")
        module = self.module() if not self.base.tensors else copy.deepcopy(self.module())
        layers, views = tensors(module), self.views(self.tensor(theta))
        with torch.no_grad():
            for place in self.places:
                put(layers[place.name], views[place.name])
        return module.eval()

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        """The layers as views of flat rows (..., d)."""
        lead = theta.shape[:-1]
        return {p.name: theta[..., p.start : p.stop].view((*lead, *p.shape)) for p in self.places}

    def layers(self, theta: Any) -> list[Tensor] | None:
        """The parameters (..., shape) of flat rows (..., d) that numpy holds, where there are any."""
        if theta is None:
            return None
        views = self.views(self.tensor(theta))
        return [views[place.name] for place in self.parameters]

    def tensor(self, theta: Any) -> Tensor:
        """Numbers of numpy as a tensor of its own here."""
        array = np.array(theta, dtype=np.float64 if self.dtype is torch.float64 else np.float32, order="C")
        return torch.from_numpy(array).to(self.device)

    def seen(self, theta: Any) -> Tensor:
        """The same, which nobody writes to: it is not copied where that is possible."""
        dtype = np.float64 if self.dtype is torch.float64 else np.float32
        own = isinstance(theta, np.ndarray) and theta.dtype == dtype and theta.flags.carray
        return torch.from_numpy(theta).to(self.device) if own else self.tensor(theta)

    def autocast(self) -> Any:
        """A context in which layers compute in half precision, where that was asked for."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()


def _maker(model: Any) -> Make:
    """What makes a new module whenever it is called; a CoterieError says what cannot make one."""
    model = model.module if isinstance(model, Copies) else model
    given = isinstance(model, nn.Module)
    model = _plain(model) if given else model
    what = "The model" if given else f"The model {getattr(model, '__name__', type(model).__name__)}"
    if not given and not callable(model):
        raise CoterieError(f"The model must be a torch.nn.Module, or a function that makes one, not {model!r:.80}.")

    def made() -> nn.Module:
        try:
            module = copy.deepcopy(model) if given else model()
        except CoterieError:
            raise
        except RAISED as problem:
            more = "give a function without arguments that makes it"
            if isinstance(model, type):
                more = f"give an instance, as {model.__name__}(...), or a function without arguments that makes one"
            cannot = "be copied" if given else "be made"
            raise CoterieError(f"{what} cannot {cannot}: it raises {named(problem)}. Remedy: {more}.") from problem
        if not isinstance(module, nn.Module):
            raise CoterieError(
                f"The model must be a torch.nn.Module, or a function that makes one, not {module!r:.79}."
            )
        module = _plain(module)
        for layer in module.modules():
            layer._compiled_call_impl = None
        return module

    if given and (lost := [name for name, layer in model.named_parameters() if _hooks(layer)]):
        raise CoterieError(
            f"The parameter '{lost[0]}' has a hook (register_hook), which a copy of the model would not have: give a "
            "function without arguments that makes the model and its hooks."
        )
    first, second = made(), None if given else made()
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in first.modules()):
        raise CoterieError("Scripted layers (torch.jit) cannot be copied for every client: give the module itself.")
    for name, layer in tensors(first).items():
        if layer.is_meta:
            raise CoterieError(f"The layer '{name}' has no numbers: make the model on a device other than meta.")
        if nn.parameter.is_lazy(layer):
            raise CoterieError(
                f"The layer '{name}' has no shape before it has seen rows (a lazy layer): give its size, as "
                "nn.Linear(64, 10) does where nn.LazyLinear(10) does not."
            )
    for name, layer in first.named_parameters():
        if not layer.is_floating_point():
            remedy = "make it two, of real and imaginary parts" if layer.is_complex() else "use register_buffer for it"
            raise CoterieError(f"The parameter '{name}' holds {layer.dtype}, which cannot be trained here: {remedy}.")
        if getattr(layer, "_post_accumulate_grad_hooks", None):
            more = "which nothing does here: use register_hook, which is handed the gradient"
            raise CoterieError(f"A hook of the parameter '{name}' waits for a gradient in .grad, {more}.")
    if second is None:
        return Copies(first)
    if not {*map(id, tensors(first).values())} & {*map(id, tensors(second).values())}:
        return made
    return lambda: copy.deepcopy(made())  # modules of several threads must share nothing


def _plain(module: nn.Module) -> nn.Module:
    """The module that was compiled, as it is written: a copy for every thread would be compiled anew."""
    inner: nn.Module = getattr(module, "_orig_mod", module)
    return inner


def _hooks(layer: Tensor) -> bool:
    return bool(layer._backward_hooks or getattr(layer, "_post_accumulate_grad_hooks", None))


def size(make: Make) -> int:
    """How many numbers a module has, parameters and floating buffers, that layers of torch make: without the memory."""
    with torch.device("meta"):
        module = make()
    return sum(t.numel() for t in tensors(module).values() if t.is_floating_point())


@torch.no_grad()
def put(tensor: Tensor, values: Tensor) -> None:
    """Write numbers of a flat row to a tensor; whole ones, such as counts, to the nearest."""
    tensor.copy_(values if tensor.is_floating_point() else values.round())


def _normalising(module: nn.Module, names: list[str]) -> tuple[str, ...]:
    """Which of some names belong to layers that normalise, by the type of the layer that holds them."""
    out = set()
    for at, layer in module.named_modules():
        kinds = [k for k in type(layer).__mro__ if not k.__module__.startswith("torch.nn.utils")]
        if isinstance(layer, NORMALISING) or any(NORM.search(k.__name__) for k in kinds):
            lead = f"{at}." if at else ""
            own = {*layer._parameters, *layer._buffers}
            out |= {n for n in names if n.startswith(lead) and n[len(lead) :] in own}
            out |= {n for n in names if n.startswith(f"{lead}parametrizations.")}
    return tuple(n for n in names if n in out)


def _places(named: Any, at: int) -> list[Place]:
    out = []
    for name, tensor in named:
        out.append(Place(name, at, at + tensor.numel(), tuple(tensor.shape)))
        at += tensor.numel()
    return out


def _named(given: str | Loss, known: dict[str, Loss], what: str) -> Loss:
    if callable(given):
        return given
    if not isinstance(given, str) or given not in known:
        raise CoterieError(
            f"There is no {what} {given!r}.{nearest(str(given), list(known))} There are "
            f"{', '.join(known)}, or give a function of outputs and targets."
        )
    return known[given]


def _device(given: str) -> torch.device:
    try:
        device = torch.device(given)
        known = device.type in ("cpu", "cuda", "mps")
    except (RuntimeError, TypeError):
        known = False
    if not known:
        raise CoterieError(f"There is no device {given!r}: say cpu, cuda or cuda:1.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CoterieError(f'The device {given!r} was asked for and CUDA is not there: say device="cpu".')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CoterieError(f"There are {torch.cuda.device_count()} CUDA devices, numbered from 0, so no {given!r}.")
    try:
        torch.zeros(1, device=device).cpu()
    except Exception as problem:
        raise CoterieError(f"The device {given!r} cannot be used: {short(problem)}. Say cpu, cuda or cuda:1.") from None
    return device


def short(problem: BaseException) -> str:
    """The first line of what torch says, without its hints; with the error's name where the text alone says little."""
    line = _line(problem)
    telling = isinstance(problem, RuntimeError | TypeError | ValueError | NotImplementedError) and line
    return line if telling else named(problem)


def named(problem: BaseException) -> str:
    """``"KeyError: 'x'"``: the first line of an error after its name."""
    return ": ".join(part for part in (type(problem).__name__, _line(problem)) if part)


def _line(problem: BaseException) -> str:
    line = (str(problem).strip().splitlines() or [""])[0].partition(" Hint:")[0].rstrip(".!")
    return line if len(line) <= 240 else f"{line[:240].rpartition(' ')[0]} ..."
