"""What is said of methods that were trained: the answer, what numbers are of, and notes of what went wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.errors import joined, listed
from coterie.evidence.training_comparison import TrainingComparison
from coterie.evidence.training_selection import private_enough
from coterie.methods.groups.group_gradients import Growth
from coterie.methods.registry import TRAINED
from coterie.report import words
from coterie.runs.config import AUTO, judged
from coterie.runs.metrics import BALANCED, LOSS, METRICS
from coterie.runs.scores_over_clients import RARE
from coterie.runs.training import Trained


def headline(result: TrainingComparison) -> str:
    """The answer in one sentence."""
    if not result.known:
        return f"{result.best} was trained on all rows: none is held out, so that its models have no scores."
    best, value = result.best, result.interval(result.best)[0]
    if not np.isfinite(value):
        who = "No method has a" if len(result.runs) > 1 else f"{best} has no"
        return f"{who} finite {named(result.score)} on held-out rows: take smaller steps (eta), or scale the inputs."
    shown, share = score_format(result), percent(result.score)
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


def as_good(result: TrainingComparison) -> list[str]:
    """Methods whose interval of the difference to the best one holds 0."""
    ends = {name: result.interval(name, result.best)[1:] for name in result.runs if name != result.best}
    return [name for name, (low, high) in ends.items() if low <= 0.0 <= high]


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


def named(what: str) -> str:
    """A score as it is written."""
    if what not in METRICS:
        return what
    name, _, target = what.partition(":")
    name = name.upper() if len(name) < 4 else name.replace("_", " ").replace("f1", "F1")
    return f"{name} of {target}" if target else name


def percent(what: str) -> bool:
    """Whether something is a share of outcomes, whose names no score of the user's own has."""
    return what.partition(":")[0] in ("accuracy", BALANCED)


def score_format(result: TrainingComparison, what: str = "") -> Callable[[float], str]:
    """How a score is written."""
    if percent(what or result.score):
        return lambda value: words.fixed(100.0 * value, 1)
    return lambda value: words.number(value, 4)
