"""Rounds with 1,000,000 simulated devices, of which 1% take part: softmax, rows made when a device takes part.

Devices come and go by the hour. Runs in a process of its own, so that the peak is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import Row

M, P, K, ROUNDS = 1_000_000, 20, 10, 20
ONLINE = {"online": 0.3, "stay": 6, "C": 0.01}  # there 30% of the time, for multiples of six hours; a round is an hour
METHODS = ("fedavg", "fedbuff")


def softmax_rows(ids: Any, counts: Any, p: int = P, k: int = K, spread: float = 0.5) -> Any:
    """Softmax over devices' rows (counts,): Gaussian columns, classes by a model of its own near all others'."""
    from coterie.numerics import keyed_random
    from coterie.objectives.softmax import Softmax

    stops = np.cumsum(counts)
    owner = np.repeat(np.arange(len(ids)), counts)
    row = np.arange(len(owner)) - (stops - counts)[owner]
    X = keyed_random.normal(keyed_random.starts(0, "columns", ids)[owner], row, p)
    X[:, 0] = 1.0
    shared = np.random.default_rng(0).normal(size=p * k)
    theta = shared + spread * keyed_random.normal(keyed_random.starts(0, "models", ids), 0, p * k)
    scores = np.einsum("np,npk->nk", X, theta.reshape(-1, p, k)[owner])
    u = keyed_random.uniforms(keyed_random.starts(0, "classes", ids)[owner], row, k)
    y = (scores - np.log(-np.log(u + 2.0**-54))).argmax(axis=1)
    return Softmax(X, y, np.ones(len(y)), stops - counts, stops, k)


def devices(m: int, p: int = P, k: int = K) -> Any:
    """m devices of 5 to 35 rows."""
    from coterie.numerics import keyed_random
    from coterie.objectives.generated_rows import GeneratedRows

    ids = np.arange(m, dtype=np.uint64)
    counts = 5 + (31 * keyed_random.uniform(0, "counts", ids, 0, 1)[:, 0]).astype(np.int64)
    return GeneratedRows(partial(softmax_rows, p=p, k=k), ids, counts, p * k)


def _rounds(name: str, m: int, rounds: int) -> dict[str, float]:
    from coterie.engines import InProcess
    from coterie.methods.fedavg import FedAvg
    from coterie.methods.fedbuff import FedBuff

    start, cpu = time.perf_counter(), time.process_time()
    objective = devices(m)
    fed = InProcess(objective, seed=1)
    common = {"eta": 0.1, "B": 5, **ONLINE}
    method = FedAvg(**common) if name == "fedavg" else FedBuff(**common, K=max(m // 1000, 1))
    state = method.init(fed)
    began, cpu_began = time.perf_counter() - start, time.process_time() - cpu
    held_out = devices(m + 1000).take(slice(m, None)).made()  # devices that never took part
    start, cpu, times = time.perf_counter(), time.process_time(), []
    for state in method.run(fed, range(1, rounds + 1), state):  # noqa: B007, B020
        times.append(time.perf_counter() - start - sum(times))
    out = {"start": began, "start_cpu": cpu_began, "cpu": (time.process_time() - cpu) / rounds}
    out |= {"round": float(np.median(times)), "longest": max(times), "accuracy": held_out.accuracy(state["w"]).mean()}
    out |= {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, "up": fed.ledger.bytes_up / rounds}
    return out | {"hours": float(state.get("hour", rounds))}


def run() -> list[Row]:
    """A row for each method."""
    rows = []
    for name in METHODS:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.devices", name], capture_output=True, text=True, check=True
        )
        r = json.loads(done.stdout)
        work = f"{name}, 1,000,000 devices, 1% at a time, 30% there, softmax of {P} columns and {K} classes"
        ours = (
            f"{r['round']:.2f} s a round, at most {r['longest']:.2f}; {r['cpu']:.2f} s of CPU; peak {r['peak']:.2f} GB"
        )
        reached = f"accuracy {r['accuracy']:.3f} at others after {ROUNDS} rounds"
        rows.append(Row(work, ours, "-", reached, "10 s, 4 GB", r["longest"] < 10 and r["peak"] < 4))
    return rows


if __name__ == "__main__":
    _rounds(sys.argv[1], 1000, 2)
    sys.stdout.write(json.dumps(_rounds(sys.argv[1], M, ROUNDS)))
