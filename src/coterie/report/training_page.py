"""The report of methods that were trained: table, learning curves, accuracy of each client, who is with whom."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from coterie.errors import plural
from coterie.evidence.training_comparison import TrainingComparison
from coterie.options import unheeded
from coterie.report import training_figures as pictures
from coterie.report.page import page, write_page
from coterie.report.training_answer_and_notes import claim, headline, made, notes
from coterie.report.training_tables import comparison_table, confusion_table, growth_table, growths, settings_table
from coterie.runs.config import judged
from coterie.runs.config_keys import SECTIONS


def render(result: TrainingComparison) -> str:
    """A comparison, or one method, as an HTML page that needs no network and no other file."""
    grouping = [name for name, runs in result.runs.items() if all(r.group is not None for r in runs)]
    seen = growths(result)
    sizes = [plural(len(result.clients(result.best)[0]), "client"), plural(result.config.run["rounds"], "round")]
    sizes += [f"{len(result.config.run['seeds'])} seeds"] if len(result.config.run["seeds"]) > 1 else []
    return page(
        "training.html",
        question="Which method is best for these clients?" if len(result.runs) > 1 else "What was trained",
        headline=claim(result),
        reason=headline(result),
        methods={name: result.config.trainer(name).summary for name in map(str, result.table.index)},
        made=made(result),
        facts=[result.config.data["source"], result.config.model["path"], *sizes],
        comparison=comparison_table(result),
        hyper=settings_table(result),
        curves=pictures.curves(result),
        dots=[*([pictures.dots(result)] if result.known else []), *filter(None, [pictures.who_has_what(result)])],
        groups=[confusion_table(result, name) for name in grouping],
        squares=[figure for name in grouping if (figure := pictures.square(result, name)) is not None],
        growths=[growth_table(name, found) for name, found in seen.items()],
        gradients=[figure for one in seen.items() if (figure := pictures.gradients(*one)) is not None],
        notes=notes(result),
        sections=sections(result),
        several=len(result.runs) > 1,
    )


def write_report(result: TrainingComparison, path: str | os.PathLike[str]) -> None:
    """Write the page; a file that exists is replaced at once. A CoterieError where it cannot be written."""
    write_page(render(result), path)


def sections(result: TrainingComparison) -> list[tuple[str, Sequence[tuple[str, Any]]]]:
    """The configuration as lines, without what is empty, and what changed nothing beside the others."""
    document, config = result.config.document(*result.runs), result.config
    out: list[tuple[str, Sequence[tuple[str, Any]]]] = []
    for name in ("data", "model", "layout", "engine", "privacy", "run"):
        kept = document.get(name, {})
        idle = {*unheeded(SECTIONS[name], kept, kept)} if kept else set()
        idle |= {"validation"} if not (result.tried or judged(config.run)) else set()
        idle |= {"group"} if result.groups[0] is None else set()
        lines = [(k.replace("_", " "), v) for k, v in kept.items() if v not in (None, {}, []) and k not in idle]
        out += [(name, lines)] if lines else []
    return out
