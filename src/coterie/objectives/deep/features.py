"""Features: what the first layer of some names is given for a row; and terms of them that stand beside its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.errors import CoterieError
from coterie.numerics.arrays import Ints
from coterie.objectives.deep.architecture import Architecture
from coterie.objectives.deep.input_tensors import Several
from coterie.objectives.gradient_steps import FeatureTerm


@contextmanager
def watched(of: Architecture, module: nn.Module, head: Sequence[str]) -> Iterator[list[Any]]:
    """A list of what layers of the names, or patterns, ``head`` are given while a module is called, in order."""
    taken = list[Any]()
    names = [name for name in of.names if any(fnmatchcase(name, pattern) for pattern in head)]
    owners = dict.fromkeys(name.partition(".parametrizations.")[0].rpartition(".")[0] for name in names)
    hooks = [
        module.get_submodule(owner).register_forward_pre_hook(lambda _, given: taken.extend(given[:1]))
        for owner in owners
    ]
    try:
        yield taken
    finally:
        for hook in hooks:
            hook.remove()


def features_of(of: Architecture, taken: Sequence[Any], x: Any, head: Sequence[str]) -> Tensor:
    """Features (rows, h) of inputs x: of what was taken the first, maps as means over their places."""
    if not taken or not isinstance(taken[0], Tensor):
        raise CoterieError(
            f"The layers {', '.join(head)} are not called as modules of one input, so that nothing is known of the "
            "features before them: name others."
        )
    seen = taken[0]
    return (seen.flatten(1) if seen is x or seen.ndim < 3 else seen.flatten(2).mean(dim=2)).to(of.dtype)


def contrast(z: Tensor, targets: Tensor, tau: float) -> Tensor:
    """Terms (rows,) that draw features to the first target and away from the others, by cosines."""
    return -functional.log_softmax(functional.cosine_similarity(z[:, None], targets, dim=2) / tau, dim=1)[:, 0]


def distance(z: Tensor, targets: Tensor, tau: float) -> Tensor:
    """Mean squared differences (rows,) from the first target."""
    return (z - targets[:, 0]).square().mean(1)


TERMS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {"contrast": contrast, "distance": distance}


def losses(
    of: Architecture, outputs: Tensor, x: Any, y: Any, taken: Sequence[Any], beside: FeatureTerm | None
) -> Tensor:
    """Losses (rows,) of outputs, with the term beside them, whose targets travel with y (:class:`Beside`)."""
    if beside is None:
        return of.loss(outputs, y)
    y, targets, counts = y.tensors.values()
    z = features_of(of, taken, x, beside.head)[: len(targets)]
    term: Tensor = counts * TERMS[beside.kind](z, targets, beside.tau)
    return of.loss(outputs, y) + beside.strength * term


class Beside:
    """The targets of a term, which are looked up with rows."""

    def __init__(self, of: Architecture, term: FeatureTerm) -> None:
        self.targets, self.counts = of.tensor(term.targets), of.tensor(term.counts)

    def with_targets(self, y: Any, at: Ints) -> Several:
        """Targets y of a step's rows with what stands for these rows in the term: ``at`` (k, b) among all rows."""
        here = torch.from_numpy(np.clip(at, 0, max(len(self.counts) - 1, 0))).to(self.counts.device)
        return Several({"y": y, "targets": self.targets[here], "counts": self.counts[here]}, "beside")
