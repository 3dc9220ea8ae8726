"""The net that all peers average, as a class, which NVFlare finds by its name."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """64-32-10 by default."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, hidden), nn.Linear(hidden, 10)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Logits (n, 10)."""
        return self.last(torch.relu(self.first(X)))
