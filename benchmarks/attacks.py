"""What a coordinator learns of rows that stay: membership and gradient inversion on heart, with and without each mode.

Hospitals hold rows of a logistic model, seven columns in standard units, and answer sums of gradients (the work of
dp-sgd). The attacker is the coordinator.

* Membership: it knows all rows of a hospital but one, and wants to know whether that one is there. It takes off what it
  knows (of other hospitals it guesses the mean row of this one), and looks how far what is left goes along the row's
  gradient. The area under the curve is over rows that are there, and rows that are not: 0.5 is a coin.
* Inversion: it knows how many rows there are and their outcomes, asks for sums at parameters of its choice, and fits
  rows that would have given them, by least squares from several starts. The error is the root mean square over columns,
  in standard deviations, of the best match; the guess that every row is the mean has about 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import least_squares, linear_sum_assignment
from scipy.special import expit

from coterie.data.datasets import fetch
from coterie.engines import InProcess
from coterie.engines.privacy import Private
from coterie.methods.dp_sgd import gradients
from coterie.numerics import keyed_random
from coterie.objectives.glm import GLM

CLIP, DELTA, ASKED, STARTS = 1.0, 1e-5, 12, 4
Ask = Callable[[GLM, int, np.ndarray, int], np.ndarray]
"""``ask(rows, hospital, parameters, seed)``: the sum that the coordinator sees."""


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns in standard units behind an intercept (n, 8), outcomes and hospitals (n,)."""
    table = fetch("heart").dropna(subset=["thalach", "exang", "oldpeak"])
    columns = [table[name].to_numpy(float) for name in ("age", "thalach", "oldpeak")]
    columns += [(table["sex"] == "Male").to_numpy(float), (table["exang"] == "yes").to_numpy(float)]
    columns += [(table["cp"] == level).to_numpy(float) for level in ("non-anginal", "asymptomatic")]
    X = np.stack(columns, axis=1)
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    return X, table["disease"].to_numpy(float), np.unique(table["hospital"], return_inverse=True)[1]


def held(X: np.ndarray, y: np.ndarray, who: np.ndarray) -> GLM:
    """The hospitals' objective."""
    order = np.argsort(who, kind="stable")
    stops = np.cumsum(np.bincount(who))
    starts = stops - np.bincount(who)
    return GLM(X[order], y[order], np.zeros(len(y)), np.ones(len(y)), starts, stops, "binomial")


def modes(exchanges: int) -> dict[str, Ask]:
    """By name; epsilon is for all exchanges of an attack together, and the noise can be repeated, for research."""

    def plain(o: GLM, hospital: int, w: np.ndarray, seed: int) -> np.ndarray:
        return np.asarray(InProcess(o).total(gradients, to=np.array([hospital]), w=w)["g"])

    def secure(o: GLM, hospital: int, w: np.ndarray, seed: int) -> np.ndarray:
        return np.asarray(InProcess(o).total(gradients, w=w)["g"])

    def noisy(unit: str, epsilon: float, among: bool) -> Ask:
        clip: Any = CLIP if unit == "row" else {"g": CLIP}

        def ask(o: GLM, hospital: int, w: np.ndarray, seed: int) -> np.ndarray:
            fed = Private(InProcess(o), clip=clip, epsilon=epsilon, rounds=exchanges, unit=unit, delta=DELTA, seed=seed)
            return np.asarray(fed.total(gradients, to=None if among else np.array([hospital]), w=w)["g"])

        return ask

    return {
        "plain": plain,
        "secure sums": secure,
        "rows hidden, epsilon 8": noisy("row", 8.0, False),
        "rows hidden, epsilon 1": noisy("row", 1.0, False),
        "rows hidden, epsilon 8, secure sums": noisy("row", 8.0, True),
        "clients hidden, epsilon 8": noisy("client", 8.0, False),
    }


def row_gradients(X: np.ndarray, y: np.ndarray, w: np.ndarray, clip: float) -> np.ndarray:
    """The gradient of every row (n, p), shortened to ``clip``."""
    g = (expit(X @ w) - y)[:, None] * X
    return g * np.minimum(1.0, clip / np.linalg.norm(g, axis=1))[:, None]


def membership(ask: Ask, clip: float, among: bool, trials: int = 120) -> float:
    """The area under the curve of the attack over ``trials`` rows, each of them once there and once not."""
    X, y, who = rows()
    chosen = keyed_random.generator(0, "membership", 0, 0).choice(len(y), trials, replace=False)
    w = np.zeros(X.shape[1])
    g, scores = row_gradients(X, y, w, clip), np.empty((trials, 2))
    for k, t in enumerate(chosen):
        own = who == who[t]
        known = g[own].sum(axis=0) - g[t]
        guess = known / (own.sum() - 1) * (~own).sum() if among else 0.0
        for there in (0, 1):
            keep = np.arange(len(y)) != (-1 if there else t)
            seen = ask(held(X[keep], y[keep], who[keep]), int(who[t]), w, 2 * k + there)
            scores[k, there] = (seen - known - guess) @ g[t] / (g[t] @ g[t])
    apart = scores[:, 1][:, None] - scores[:, 0]
    return float(np.mean((apart > 0.0) + 0.5 * (apart == 0.0)))


def inversion(ask: Ask, n: int, among: bool, trials: int = 6) -> float:
    """The median error of rows of hospitals that have ``n`` rows each, from sums at :data:`ASKED` parameters."""
    X, y, who = rows()
    errors = []
    for k in range(trials):
        rng = keyed_random.generator(0, "inversion", 0, k)
        some = np.concatenate([rng.choice(np.flatnonzero(who == h), n, replace=False) for h in range(4)])
        o, own = held(X[some], y[some], who[some]), some[:n]
        W = rng.normal(size=(ASKED, X.shape[1])) / np.sqrt(X.shape[1])
        seen = np.stack([ask(o, 0, w, 1000 * k + j) for j, w in enumerate(W)])
        target = y[some] if among else y[own]
        found = fitted(seen, W, target, rng)
        cost = np.sqrt(((X[own][:, None, 1:] - found[None]) ** 2).mean(axis=2))
        errors.append(cost[linear_sum_assignment(cost)].mean())
    return float(np.median(errors))


def fitted(seen: np.ndarray, W: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows (n, p) of outcomes y whose gradients at parameters W (T, p + 1) add up to what was seen."""
    n, p = len(y), W.shape[1] - 1

    def apart(flat: np.ndarray) -> np.ndarray:
        Z = np.column_stack([np.ones(n), flat.reshape(n, p)])
        sums = (expit(W @ Z.T) - y) @ Z
        return np.concatenate([(sums - seen).ravel(), 1e-3 * flat])  # a little towards the mean row

    tried = [least_squares(apart, rng.normal(size=n * p), max_nfev=60) for _ in range(STARTS)]
    return np.asarray(min(tried, key=lambda found: found.cost).x).reshape(n, p)


def table(trials: int = 120, repeats: int = 6) -> dict[str, tuple[float, float, float]]:
    """By mode: membership's area, and inversion's error with one row and with five rows at each hospital."""
    found = {}
    for name in modes(1):
        among = "secure" in name
        clip = np.inf if name in ("plain", "secure sums") else CLIP
        area = membership(modes(1)[name], clip, among, trials)
        found[name] = (area, *(inversion(modes(ASKED)[name], n, among, repeats) for n in (1, 5)))
    return found


def main() -> int:
    """Print the table."""
    print("| mode | membership, area | inversion, 1 row: error | inversion, 5 rows: error |\n|---|---|---|---|")
    for name, numbers in table().items():
        print("|", " | ".join([name, *(f"{value:.2f}" for value in numbers)]), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
