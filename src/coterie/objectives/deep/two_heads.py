"""Nets with a client's own head beside the one that all share: both see the same features, in one pass."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coterie.errors import CoterieError
from coterie.objectives.deep.architecture import Architecture
from coterie.objectives.deep.batched import BatchedClients
from coterie.objectives.deep.losses import Loss
from coterie.objectives.deep.sequential import SequentialClients
from coterie.relations.parameter_layout import matching

if TYPE_CHECKING:
    from coterie.objectives.deep.objective import Deep

FOUND = ("moving", "mixes", "mixes_in_training", "keyed", "random", "random_in_evaluation", "widest")
"""What trials with rows found of an architecture, and what the one with two heads has in common with it."""


class TwoHeads(nn.Module):
    """A net, an ``own`` copy of one of its layers, and a ``prior`` of classes: outputs (rows, 2, ...) of both heads.

    The first have the net's scores and the prior, by which all of the net learns; the second have the net's scores,
    from which nothing learns, and what the own layer adds to them. The prior (K,) is to stay as it is.
    """

    def __init__(self, net: nn.Module, head: str) -> None:
        super().__init__()
        layer = net.get_submodule(head)
        self.net, self.head, self.own = net, head, copy.deepcopy(layer)
        self.prior = nn.Parameter(torch.zeros_like(self.own.get_parameter("bias").detach()))

    def forward(self, x: Any) -> Tensor:
        """Outputs of both heads."""
        layer = self.net.get_submodule(self.head)

        def both(_: nn.Module, given: Any, out: Tensor) -> Tensor:
            prior = self.prior.view(-1, *(1,) * (0 if isinstance(layer, nn.Linear) else out.ndim - 2))
            return torch.cat([out + prior, out.detach() + self.own(given[0].detach())])

        handle = layer.register_forward_hook(both)
        try:
            outputs: Tensor = self.net(x)
        finally:
            handle.remove()
        return outputs.reshape(2, len(outputs) // 2, *outputs.shape[1:]).transpose(0, 1)


def sum_of_both(loss: Loss, outputs: Tensor, y: Any) -> Tensor:
    """Losses (rows,) of both heads, added up."""
    return loss(outputs[:, 0], y) + loss(outputs[:, 1], y)


def with_own_head(self: Deep, head: Sequence[str], bias: Sequence[str]) -> Deep:
    """The same clients with a second head: numbers of a model are the prior, its layers, the own head's, buffers.

    A CoterieError where ``head`` is not one layer of a weight and the ``bias``.
    """
    of, key = self.architecture, (tuple(head), tuple(bias))
    if key not in of.with_heads:
        named = set(matching(head, of.names))
        owner = min(named).rpartition(".")[0]
        if named != {f"{owner}.weight", f"{owner}.bias"} or set(matching(bias, of.names)) != {f"{owner}.bias"}:
            raise CoterieError(f"The layers {', '.join(head)} are not one layer of a weight and a bias: name one.")
        of.with_heads[key] = _made(self, owner)
    sequential, batched = of.with_heads[key]
    return replace(self, architecture=sequential.of, sequential=sequential, batched=batched, walked={})


def _made(deep: Deep, owner: str) -> tuple[SequentialClients, BatchedClients | None]:
    of, module = deep.architecture, deep.architecture.module()
    of.train(module)
    two = Architecture(TwoHeads(module, owner), partial(sum_of_both, of.loss), None, *of.given[3:6])
    two.settle({f"net.{place.name}" for place in of.buffers})
    for name in FOUND:
        setattr(two, name, getattr(of, name))
    batched = None if deep.batched is None else BatchedClients(two, deep.training)
    if batched is not None and deep.batched is not None:
        batched.slow = deep.batched.slow
    return SequentialClients(two, deep.training, *deep.rows.sets), batched
