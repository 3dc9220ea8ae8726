"""pda of R: the one-shot linear mixed model (DLMM) by its own functions; their source is where PDA says."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from benchmarks.peers.protocol import Answer, Problem, R

NAME = "pda"
SOLVES = ("sites",)


def release() -> str:
    return re.search(r"^Version: (.+)$", Path(os.environ["PDA"], "DESCRIPTION").read_text(), re.M)[1]


@cache
def session(folder: str, outcome: str, column: str, site: str) -> R:
    own = Path(os.environ["PDA"], "R", "dlmm.R")
    setup = f"library(minqa); source('{own}'); d <- read.csv('{folder}/table.csv'); X <- cbind(1, d${column})"
    fit = (
        f"S <- lmm.get.summary(d${outcome}, X, X, id.site = d${site});"
        "lmm.fit(SiXYZ = S, reml = FALSE, hessian = FALSE, verbose = 0)"
    )
    return R(setup, fit, "m$res.profile$lk, m$b")


def fit(problem: Problem) -> Answer:
    s = problem.settings
    seconds, likelihood, *fixed = session(problem.folder, s["outcome"], s["columns"][0], s["levels"][0]).ask()
    return Answer(likelihood, fixed, seconds)
