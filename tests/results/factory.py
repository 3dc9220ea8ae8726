"""Results of a known truth, made by hand: no solver is involved, so a test of results tests results alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.data.clients import Level
from coterie.data.design import Design
from coterie.numerics.arrays import full, pack
from coterie.results.fit_result import FitResult
from coterie.results.model import Model

TERMS = ("(Intercept)", "x")
METHODS = ("local", "pooled", "own-intercept", "clusterwise", "single-cluster", "hierarchical")


@dataclass(frozen=True, eq=False)
class World:
    """A result, and what it is the result of."""

    result: FitResult
    table: pd.DataFrame
    theta: npt.NDArray[np.float64]


def model(
    clients: int = 12,
    levels: tuple[int, ...] = (3,),
    family: str = "gaussian",
    seed: int = 0,
    labels: Any = None,
    D: npt.NDArray[np.float64] | None = None,
    sigma: float = 1.0,
    uncertainty: float = 0.1,
    method: str = "hierarchical",
) -> tuple[Model, npt.NDArray[np.float64]]:
    """A model whose coefficients miss the true ones by normal errors of the covariance that it states."""
    rng = np.random.default_rng(seed)
    D = np.diag([0.5, 0.2]) if D is None else D
    root = np.array([0.5, 0.3])
    sizes = [*levels, 1]
    names = ("sector", "region", "country")
    tree = [Level(names[i], np.array([f"{names[i]} {j}" for j in range(k)], dtype=object),
                  np.sort(np.arange(k) % sizes[i + 1]).astype(np.int64)) for i, k in enumerate(levels)]  # fmt: skip
    clusters = np.sort(np.arange(clients) % sizes[0]).astype(np.int64)
    above, nodes = root[None], []
    for level in reversed(tree):
        above = above[level.parent] + rng.multivariate_normal(np.zeros(2), D, len(level.labels))
        nodes.insert(0, above)
    theta = above[clusters] + rng.multivariate_normal(np.zeros(2), D, clients)
    error = rng.normal(0.0, uncertainty, (clients, 2))
    packed = pack(np.eye(2)[None] * uncertainty**2)
    fitted = Model(
        method=method,
        family=family,
        terms=TERMS,
        client_name="school",
        labels=np.arange(clients) + 1000 if labels is None else labels,
        levels=tuple(tree),
        clusters=clusters,
        personal=np.array([0, 1]),
        root=root,
        root_cov=full(packed[0]) if uncertainty else np.zeros((2, 2)),
        nodes=tuple(nodes),
        node_cov=tuple(np.repeat(packed, k, axis=0) for k in levels),
        client=theta + error,
        client_cov=np.repeat(packed, clients, axis=0),
        D_client=D[None],
        D_levels=tuple(D for _ in levels),
        sigma2=sigma**2 if family == "gaussian" else 1.0,
        info={"covariance": "diagonal"},
    )
    return fitted, theta


def world(rows: int = 20, loss: str = "squared error", **options: Any) -> World:
    """A table drawn from the true coefficients, and the result."""
    fitted, theta = model(**options)
    rng = np.random.default_rng(options.get("seed", 0) + 1)
    codes = np.repeat(np.arange(len(theta)), rows)
    x = rng.normal(size=len(codes))
    eta = theta[codes, 0] + theta[codes, 1] * x
    table = pd.DataFrame({"school": fitted.labels[codes], "x": x, "y": _draw(rng, fitted, eta)})
    place = fitted.clusters[codes]
    for level in fitted.levels:
        table[level.name] = level.labels[place]
        place = level.parent[place]
    return World(result(fitted, table, rng, loss), table, theta)


def _draw(rng: np.random.Generator, fitted: Model, eta: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if fitted.family == "binomial":
        return (rng.uniform(size=len(eta)) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    if fitted.family == "poisson":
        return rng.poisson(np.exp(eta)).astype(float)
    return rng.normal(eta, fitted.sigma2**0.5)


def result(fitted: Model, table: pd.DataFrame, rng: np.random.Generator, loss: str = "squared error") -> FitResult:
    """Evidence as a comparison would leave it, around a fitted model."""
    gains = client_gains(fitted, rng)
    local = fitted.client + rng.normal(0.0, 0.8, fitted.client.shape)
    return FitResult(
        model=fitted,
        design=Design.fit(table, "y ~ x"),
        formula="y ~ x",
        log_likelihood=-1234.5678,
        reml=fitted.family == "gaussian",
        comparison=comparison(gains),
        client_gains=gains,
        recommended="hierarchical",
        reason="It has the lowest held-out loss of the six methods compared.",
        loss=loss,
        notes=["Schools do not differ in x: its variance is zero.", "3 rows had no outcome and were left out."],
        ledger={"exchanges": 41, "bytes_down": 81_234, "bytes_up": 1_234_567, "gradient_calls": 0, "seconds": 0.37},
        settings={"client": "school", "cluster": ["sector"], "splits": 5, "test_fraction": 0.25, "seed": 0,
                  "covariance": "diagonal", "why": {"covariance": "smallest penalised deviance"}},
        data_fingerprint="9f86d081884c7d65",
        versions={"coterie": "0.1.0", "numpy": np.__version__, "python": "3.11"},
        local_coefficients=pd.DataFrame(local, index=pd.Index(fitted.labels, name="school"), columns=list(TERMS)),
    )  # fmt: skip


def client_gains(fitted: Model, rng: np.random.Generator) -> pd.DataFrame:
    """Held-out losses in which most clients gain and some lose."""
    m = len(fitted.labels)
    rows = rng.integers(3, 60, m)
    local = 1.0 + rng.gamma(2.0, 1.0, m) * 3.0 / rows + rng.normal(0.0, 0.05, m) ** 2
    pooled = 1.2 + rng.gamma(2.0, 0.2, m)
    best = np.minimum(local, pooled) * rng.normal(0.97, 0.06, m)
    cluster = fitted.levels[0].labels[fitted.clusters] if fitted.levels else np.repeat("", m)
    return pd.DataFrame(
        {
            "cluster": cluster,
            "rows": rows,
            "test_rows": rows // 4 + 1,
            "loss_local": local,
            "loss_pooled": pooled,
            "loss_recommended": best,
            "gain_over_local": local - best,
            "gain_over_pooled": pooled - best,
        },
        index=pd.Index(fitted.labels, name=fitted.client_name),
    )


def comparison(gains: pd.DataFrame) -> pd.DataFrame:
    """A row for each method, consistent with the clients' gains for the three methods that they know."""
    local, pooled, best = (gains[f"loss_{k}"].to_numpy() for k in ("local", "pooled", "recommended"))
    losses = {"local": local, "pooled": pooled, "own-intercept": best * 1.06, "clusterwise": pooled * 0.97,
              "single-cluster": best * 1.01, "hierarchical": best}  # fmt: skip
    rows = []
    for method in METHODS:
        loss, entry = losses[method], {"method": method}
        entry |= {"loss_rows": np.average(loss, weights=gains["rows"]), "loss_clients": loss.mean()}
        entry["se_clients"] = loss.std(ddof=1) / len(loss) ** 0.5 if len(loss) > 1 else np.nan
        for other, theirs in (("local", local), ("pooled", pooled)):
            gain = theirs - loss
            half, share = 1.96 * gain.std() / len(gain) ** 0.5, (gain > 0).mean()
            entry |= {f"gain_over_{other}": gain.mean(), f"gain_over_{other}_low": gain.mean() - half}
            entry |= {f"gain_over_{other}_high": gain.mean() + half, f"better_than_{other}": share}
        entry["seconds"] = 0.01 * len(method)
        rows.append(entry)
    return pd.DataFrame(rows).set_index("method")
