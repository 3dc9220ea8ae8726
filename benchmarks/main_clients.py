"""Every school of Chem97 its own main client: 2,410 models of 10 collaborators each, in one run over rounds."""

from __future__ import annotations

import resource
import subprocess
import sys
from time import perf_counter

import numpy as np

from benchmarks.measure import Row

ROUNDS = 200


def measure() -> None:
    """In a process of its own: seconds of a fit, of 200 rounds of each method, and the peak memory in MB."""
    from coterie.data.datasets import fetch
    from coterie.data.prepare_table import prepare
    from coterie.engines import InProcess
    from coterie.methods.collaboration.fit import fit
    from coterie.methods.problem_and_estimates import GroupedProblem
    from coterie.relations.clusters import ClusterTree
    from coterie.runs.run_table_method import objective

    clients, _ = prepare(fetch("chem97"), "score ~ gcsecnt", "school", (), "gaussian", None, None, "error")
    problem = GroupedProblem(ClusterTree.of(clients), "gaussian", np.arange(2), 0)
    for corrected in (False, True):
        for rounds in ({"steps": ROUNDS}, {"steps": ROUNDS, "batch": 1, "eta": 0.05}):
            fed = InProcess(objective(clients, "gaussian"), ids=clients.ids)
            start = perf_counter()
            found = fit(fed, problem, rounds, corrected)
            seconds = perf_counter() - start
            if found.info["collaboration"]["status"] != "finished":
                raise SystemExit("a run did not finish")
            print(seconds, found.info["collaboration"]["collaborators"])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0)


def run() -> list[Row]:
    """The slowest of four runs, choice of collaborators and everything included."""
    code = "from benchmarks.main_clients import measure; measure()"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    seconds, peak = max(float(line.split()[0]) for line in out[:-1]), float(out[-1])
    return [
        Row(
            f"2,410 main clients, 10 collaborators each, {ROUNDS} rounds",
            f"{seconds:.1f} s, peak {peak:.0f} MB",
            "-",
            "with the choice of collaborators",
            "60 s, 1,000 MB",
            bool(seconds < 60.0 and peak < 1000.0),
        )
    ]
