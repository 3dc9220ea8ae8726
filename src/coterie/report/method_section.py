"""What a report says of how a model was made: a run over rounds, main clients and collaborators, or a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import joined, plural
from coterie.relations.network import Network
from coterie.report import words
from coterie.report.fit_figures import distance_figure, loss_curve, strength_figure
from coterie.report.network_figures import merge_figure, network_figure, spring_layout
from coterie.report.svg import Figure
from coterie.report.tables import Table
from coterie.results.fit_result import FitResult

SPACES = {
    "model": "with alike coefficients",
    "data": "with alike rows",
    "feature": "whose columns vary together alike",
    "covariates": "with alike covariates",
    "edges": "that were named",
}
LARGEST, NAMES = 5, 8  # so many groups, and members of each, are named in a sentence
SHOWN, SHOWN_GROUPS = 1500, 100  # clients and groups that are named in the report, about

CONSTANTS = {
    "keep": "share of the bias kept",
    "L": "smoothness, L",
    "delta": "Hessian dissimilarity, delta",
    "delta_at_most": "delta at most, which steps go by",
    "prior": "prior towards the pooled model, in rows",
    "speedup": "predicted speed-up",
}
AGREES = {
    "inside": "share of ties inside a {}",
    "chance": "what chance would give",
    "components": "adjusted Rand index with the {}, of components",
    "spectral": "the same, of spectral clusters",
}


@dataclass(frozen=True)
class Section:
    """What a method says of its run: for the terminal all sentences, for the page the first `leading` of them."""

    title: str
    sentences: list[str]
    tables: list[Table]
    figures: list[Figure]
    leading: int = 2


def method_section(result: FitResult) -> Section | None:
    """The section of a method that is no exact fit of a tree; None for those."""
    info = result.model.info
    if "rounds" in info:
        r = info["rounds"]
        return Section("Over rounds", _rounds_sentences(r), [_rounds_table(r)], [distance_figure(result)], leading=1)
    if "collaboration" in info:
        return Section("Over rounds", *_collaboration(info["collaboration"]), [])
    if "training" in info:
        found = merged_tables(result, "Who was found to be alike") if result.merged is not None else []
        return Section(
            "Over rounds", _trained(result), [_training_table(info["training"]), *found], [loss_curve(result)]
        )
    if "network" in info:
        tables = [_network_table(result), *merged_tables(result)]
        return Section("The similarity network", _network_sentences(result), tables, _network_figures(result))
    return None


def _trained(result: FitResult) -> list[str]:
    """How long the run was, and who was found to be alike."""
    t = result.model.info["training"]
    loss, many = (words.number(t["trace"][k][1]) for k in (0, -1)), words.several(result.model.client_name)
    text = f"{plural(t['rounds'], 'round')} brought the mean loss of rows from {' to '.join(loss)}"
    if result.merged is None:
        return [f"{text}."]
    sizes = ", ".join(f"{n:,}" for n in result.merged.value_counts())
    return [f"{text}, with the {many} in {plural(result.merged.nunique(), 'group')}, of {sizes}."]


def _training_table(t: dict[str, Any]) -> Table:
    """What the run was made with, and how far its models moved at last."""
    rows = [(name, words.some(v) if isinstance(v, float | int) else str(v)) for name, v in t["options"].items()]
    rows.append(("rounds", f"{t['rounds']:,}"))
    rows.append(("share of their way that models moved between the last two looks", words.number(t["moved"])))
    note = "Steps and strengths are in columns in which all rows together have curvature one where the run begins."
    return Table("The run", ("", "this run"), tuple(rows), note=note)


def _rounds_sentences(r: dict[str, Any]) -> list[str]:
    """Why these parameters, and communications against what was expected."""
    chosen = [f"p0 = {words.some(r['p0'])}", f"p = {words.some(r['p'])}", f"step size {words.some(r['eta'])}"]
    chosen += [f"rho = {words.some(r['rho'])}"] if "rho" in r else []
    counts = [f"{counted} {name} ({expected} expected)" for name, counted, expected in _communications(r)]
    return [f"Over rounds with {', '.join(chosen)}: {r['why']}.", f"Communications: {joined(counts)}."]


def _rounds_table(r: dict[str, Any]) -> Table:
    """Steps, the distance left and communications, counted beside what theory expects."""
    rows = [("steps", _mean_count(r["trace"][-1][0]), _mean_count(r["steps"]))]
    at_most = f"at most {words.number(r['promised'])}" if r["promised"] < 1.0 else "nothing promised"
    rows.append(("distance from the optimum, relative to the start's", words.number(r["gap"]), at_most))
    rows += [(f"communications {name}", counted, expected) for name, counted, expected in _communications(r)]
    note = "Expected: steps as planned, the distance that the theorem promises, and communications in the mean"
    skipped = _mean_count(r["communications"]["within_printed"])
    note += f" ({skipped} within each cluster as Proposition 3.2 prints it)."
    if sent := r["communications"].get("peers"):
        size = words.amount(sent["bytes"])
        note += (
            f" Without a coordinator, clusters sent each other {plural(sent['messages'], 'message')} of {size} in all."
        )
    return Table("The run", ("", "this run", "expected"), tuple(rows), note=note)


def _communications(r: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Each kind of communication: its name, how many there were, and how many were to be expected."""
    sent = r["communications"]
    kinds = {"between": "between clusters", "within": "within each cluster", "refreshes": "to refresh the anchor"}
    seen = {kind: name for kind, name in kinds.items() if kind in sent}
    return [(name, _mean_count(sent[k]), _mean_count(sent[f"{k}_expected"])) for k, name in seen.items()]


def _mean_count(value: float) -> str:
    """A count, or the mean of some, with a decimal where that says something."""
    return words.fixed(value, 0 if value >= 100.0 or value == round(value) else 1)


def _collaboration(c: dict[str, Any]) -> tuple[list[str], list[Table]]:
    """How many collaborate, and how; what was chosen or given, and how far the run came."""
    solved = c["status"] in ("exact", "not reached")  # the weighted losses were minimised at once, by no run of steps
    count = words.some(c["collaborators"], "{:.0f}".format)
    how = f"alpha = {words.some(c['alpha'])}"
    if not solved:
        how += f", step size {words.some(c['eta'])}"
    if c["corrected"]:
        how += f", beta = {words.some(c['beta'])}, {words.percent(c['keep'])} of the bias kept"
    elif c["speedup"] is not None:
        how += f"; predicted speed-up {words.some(c['speedup'])}"
    rows = [("exchanges until solved" if solved else "steps", f"{c['trace'][-1][0]:,}")]
    rows.append(("distance left, relative to the start's", words.number(c["gap"])))
    steps = {} if solved else {"eta": "step size, eta", "beta": "weight of the newest bias, beta"}
    names = {"alpha": "weight of collaborators, alpha", **steps, **CONSTANTS}
    rows += [(text, words.some(c[name])) for name, text in names.items() if c.get(name) is not None]
    rows.append(("collaborators of a main client", count))
    goal = "each own optimum" if c["corrected"] and not c["keep"] else "the optimum of the weighted losses"
    note = "Steps and constants are in the metric in which the mean curvature of all rows is one. The distance is from "
    table = Table("Main clients and their collaborators", ("", "this run"), tuple(rows), note=f"{note}{goal}.")
    return [f"{count} collaborator{'s' * (count != '1')} for each main client, {how}."], [table]


def _network_sentences(result: FitResult) -> list[str]:
    """What the network is and what came of it."""
    i = result.model.info["network"]
    many, groups = words.several(result.model.client_name), len(set(i["groups"]))
    ties = plural(i["ties"], "tie")
    text = f"{ties} between {many} {SPACES[i['space']]}, of strength {words.strength(i['lam'])}"
    text += " chosen by held-out rows" if i.get("tried") else ""
    if groups == len(i["groups"]):
        return [f"{text}: no two are equal."]
    found, alone = _groups(result)
    named = [_listed(members, NAMES) for members in list(found.values())[:LARGEST]]
    more = len(found) - LARGEST
    named += [plural(more, "more group")] if more > 0 else []
    named += [f"{len(alone):,} alone"] if alone else []
    text = f"{text}: {plural(groups, 'group')} of equal {many}."
    return [text, f"Who became equal, the largest groups first: {'; '.join(named)}."]


def _groups(result: FitResult) -> tuple[dict[int, list[str]], list[str]]:
    """Labels of every group of two or more by its number, the largest first; and of clients that merged with nobody."""
    found: dict[int, list[str]] = {}
    groups: Any = result.merged
    for group, label in zip(groups, result.model.labels, strict=True):
        found.setdefault(int(group), []).append(words.short(label))
    by_size = sorted(found.items(), key=lambda item: -len(item[1]))
    alone = [members[0] for _, members in by_size if len(members) == 1]
    return {number: members for number, members in by_size if len(members) > 1}, alone


def _listed(labels: list[str], most: int) -> str:
    return joined(labels if len(labels) <= most + 1 else [*labels[:most], f"{len(labels) - most:,} more"])


def merged_tables(result: FitResult, title: str = "Who became equal") -> list[Table]:
    """A table of who is in which group; none where everybody is alone."""
    found, alone = _groups(result)
    if not found:
        return []
    shown: dict[Any, list[str]] = dict(list(found.items())[:SHOWN_GROUPS]) | ({"alone": alone} if alone else {})
    rows, left = [], SHOWN
    for name, members in shown.items():
        rows.append((str(name), _listed(members, max(left, NAMES)), f"{len(members):,}"))
        left -= len(members)
    note = "Numbers are those of result.merged, which has the group of each in Python."
    if len(found) > SHOWN_GROUPS:
        note = f"The {SHOWN_GROUPS} largest of {plural(len(found), 'group')}. {note}"
    columns = ("group", "who", words.several(result.model.client_name))
    return [Table(title, columns, tuple(rows), 2, note=note)]


def _network_table(result: FitResult) -> Table:
    """The network, the penalty and the certificate; of a run, how far it came and what it sent."""
    i = result.model.info["network"]
    many = words.several(result.model.client_name)
    rows = [("ties", f"{i['ties']:,}"), ("components", f"{i['components']:,}")]
    rows += [(f"{many} without ties", f"{i['isolated']:,}")] if i["isolated"] else []
    rows += [("strength of ties, λ", words.strength(i["lam"])), ("norm of differences, p", f"{i['p']:g}")]
    where = ", at the optimum" if "gap" in i else ""
    rows.append((f"groups of equal {many}{where}", f"{len(set(i['groups'])):,}"))
    if agrees := i.get("against"):
        level = words.one(result.model.levels[0].name)
        values = {text.format(level): agrees[name] for name, text in AGREES.items()}
        rows += [(text, "–" if value is None else words.number(value)) for text, value in values.items()]
    if "gap" not in i:
        rows.append(("residual of the optimality conditions", words.number(i["kkt"])))
    else:
        rows.append(("steps", f"{i['trace'][-1][0]:,}"))
        rows.append(("distance from the optimum in value, relative to the start's", words.number(max(i["gap"], 0.0))))
        rows.append(("codecs of updates and of models", f"{i['link']['up']}, {i['link']['down']}"))
        if "bytes_up" in i:
            rows.append((f"bytes from {many} and to them, in all steps", f"{i['bytes_up']:,}, {i['bytes_down']:,}"))
    note = "Coefficients are compared in standard units of their columns, and losses are means over all rows."
    return Table("The similarity network", ("", "this fit"), tuple(rows), note=note)


def network_of(result: FitResult) -> Network | None:
    """The network that clients were tied by, where it was kept."""
    i = result.model.info.get("network", {})
    if i.get("edges") is None:
        return None
    ends = np.asarray(i["edges"], dtype=np.int64).reshape(-1, 2)
    return Network(len(i["groups"]), ends, np.asarray(i["weight"], dtype=np.float64))


def _network_figures(result: FitResult) -> list[Figure]:
    """The network, the tree of merges, and held-out losses against the strength; those of which there is enough."""
    i, m = result.model.info["network"], result.model
    one, out = words.one(m.client_name), []
    groups = np.asarray(i["groups"])
    if (network := network_of(result)) is not None:
        names = [str(label) for label in m.labels]
        out.append(network_figure(network, spring_layout(network), groups + 1, names, one))
        if i.get("merges"):
            chosen = i["lam"] if 0.0 < i["lam"] < np.inf else None
            out.append(merge_figure(i["merges"], groups + 1, names, chosen, one))
    if i.get("tried"):
        out.append(strength_figure(i["tried"], i["lam"], result.loss))
    return out
