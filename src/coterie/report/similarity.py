"""A similarity network for its reader: who is tied to whom, which clients merged, and why with this strength."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.relations.graph_layout import spring_layout
from coterie.relations.network import Network
from coterie.report import words
from coterie.report.figures import Axes, Figure
from coterie.report.network import merge_figure, network_figure
from coterie.report.tables import Table

if TYPE_CHECKING:
    from coterie.results.result import FitResult

SPACES = {
    "model": "with alike coefficients",
    "data": "with alike rows",
    "feature": "whose columns vary together alike",
    "covariates": "with alike covariates",
    "edges": "that were named",
}


LARGEST, NAMES = 5, 8
"""So many groups, and members of each, are named in a sentence."""
SHOWN, SHOWN_GROUPS = 1500, 100
"""Clients and groups that are named in the report, about."""

AGREES = {
    "inside": "share of ties inside a {}",
    "chance": "what chance would give",
    "components": "adjusted Rand index with the {}, of components",
    "spectral": "the same, of spectral clusters",
}


def sentences(result: FitResult) -> list[str]:
    """What the network is and what came of it; nothing for other methods."""
    if not (i := result.model.info.get("network")):
        return []
    many, groups = words.several(result.model.client_name), len(set(i["groups"]))
    ties = f"{i['ties']:,} tie{'s' * (i['ties'] != 1)}"
    text = f"{ties} between {many} {SPACES[i['space']]}, of strength {_lam(i['lam'])}"
    text += " chosen by held-out rows" if i.get("tried") else ""
    if groups == len(i["groups"]):
        return [f"{text}: no two are equal."]
    found, alone = _groups(result)
    named = [_listed(members, NAMES) for members in list(found.values())[:LARGEST]]
    more = len(found) - LARGEST
    named += [f"{more:,} more group{'s' * (more > 1)}"] if more > 0 else []
    named += [f"{len(alone):,} alone"] if alone else []
    text = f"{text}: {groups:,} group{'s' * (groups > 1)} of equal {many}."
    return [text, f"Who became equal, the largest groups first: {'; '.join(named)}."]


def _groups(result: FitResult) -> tuple[dict[int, list[str]], list[str]]:
    """Labels of every group of two or more by its number, the largest first; and of clients that merged with nobody."""
    found: dict[int, list[str]] = {}
    for group, label in zip(result.model.info["network"]["groups"], result.model.labels, strict=True):
        found.setdefault(int(group) + 1, []).append(words.short(label))
    by_size = sorted(found.items(), key=lambda item: -len(item[1]))
    alone = [members[0] for _, members in by_size if len(members) == 1]
    return {number: members for number, members in by_size if len(members) > 1}, alone


def _listed(labels: list[str], most: int) -> str:
    shown = labels if len(labels) <= most + 1 else [*labels[:most], f"{len(labels) - most:,} more"]
    return words.joined(shown)


def groups_tables(result: FitResult) -> list[Table]:
    """A table of who became equal; none where nobody did."""
    if not (i := result.model.info.get("network")) or len(set(i["groups"])) == len(i["groups"]):
        return []
    found, alone = _groups(result)
    shown: dict[Any, list[str]] = dict(list(found.items())[:SHOWN_GROUPS]) | ({"alone": alone} if alone else {})
    rows, left = [], SHOWN
    for name, members in shown.items():
        rows.append((str(name), _listed(members, max(left, NAMES)), f"{len(members):,}"))
        left -= len(members)
    note = "Numbers are those of result.merged, which has the group of each in Python."
    if len(found) > SHOWN_GROUPS:
        note = f"The {SHOWN_GROUPS} largest of {len(found):,} groups. {note}"
    columns = ("group", "who", words.several(result.model.client_name))
    return [Table("Who became equal", columns, tuple(rows), 2, note=note)]


def table(result: FitResult) -> Table:
    """The network, the penalty and the certificate; of a run, how far it came and what it sent."""
    i = result.model.info["network"]
    many = words.several(result.model.client_name)
    rows = [("ties", f"{i['ties']:,}"), ("components", f"{i['components']:,}")]
    rows += [(f"{many} without ties", f"{i['isolated']:,}")] if i["isolated"] else []
    rows += [("strength of ties, λ", _lam(i["lam"])), ("norm of differences, p", f"{i['p']:g}")]
    where = ", at the optimum" if "gap" in i else ""
    rows += [(f"groups of equal {many}{where}", f"{len(set(i['groups'])):,}")]
    if agrees := i.get("against"):
        level = words.one(result.model.levels[0].name)
        for name, text in AGREES.items():
            value = agrees[name]
            rows.append((text.format(level), "–" if value is None else words.number(value)))
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


def figures(result: FitResult) -> list[Figure]:
    """The network, the tree of merges, and held-out losses against the strength; those of which there is enough."""
    i, m = result.model.info["network"], result.model
    one, out = words.one(m.client_name), []
    groups = np.asarray(i["groups"])
    if i.get("edges") is not None:
        ends = np.asarray(i["edges"], dtype=np.int64).reshape(-1, 2)
        network = Network(len(groups), ends, np.asarray(i["weight"], dtype=np.float64))
        names = [str(label) for label in m.labels]
        out.append(network_figure(network, spring_layout(network), groups + 1, names, client=one))
        if i.get("merges"):
            chosen = i["lam"] if 0.0 < i["lam"] < np.inf else None
            out.append(merge_figure(i["merges"], network.n, groups + 1, names, chosen=chosen, client=one))
    if i.get("tried"):
        out.append(_losses(i["tried"], i["lam"], result.loss))
    return out


def _losses(tried: list[tuple[float, float]], chosen: float, loss: str) -> Figure:
    """Mean held-out loss along the path, from clients alone to one model for each component."""
    at = [(float(lam), float(value)) for lam, value in tried[::-1]]
    inside = np.array([(np.log10(lam), value) for lam, value in at if 0.0 < lam < np.inf])
    ends = {lam: value for lam, value in at if lam in (0.0, np.inf)}
    if not len(inside):
        inside = np.array([(0.0, value) for value in ends.values()])
    x, y = inside.T
    low, high = min(*y, *ends.values()), max(*y, *ends.values())
    room = 0.05 * (high - low) or 1.0
    axes = Axes((float(x.min()) - 0.3, float(x.max()) + 0.3), (low - room, high + room))
    line = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(axes.across(x), axes.down(y), strict=True))
    parts: list[str] = [f'<path class="bar thin" d="M{line}"/>']
    best = min(at, key=lambda t: t[1])[1]
    label = f"Mean held-out {loss} at {len(at)} strengths; the lowest, {words.number(best, 4)}, at {_lam(chosen)}."
    said = ", ".join(f"{words.number(ends[lam], 4)} {name}" for lam, name in _ENDS.items() if lam in ends)
    return Figure(
        "Why this strength",
        axes.draw(parts, label, "strength of ties, power of ten", f"held-out {loss}"),
        f"Inside the training rows: {words.number(best, 4)} at {_lam(chosen)}; {said}.",
    )


_ENDS = {0.0: "without ties", np.inf: "where all of a component are one"}


def _lam(value: Any) -> str:
    return "∞" if np.isinf(value) else words.number(float(value))
