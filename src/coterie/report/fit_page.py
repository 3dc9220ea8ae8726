"""One self-contained page from a result: no network, no script, the same bytes for the same result."""

from __future__ import annotations

import math
import os
from typing import Any

from coterie.errors import fitting, plural
from coterie.methods.registry import METHODS
from coterie.report import fit_figures, tables, words
from coterie.report.method_section import method_section
from coterie.report.page import page, write_page
from coterie.results.fit_result import FitResult

ELSEWHERE = ("rounds", "collaboration", "network", "training", "outcome")
"""Records that a section of their own, or the fingerprint, says."""


def render(result: FitResult) -> str:
    """A result as one HTML page, under 2 MB whatever the number of clients.

    Tables are cut, and say so; pictures have a bounded number of parts.
    """
    with fitting("The record of the model", "Fit it again for a report."):
        compared, m = not result.comparison.empty, result.model
        cluster, summary = words.centre(m), result.summary()
        return page(
            "report.html",
            result=result,
            question=f"Which model is best for every {words.one(m.client_name)}?",
            headline=words.headline(result),
            loses=words.who_loses(result),
            facts=facts(result),
            tiles=tiles(result) if compared else [],
            comparison=tables.comparison_table(result) if compared else None,
            methods={k: METHODS[k].summary for k in result.comparison.index if k in METHODS} if compared else {},
            gains=fit_figures.gain_figures(result),
            extremes=None if result.client_gains.empty else tables.extremes_table(result),
            shrinkage=fit_figures.shrinkage_figures(result),
            variances=words.variance_sentences(result) if m.has_variances else [],
            variance_table=tables.variance_table(summary) if m.has_variances else None,
            coefficients=[tables.coefficient_table(summary), *([tables.cluster_table(result)] if cluster else [])],
            section=method_section(result),
            checks=result.fit_check.get("findings", []),
            residuals=fit_figures.qq_figure(result),
            notes=result.notes,
            made=made(result),
            sections=[("Settings", settings(result)), ("Record", record(result))],
            one=words.one(m.client_name),
            many=words.several(m.client_name),
            group=words.one(cluster) if cluster else "",
        )


def write_report(result: FitResult, path: str | os.PathLike[str]) -> None:
    """Write the page; a file that exists is replaced at once. A CoterieError where it cannot be written."""
    write_page(render(result), path)


def facts(result: FitResult) -> list[str]:
    """What was fitted, in a line of short parts."""
    m = result.model
    sizes = [words.counted(len(m.labels), m.client_name)]
    sizes += [words.counted(len(v.labels), v.name) for v in m.levels]
    if not result.client_gains.empty:
        sizes.insert(0, plural(int(result.client_gains["rows"].sum()), "row"))
    return [result.formula, " in ".join(sizes), result.family]


def tiles(result: FitResult) -> list[tuple[str, str, str]]:
    """The few numbers to remember: value, what it is, and a remark."""
    table, client = result.comparison, result.model.client_name
    out: list[tuple[str, str, str]] = []
    for other in ("local", "pooled") if result.recommended in table.index else ():
        if other == result.recommended or other not in table.index:
            continue
        best: Any = table.loc[result.recommended]
        name = words.against(other, client)
        gain, low, high = (float(best[f"gain_over_{other}{end}"]) for end in ("", "_low", "_high"))
        places, remarks = words.decimals([gain], 3), []
        if math.isfinite(low) and math.isfinite(high):
            sure = "" if low > 0 or high < 0 else ": perhaps nothing"
            remarks.append(f"95% interval {words.fixed(low, places)} to {words.fixed(high, places)}{sure}")
        median = float(result.client_gains[f"gain_over_{other}"].median()) if len(result.client_gains) else math.nan
        if math.isfinite(median):
            remarks.append(f"the median {words.one(client)} gains {words.number(median)}")
        value = ("+" if gain > 0 else "") + words.fixed(gain, places)
        out.append((value, f"mean gain in {result.loss} over {name}", "; ".join(remarks)))
        share = words.percent(float(best[f"better_than_{other}"]))
        out.append(
            (share, f"of {words.several(client)} better off than with {name}", "on held-out rows, noise included")
        )
    return out


def made(result: FitResult) -> list[str]:
    """How it was made, in sentences: the rows methods were compared on, how the model was fitted, how long it took."""
    chosen, cost, out = result.settings, result.ledger, list[str]()
    if not result.comparison.empty and {"splits", "test_fraction"} <= set(chosen):
        share, one = words.percent(float(chosen["test_fraction"])), words.one(result.model.client_name)
        times, drawn = plural(int(chosen["splits"]), "time"), f"drawn by seed {chosen.get('seed', 0)}"
        without = f"{times} without {share} of every {one}'s rows, and judged by these; the rows were {drawn}"
        if chosen.get("order_by"):
            without = (
                f"once without the latest {share} of every {one}'s rows by '{chosen['order_by']}', judged by these"
            )
        if chosen.get("given_split"):
            without = f"once without the rows that '{chosen['given_split']}' holds out, and judged by these"
        out.append(f"Each method was fitted {without}, the same for every method.")
    how = "restricted likelihood" if result.reml else "likelihood"
    by = f", by {how}" if math.isfinite(result.log_likelihood) else ""
    out.append(f"The model of this page, {result.method}, was then fitted on all rows{by}.")
    if "seconds" in cost:
        compiling = float(cost.get("compiling", 0.0))
        text = f"All of it took {words.duration(max(float(cost['seconds']) - compiling, 0.0))}"
        again = f", and {words.duration(compiling)} to compile its kernels, which the next run finds compiled"
        out.append(f"{text}{again if compiling >= 0.05 else ''}.")
    return out


def settings(result: FitResult) -> list[tuple[str, Any]]:
    """Settings as lines, without those that were not used; reasons get a line for each part."""
    out: list[tuple[str, Any]] = []
    for key, value in result.settings.items():
        if value is None or key in ELSEWHERE:
            continue
        name = str(key).replace("_", " ")
        if isinstance(value, dict) and len(value) <= 12 and any(len(str(v)) > 20 for v in value.values()):
            out += [(f"{name}: {str(k).replace('_', ' ')}", v) for k, v in value.items()]
        else:
            out.append((name, value))
    return out


def record(result: FitResult) -> list[tuple[str, str]]:
    """What the run cost, and what it was made with."""
    cost = result.ledger
    out = list[tuple[str, str]]()
    if {"bytes_up", "bytes_down", "exchanges"} <= set(cost):
        up, down = (words.amount(float(cost[k])) for k in ("bytes_up", "bytes_down"))
        one, many = words.one(result.model.client_name), words.several(result.model.client_name)
        sent = f"{up} from the {many} and {down} to them, in {plural(int(cost['exchanges']), 'exchange')}, "
        out.append(("would have travelled", f"{sent}if each {one} kept its rows at home"))
    if cost.get("gradient_calls"):
        out.append(("gradients", f"{int(cost['gradient_calls']):,}"))
    if result.log_likelihood == result.log_likelihood:
        kind = "restricted log-likelihood" if result.reml else "log-likelihood"
        out.append((kind, words.number(result.log_likelihood, 7)))
        if result.parameters is not None:
            out.append(("AIC, BIC", f"{words.number(result.aic, 6)}, {words.number(result.bic, 6)}"))
    if result.data_fingerprint:
        out.append(("data fingerprint", result.data_fingerprint))
    if result.versions:
        out.append(("versions", ", ".join(f"{k} {v}" for k, v in result.versions.items())))
    return out
