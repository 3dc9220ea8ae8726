"""1,000,000 clients of 10 rows and 10 columns in 20 clusters: seconds and peak memory against one pass over the data.

Runs in a process of its own, so that the peak is the fit's and not an earlier benchmark's.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

from benchmarks.measure import Row

M, ROWS, P, K = 1_000_000, 10, 10, 20


def run() -> list[Row]:
    """Fit once after a small fit has compiled the kernels."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.million"], capture_output=True, text=True, check=True)
    r = json.loads(done.stdout)
    work = "1,000,000 clients x 10 rows x 10 columns in 20 clusters, Gaussian, diagonal D, REML"
    return [
        Row(
            work,
            f"{r['seconds']:.1f} s; sd of slopes {r['sd']:.4f} (true 0.3), {r['status']}",
            f"one pass over the data {r['one_pass']:.2f} s",
            f"{r['seconds']:.0f} s",
            "60 s",
            r["seconds"] < 60,
        ),
        Row(
            work,
            f"peak {r['peak']:.2f} GB",
            f"table {r['table']:.2f} GB",
            f"{r['peak'] / r['table']:.2f} times the table",
            "3 times",
            r["peak"] < 3 * r["table"],
        ),
    ]


def _fit(m: int) -> dict[str, float | str]:
    from coterie.data.clients import Clients
    from coterie.methods.problem_and_estimates import GroupedProblem
    from coterie.relations.clusters import ClusterTree
    from coterie.runs.run_table_method import run as fit_method

    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(m), ROWS)
    clusters = labels * K // m
    X = rng.standard_normal((m * ROWS, P))
    X[:, 0] = 1.0
    y = np.empty(m * ROWS)
    w = rng.standard_normal((K, P))
    step = 10_000
    for start in range(0, m, step):
        ids = np.arange(start, min(start + step, m))
        rows = slice(ids[0] * ROWS, (ids[-1] + 1) * ROWS)
        theta = w[ids * K // m] + 0.3 * rng.standard_normal((len(ids), P))
        y[rows] = np.einsum("ij,ij->i", X[rows], np.repeat(theta, ROWS, axis=0)) + rng.standard_normal(len(ids) * ROWS)
    table = (X.nbytes + y.nbytes + labels.nbytes + clusters.nbytes) / 1e9
    start = time.perf_counter()
    X.sum(), y.sum(), labels.sum(), clusters.sum()
    one_pass = time.perf_counter() - start
    start = time.perf_counter()
    clients = Clients.from_arrays(X, y, labels, clusters)
    problem = GroupedProblem(ClusterTree.of(clients), "gaussian", np.arange(P), 0)
    fitted, _ = fit_method("hierarchical", clients, problem, {"covariance": "diagonal"})
    seconds = time.perf_counter() - start
    sd = float(np.sqrt(fitted.D_client[0].diagonal()[1:]).mean())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    status = str(fitted.info["status"])
    return {"seconds": seconds, "one_pass": one_pass, "peak": peak, "table": table, "sd": sd, "status": status}


if __name__ == "__main__":
    _fit(1000)
    sys.stdout.write(json.dumps(_fit(M)))
