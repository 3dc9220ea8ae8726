"""statsmodels: ``mixedlm`` and ``GLM`` with their defaults, from the formula on."""

from __future__ import annotations

from importlib.metadata import version

from benchmarks.peers.protocol import Answer, Problem

NAME = "statsmodels"
SOLVES = ("one-level", "glm")


def release() -> str:
    return version("statsmodels")


def fit(problem: Problem) -> Answer:
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    s, table = problem.settings, problem.table()
    right = " + ".join(s["columns"])
    formula = f"{s['outcome']} ~ {right}"
    if problem.name == "glm":
        found = smf.glm(formula, table, family=sm.families.Binomial()).fit()
        return Answer(float(found.llf), list(found.params))
    found = smf.mixedlm(formula, table, groups=s["levels"][0], re_formula=f"~{right}").fit(reml=False)
    return Answer(float(found.llf), list(found.fe_params))
