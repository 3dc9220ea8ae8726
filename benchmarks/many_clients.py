"""A CNN for 10,000 clients of which 1% take part in a round: peak memory of a process of its own.

``python -m benchmarks many_clients`` runs FedAvg and FedPer, each in its own process; the goal is a peak below 2 GB.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.measure import Row

CLIENTS, ROWS, SHARE, ROUNDS = 10_000, 6, 0.01, 10
LAYOUTS: dict[str, dict[str, Any]] = {"fedavg": {}, "fedper": {"personal": ["head*"]}}


def peak() -> int:
    """The most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(method: str, clients: int) -> dict[str, Any]:
    """A fit by the front, with held-out rows of all clients evaluated in the end, in this process."""
    import coterie
    from coterie.objectives.deep.nets import cnn

    rng = np.random.default_rng(0)
    y, client = rng.integers(0, 10, clients * ROWS), np.repeat(np.arange(clients), ROWS)
    X = (rng.random((len(y), 1, 28, 28), dtype=np.float32) < 0.1 * y[:, None, None, None]).astype(np.float32)
    before, start = peak(), time.process_time()
    found = coterie.fit(
        (X, y), coterie.Torch(cnn), client=client, method=method, **LAYOUTS[method],
        rounds={"rounds": ROUNDS, "C": SHARE, "eta": 0.05, "B": 3, "evaluate_every": ROUNDS},
    )  # fmt: skip
    return {
        "before": before,
        "peak": peak(),
        "seconds": time.process_time() - start,
        "loss": float(found.comparison["loss"].iloc[0]),
        "shape": list(found.theta.shape),
    }


def run() -> list[Row]:
    """A row for each method."""
    out = []
    for method in LAYOUTS:
        command = [sys.executable, "-m", "benchmarks.many_clients", method, str(CLIENTS)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(told.splitlines()[-1])
        out.append(
            Row(
                f"CNN of 582,026 parameters, {CLIENTS:,} clients, {SHARE:.0%} in each of {ROUNDS} rounds, {method}",
                f"peak {found['peak'] / 1e9:.2f} GB, of which the rows {found['before'] / 1e9:.2f}",
                "all clients' models: 23.28 GB",
                f"{found['seconds']:.0f} CPU seconds",
                "2 GB",
                found["peak"] < 2e9,
            )
        )
    return out


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], int(sys.argv[2]))))
