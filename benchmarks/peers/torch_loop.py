"""A plain loop over clients in PyTorch, as FedAvg is usually written."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Answer, Problem

NAME = "plain PyTorch loop"
SOLVES = ("averaging",)


def release() -> str:
    return version("torch")


def net(s: dict[str, Any]) -> Any:
    """The net of all peers."""
    from benchmarks.peers.digits_net import Net

    return Net(s["hidden"])


def train(model: Any, X: Any, y: Any, s: dict[str, Any]) -> None:
    """One shuffled epoch at a client."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    optimiser = torch.optim.SGD(model.parameters(), lr=s["eta"])
    order = torch.randperm(len(y))
    for lo in range(0, len(y), s["batch"]):
        at = order[lo : lo + s["batch"]]
        optimiser.zero_grad()
        F.cross_entropy(model(X[at]), y[at]).backward()
        optimiser.step()


def accuracy(model: Any, arrays: dict[str, np.ndarray]) -> float:
    """On the held-out digits."""
    import torch

    with torch.no_grad():
        found = model(torch.from_numpy(arrays["X_test"])).argmax(1).numpy()
    return float((found == arrays["y_test"]).mean())


def client_data(arrays: dict[str, np.ndarray], k: int) -> tuple[Any, Any]:
    """Rows of a client."""
    import torch

    own = arrays["client"] == k
    return torch.from_numpy(arrays["X"][own]), torch.from_numpy(arrays["y"][own])


def fit(problem: Problem) -> Answer:
    import torch

    s = problem.settings
    model, local = net(s), net(s)
    data = [client_data(problem.arrays, k) for k in range(s["clients"])]
    total = sum(len(y) for _, y in data)
    for _ in range(s["rounds"]):
        mean = {name: torch.zeros_like(v) for name, v in model.state_dict().items()}
        for X, y in data:
            local.load_state_dict(model.state_dict())
            train(local, X, y, s)
            for name, v in local.state_dict().items():
                mean[name] += v * (len(y) / total)
        model.load_state_dict(mean)
    return Answer(accuracy(model, problem.arrays))
