"""Feature space: clients as covariance matrices of their columns.

A client of few rows, or with a constant column, has a singular covariance, and one of one row has none. So each is
drawn towards the covariance S within all clients, as if ``prior`` rows had it::

    S_i = ((n_i - 1) C_i + prior S) / (n_i - 1 + prior),   S = sum_i (n_i - 1) C_i / sum_i (n_i - 1)

with the client's own unbiased covariance C_i of its n_i rows, columns in standard units. One row, or none, gives S.
Directions in which nobody's rows vary are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.errors import CoterieError, listed
from coterie.federation import Federation, Site, work
from coterie.methods.network.spaces.data import Reply, agree, rows_of
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, Ints, full
from coterie.objectives import data_features

DISTANCES = ("log-euclidean", "frobenius", "bures", "mean")
FLAT = 1e-9
"""Eigenvalues, relative to the largest, that count as 0."""
BLOCK = 1 << 20
"""Numbers held at once."""


@work
def scatter(site: Site, columns: Ints, centre: Floats, unit: Floats) -> Reply:
    """A client's degrees of freedom, scatter of columns around its own mean (rows' weights of mean 1), and mean."""
    rows, w, mean, A = data_features.moments(rows_of(site), columns, centre, unit)
    A *= (rows / np.where(w > 0.0, w, 1.0))[:, None]
    return {"free": np.maximum(rows - 1.0, 0.0), "A": A, "mean": mean}


@dataclass(frozen=True)
class Gaussians:
    """Clients as means and shrunk covariances.

    Attributes
    ----------
    mean : (n, q)
        In standard units; clients without rows have the mean of all rows, 0.
    S : (n, r, r)
        In a basis of the r directions in which rows vary within clients.
    """

    mean: Floats
    S: Floats

    def points(self, distance: str = "log-euclidean", means: bool = False) -> Floats:
        """Embeddings (n, P) whose Euclidean distances are those of covariances, or close to them.

        Parameters
        ----------
        distance : {"log-euclidean", "frobenius", "bures", "mean"}
            Of matrix logarithms [1]_, of the matrices, or Bures-Wasserstein [2]_. No embedding has Bures-Wasserstein
            distances: square roots of matrices are used, whose distance lies between Bures-Wasserstein's and sqrt(2)
            times it, so that they find candidates for :meth:`bures`. "mean" compares means of columns alone.
        means : bool, default False
            Compare means of columns too (with "bures": 2-Wasserstein distances of Gaussians).

        References
        ----------
        .. [1] Arsigny et al. (2007), Geometric means in a novel vector space structure on symmetric positive-definite
           matrices, SIAM Journal on Matrix Analysis.
        .. [2] Bhatia, Jain, Lim (2019), On the Bures-Wasserstein distance between positive definite matrices.
        """
        if distance == "mean":
            return self.mean
        if not self.S.shape[-1]:
            raise CoterieError(
                "No column varies within any client, so there are no covariances: use the distance 'mean'."
            )
        embedded = _triangle(self.S if distance == "frobenius" else self._function(distance))
        return np.concatenate([embedded, self.mean], axis=1) if means else embedded

    def _function(self, distance: str) -> Floats:
        values, vectors = np.linalg.eigh(self.S)
        if distance == "log-euclidean":
            singular = np.flatnonzero(values[:, 0] <= 1e-15 * values[:, -1])
            if len(singular):
                which = f"The covariances of clients {listed(singular)} are singular"
                raise CoterieError(f"{which} and have no logarithm: give a greater prior, or leave it out.")
        of = np.log(values) if distance == "log-euclidean" else np.sqrt(np.maximum(values, 0.0))
        return np.asarray((vectors * of[:, None, :]) @ vectors.transpose(0, 2, 1))

    def bures(self, means: bool = False) -> Distance:
        """Bures-Wasserstein distances, exactly."""
        return Distance(self._function("bures"), self.mean if means else self.mean[:, :0])


@dataclass(frozen=True)
class Distance:
    """``d_ij^2 = |mean_i - mean_j|^2 + tr S_i + tr S_j - 2 tr (S_i^1/2 S_j S_i^1/2)^1/2``, from roots (n, r, r)."""

    root: Floats
    mean: Floats

    def __call__(self, i: Ints, j: Ints) -> Floats:
        """Distances of pairs, (M,)."""
        trace = np.einsum("nab,nab->n", self.root, self.root)
        out, step = np.empty(len(i)), max(1, BLOCK // self.root[0].size)
        for at in range(0, len(i), step):
            a, b = i[at : at + step], j[at : at + step]
            nuclear = np.linalg.svd(self.root[a] @ self.root[b], compute_uv=False).sum(axis=1)
            square = trace[a] + trace[b] - 2.0 * nuclear + ((self.mean[a] - self.mean[b]) ** 2).sum(axis=1)
            out[at : at + step] = np.sqrt(np.maximum(square, 0.0))
        return out


def gaussians(fed: Federation, prior: float | None = None, response: bool = False) -> Gaussians:
    """Every client's mean and covariance, clients in the order of ``fed.clients`` (four exchanges).

    Parameters
    ----------
    prior : number, optional
        Rows of S that are added; by default as many as columns, plus 1.
    response : bool, default False
        Whether the response counts as a column.
    """
    scale = agree(fed, response)
    own = require_all_replies(fed.ask(scatter, **scale.message))
    prior = len(scale.columns) + 1.0 if prior is None else prior
    return Gaussians(np.array(own["mean"]), covariances(own["A"], own["free"], prior))


def covariances(A: Floats, free: Floats, prior: float) -> Floats:
    """Shrunk covariances (n, r, r) from scatters A (n, P), packed, of ``free`` degrees of freedom (n,)."""
    pooled = full(A.sum(axis=0)) / max(free.sum(), 1.0)
    values, vectors = np.linalg.eigh(pooled)
    kept = values > FLAT * max(float(values[-1]), FLAT)  # columns in standard units
    basis, pooled = vectors[:, kept], np.diag(values[kept])
    own = basis.T @ full(A) @ basis + prior * pooled
    total = (free + prior)[:, None, None]
    return np.asarray(np.where(total > 0.0, own / np.where(total > 0.0, total, 1.0), pooled))


def _triangle(S: Floats) -> Floats:
    """Symmetric matrices as vectors (n, P) whose distances are Frobenius'."""
    rows, columns = np.tril_indices(S.shape[-1])
    return np.asarray(S[:, rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0)))
