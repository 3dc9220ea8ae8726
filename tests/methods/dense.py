"""Independent dense twins: tables of rows, and the deviance written out with n x n matrices.

Nothing here uses the library's numerics: indicator matrices, `numpy.linalg`, and a joint Newton method over every
deviation of the tree at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from coterie.data.clients import Clients
from coterie.engines.local_engines import InProcess
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTree


@dataclass(frozen=True)
class Table:
    """Rows as a user has them: ``codes[0]`` is each row's client, ``codes[1:]`` its clusters, fine to coarse."""

    X: np.ndarray
    y: np.ndarray
    codes: list[np.ndarray]
    family: str = "gaussian"
    offset: np.ndarray | None = None
    weights: np.ndarray | None = None
    z: list[int] = field(default_factory=list)
    intercept: int | None = 0
    theta: np.ndarray | None = None

    @property
    def off(self) -> np.ndarray:
        return np.zeros(len(self.y)) if self.offset is None else self.offset

    @property
    def w(self) -> np.ndarray:
        return np.ones(len(self.y)) if self.weights is None else self.weights

    @property
    def personal(self) -> list[int]:
        return self.z or list(range(self.X.shape[1]))

    def clients(self) -> Clients:
        clusters = np.column_stack(self.codes[1:]) if self.codes[1:] else None
        return Clients.from_arrays(self.X, self.y, self.codes[0], clusters, offset=self.offset, weights=self.weights)

    def problem(self, c: Clients) -> GroupedProblem:
        return GroupedProblem(ClusterTree.of(c), self.family, np.array(self.personal, dtype=np.int64), self.intercept)

    def setting(self) -> tuple[InProcess, GroupedProblem]:
        """A federation of the clients, and the problem."""
        c = self.clients()
        glm = GLM(c.X, c.y, c.offset, c.weights, c.starts, c.stops, self.family)
        return InProcess(glm, c.clusters, ids=c.ids), self.problem(c)


def table(
    seed: int,
    family: str = "gaussian",
    counts=(5, 3, 6, 4, 7, 2),
    p: int = 2,
    parents=(),
    z=(),
    sd: float = 0.7,
    sigma: float = 1.0,
    weights: bool = False,
    offset: bool = False,
    scale=1.0,
    root=None,
    sd_up: float | None = None,
) -> Table:
    """Rows from the tree model; ``parents[l]`` are the parents of level l's nodes (clients first)."""
    rng = np.random.default_rng(seed)
    counts = np.asarray(counts)
    n, m = int(counts.sum()), len(counts)
    z = list(z) or list(range(p))
    codes = [np.repeat(np.arange(m), counts)]
    for parent in parents:
        codes.append(np.asarray(parent)[codes[-1]])
    X = np.column_stack([np.ones(n), rng.normal(size=(n, p - 1))]) * scale
    root = rng.normal(size=p) * 0.5 / scale if root is None else np.asarray(root)
    beta = np.tile(root, (n, 1))
    theta = np.tile(root, (m, 1))
    first = np.unique(codes[0], return_index=True)[1]
    for level, code in enumerate(codes):
        u = rng.normal(size=(code.max() + 1, len(z))) * (sd if level == 0 or sd_up is None else sd_up)
        beta[:, z] += u[code]
        theta[:, z] += u[code[first]]
    off = rng.normal(size=n) * 0.3 if offset else np.zeros(n)
    w = rng.integers(1, 4, n).astype(float) if weights else np.ones(n)
    eta = off + np.sum(X * beta, axis=1)
    if family == "gaussian":
        y = eta + sigma * rng.normal(size=n) / np.sqrt(w)
    elif family == "binomial":
        y = (rng.uniform(size=n) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = rng.poisson(np.exp(np.minimum(eta, 5.0))).astype(float)
    return Table(X, y, codes, family, off if offset else None, w if weights else None, z, 0, theta)


def replicate(t: Table) -> Table:
    """Rows of integer weight written out as many times."""
    k = t.w.astype(int)
    codes = [np.repeat(c, k) for c in t.codes]
    off = None if t.offset is None else np.repeat(t.offset, k)
    return replace(t, X=np.repeat(t.X, k, axis=0), y=np.repeat(t.y, k), codes=codes, weights=None, offset=off)


def spread(t: Table, L: list[np.ndarray]) -> np.ndarray:
    """Columns ``Z L`` of all deviations: (n, sum of k_l q). L[l] is (1, q, q) or (k_l, q, q); clients first.

    A factor for each finest cluster may be given for the clients.
    """
    parts = []
    for level, code in enumerate(t.codes):
        q = len(t.personal)
        which = np.zeros(len(code), dtype=int)
        if len(L[level]) > 1:
            which = t.codes[1] if level == 0 and len(L[0]) == t.codes[1].max() + 1 else code
        rows = np.einsum("ni,nij->nj", t.X[:, t.personal], L[level][which])
        block = np.zeros((len(code), code.max() + 1, q))
        block[np.arange(len(code)), code] = rows
        parts.append(block.reshape(len(code), -1))
    return np.concatenate(parts, axis=1)


def gaussian(t: Table, L: list[np.ndarray], reml: bool):
    """Deviance profiled over w and sigma^2, and w, its covariance, sigma^2 (generalised least squares)."""
    ZL = spread(t, L)
    V = np.diag(1.0 / t.w) + ZL @ ZL.T
    y = t.y - t.off
    W = np.linalg.inv(V)
    A = t.X.T @ W @ t.X
    w = np.linalg.solve(A, t.X.T @ W @ y)
    r = y - t.X @ w
    dof = len(y) - (t.X.shape[1] if reml else 0)
    s2 = float(r @ W @ r) / dof
    deviance = dof * (1 + np.log(2 * np.pi * s2)) + np.linalg.slogdet(V)[1]
    if reml:
        deviance += np.linalg.slogdet(A)[1]
    return deviance, w, np.linalg.inv(A) * s2, s2


def point(family: str, eta: np.ndarray, y: np.ndarray):
    """Loss (without terms in y alone), score and curvature of rows."""
    if family == "gaussian":
        return 0.5 * (y - eta) ** 2, y - eta, np.ones_like(eta)
    if family == "binomial":
        mu = 1 / (1 + np.exp(-eta))
        return np.logaddexp(0, eta) - y * eta, y - mu, mu * (1 - mu)
    return np.exp(eta) - y * eta, y - np.exp(eta), np.exp(eta)


def newton(family, B, y, off, w, P, start=None):
    """Minimise ``sum w loss(off + B v) + v'Pv/2`` by damped Newton; v, value, Hessian."""
    v = np.zeros(B.shape[1]) if start is None else start.copy()

    def value(v):
        with np.errstate(over="ignore"):
            return float(np.sum(w * point(family, off + B @ v, y)[0]) + 0.5 * v @ P @ v)

    for _ in range(200):
        _, s, c = point(family, off + B @ v, y)
        H = (B * (w * c)[:, None]).T @ B + P
        g = B.T @ (w * s) - P @ v
        d = np.linalg.solve(H, g)
        t, f = 1.0, value(v)
        while not value(v + t * d) <= f + 1e-12 * abs(f) and t > 1e-10:
            t /= 2
        v = v + t * d
        if g @ d < 1e-20 * (1 + abs(f)):
            break
    _, s, c = point(family, off + B @ v, y)
    return v, value(v), (B * (w * c)[:, None]).T @ B + P


def laplace(t: Table, L: list[np.ndarray], root: np.ndarray) -> float:
    """``2 F(u) + log|H(u)|`` at the joint mode of all deviations, for a given root."""
    ZL = spread(t, L)
    _, f, H = newton(t.family, ZL, t.y, t.off + t.X @ root, t.w, np.eye(ZL.shape[1]))
    return 2 * f + float(np.linalg.slogdet(H)[1])
