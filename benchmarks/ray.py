"""200,000 clients of 10 rows and 10 columns in a folder of Parquet files: two Ray actors against one process.

Both sides run in turn, each time in a process of its own, and read the folder each time. What Ray takes to begin (where
no cluster is there yet) is told apart from what is done then.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Row, skipped

M, ROWS, P, K, FILES, REPEATS = 200_000, 10, 10, 20, 8, 5
FORMULA = "y ~ " + " + ".join(f"x{j}" for j in range(1, P))
IMPORTS = ("pandas", "coterie.data.prepare_table", "coterie.engines.ray.parquet_shards", "coterie.methods.hierarchical")
METHODS = {"exact": "hierarchical, Gaussian, diagonal D", "rounds": "Async-L2GD, 2,000 iterations"}


def run() -> list[Row]:
    """Both methods on both engines, in turn."""
    work = f"{M:,} clients x {ROWS} rows x {P} columns from Parquet"
    try:
        import ray  # noqa: F401
    except ImportError:
        return [skipped(f"{work}, two actors", "Ray is not installed")]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), M)
        for method, title in METHODS.items():
            found: dict[str, list[dict[str, float]]] = {"here": [], "ray": []}
            for _ in range(REPEATS):
                for side, results in found.items():
                    results.append(alone(side, method, folder))
            here, there = found["here"], found["ray"]
            ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in zip(here, there, strict=True))
            middle = {
                side: {name: statistics.median(r[name] for r in results) for name in results[0]}
                for side, results in found.items()
            }
            a, b = middle["here"], middle["ray"]
            apart = abs(a["value"] - b["value"]) / abs(a["value"])
            rows.append(
                Row(
                    f"{work}: {title}",
                    f"2 Ray actors {b['seconds']:.1f} s (reading {b['reading']:.1f}) after {b['start']:.1f} s for Ray, "
                    f"whole process {b['whole']:.1f} s; driver {b['peak']:.0f} MB",
                    f"in process {a['seconds']:.1f} s (reading {a['reading']:.1f}), whole process {a['whole']:.1f} s, "
                    f"{a['peak']:.0f} MB",
                    f"{ratio:.2f} times as fast; {apart:.0e} apart",
                    "no slower, driver under 500 MB",
                    ratio >= 1.0 and b["peak"] < 500.0,
                )
            )
    return rows


def write(folder: Path, m: int) -> None:
    """The rows of m clients, in the order of clients, file by file."""
    import pandas as pd

    rng = np.random.default_rng(0)
    w = rng.standard_normal((K, P))
    for i, ids in enumerate(np.array_split(np.arange(m), FILES)):
        X = rng.standard_normal((len(ids) * ROWS, P))
        X[:, 0] = 1.0
        theta = w[ids * K // m] + 0.3 * rng.standard_normal((len(ids), P))
        y = np.einsum("ij,ij->i", X, np.repeat(theta, ROWS, axis=0)) + rng.standard_normal(len(X))
        df = pd.DataFrame(X[:, 1:], columns=[f"x{j}" for j in range(1, P)]).assign(y=y)
        df["id"] = np.repeat(ids, ROWS)
        df["group"] = np.repeat(ids * K // m, ROWS)
        df.to_parquet(folder / f"part-{i}.parquet", index=False)


def alone(side: str, method: str, folder: str) -> dict[str, float]:
    """One run in a process of its own."""
    call = [sys.executable, "-m", "benchmarks.ray", side, method, folder]
    start = time.perf_counter()
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]) | {"whole": time.perf_counter() - start}


def solve(method: str, fed: Any, problem: Any) -> float:
    """Fit, and one number of what came out."""
    if method == "exact":
        from coterie.methods import hierarchical

        return float(hierarchical.fit(fed, problem, "diagonal").log_likelihood or 0.0)
    from coterie.methods.clustered_l2gd.fit import fit

    fitted = fit(fed, problem, gamma=11.0, lam=1.0, rounds={"steps": 2000, "seed": 0})
    return float(np.abs(fitted.root).sum())


def here(method: str, folder: str) -> dict[str, float]:
    """In one process, as :func:`coterie.fit` does it."""
    import pandas as pd

    from coterie.data.identifiability import collinear, constant_within_clients
    from coterie.data.prepare_table import prepare
    from coterie.engines import InProcess
    from coterie.methods.problem_and_estimates import GroupedProblem
    from coterie.relations.clusters import ClusterTree
    from coterie.runs.run_table_method import objective

    start = time.perf_counter()
    clients, _ = prepare(pd.read_parquet(folder), FORMULA, "id", "group")
    assert collinear(clients) is None
    problem = GroupedProblem(ClusterTree.of(clients), "gaussian", np.flatnonzero(~constant_within_clients(clients)), 0)
    read = time.perf_counter()
    fed = InProcess(objective(clients, "gaussian"), clients.clusters, ids=clients.ids)
    value = solve(method, fed, problem)
    end = time.perf_counter()
    return {"start": 0.0, "reading": read - start, "seconds": end - start, "value": value}


def there(method: str, folder: str) -> dict[str, float]:
    """In two actors, whose processes are there already and have imported what ``here`` has imported too."""
    from coterie.engines.ray import Ray, actors

    begin = time.perf_counter()
    actors.join(None)
    seats = actors.ActorSlots(2, {})
    actors.get([actor.run.remote(import_module, name) for actor in seats.actors for name in IMPORTS])
    ready = list(seats.actors)
    actors.ActorSlots._start = lambda self: ready.pop()
    start = time.perf_counter()
    with Ray.parquet(folder, FORMULA, "id", "group", sites=2) as fed:
        read = time.perf_counter()
        value = solve(method, fed, fed.problem)
        end = time.perf_counter()
    actors.leave()
    return {"start": start - begin, "reading": read - start, "seconds": end - start, "value": value}


if __name__ == "__main__":
    side, method, folder = sys.argv[1:]
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    found = {"here": here, "ray": there}[side](method, folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    sys.stdout.write("\n" + json.dumps(found | {"peak": peak}) + "\n")
