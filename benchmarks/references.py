"""Every stored lme4 fit against ours: fixed effects, standard deviations, log-likelihood, random effects."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import coterie
from benchmarks.measure import Row
from coterie.data.datasets import fetch

FOLDER = Path(__file__).parents[1] / "tests" / "reference" / "lme4"

NESTED = ("score ~ gcsecnt", "school", "lea")
FITS = {
    "sleepstudy_reml": ("sleepstudy", ("Reaction ~ Days", "Subject", ()), {}),
    "sleepstudy_ml": ("sleepstudy", ("Reaction ~ Days", "Subject", ()), {"reml": False}),
    "hsb82_reml_diag": ("hsb82", ("mAch ~ cses", "school", ()), {}),
    "hsb82_reml_full": ("hsb82", ("mAch ~ cses", "school", ()), {"covariance": "full"}),
    "hsb82_sector_reml_full": (
        "hsb82",
        ("mAch ~ cses + catholic + cses:catholic", "school", ()),
        {"covariance": "full"},
    ),
    "chem97_nested_reml_diag": ("chem97", NESTED, {}),
    "chem97_nested_ml_diag": ("chem97", NESTED, {"reml": False}),
    "chem97_high_laplace": (
        "chem97",
        ("high ~ gcsecnt", "school", "lea"),
        {"family": "binomial", "shared": ("gcsecnt",)},
    ),
}


def run() -> list[Row]:
    """One row for each stored fit."""
    return [_row(name, *FITS[name]) for name in FITS]


def _row(name: str, data: str, model: tuple, more: dict) -> Row:
    theirs = json.loads((FOLDER / f"{name}.json").read_text())
    tight = FOLDER / f"{name}_tight.json"  # two of lme4's runs stopped early: see tests/reference/test_lme4.py
    theirs |= json.loads(tight.read_text()) if tight.exists() else {}
    table = fetch(data)
    if "sector" in table:
        table["catholic"] = (table["sector"] == "Catholic").astype(float)
    if "score" in table:
        table["high"] = (table["score"] >= 8).astype(int)
    options = {"covariance": "diagonal", "method": "hierarchical", "splits": 0} | more
    ours = coterie.fit(table, *model, **options)
    gaussian = ours.family == "gaussian"
    fixed = ours.global_coefficients["estimate"].to_numpy()
    error = np.abs(fixed - theirs["fixef"])
    worst = np.minimum(error / np.abs(theirs["fixef"]) / 1e-4, error / np.array(theirs["se"]) / 1e-3).max()
    sd = _deviations(ours, theirs)
    likelihood = abs(ours.log_likelihood - theirs["logLik"]) / (1e-3 if gaussian else 1e-2)
    effects = _effects(ours, theirs)
    reached = max(worst, sd / 1e-3, likelihood, effects / 1e-3)
    detail = f"fixed {worst:.1e}, s.d. {sd / 1e-3:.1e}, log-lik. {likelihood:.1e}, random {effects / 1e-3:.1e}"
    reference = f"lme4 {theirs['lme4']}{' (tight)' if tight.exists() else ''}"
    return Row(
        name, f"log-likelihood {ours.log_likelihood:.6f}", reference, f"{detail} of tolerance", "1", reached <= 1
    )


def _deviations(ours: coterie.FitResult, theirs: dict) -> float:
    """Largest relative difference of a standard deviation (correlations: absolute)."""
    mine = ours.variance_components
    where = {"Residual": "residual", "lea": "cluster"}
    worst = 0.0
    columns = (theirs[f"vc_{k}"] for k in ("group", "term", "term2", "sd_or_cor"))
    for group, term, term2, value in zip(*columns, strict=True):
        base = group.replace(".1", "")
        level = where.get(base, "client")
        here = mine[(mine["level"] == level) & (mine["term"] == term) & (mine["term2"] == (term2 or ""))]
        got = float(here["sd"].iloc[0])
        worst = max(worst, abs(got - value) / (1.0 if term2 else abs(value)))
    return worst


def _effects(ours: coterie.FitResult, theirs: dict) -> float:
    """Largest difference of a random effect, in standard deviations of that effect."""
    m = ours.model
    clients = dict(zip(map(str, m.labels), range(len(m.labels)), strict=True))
    above = m.nodes[0][m.clusters] if m.nodes else np.tile(m.root, (len(m.labels), 1))
    worst = 0.0
    for group, part in theirs["ranef"].items():
        values = np.reshape(part["values"], (len(part["levels"]), -1))
        columns = [m.terms.index(c) for c in part["columns"]]
        if group == "lea":
            known = dict(zip(map(str, m.levels[0].labels), range(len(m.levels[0].labels)), strict=True))
            mine, D = (m.nodes[0] - m.root)[[known[v] for v in part["levels"]]], m.D_levels[0]
        else:
            rows = [clients[v.split(":")[-1]] for v in part["levels"]]
            mine, D = (m.client - above)[rows], m.D_client[0]
        sd = np.sqrt(np.diag(D))[columns]
        worst = max(worst, float(np.max(np.abs(mine[:, columns] - values) / sd)))
    return worst
