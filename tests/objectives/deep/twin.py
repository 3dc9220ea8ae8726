"""Local steps of one client with torch's own module and optimiser, row by row as the keys say."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from coterie.numerics import keyed_random


def rows_of(ids: Any, i: int, step: int, size: int, start: int, stop: int, seed: int = 0) -> np.ndarray:
    """The rows that a step draws: with replacement, by (seed, stream, client, step)."""
    u = keyed_random.uniform(seed, "rows", ids[i : i + 1], step, size)[0]
    return start + np.minimum((u * (stop - start)).astype(int), stop - start - 1)


def shuffled_rows_of(ids: Any, i: int, step: int, size: int, start: int, stop: int, seed: int = 0) -> list[int]:
    """The rows that a step takes of an epoch's order, which is made by (seed, stream, client, epoch), one by one."""
    n = stop - start
    steps = -(-n // size)
    order: list[int] = []
    for b, u in enumerate(keyed_random.uniform(seed, "rows", ids[i : i + 1], step // steps, n)[0]):
        at = int(u * (b + 1))
        order.append(start + b)
        order[b], order[at] = order[at], order[b]
    return order[step % steps * size :][:size]


def flat(module: torch.nn.Module) -> np.ndarray:
    """Parameters, then floating buffers."""
    tensors = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    return np.concatenate([t.detach().numpy().ravel() for t in tensors])


def load(module: torch.nn.Module, theta: np.ndarray) -> None:
    """Put a flat row into a module."""
    at = 0
    with torch.no_grad():
        for t in [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]:
            t.copy_(torch.tensor(theta[at : at + t.numel()]).view(t.shape))
            at += t.numel()


def walked(
    module: torch.nn.Module,
    theta: np.ndarray,
    X: Any,
    y: Any,
    rows: list[np.ndarray],
    eta: float,
    loss: Any,
    clip: float | None = None,
    ridge: float = 0.0,
    momentum: float = 0.0,
) -> np.ndarray:
    """Where one client's steps lead, with ``torch.optim.SGD``."""
    load(module, theta)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=eta, momentum=momentum, weight_decay=ridge)
    for here in rows:
        optimiser.zero_grad()
        loss(module(torch.as_tensor(X[here])), torch.as_tensor(y[here])).backward()
        if clip is not None:
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            norm = torch.sqrt(torch.stack([g.square().sum() for g in grads]).sum())
            for g in grads:
                g.mul_(min(1.0, clip / float(norm)))
        optimiser.step()
    return flat(module)
