"""A-level chemistry, 31,022 pupils in 2,410 schools in 131 local authorities: lme4 of R against coterie.fit."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import coterie
from benchmarks.measure import Row, median_seconds, skipped
from coterie.data.datasets import fetch

FITS = {
    "gaussian": ("score ~ gcsecnt", (), 50.0, "Chem97, intercept and slope at both levels, REML"),
    "binomial": (
        "high ~ gcsecnt",
        ("gcsecnt",),
        40.0,
        "Chem97, score >= 8, logistic, intercepts at both levels, Laplace",
    ),
}


def run() -> list[Row]:
    """Both fits, if R and lme4 are there."""
    table = fetch("chem97").assign(high=lambda d: (d["score"] >= 8).astype(int))
    rows = []
    for family, (formula, shared, goal, work) in FITS.items():

        def fit(family: str = family, formula: str = formula, shared: tuple[str, ...] = shared) -> coterie.FitResult:
            options = {"family": family, "shared": shared, "covariance": "diagonal", "method": "hierarchical"}
            return coterie.fit(table, formula, "school", "lea", splits=0, **options)

        reference = _lme4(table, family)
        if reference is None:
            rows.append(skipped(work, "lme4 is not installed (Debian: r-cran-lme4)"))
            continue
        seconds, likelihood = reference
        ours = median_seconds(fit)
        result = fit()
        ratio = seconds / ours
        rows.append(
            Row(
                work,
                f"{ours * 1e3:.1f} ms, log-likelihood {result.log_likelihood:.4f}",
                f"lme4 {seconds:.2f} s (user and system), {likelihood:.4f}",
                f"{ratio:.0f} times faster",
                f"{goal:.0f} times",
                ratio >= goal and result.log_likelihood >= likelihood - 1e-3,
            )
        )
    return rows


def _lme4(table, family):  # type: ignore[no-untyped-def]
    if shutil.which("Rscript") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chem97.csv"
        table.to_csv(path, index=False)
        script = Path(__file__).with_name("lme4.R")
        done = subprocess.run(["Rscript", script, path, family], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    seconds, likelihood = map(float, done.stdout.split())
    return seconds, likelihood
