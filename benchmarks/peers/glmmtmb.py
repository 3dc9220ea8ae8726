"""glmmTMB of R, with its defaults."""

from __future__ import annotations

from functools import cache

from benchmarks.peers.protocol import Answer, Problem, R, release_in_r

NAME = "glmmTMB"
SOLVES = ("one-level", "two-levels", "many-clients", "binomial", "poisson", "sites")


def release() -> str:
    return release_in_r("glmmTMB")


@cache
def session(folder: str, formula: str, family: str) -> R:
    setup = f"suppressWarnings(suppressMessages(library(glmmTMB))); d <- read.csv('{folder}/table.csv')"
    return R(setup, f"glmmTMB({formula}, d, family = {family})", "logLik(m), fixef(m)$cond")


def fit(problem: Problem) -> Answer:
    s = problem.settings
    right = " + ".join(s["columns"])
    random = right if s["slopes"] else "1"
    levels = [":".join(s["levels"][: k + 1]) for k in range(len(s["levels"]))]
    terms = [f"({random} | {level})" for level in levels]
    if s["slopes"] and s["covariance"] == "diagonal":
        terms = [f"diag{term}" for term in terms]
    formula = f"{s['outcome']} ~ {right} + {' + '.join(terms)}"
    seconds, likelihood, *fixed = session(problem.folder, formula, s["family"]).ask()
    return Answer(likelihood, fixed, seconds)
