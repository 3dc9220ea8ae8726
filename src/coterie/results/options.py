"""What a fit is asked for, checked before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.errors import CoterieError, nearest
from coterie.families import DEFAULT, family_named
from coterie.methods.network.options import Asked
from coterie.methods.registry import METHODS
from coterie.relations.covariance import STRUCTURES
from coterie.results.compare import Splits


@dataclass(frozen=True)
class Options:
    """What a fit is asked for, beside its table; see :func:`coterie.fit`."""

    family: str = DEFAULT
    shared: tuple[str, ...] = ()
    covariance: str = "auto"
    method: str = "auto"
    reml: bool = True
    cluster_variance: str = "common"
    splits: Splits = field(default_factory=Splits)
    strengths: dict[str, Any] = field(default_factory=dict)
    residual: str = "common"
    rounds: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _choice("covariance", self.covariance, ("auto", *STRUCTURES))
        _choice("method", self.method, ("auto", *METHODS))
        _choice("cluster_variance", self.cluster_variance, ("common", "own"))
        _choice("residual", self.residual, ("common", "by-client"))
        if self.residual == "by-client" and not family_named(self.family).has_dispersion:
            raise CoterieError(f"The {self.family} family has no residual variance: leave residual out.")
        if not isinstance(self.reml, (bool, np.bool_)):
            raise CoterieError(f"reml must be True or False, not {self.reml!r}.")
        self._check_splits()
        self._check_rounds()
        self._check_network()

    def _check_network(self) -> None:
        if self.network is None:
            return
        if not isinstance(self.network, Mapping):
            raise CoterieError(f"network must be a mapping from options to values, not {self.network!r}.")
        if self.method != "auto" and not METHODS[self.method].networked:
            raise CoterieError(f"Method '{self.method}' has no network: name similarity-network, or leave network out.")
        Asked.of(self.network)

    def _check_rounds(self) -> None:
        if not isinstance(self.rounds, Mapping):
            raise CoterieError(f"rounds must be a mapping from options to values, not {self.rounds!r}.")
        over = {name: method.over for name, method in METHODS.items() if method.over is not None}
        if self.rounds and self.method not in over:
            raise CoterieError(f"rounds are options of the methods {', '.join(over)}: name one as the method.")
        if self.method in over:
            over[self.method](self.rounds)

    def _check_splits(self) -> None:
        for name, value in (("splits", self.splits.count), ("seed", self.splits.seed)):
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
                raise CoterieError(f"{name} must be a whole number, not {value!r}.")
        if self.splits.count < 0:
            raise CoterieError(f"splits must be 0 or more, not {self.splits.count}.")
        if not isinstance(self.splits.fraction, (int, float, np.number)):
            raise CoterieError(f"test_fraction must be a number, not {self.splits.fraction!r}.")
        if not 0.0 < self.splits.fraction < 1.0:
            raise CoterieError(f"The test fraction must be between 0 and 1, not {self.splits.fraction:g}.")

    @property
    def learning(self) -> dict[str, Any]:
        """Options of methods that learn variances."""
        return {
            "covariance": self.covariance,
            "reml": self.reml,
            "own": self.cluster_variance == "own",
            "residual": self.residual,
        }


def _choice(what: str, value: str, values: Sequence[str]) -> None:
    if value not in values:
        raise CoterieError(f"{what} must be one of {', '.join(values)}, not {value!r}.{nearest(value, values)}")
