"""lme4 of R: ``lmer`` and ``glmer`` with their defaults."""

from __future__ import annotations

from functools import cache

from benchmarks.peers.protocol import Answer, Problem, R, release_in_r

NAME = "lme4"
SOLVES = ("one-level", "two-levels", "many-clients", "binomial", "poisson", "sites")


def release() -> str:
    return release_in_r("lme4")


@cache
def session(folder: str, formula: str, family: str) -> R:
    call = f"lmer({formula}, d, REML = FALSE)" if family == "gaussian" else f"glmer({formula}, d, family = {family})"
    setup = f"suppressMessages(library(lme4)); d <- read.csv('{folder}/table.csv')"
    return R(setup, call, "logLik(m), fixef(m)")


def fit(problem: Problem) -> Answer:
    s = problem.settings
    right = " + ".join(s["columns"])
    random, bar = (right, "|" if s["covariance"] == "full" else "||") if s["slopes"] else ("1", "|")
    levels = [":".join(s["levels"][: k + 1]) for k in range(len(s["levels"]))]
    formula = f"{s['outcome']} ~ {right} + {' + '.join(f'({random} {bar} {level})' for level in levels)}"
    seconds, likelihood, *fixed = session(problem.folder, formula, s["family"]).ask()
    return Answer(likelihood, fixed, seconds)
