"""PyTorch models as objectives: the only part of the library that imports torch."""

from __future__ import annotations

from coterie.objectives.deep.objective import Deep

__all__ = ["Deep"]
