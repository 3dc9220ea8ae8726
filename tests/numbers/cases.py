"""What is run to see that a number has not changed: all by the front door, so no case knows where code lies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import coterie

Numbers = dict[str, list[float]]

SCHOOLS, ROWS = 14, 18


def schools() -> pd.DataFrame:
    """Clients in sectors in regions, with an outcome for each family; one school has two rows, columns are off zero."""
    rng = np.random.default_rng(20)
    school = np.repeat(np.arange(SCHOOLS), ROWS)[: SCHOOLS * ROWS - ROWS + 2]
    n, sector = len(school), np.arange(SCHOOLS) % 4
    hours, size = rng.normal(3.0, 1.0, n), rng.normal(50.0, 9.0, SCHOOLS)
    level = rng.normal(size=4)[sector] + 0.5 * rng.normal(size=SCHOOLS)
    slope = 0.6 + 0.3 * rng.normal(size=SCHOOLS)
    eta = 0.4 * level[school] + slope[school] * (hours - 3.0)
    frame = pd.DataFrame(
        {
            "school": [f"s{i:02d}" for i in school],
            "sector": [f"k{i}" for i in sector[school]],
            "region": [f"r{i}" for i in sector[school] // 2],
            "size": size[school],
            "hours": hours,
            "grade": np.array(["a", "b", "c"])[rng.integers(0, 3, n)],
            "score": 2.0 + eta + rng.normal(size=n),
            "passed": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int),
            "visits": rng.poisson(np.exp(0.3 + 0.5 * eta)),
            "weight": rng.uniform(0.5, 2.0, n),
            "exposure": rng.normal(0.0, 0.2, n),
            "day": rng.permutation(n),
        }
    )
    wild = frame["score"] + 20.0 * (frame["day"] % 40 == 0)
    return frame.assign(amount=np.exp(0.4 * frame["score"]), wild=wild, missed=1 + frame["day"] % 4)


def digest(values: Any) -> list[float]:
    """How many values there are and how many are finite, and two sums of those that are: plain, and with weights."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    sound = np.isfinite(flat)
    weights = np.sin(1.0 + np.arange(len(flat)))
    flat = np.where(sound, flat, 0.0)
    return [float(len(flat)), float(sound.sum()), float(flat.sum()), float(flat @ weights)]


def of_frame(name: str, frame: pd.DataFrame | None, without: tuple[str, ...] = ("seconds",)) -> Numbers:
    """A digest for each numeric column that is no time."""
    if frame is None:
        return {}
    numeric = frame.select_dtypes("number")
    kept = [column for column in numeric if not any(word in str(column) for word in without)]
    return {f"{name}.{column}": digest(numeric[column]) for column in kept}


def of_result(result: coterie.FitResult, table: pd.DataFrame) -> Numbers:
    """Everything that a fit says of the table."""
    found: Numbers = {"log_likelihood": digest(result.log_likelihood)}
    for name in ("global_coefficients", "cluster_coefficients", "client_coefficients", "client_std_errors"):
        found |= of_frame(name, getattr(result, name))
    for name in ("variance_components", "comparison", "client_gains"):
        found |= of_frame(name, getattr(result, name))
    found |= of_frame("predict", pd.DataFrame(result.predict(table.iloc[::5])))
    counted = {key: value for key, value in result.ledger.items() if isinstance(value, int) and "second" not in key}
    return found | {f"ledger.{key}": digest(value) for key, value in counted.items()}


def fitted(formula: str = "score ~ hours", cluster: Any = "sector", **options: Any) -> Numbers:
    table = schools()
    return of_result(coterie.fit(table, formula, "school", cluster, **({"splits": 2} | options)), table)


def advised(**options: Any) -> Numbers:
    found: Numbers = {}
    advice = coterie.advise(schools(), "score ~ hours", "school", **options)
    for name, value in sorted(vars(advice).items()):
        if isinstance(value, pd.DataFrame):
            found |= of_frame(name, value)
    return found


FAMILIES = {"gaussian": "score", "binomial": "passed", "poisson": "visits"}
WITH_DISPERSION = {"negative-binomial": "visits", "gamma": "amount", "student-t(4)": "wild"}
EXACT = ("local", "pooled", "own-intercept", "clusterwise", "single-cluster", "hierarchical", "james-stein")
OVER_ROUNDS: dict[str, Mapping[str, Any]] = {
    "async-l2gd": {"steps": 400, "batch": 4},
    "async-al2sgd": {"steps": 400},
    "similarity-network": {},
    "weighted-averaging": {"steps": 60, "batch": 4},
    "bias-correction": {"steps": 60, "batch": 4},
}
ON_A_TABLE = (
    *(
        "fedavg",
        "fedavg-finetune",
        "dp-sgd",
        "fedbuff",
        "fedprox",
        "scaffold",
        "ditto",
        "pfedme",
        "l2gd",
        "apfl",
        "fedper",
        "fedrep",
    ),
    *("ifca", "cfl", "found-groups", "group-sgd", "cluster-l2gd", "group-models", "group-penalty"),
    *("fedbabu", "lg-fedavg", "per-fedavg", "feddyn", "fedala", "fedsoft", "fedamp", "fedfomo", "apple", "pfedgraph"),
)
LAYERS = ("fedper", "fedrep", "fedbabu", "lg-fedavg")
NETWORK = {"space": "model", "k": 4, "lam": 0.7}
TABLES: dict[str, Callable[[], Numbers]] = {
    **{
        f"{family} {method}": partial(
            fitted, f"{outcome} ~ hours + grade", family=family, method=method, covariance="diagonal", splits=0
        )
        for family, outcome in FAMILIES.items()
        for method in EXACT
    },
    **{
        f"{family} {method}": partial(
            fitted,
            f"{outcome} ~ hours",
            cluster=("sector",),
            family=family,
            method=method,
            covariance="isotropic",
            rounds=rounds,
            splits=0,
            **({"network": NETWORK} if method == "similarity-network" else {}),
        )
        for family, outcome in FAMILIES.items()
        for method, rounds in OVER_ROUNDS.items()
    },
    **{
        f"{family} {method}": partial(
            fitted,
            f"{outcome} ~ hours",
            family=family,
            method=method,
            covariance="diagonal",
            splits=0,
            shared=("hours",) if method == "fedper" else (),
        )
        for family, outcome in WITH_DISPERSION.items()
        for method in ("local", "pooled", "clusterwise", "hierarchical", "james-stein", "fedper")
    },
    "degrees of freedom found": partial(fitted, "wild ~ hours", family="student-t", method="hierarchical", splits=0),
    "amounts compared": partial(fitted, "amount ~ hours", family="gamma", splits=1),
    "successes of trials": partial(fitted, "cbind(visits, missed) ~ hours", family="binomial", method="hierarchical"),
    **{
        f"covariance {name}": partial(fitted, covariance=name, method="hierarchical", splits=0)
        for name in ("auto", "isotropic", "two", "diagonal", "full")
    },
    "everything compared": fitted,
    "classes compared": partial(fitted, "passed ~ hours", family="binomial"),
    "counts compared": partial(fitted, "visits ~ hours", family="poisson", offset="exposure"),
    "two levels": partial(fitted, cluster=("sector", "region"), method="hierarchical"),
    "own variances": partial(fitted, method="hierarchical", cluster_variance="own", splits=0),
    "residual by client": partial(fitted, method="hierarchical", residual="by-client", splits=0),
    "likelihood": partial(fitted, method="hierarchical", reml=False, splits=0),
    "weights and offset": partial(fitted, weights="weight", offset="exposure"),
    "shared columns": partial(fitted, "score ~ hours + grade + size", shared=("grade",), method="hierarchical"),
    "in time": partial(fitted, order_by="day", splits=1),
    "by day": partial(fitted, split_by="grade", splits=1, method="pooled"),
    "given strengths": partial(fitted, gamma=3.0, lam=2.0),
    "a grid of strengths": partial(fitted, gamma=[1.0, 4.0, 16.0], lam=2.0),
    "strengths in the paper's form": partial(fitted, gamma=3.0, alpha=0.4),
    "terms": partial(fitted, "score ~ bs(hours, df=4) + C(grade) + scale(size)", cluster=()),
    "one coin among peers": partial(
        fitted,
        method="async-l2gd",
        covariance="isotropic",
        splits=0,
        rounds={"steps": 300, "coordinator": "peers", "network": "ring"},
    ),
    "network by covariates": partial(
        fitted, cluster=(), method="similarity-network", network={"covariates": ["size"], "k": 3, "p": 1}
    ),
    "network by ADMM over codes": partial(
        fitted,
        cluster=(),
        method="similarity-network",
        splits=0,
        network={"space": "data", "k": 3, "lam": 1.0, "solver": "admm"},
        rounds={"steps": 40, "codec": "qsgd:6"},
    ),
    **{
        f"{method} on a table": partial(
            fitted, method=method, rounds=12, splits=0, shared=("hours",) if method in LAYERS else ()
        )
        for method in ON_A_TABLE
    },
    "counts and codes of ditto on a table": partial(
        fitted,
        "visits ~ hours",
        family="poisson",
        method="ditto",
        splits=0,
        rounds={"rounds": 12, "B": 4, "up": "qsgd:6"},
    ),
    "one main client": partial(
        fitted, cluster=(), method="bias-correction", splits=0, rounds={"main": "s03", "steps": 60, "rule": "trimmed"}
    ),
    "advice": advised,
}

TRAINERS = (
    *("local", "pooled", "fedavg", "fedavg-finetune", "fedavgm", "fedadam", "fedprox", "scaffold", "ditto", "pfedme"),
    *("l2gd", "apfl", "fedbuff"),
    *("fedper", "fedrep", "ifca", "cfl", "found-groups", "group-sgd", "cluster-l2gd", "group-models", "group-penalty"),
    *("fedbabu", "lg-fedavg", "per-fedavg", "feddyn", "fedala", "fedsoft", "fedamp", "fedfomo", "apple", "pfedgraph"),
)
SETTING: dict[str, dict[str, Any]] = {
    "data": {"source": "digits", "partition": "rotated", "clients": 8, "rows": 320},
    "model": {"path": "softmax"},
    "run": {"rounds": 3, "seeds": 1},
}
NET = {"path": "mlp", "args": {"sizes": [64, 8, 10]}, "dtype": "float32"}
HEAD: dict[str, Any] = {"layout": {"personal": ["head*"]}}
LAYERED = dict.fromkeys(("fedper", "fedrep", "fedbabu", "group-penalty"), HEAD)
BODY: dict[str, Any] = {"layout": {"shared": ["dense*"]}}
LAYERED |= dict.fromkeys(("group-sgd", "lg-fedavg"), BODY)


def trained(
    folder: Path, method: str, *, net: bool = False, given: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> Numbers:
    """``coterie fit`` of a configuration: the metrics of each round and of each client."""
    name = {"method": {"name": method} | (given or {})}
    document = {**SETTING, **({"model": NET} if net else {}), **LAYERED.get(method, {}), **name, **sections}
    file = folder / "setting.toml"
    file.write_text("".join(_toml(document)), encoding="utf-8")
    _command("fit", file, "--out", folder / "out", "--force")
    metrics = pd.read_csv(folder / "out" / "metrics.csv")
    measured = [name for name in metrics if name.startswith(("gradient", "noise_", "growth_"))]  # looks, no results
    return {
        **of_frame("metrics", metrics.drop(columns=measured)),
        **of_frame("clients", pd.read_csv(folder / "out" / "clients.csv")),
    }


def _toml(document: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for section, keys in document.items():
        yield f"[{section}]\n"
        yield from (f"{key} = {_value(value)}\n" for key, value in keys.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_value(of)}' for key, of in value.items())}}}"
    return json.dumps(value)


def _command(*arguments: object) -> None:
    (script,) = entry_points(group="console_scripts", name="coterie")
    before, sys.argv = sys.argv, ["coterie", *map(str, arguments)]
    try:
        script.load()()
    except SystemExit as stop:
        if stop.code:
            raise AssertionError(f"coterie {arguments} ended with {stop.code}") from stop
    finally:
        sys.argv = before


TRAINED: dict[str, Callable[[Path], Numbers]] = {
    **{f"train {method}": partial(trained, method=method) for method in TRAINERS if method not in LAYERED},
    **{
        f"train a net by {method}": partial(trained, method=method, net=True)
        for method in ("fedavg", "ditto", "ifca", "fedrod", "moon", "fedproto", "fedem", "knn-per", *LAYERED)
    },
    "train over codes": partial(trained, method="fedavg", given={"up": "topk:0.4", "down": "qsgd:6"}),
    "train with noise": partial(trained, method="fedavg", privacy={"clip": 0.5, "noise": 1.0, "seed": 3}),
}
