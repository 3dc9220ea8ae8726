"""CCMM (R package CCMMR): convex clustering by majorisation.

At its defaults it stops 1.4e-4 above the minimum. Settings here are the coarsest of a grid that have the gap asked for.
"""

from __future__ import annotations

from functools import cache

from benchmarks.peers.protocol import Answer, Problem, R, release_in_r

NAME = "CCMM"
SOLVES = ("clustering", "clustering-large")


def release() -> str:
    return release_in_r("CCMMR")


@cache
def session(folder: str, weight: float, tolerance: float) -> R:
    setup = (
        "suppressMessages(library(CCMMR));"
        f"V <- as.matrix(read.csv('{folder}/V.csv')); e <- as.matrix(read.csv('{folder}/edges.csv')) + 1;"
        "keys <- rbind(e, e[, 2:1]); keys <- keys[order(keys[, 2], keys[, 1]), ]; dimnames(keys) <- NULL;"
        "W <- structure(list(keys = keys, values = rep(1, nrow(keys))), class = 'sparseweights');"
        f"loss <- function(Z) sum((Z - V)^2) / 2 + {weight} * sum(sqrt(rowSums((Z[e[, 1], ] - Z[e[, 2], ])^2)))"
    )
    fit = (
        f"convex_clusterpath(V, W, {weight}, center = FALSE, scale = FALSE, eps_conv = {tolerance}, tau = 1e-5,"
        "burnin_iter = 100000, max_iter_conv = 100000, save_clusterpath = TRUE)"
    )
    return R(setup, fit, "loss(matrix(m$coordinates, nrow(V)))")


def fit(problem: Problem) -> Answer:
    seconds, loss = session(problem.folder, problem.settings["weight"], 1e-9).ask()
    return Answer(loss, [], seconds)
