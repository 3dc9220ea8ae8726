"""The expected test loss of the noisy quadratic, exactly: the recursion of second moments, and where it settles.

With ``e = x - x_0*``, ``D = A_1 - A_0`` and ``z = -A_1 (x_1* - x_0*)``, the recursion of
:mod:`~papers.paper_004.noisy_quadratic` is

    e_{t+1} = (I - eta (A_0 + alpha D)) e_t + eta alpha (c_t - z) - eta ((1 - alpha) n_t + alpha n'_t)
    c_{t+1} = beta (D e_t + z) + (1 - beta) c_t + beta (n'_t - n_t)

with n, n' independent over t, of variance sigma^2 and sigma^2 / N in each coordinate. So ``v_{t+1} = F v_t + noise``
for v = (e, c, 1), and ``M_{t+1} = F M_t F' + Q`` for M = E[v v']; nothing needs A_0 and A_1 to commute. In Q, e and c
hang together by ``-eta beta (alpha sigma^2 / N - (1 - alpha) sigma^2)``. Where c_0 is observed, the first step has a Q
of its own, because c_0 shares noise with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_discrete_lyapunov

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats
from papers.paper_004.noisy_quadratic import Curve


@dataclass(frozen=True)
class Level:
    """Where the expected test loss settles.

    Attributes
    ----------
    bias : float
        Loss at the mean of x; 0 for Alone and BC.
    noise : float
        What the spread of x adds.
    """

    bias: float
    noise: float

    @property
    def loss(self) -> float:
        """The expected test loss as t grows."""
        return self.bias + self.noise


def transition(curve: Curve) -> Floats:
    """F, (2d + 1, 2d + 1)."""
    d, eye, by = len(curve.x0), np.eye(len(curve.x0)), curve
    D, z = by.A1 - by.A0, -by.A1 @ (by.x1 - by.x0)
    F = np.zeros((2 * d + 1, 2 * d + 1))
    F[:d, :d], F[:d, d:-1], F[:d, -1] = (
        eye - by.eta * (by.A0 + by.alpha * D),
        by.eta * by.alpha * eye,
        -by.eta * by.alpha * z,
    )
    F[d:-1, :d], F[d:-1, d:-1], F[d:-1, -1] = by.beta * D, (1.0 - by.beta) * eye, by.beta * z
    F[-1, -1] = 1.0
    return F


def noises(curve: Curve) -> tuple[Floats, Floats]:
    """Q of the first step and of all others, (2d + 1, 2d + 1) each."""
    by, d = curve, len(curve.x0)
    V = np.diag([by.sigma**2, by.sigma**2 / by.N])
    G = np.array([[-by.eta * (1.0 - by.alpha), -by.eta * by.alpha], [-by.beta, by.beta]])
    observed = np.array([[0.0, 0.0], [-1.0, 1.0]]) / max(by.c0, 1)
    carried = np.array([[1.0, by.eta * by.alpha], [0.0, 1.0 - by.beta]]) @ observed * min(by.c0, 1)
    every = G @ V @ G.T
    first = (G + carried) @ V @ (G + carried).T + max(by.c0 - 1, 0) * carried @ V @ carried.T
    out = np.zeros((2, 2 * d + 1, 2 * d + 1))
    for Q, small in zip(out, (first, every), strict=True):
        Q[:-1, :-1] = np.kron(small, np.eye(d))
    return out[0], out[1]


def ahead(F: Floats, Q: Floats, M: Floats, steps: int) -> Floats:
    """M after some steps, by squaring: the work grows with the logarithm of the steps."""
    while steps:
        if steps % 2:
            M = F @ M @ F.T + Q
        F, Q = F @ F, F @ Q @ F.T + Q
        steps //= 2
    return M


def loss(curve: Curve, times: npt.ArrayLike) -> Floats:
    """Expected test losses.

    Parameters
    ----------
    curve : Curve
    times : (s,) int
        Steps, rising from 0 or later.

    Returns
    -------
    (s,)
    """
    d, F = len(curve.x0), transition(curve)
    first, every = noises(curve)
    e = curve.start - curve.x0
    z = -curve.A1 @ (curve.x1 - curve.x0)
    c = (curve.A1 - curve.A0) @ e + z if curve.c0 else np.zeros(d)
    v = np.concatenate([e, c, [1.0]])
    M, at, out = np.outer(v, v), 0, []
    for t in np.asarray(times, dtype=np.int64).tolist():
        if at == 0 < t:
            M, at = F @ M @ F.T + first, 1
        M, at = ahead(F, every, M, t - at), t
        out.append(0.5 * np.sum(curve.A0 * M[:d, :d]))
    return np.array(out)


def level(curve: Curve) -> Level:
    """The expected test loss as t grows: the mean solves a linear system, the covariance a Lyapunov equation.

    Parameters
    ----------
    curve : Curve

    Returns
    -------
    Level

    Raises
    ------
    CoterieError
        Where the loss grows without bound.
    """
    d = len(curve.x0)
    on = slice(0, d if curve.beta == 0.0 else 2 * d)
    F, Q = transition(curve), noises(curve)[1][on, on]
    A, constant = F[on, on], F[on, -1]
    if np.max(np.abs(np.linalg.eigvals(A))) >= 1.0:
        raise CoterieError(f"The loss grows without bound at eta = {curve.eta:g}: take a smaller step.")
    mean = np.linalg.solve(np.eye(len(A)) - A, constant)[:d]
    C = solve_discrete_lyapunov(A, Q, method="direct")[:d, :d]
    return Level(float(0.5 * mean @ curve.A0 @ mean), float(0.5 * np.sum(curve.A0 * C)))
