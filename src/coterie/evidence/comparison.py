"""What every comparison has, of fits of a table as of trained nets: the best method, and a row of numbers for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from coterie.evidence.intervals import Triple

BASELINES = ("local", "pooled")
"""What is always compared: every client alone, and one model for all."""
UNITS = 3
"""Clusters of a level from which intervals are over them: of two no spread can be told, and they are as they are."""


class Comparison(ABC):
    """Methods on the same held-out rows of every client: which one is best, and a row of numbers for each."""

    @property
    @abstractmethod
    def methods(self) -> list[str]:
        """Names, in the order in which they were tried."""

    @property
    @abstractmethod
    def best(self) -> str:
        """The method that does best over rows; of equals the first."""

    @abstractmethod
    def row(self, name: str) -> dict[str, Any]:
        """What the table says of a method: its score, and paired differences with intervals."""

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")  # a run that diverged has infinite losses, or their squares are
    def table(self) -> pd.DataFrame:
        """One row for each method."""
        return pd.DataFrame([{"method": name} | self.row(name) for name in self.methods]).set_index("method")


def interval_columns(name: str, found: Triple) -> dict[str, float]:
    """A value and the ends of its interval, as columns of a table."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))
