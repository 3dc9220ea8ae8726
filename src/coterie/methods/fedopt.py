"""Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan (2021), Adaptive federated optimization, Algorithm 2.

The server takes the mean change Delta_t of clients' models for a gradient, and steps along it as Adagrad, Yogi or Adam
do. With momentum alone it is FedAvgM: Hsu, Qi, Brown (2019), Measuring the effects of non-identical data distribution
for federated visual classification.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from coterie.federation import Federation, Sums
from coterie.methods.fedavg import FedAvg
from coterie.methods.local_training.rounds import Smoothness, State, but_statistics
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option

Kept = Annotated[float, Option("beta_2: what v_t keeps of v_{t-1}.", low=0.0, below=1.0)]


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(FedAvg):
    """FedAvg whose server goes on from x_t along Delta_t, ``sum_k n_k (x_k - x_t) / sum_k n_k``.

    Clients count by the weight of their rows, as in ``FedAvg``; Algorithm 2 counts them alike.
    """

    eta_g: Annotated[float, Option("Server's step size.", above=0.0)] = 1.0

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round."""
        state = super().init(fed, w)
        return state | self.moments(state["w"])

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """A round of FedAvg, whose mean change the server steps along; without an answer it rests."""
        sums, new = super().round(fed, state, to)
        if not sums:
            return sums, {}
        x, mean = state["w"], new["w"]
        step, remembered = self.server_step(mean - x, state)
        moved = but_statistics(state, x + self.eta_g * step, mean)
        return sums, {name: np.asarray(v, dtype=x.dtype) for name, v in {**remembered, "w": moved}.items()}

    def moments(self, x: Floats) -> State:
        """What the server remembers before the first round: it is at rest."""
        return {"m": np.zeros_like(x)}

    @abstractmethod
    def server_step(self, delta: Floats, state: State) -> tuple[Floats, State]:
        """The way (d1,) of a step of length one, and what is remembered from now on."""


@dataclass(frozen=True, kw_only=True)
class FedAvgM(ServerOptimizer):
    """Server momentum: ``m <- beta m + Delta_t``, ``x <- x + eta_g m``; the paper has no eta_g, which is 1."""

    beta: Annotated[float, Option("Momentum of the server; 0 is FedAvg.", low=0.0, below=1.0)] = 0.9

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """A step of the server that is as far, in the end, as one of FedAvg."""
        return super().suited(losses, how) | {"eta_g": 1.0 - how.get("beta", cls.beta)}

    def server_step(self, delta: Floats, state: State) -> tuple[Floats, State]:
        """Along m."""
        m = self.beta * state["m"] + delta
        return m, {"m": m}


@dataclass(frozen=True, kw_only=True)
class Adaptive(ServerOptimizer):
    """Algorithm 2 with the paper's symbols: ``x <- x + eta m_t / (sqrt(v_t) + tau)``, m_{-1} = 0, v_{-1} = tau^2.

    The paper's eta is ``eta_g``, its eta_l is ``eta``. Steps are about eta_g long in every number where changes are
    larger than tau, and eta_g / tau times the change at most where they are smaller.
    """

    eta_g: Annotated[float, Option("Server's step size, of each number.", above=0.0)] = 0.03
    beta1: Annotated[float, Option("What m_t keeps of m_{t-1}.", low=0.0, below=1.0)] = 0.9
    tau: Annotated[float, Option("Degree of adaptivity: changes below it count as they are.", above=0.0)] = 1e-3

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """Steps that come to rest: eta_g / tau is 1, so that small changes are made as by FedAvg."""
        return super().suited(losses, how) | {"eta_g": 0.1, "tau": 0.1}

    def moments(self, x: Floats) -> State:
        """m_{-1} and v_{-1}."""
        return super().moments(x) | {"v": np.full_like(x, self.tau**2)}

    def server_step(self, delta: Floats, state: State) -> tuple[Floats, State]:
        """Lines 10 to 14."""
        m, v = self.beta1 * state["m"] + (1.0 - self.beta1) * delta, self.second(state["v"], delta**2)
        return m / (np.sqrt(v) + self.tau), {"m": m, "v": v}

    @abstractmethod
    def second(self, v: Floats, square: Floats) -> Floats:
        """v_t from v_{t-1} and Delta_t^2."""


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(Adaptive):
    """``v_t = v_{t-1} + Delta_t^2``: steps get shorter and shorter."""

    def second(self, v: Floats, square: Floats) -> Floats:
        """Line 11."""
        return v + square


@dataclass(frozen=True, kw_only=True)
class FedYogi(Adaptive):
    """``v_t = v_{t-1} - (1 - beta_2) Delta_t^2 sign(v_{t-1} - Delta_t^2)``: v_t falls no faster than it may rise."""

    beta2: Kept = 0.99

    def second(self, v: Floats, square: Floats) -> Floats:
        """Line 12."""
        return v - (1.0 - self.beta2) * square * np.sign(v - square)


@dataclass(frozen=True, kw_only=True)
class FedAdam(Adaptive):
    """``v_t = beta_2 v_{t-1} + (1 - beta_2) Delta_t^2``."""

    beta2: Kept = 0.99

    def second(self, v: Floats, square: Floats) -> Floats:
        """Line 13."""
        return self.beta2 * v + (1.0 - self.beta2) * square
