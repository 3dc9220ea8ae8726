"""Methods that learn who collaborates, on rotated digits: who finds the hidden groups, what for, and at what bytes.

``python -m benchmarks.who_collaborates [SEEDS]`` prints the table of docs/training.md. A seed makes the partition, the
first model and all draws. Every setting of a method is trained on three quarters of the training rows, and the one that
suits the others best is trained on all of them: test rows choose nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from coterie.numerics.arrays import Floats
from coterie.runs.config import Config
from coterie.runs.loop_and_callbacks import Callback, Look
from coterie.runs.training import Trained, train
from coterie.runs.training_problem import TrainingProblem

CLIENTS, GROUPS, ROUNDS = 16, 4, 100
SETTING: dict[str, dict[str, Any]] = {
    "data": {"source": "digits", "partition": "rotated", "clients": CLIENTS, "rows": 960, "test": 0.5},
    "model": {"path": "mlp", "args": {"sizes": [64, 32, 10]}},
    "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS},
}
STEPS, PASSES = {"eta": [0.5], "B": [0], "tau": [5]}, {"eta": [0.5], "B": [0], "E": [5]}
NETWORK = STEPS | {"network": [{"space": "model", "k": 3}]}
Grid = Mapping[str, Sequence[Any]]
METHODS: dict[str, tuple[str, Grid]] = {
    "local": ("local", PASSES),
    "FedAvg": ("fedavg", PASSES),
    "known groups": ("group-models", {"eta": [0.5], "B": [0], "E": [5]}),
    "IFCA, k = 4": ("ifca", STEPS | {"k": [4]}),
    "CFL": ("cfl", PASSES | {"eps1": [0.1, 0.2, 0.4], "eps2": [0.4, 0.8, 1.6]}),
    "found groups": ("found-groups", {"eta": [0.5], "B": [0], "E": [5]}),
    "FedSoft, k = 4": ("fedsoft", STEPS | {"k": [4], "lam": [0.02, 0.1, 0.5]}),
    "network lasso": ("similarity-network", NETWORK | {"lam": [0.01, 0.03, 0.1]}),
    "Laplacian smoothing": ("similarity-network", NETWORK | {"lam": [0.01, 0.1, 1.0], "squared": [True]}),
    "weighted averaging, k = 3": ("weighted-averaging", STEPS | {"k": [3]}),
    "FedAMP": ("fedamp", PASSES | {"lam": [0.05, 0.5], "alpha": [1.0], "sigma": [0.5, 2.0, 10.0]}),
    "HeurFedAMP": ("fedamp", PASSES | {"lam": [0.05, 0.5], "attention": ["cosine"], "sigma": [5.0, 20.0, 80.0]}),
    "FedFomo": ("fedfomo", PASSES | {"M": [5]}),
    "APPLE": ("apple", PASSES | {"eta": [0.5, 4.0], "eta_p": [0.001, 0.01]}),
    "pFedGraph": ("pfedgraph", PASSES | {"alpha": [0.1, 0.3, 0.8]}),
}


class Kept(Callback):
    """The last state of a run."""

    def look(self, look: Look) -> None:
        """Keep it."""
        self.state = look.state


def settings(grid: Grid) -> list[dict[str, Any]]:
    """All of a grid; of CFL's two bounds only those that go together."""
    every = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    return [one for one in every if "eps2" not in one or one["eps2"] == 4.0 * one["eps1"]]


def weights(state: Mapping[str, Any], n: int) -> Floats | None:
    """What a state says of how much clients hear each other (n, n), symmetric; None where it says nothing."""
    W = np.zeros((n, n))
    if "weights" in state:
        W = np.maximum(state["weights"], 0.0)
    elif "edges" in state:
        W[tuple(state["edges"].T)] = state["weight"]
    elif "pair_main" in state:
        W[state["pair_main"], state["pair_client"]] = state["tau"]
    else:
        return None
    W = (W + W.T) * (1.0 - np.eye(n))
    return W if W.any() else None


def agreement(run: Trained, state: Mapping[str, Any], group: Any) -> float:
    """Adjusted Rand index of the groups that a method found, or of its weights by spectral clustering; else NaN."""
    from sklearn.cluster import SpectralClustering
    from sklearn.metrics import adjusted_rand_score

    if run.group is not None:
        return float(adjusted_rand_score(group, run.group))
    if (W := weights(state, len(group))) is None:
        return float("nan")
    found = SpectralClustering(GROUPS, affinity="precomputed", random_state=0).fit_predict(W + 1e-9)
    return float(adjusted_rand_score(group, found))


def best(inside: TrainingProblem, name: str, grid: Grid) -> dict[str, Any]:
    """The setting with the highest accuracy on rows held back, of those the one with the least loss."""
    every = settings(grid)
    if len(every) == 1:
        return every[0]
    runs = [train(inside, name, one) for one in every]
    judged = [(np.nanmean(run.scores.score), -np.nanmean(run.scores.loss)) for run in runs]
    return every[max(range(len(every)), key=lambda j: judged[j])]


def measure(seed: int) -> dict[str, tuple[float, ...]]:
    """Accuracy, adjusted Rand index, and MB up and down of every method."""
    problem = TrainingProblem.of(Config.of(SETTING), seed)
    inside, found = problem.inside(), {}
    for title, (name, grid) in METHODS.items():
        kept, setting = Kept(), best(inside, name, grid)
        run = train(problem, name, setting, [kept])
        up, down = (run.ledger[key] / 1e6 for key in ("bytes_up", "bytes_down"))
        rand = float("nan") if name == "group-models" else agreement(run, kept.state, problem.data.group)
        found[title] = float(np.mean(run.scores.score)), rand, up, down
        print(seed, title, setting, found[title], file=sys.stderr)
    return found


def main(seeds: int = 2) -> None:
    """Print the table."""
    found = [measure(seed) for seed in range(seeds)]
    print("| | accuracy | adjusted Rand index | MB up | MB down |\n|---|---|---|---|---|")
    for title in METHODS:
        accuracy, rand, up, down = np.array([one[title] for one in found]).T
        said = "" if np.isnan(rand).all() else f"{rand.mean():.2f} ({rand.min():.2f} to {rand.max():.2f})"
        score = f"{100 * accuracy.mean():.1f}% ({100 * accuracy.min():.1f} to {100 * accuracy.max():.1f})"
        print(f"| {title} | {score} | {said} | {up.mean():.1f} | {down.mean():.1f} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
