"""Tables drawn from the tree model with known truth: any tree, and one shaped like a charity's solicitations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.data.design import INTERCEPT
from coterie.data.labels import label_ids
from coterie.errors import CoterieError
from coterie.families import BINOMIAL, Family, family_named
from coterie.numerics.keyed_random import uniform, uniform_rows

if TYPE_CHECKING:
    import pandas as pd

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


def tree(
    clients: int = 100,
    clusters: int | Sequence[int] = 5,
    rows: int | tuple[int, int] = 20,
    columns: int = 1,
    family: str = "gaussian",
    sd_client: float | Sequence[float] = 1.0,
    sd_cluster: float | Sequence[Any] = 0.5,
    sigma: float = 1.0,
    root: Sequence[float] | None = None,
    seed: int = 0,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table of the model ``theta_i ~ N(w_cluster(i), D_client)``, ``w_j ~ N(w_parent(j), D_level)``.

    Every number is a function of the seed and of its client or cluster, whatever the other arguments are.

    Parameters
    ----------
    clients : int, default 100
    clusters : int or sequence of int, default 5
        Clusters at each level, fine to coarse; 0 or () for none. Clients and clusters are spread evenly.
    rows : int or (int, int), default 20
        Rows of every client, or the smallest and the largest number of them.
    columns : int, default 1
        Standard normal columns ``x1, x2, ...`` beside the intercept.
    family : str, default "gaussian"
        A name of ``families.FAMILIES``.
    sd_client : float or (p,), default 1.0
        Standard deviations of client coefficients, p = columns + 1.
    sd_cluster : float, or a float or (p,) for each level, default 0.5
    sigma : float, default 1.0
        Residual standard deviation (gaussian).
    root : (p,), optional
        Global coefficients; standard normal by default.
    seed : int, default 0

    Returns
    -------
    table : DataFrame
        ``client``, ``cluster`` (``cluster1, cluster2, ...`` where there are several levels), ``y``, ``x1``, ...
    truth : dict
        ``terms``, ``root`` (p,), ``clusters`` (a list of (k, p), fine to coarse), ``clients`` (m, p), ``sd_client``
        (p,), ``sd_clusters`` (a list of (p,)), ``sigma``, ``family``, ``formula``, ``client`` and ``cluster`` (column
        names).

    Raises
    ------
    CoterieError
        For numbers that do not fit together.
    """
    import pandas as pd

    sizes = [k for k in ([clusters] if isinstance(clusters, int) else list(clusters)) if k]
    p = columns + 1
    _check(clients, sizes, rows, columns, family, sigma)
    sd = _spread(sd_client, p, "sd_client")
    per_level = list(sd_cluster) if isinstance(sd_cluster, Sequence) else [sd_cluster] * len(sizes)
    if len(per_level) != len(sizes):
        raise CoterieError(f"sd_cluster has {len(per_level)} entries for {len(sizes)} levels of clusters.")
    sd_levels = [_spread(s, p, "sd_cluster") for s in per_level]
    w = _normals(seed, "root", np.zeros(1, dtype=np.uint64), p)[0] if root is None else _spread(root, p, "root")
    levels, parent_of = _walk_down(w, sizes, sd_levels, seed)

    m_ids = label_ids(np.arange(clients))
    home = np.arange(clients, dtype=np.int64) * (sizes[0] if sizes else 1) // clients
    theta = (levels[0][home] if sizes else w) + sd * _normals(seed, "client", m_ids, p)
    counts = _counts(rows, m_ids, seed)
    index = np.repeat(np.arange(clients, dtype=np.int64), counts)
    data: dict[str, Any] = {"client": index}
    names = ["cluster"] if len(sizes) == 1 else [f"cluster{level + 1}" for level in range(len(sizes))]
    place = home
    for level, name in enumerate(names[: len(sizes)]):
        data[name] = place[index]
        place = parent_of[level][place]
    eta = theta[index, 0]
    predictors = {}
    for j in range(1, p):
        x = _quantile(uniform_rows(seed, f"x{j}", m_ids, 0, counts))
        predictors[f"x{j}"] = x
        eta = eta + theta[index, j] * x
    data["y"] = _outcomes(family_named(family), uniform_rows(seed, "outcome", m_ids, 0, counts), eta, sigma)
    truth = {
        "terms": (INTERCEPT, *predictors),
        "root": w,
        "clusters": levels,
        "clients": theta,
        "sd_client": sd,
        "sd_clusters": sd_levels,
        "sigma": sigma,
        "family": family,
        "formula": "y ~ " + (" + ".join(predictors) or "1"),
        "client": "client",
        "cluster": tuple(names[: len(sizes)]),
    }
    return pd.DataFrame(data | predictors), truth


BRACKETS = ("lower middle class", "middle class", "poor or near poor", "unknown", "upper middle class")
"""Income brackets of ZIP codes, sorted by name as a table sorts them."""
SHARES = (0.38, 0.36, 0.12, 0.06, 0.08)


def donor_response(seed: int = 0, clients: int = 29_490) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table in the shape of paper 001's section 6.2 (Blattberg et al. 2009, whose rows are not public).

    Clients are ZIP codes in five income brackets. A row is a solicitation: ``donated`` is logistic in the logarithms of
    ``recency`` (days since the last donation) and ``frequency`` (past donations), with coefficients of (5.1).

    Parameters
    ----------
    seed : int, default 0
    clients : int, default 29490
        ZIP codes, at least 5. The default gives about 1.5 million rows.

    Returns
    -------
    table : DataFrame
        ``zip``, ``bracket``, ``recency``, ``frequency``, ``donated``; some 6 rows in 100 are donations.
    truth : dict
        As :func:`tree` returns it.

    Notes
    -----
    Chosen values, by (intercept, log recency, log frequency): root (-0.8, -0.5, 0.45), standard deviations of brackets
    (0.15, 0.02, 0.05) and of ZIP codes (0.3, 0.1, 0.3). Rows of a ZIP code: log-normal (3.45, 1.0) between 5 and 600,
    about 50 on average. Log recency: normal (5.6, 0.8), a quarter of its variance between ZIP codes; one plus a
    log-normal (0.7, 0.9) is the frequency, lower after a longer time (correlation -0.3). Every number is a function of
    the seed and of its ZIP code or bracket.
    """
    import pandas as pd

    if clients < len(BRACKETS):
        raise CoterieError(f"There are {len(BRACKETS)} income brackets: ask for as many clients at least.")
    root, sd, sd_bracket = np.array([-0.8, -0.5, 0.45]), np.array([0.3, 0.1, 0.3]), np.array([0.15, 0.02, 0.05])
    brackets = root + sd_bracket * _normals(seed, "bracket", label_ids(np.arange(len(BRACKETS))), 3)
    home = np.repeat(np.arange(len(BRACKETS)), _apportion(clients, SHARES))
    ids = label_ids(np.arange(clients))
    theta = brackets[home] + sd * _normals(seed, "zip", ids, 3)
    counts = _log_normal_counts(uniform(seed, "solicitations", ids, 0, 1)[:, 0], 3.45, 1.0, 5, 600)
    index = np.repeat(np.arange(clients), counts)
    usual = _normals(seed, "usual", ids, 1)[index, 0]
    late = 0.5 * usual + 0.75**0.5 * _quantile(uniform_rows(seed, "recency", ids, 0, counts))
    keen = -0.3 * late + 0.91**0.5 * _quantile(uniform_rows(seed, "frequency", ids, 0, counts))
    recency = np.maximum(np.rint(np.exp(5.6 + 0.8 * late)), 1.0)
    frequency = 1.0 + np.floor(np.exp(0.7 + 0.9 * keen))
    eta = theta[index, 0] + theta[index, 1] * np.log(recency) + theta[index, 2] * np.log(frequency)
    data = {
        "zip": index,
        "bracket": pd.Categorical.from_codes(home[index], pd.Index(BRACKETS)),
        "recency": recency.astype(np.int64),
        "frequency": frequency.astype(np.int64),
        "donated": _outcomes(BINOMIAL, uniform_rows(seed, "donated", ids, 0, counts), eta),
    }
    truth = {
        "terms": (INTERCEPT, "log(recency)", "log(frequency)"),
        "root": root,
        "clusters": [brackets],
        "clients": theta,
        "sd_client": sd,
        "sd_clusters": [sd_bracket],
        "sigma": 0.0,
        "family": "binomial",
        "formula": "donated ~ log(recency) + log(frequency)",
        "client": "zip",
        "cluster": ("bracket",),
    }
    return pd.DataFrame(data), truth


def _apportion(total: int, shares: Sequence[float]) -> I64:
    """Whole numbers of at least 1 in proportion to shares, which add up to ``total``."""
    cuts = np.rint(np.cumsum([0.0, *shares]) / sum(shares) * (total - len(shares))).astype(np.int64)
    return np.asarray(np.diff(cuts) + 1)


def _log_normal_counts(u: F64, mean: float, sd: float, low: int, high: int) -> I64:
    """Log-normal counts from uniform numbers, cut off below ``low`` and above ``high``."""
    from scipy.special import ndtr

    below, above = ndtr((np.log([low, high + 1]) - mean) / sd)
    return np.floor(np.exp(mean + sd * _quantile(below + u * (above - below)))).astype(np.int64).clip(low, high)


def _check(
    clients: int, sizes: list[int], rows: int | tuple[int, int], columns: int, family: str, sigma: float
) -> None:
    family_named(family)
    if clients < 1 or columns < 0 or sigma < 0:
        raise CoterieError("clients must be at least 1, columns and sigma at least 0.")
    low, high = (rows, rows) if isinstance(rows, int) else rows
    if not 1 <= low <= high:
        raise CoterieError(f"rows must be a number of at least 1, or (smallest, largest), not {rows}.")
    if any(b > a for a, b in zip([clients, *sizes], sizes, strict=False)) or any(k < 1 for k in sizes):
        raise CoterieError(f"Each level must have fewer clusters than the one before it: {clients} clients, {sizes}.")


def _spread(value: float | Sequence[float], p: int, what: str) -> F64:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim > 1 or array.size not in (1, p):
        raise CoterieError(f"{what} must be one number or {p}, one for each term.")
    return np.broadcast_to(array, (p,)).copy()


def _walk_down(w: F64, sizes: list[int], sd: list[F64], seed: int) -> tuple[list[F64], list[I64]]:
    """Coefficients of every level and the parent of every cluster, fine to coarse."""
    levels: list[F64] = []
    parents: list[I64] = []
    above = w[None, :]
    for level in range(len(sizes) - 1, -1, -1):
        k = sizes[level]
        parent = np.arange(k, dtype=np.int64) * len(above) // k
        noise = _normals(seed, f"cluster{level}", label_ids(np.arange(k)), len(w))
        above = above[parent] + sd[level] * noise
        levels.insert(0, above)
        parents.insert(0, parent)
    return levels, parents


def _counts(rows: int | tuple[int, int], ids: U64, seed: int) -> I64:
    if isinstance(rows, int):
        return np.full(len(ids), rows, dtype=np.int64)
    low, high = rows
    return (low + np.floor(uniform(seed, "rows", ids, 0, 1)[:, 0] * (high - low + 1))).astype(np.int64)


def _normals(seed: int, stream: str, ids: U64, n: int) -> F64:
    return _quantile(uniform(seed, stream, ids, 0, n))


def _outcomes(family: Family, u: F64, eta: F64, sigma: float = 0.0) -> npt.NDArray[Any]:
    """Normal numbers, yes or no, or Poisson's counts, from uniform numbers at linear predictors."""
    from scipy.stats import poisson

    if family.has_dispersion:
        return np.asarray(eta + sigma * _quantile(u))
    if family.two_classes:
        return (u < family.mean(eta)).astype(np.int64)
    return np.asarray(poisson.ppf(u, family.mean(eta)), dtype=np.float64).clip(0).astype(np.int64)


def _quantile(u: F64) -> F64:
    """Standard normal numbers from uniform ones, (0, 1) kept open."""
    from scipy.special import ndtri

    return np.asarray(ndtri(np.maximum(u, 2.0**-54)), dtype=np.float64)
