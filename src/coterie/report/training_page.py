"""The report of methods that were trained: table, learning curves, accuracy of each client, who is with whom."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from coterie.errors import joined, listed, plural
from coterie.evidence.training_comparison import TrainingComparison
from coterie.evidence.training_selection import private_enough
from coterie.methods.groups.group_gradients import ROWS, Growth
from coterie.methods.registry import TRAINED
from coterie.options import unheeded
from coterie.relations.clusters import adjusted_rand_index
from coterie.report import training_figures as pictures
from coterie.report import words
from coterie.report.page import page, write_page
from coterie.report.tables import Table, but_for, with_interval
from coterie.runs.config import AUTO, judged
from coterie.runs.config_keys import SECTIONS
from coterie.runs.metrics import BALANCED, LOSS, METRICS
from coterie.runs.scores_over_clients import RARE
from coterie.runs.training import Trained

GROUPS = 24
"""A table has so many groups at most."""


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


def comparison_table(result: TrainingComparison) -> Table:
    """All methods, best first: scores with intervals, paired differences to the best, what was sent.

    Accuracies and their differences are in percent.
    """
    frame, score = result.table, result.score
    names = [str(name) for name in frame.index]
    shown = _shown(result)
    if not result.known:
        return Table.of("What was trained", [("method", names), *_costs(frame)], note=headline(result))
    tail = "10th percentile" if result.rule.sign > 0 else "90th percentile"
    columns = [("method", names)]
    for column in (score, *(["to_best"] if len(names) > 1 else []), *result.others):
        title = f"{named(column)}{', %' if percent(column) else ''} (95% interval)"
        cells = with_interval(frame, column, _shown(result, score if column == "to_best" else column))
        if column == "to_best":
            title, cells = f"against {result.best} (95% interval)", but_for(result.best, frame, cells)
        columns.append((title, cells))
    for key, title in (("clients", "over clients"), ("worst", "worst client"), (tail[:4], tail)):
        columns.append((title, [shown(v) for v in frame[f"{score}_{key}"]]))
    for key, title in (("variance", "variance"), ("jain", "Jain's index")) if result.config.model["metrics"] else ():
        columns.append((title, [words.number(v, 3) for v in frame[f"{score}_{key}"]]))
    columns += _costs(frame)
    return Table.of(
        f"Held-out {named(score)} of every client's model",
        columns,
        marked=names.index(result.best) if len(names) > 1 else None,
        note=" ".join([intervals(result), *meanings(result), f"Configuration {result.fingerprint}."]),
    )


def _costs(frame: pd.DataFrame) -> list[tuple[str, list[str]]]:
    sent = [words.amount(v) if np.isfinite(v) else "all rows" for v in frame["bytes"]]
    return [("sent", sent), ("seconds", [words.number(v, 2) for v in frame["seconds"]])]


def named(what: str) -> str:
    """A score as it is written."""
    if what not in METRICS:
        return what
    name, _, target = what.partition(":")
    name = name.upper() if len(name) < 4 else name.replace("_", " ").replace("f1", "F1")
    return f"{name} of {target}" if target else name


def meanings(result: TrainingComparison) -> list[str]:
    """What each metric that was chosen is, which way is better, and how many clients count: a sentence each."""
    out, first = [], next(iter(result.runs.values()))
    for name in result.config.model["metrics"]:
        if metric := METRICS.get(name):
            which = "higher" if metric.greater else "lower"
            seen, all_ = (sum(int(run.scores.having(one).sum()) for run in first) for one in (name, LOSS))
            some = "all clients count" if seen == all_ else f"{seen:,} of {all_:,} clients count, of all seeds"
            out.append(f"{named(name)[0].upper()}{named(name)[1:]}: {metric.text}; {which} is better; {some}.")
    if out:
        out.append("Over rows, a metric is of all clients' rows together, each with its own client's model.")
        out.append("Variance and Jain's index are over clients: 0 and 1 where all have the same.")
    return out


def percent(what: str) -> bool:
    """Whether something is a share of outcomes, whose names no score of the user's own has."""
    return what.partition(":")[0] in ("accuracy", BALANCED)


def _shown(result: TrainingComparison, what: str = "") -> Callable[[float], str]:
    """How a score is written."""
    if percent(what or result.score):
        return lambda value: words.fixed(100.0 * value, 1)
    return lambda value: words.number(value, 4)


def intervals(result: TrainingComparison) -> str:
    """What the intervals are of, and why methods are not judged by the score, where they are not."""
    seeds, rule = len(result.config.run["seeds"]), result.rule
    text = "One seed: intervals are over its clients, or groups that are known, and say nothing of other seeds."
    if seeds > 1:
        text = (
            f"Means over {seeds} seeds with intervals over clients, or known groups, and seeds; a seed makes partition,"
        )
        text += " first model and draws, the same for every method."
    if not rule.score or rule.by != "loss":
        why = ""
    elif rule.score == "accuracy" and rule.common >= RARE:
        why = f" One class has {words.fixed(100.0 * rule.common, 1)}% of the outcomes, so that always naming it is"
        why += " right as often: methods are ordered by their loss, and balanced accuracy is the mean over classes."
    elif rule.greater is not None:
        why = f" No method's {rule.score} is a number for all clients: methods are ordered by their loss."
    else:
        why = f" Whether a larger {rule.score} is better is not said (model.greater_is_better): methods are ordered by"
        why += " their loss."
    return f"{text}{why} Rows count alike, except over clients, where each client does."


def settings_table(result: TrainingComparison) -> Table:
    """Hyper-parameters of each method."""
    rows = []
    for name in map(str, result.table.index):
        among = result.tried.get(name)
        rows.append((name, result.table["chosen"][name], str(among) if among else "–"))
    note = "Where there were several settings, each seed took the one that was best on training rows that were held out"
    note = f"{note} for this choice alone; test rows chose nothing." if result.tried else ""
    return Table("Hyper-parameters", ("method", "hyper-parameters", "chosen among"), tuple(rows), texts=2, note=note)


def headline(result: TrainingComparison) -> str:
    """The answer in one sentence."""
    if not result.known:
        return f"{result.best} was trained on all rows: none is held out, so that its models have no scores."
    best, value = result.best, result.interval(result.best)[0]
    if not np.isfinite(value):
        who = "No method has a" if len(result.runs) > 1 else f"{best} has no"
        return f"{who} finite {named(result.score)} on held-out rows: take smaller steps (eta), or scale the inputs."
    shown, share = _shown(result), percent(result.score)
    size = f"{shown(value)}%" if share else shown(value)
    letters = "aeioufmrAFMR" if result.score in METRICS else "aeiou"  # an F1, an MSE, an R2
    what = f"{'an' if result.score[0] in letters else 'a'} {named(result.score)}"
    text = f"{best} has {what} of {size} on held-out rows"
    if len(result.runs) == 1:
        return f"{text}."
    far = [name for name in ("local", "pooled") if name in result.runs and name != best]
    points = f"{' points' if share else ''} {'above' if result.rule.sign > 0 else 'below'}"
    against = [f"{shown(abs(result.interval(name, best)[0]))}{points} {name}" for name in far]
    text += f", {' and '.join(against)}" if against else ""
    if tied := as_good(result):
        text += f"; {joined(tied)} may be as good"
    return f"{text}."


def claim(result: TrainingComparison) -> str:
    """The same in at most ``words.WORDS`` words: without what may be as good where that makes it longer."""
    text = headline(result)
    return text if len(text.split()) <= words.WORDS else f"{text.partition(';')[0].rstrip('.')}."


def made(result: TrainingComparison) -> list[str]:
    """How it was made, in sentences: which rows methods were judged by, and how long it took."""
    run, data, out = result.config.run, result.config.data, list[str]()
    if result.known and data["given_split"] is None:
        times = "once" if len(run["seeds"]) == 1 else f"{len(run['seeds'])} times, each from a seed of its own,"
        share = words.percent(data["test"])
        out.append(f"Each method was trained {times} without {share} of every client's rows, and judged by these.")
    every = [one for runs in result.runs.values() for one in runs]
    compiling = sum(float(one.ledger.get("compiling", 0.0)) for one in every)
    took = words.duration(max(sum(one.seconds for one in every) - compiling, 0.0))
    again = f", and {words.duration(compiling)} to compile kernels, which the next run finds compiled"
    return [*out, f"Training took {took}{again if compiling >= 0.05 else ''}."]


def as_good(result: TrainingComparison) -> list[str]:
    """Methods whose interval of the difference to the best one holds 0."""
    ends = {name: result.interval(name, result.best)[1:] for name in result.runs if name != result.best}
    return [name for name, (low, high) in ends.items() if low <= 0.0 <= high]


def notes(result: TrainingComparison) -> list[str]:
    """What went wrong, and what was left out: one sentence each."""
    out, config = [], result.config
    without = [name for name, method in TRAINED.items() if config.private and not private_enough(config, method)]
    if without and len(result.runs) > 1:
        out.append(f"Not compared, since [privacy] does not let them train: {joined(without)}.")
    if config.method == AUTO and not config.compare and len(result.runs) > 1:
        out.append("A few methods of each relation that is given were tried: methods='all' (--methods all) tries all.")
    if (positive := config.model["positive"]) is not None:
        out.append(f"F1 takes {positive} for the positive class: option positive names another.")
    for runs in result.runs.values():
        out += [f"Seed {run.seed}: {run.trouble}" for run in runs if run.trouble]
        out += [f"{run.method}: {run.privacy['statement']}" for run in runs if run.privacy]
        if judged(config.run):
            kept = listed([f"{run.kept} of {run.rounds}" for run in runs])
            several = (
                f"rounds {kept} (seeds {listed([run.seed for run in runs])})" if len(runs) > 1 else f"round {kept}"
            )
            out.append(
                f"{runs[0].method}: the models kept are those of {several}, best on rows held back to choose by."
            )
        out += [f"{run.method}: {note}" for run in runs for note in run.notes]
        for k, run in enumerate(runs):
            found = Growth.of(run.curve)
            said = found.sentences()[k > 0 :] if found else []  # that of the first seed, and who is left behind in any
            out += [f"Seed {run.seed}: {run.method}: {sentence}" for sentence in said]
            out += unscored(run)
            for why in dict.fromkeys(reason for _, reason in run.quarantined.values()):
                who = [words.short(label) for label, (_, reason) in run.quarantined.items() if reason == why]
                out.append(f"Seed {run.seed}: {run.method} left out, for {why}, client {listed(who)}.")
    return list(dict.fromkeys(out))


def unscored(run: Trained) -> list[str]:
    """Clients that are in no score, and those whose loss or score is not finite, named."""
    scores = run.scores
    if not scores.known:
        return []
    counted, finite = scores.weight > 0.0, np.isfinite(scores.loss)
    found = [
        ("no score has client {}, without held-out rows that are all finite", ~counted),
        (f"the loss of {run.method} is not finite at client {{}}", counted & ~finite),
    ]
    if scores.score is not None:
        without = scores.having(scores.rule.score) & finite & ~np.isfinite(scores.score)
        found.append((f"the {named(scores.rule.score)} of {run.method} is not a number at client {{}}", without))
    for name in scores.metrics:
        undefined = f"{named(name)} is undefined for client {{}}, with held-out rows {METRICS[name].without}"
        found.append((f"{undefined}: means over clients leave that out", counted & ~scores.having(name)))
    who = {text: [words.short(run.labels[i]) for i in np.flatnonzero(those)] for text, those in found}
    return [f"Seed {run.seed}: {text.format(listed(labels))}." for text, labels in who.items() if labels]


def confusion_table(result: TrainingComparison, name: str) -> Table:
    """Found groups of a method against the known ones, of the first seed; and how well they agree in every seed."""
    pairs = [(r.group, k) for r, k in zip(result.runs[name], result.groups, strict=True)]
    found, known = pairs[0]
    if known is None:
        sizes = np.unique(found, return_counts=True)
        rows = tuple((f"group {g + 1}", f"{n:,}") for g, n in zip(*sizes, strict=True))
        note = f"No groups are known.{' All clients are in one group: one model serves all.' * (len(rows) == 1)}"
        return Table(f"Groups that {name} found", ("found", "clients"), rows, note=note)
    table = np.zeros((int(found.max()) + 1, int(known.max()) + 1), dtype=np.int64)
    np.add.at(table, (found, known), 1)
    some = np.flatnonzero(table.sum(axis=1))
    counted = tuple((f"group {g + 1}", *(f"{v:,}" for v in table[g])) for g in some)
    rand = ", ".join(f"{adjusted_rand_index(f, k):.2f}" for f, k in pairs if k is not None)
    columns = ("found", *(f"known {k + 1}" for k in range(table.shape[1])))
    note = f"Clients, of the first seed. Adjusted Rand index of every seed: {rand}; 1 is all right, 0 is chance."
    return Table(f"Groups that {name} found, and known ones", columns, counted, note=note)


def growth_table(name: str, found: Growth) -> Table:
    """Stationarity, noise and the constant of the growth condition of every group, of the first seed."""
    order = np.sort(np.argsort(-found.constant, kind="stable")[:GROUPS])
    columns = [("group", [f"group {g + 1}" for g in order])]
    for title, values in (
        ("squared gradient at first", found.gradient[0]),
        ("in the end", found.gradient[-1]),
        ("noise in the end", found.noise[-1]),
        ("M in the end", found.now[-1]),
        ("largest M", found.constant),
    ):
        columns.append((title, [words.number(float(values[g]), 3) for g in order]))
    note = "Of the first seed. Squared gradients are of the groups' own mean losses; noise is the variance of their"
    note += " stochastic gradients, 0 where steps take all rows. Growth condition: in the shared layers, a group's"
    note += " gradient is off the sum's by at most M times the sum's gradient, both squared; while M stays bounded, a"
    note += f" stationary point of the sum is one of every group. A look reads {ROWS:,} rows of a client at most."
    many = len(found.constant) - len(order)
    note += f" {plural(many, 'group')} with a smaller M are left out." if many > 0 else ""
    return Table.of(f"Groups' own gradients: {name}", columns, note=note)


def growths(result: TrainingComparison) -> dict[str, Growth]:
    """What was looked at of the groups' own gradients, of the first seed, by method."""
    seen = {name: Growth.of(runs[0].curve) for name, runs in result.runs.items()}
    return {name: found for name, found in seen.items() if found is not None}


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
