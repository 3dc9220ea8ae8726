"""Pictures of a similarity network: clients and their ties, and the tree in which clients merge as lambda grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.network import Network
from coterie.report import words
from coterie.report.figures import Axes, Figure, decades

COLOURS = 8
SHOWN = 1500
"""So many clients are circles of their own; more are dots of one path for each group."""
EDGES = 15_000
LEAVES = 200
LABELLED = 48
"""Leaves of a tree that have their names beside them, at most."""

LIGHT = ("#0b6e63", "#b4471b", "#2f64b0", "#a67c00", "#7a4aa8", "#c23b78", "#5f8a1e", "#3a8fb7")
DARK = ("#5cc9b8", "#f0956a", "#7faaf0", "#e3bf55", "#c09ae6", "#f08db8", "#a8cf68", "#7cc8e8")


def _style() -> str:
    """Colours of groups by day and by night; ink and paper are the page's, where there is one."""

    def colours(palette: Sequence[str]) -> str:
        return "".join(f"--g{i}:{colour};" for i, colour in enumerate(palette))

    shapes = "".join(f".net .g{i}{{--group:var(--g{i})}}" for i in range(COLOURS))
    return (
        f"<style>.net{{{colours(LIGHT)}--none:#7c858d;--page:var(--paper,#fbfaf6);--text:var(--soft,#565d64);"
        "font-family:system-ui,sans-serif}"
        f"@media(prefers-color-scheme:dark){{.net{{{colours(DARK)}--none:#848d95;--page:var(--paper,#14171a);"
        "--text:var(--soft,#a7adb3)}}"
        f"{shapes}.net .gx{{--group:var(--none)}}"
        ".net text{fill:var(--text);font-size:12px}"
        ".net .node{fill:var(--group);stroke:var(--page);stroke-width:1}.net .node:hover{stroke:var(--text)}"
        ".net .dots{stroke:var(--group);stroke-linecap:round;fill:none}"
        ".net .within{stroke:var(--group);fill:none;stroke-opacity:.38}"
        ".net .between{stroke:var(--none);fill:none;stroke-opacity:.6}"
        ".net .branch{stroke:var(--group);fill:none;stroke-width:1.4;stroke-linejoin:round}"
        ".net .thin{stroke-width:.8}.net .mark{stroke:var(--text);stroke-dasharray:3 4;fill:none}"
        ".net .axis{stroke:var(--none);fill:none}</style>"
    )


def network_figure(
    network: Network,
    place: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
    names: Sequence[Any] | None = None,
    *,
    title: str = "Who is tied to whom",
    client: str = "client",
    group: str = "group",
) -> Figure:
    """The network as a picture.

    Parameters
    ----------
    network : Network
    place : (n, 2)
        From :func:`coterie.report.graph_layout.spring_layout`.
    groups : (n,), optional
        A label for every client, which colours it: a known cluster, or the group it merged into.
    names : sequence of n labels, optional
        Shown where the pointer rests on a client, for 1,500 clients at most.
    title : str
    client, group : str
        What one is called.
    """
    n = network.n
    at = _fitted(np.asarray(place, dtype=np.float64), n)
    code, labels = _groups(groups, n)
    count = np.bincount(code, minlength=len(labels))
    legend, height = _legend(labels, count, top=float(at[:, 1].max()) + 34.0) if groups is not None else ([], 0.0)
    bottom = float(at[:, 1].max()) + 16.0 + height
    i, j = network.edges.T
    inside = code[i] == code[j]
    size = float(np.clip(60.0 / np.sqrt(n), 1.6, 6.5))
    parts = _ties(network, at, code, inside)
    if n <= SHOWN:
        for c in range(n):
            name = names[c] if names is not None else c + 1
            where = f": {words.short(labels[code[c]])}" if groups is not None else ""
            parts.append(
                f'<circle class="node {_class(code[c])}" cx="{at[c, 0]:.1f}" cy="{at[c, 1]:.1f}" r="{size:.1f}">'
            )
            parts.append(f"<title>{escape(words.short(name) + where)}</title></circle>")
    else:
        for g in range(len(labels)):
            dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in at[code == g])
            parts.append(f'<path class="dots {_class(g)}" stroke-width="{2.0 * size:.1f}" d="{dots}"/>')
    many, pieces = words.several(client), int(network.components.max(initial=-1)) + 1
    said = (
        f"{n:,} {many if n != 1 else words.one(client)}, {len(network):,} {'tie' if len(network) == 1 else 'ties'}"
        + (f", in {pieces:,} pieces" if pieces > 1 else "")
    )
    if groups is not None and len(network):
        share = float(network.weight[inside].sum() / network.weight.sum())
        kind = " by weight" if np.ptp(network.weight) > 0.0 else ""
        said += f"; {words.percent(share)} of ties{kind} lie within a {group}, drawn in its colour"
    if len(network) > EDGES:
        said += f". {EDGES:,} ties are drawn"
    svg = _svg(parts + legend, bottom, f"{title}: {said}.")
    return Figure(title, svg, f"{said}.")


def merge_figure(
    merges: Sequence[tuple[float, Sequence[int], int]],
    n: int,
    groups: npt.ArrayLike | None = None,
    names: Sequence[Any] | None = None,
    *,
    chosen: float | None = None,
    title: str = "How clients merge",
    client: str = "client",
) -> Figure:
    """The tree of merges along a path of lambda, leaves on the left.

    Parameters
    ----------
    merges : sequence of (lambda, clients, size)
        Where groups merge, rising, as in :class:`coterie.relations.clusterings.MergeTree`: a client of each group, and
        how many clients the new one has.
    n : int
        Clients.
    groups : (n,), optional
        A label for every client; branches have the colour of the group that all their clients are of.
    names : sequence of n labels, optional
        Written beside the leaves, for 48 clients at most.
    chosen : number, optional
        The lambda that was chosen, marked.
    """
    if len(merges) and any(not 0 <= c < n for _, clients, _ in merges for c in clients):
        raise CoterieError(f"Merges name clients that are not there: they are numbered from 0 to {n - 1:,}.")
    code, labels = _groups(groups, n)
    order, roots = _leaves(merges, code, n)
    kept = order if n <= LEAVES else order[np.linspace(0, n - 1, LEAVES).round().astype(np.int64)]
    named = names is not None and len(kept) <= LABELLED
    axes = _frame(merges, chosen, len(kept), named)
    rows = np.full(n, np.nan)
    rows[kept] = axes.top + (np.arange(len(kept)) + 0.5) / len(kept) * (axes.height - axes.top - axes.bottom)
    parts = _branches(merges, code, rows, axes, n)
    if named:
        for c in kept:
            parts.append(f'<text x="{axes.left - 9:g}" y="{rows[c] + 4:.1f}" text-anchor="end">')
            parts.append(f"{escape(words.short(names[c] if names is not None else c, 14))}</text>")
    base = axes.height - axes.bottom
    parts.append(f'<path class="axis" d="M{axes.left:g} {base + 6:.1f}H{axes.width - axes.right:g}"/>')
    for tick in decades(*axes.x):
        x = float(axes.across(tick))
        parts.append(f'<path class="axis" d="M{x:.1f} {base + 6:.1f}v4"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 23:.1f}" text-anchor="middle">{tick:,.6g}</text>')
    parts.append(
        f'<text x="{(axes.left + axes.width - axes.right) / 2:g}" y="{base + 41:.1f}" text-anchor="middle">λ</text>'
    )
    said = (
        f"{n:,} {words.several(client)}; {roots:,} {'group is' if roots == 1 else 'groups are'} left at the largest λ"
    )
    if chosen is not None and chosen > 0.0:
        x = float(axes.across(chosen))
        parts.append(f'<path class="mark" d="M{x:.1f} {axes.top - 4:g}V{base + 6:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{axes.top - 10:g}" text-anchor="middle">chosen</text>')
        said = f"{said}; {words.number(chosen)} was chosen"
    if groups is not None:
        legend, more = _legend(labels, np.bincount(code, minlength=len(labels)), top=base + 66.0)
        parts, base = parts + legend, base + more - 10.0
    if len(kept) < n:
        said += f". {len(kept)} of them are drawn"
    return Figure(title, _svg(parts, base + 52.0, f"{title}: {said}."), f"{said}.")


def _svg(parts: Iterable[str], height: float, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="net" viewBox="0 0 440 {height:.0f}" role="img" '
        f'aria-label="{escape(label)}">{_style()}{"".join(parts)}</svg>'
    )


def _class(group: int) -> str:
    """Groups after the eighth have no colour of their own."""
    return f"g{group}" if group < COLOURS else "gx"


def _groups(groups: npt.ArrayLike | None, n: int) -> tuple[Ints, list[Any]]:
    """Each client's group, the largest first where there are more than colours, else in the order of labels."""
    if groups is None:
        return np.zeros(n, dtype=np.int64), [""]
    values = np.asarray(groups)
    if values.shape != (n,):
        raise CoterieError(f"A picture of {n} clients needs one group for each, not {values.shape}.")
    try:
        labels, code = np.unique(values, return_inverse=True)
    except TypeError:  # labels of several kinds
        labels, code = np.unique(values.astype(str), return_inverse=True)
    if len(labels) > COLOURS:
        size = np.bincount(code)
        rank = np.argsort(-size, kind="stable")
        labels, code = labels[rank], np.argsort(rank)[code]
    return code.astype(np.int64), list(labels)


def _fitted(place: Floats, n: int) -> Floats:
    """Places in the picture's units: 440 wide, as high as needed, 360 at most."""
    if place.shape != (n, 2) or not np.isfinite(place).all():
        raise CoterieError(f"A picture of {n} clients needs a finite place (x, y) for each, not {place.shape}.")
    low, wide = place.min(axis=0), np.maximum(np.ptp(place, axis=0), 1e-9)
    scale = min(408.0 / wide[0], 340.0 / wide[1]) if n > 1 else 1.0
    shift = np.array([220.0 - scale * wide[0] / 2.0, 14.0])
    return np.asarray((place - low) * scale + shift)


def _ties(network: Network, at: Floats, code: Ints, inside: npt.NDArray[np.bool_]) -> list[str]:
    """Ties as one path for each group and width: wider where they are stronger."""
    weight = network.weight
    if not len(weight):
        return []
    differ = float(np.ptp(weight)) > 0.0
    if differ:
        drawn = np.argsort(-weight, kind="stable")[:EDGES]
        level = np.digitize(weight, np.quantile(weight, [1 / 3, 2 / 3]))
    else:
        drawn = np.unique(np.linspace(0, len(weight) - 1, min(len(weight), EDGES)).round().astype(np.int64))
        level = np.ones(len(weight), dtype=np.int64)
    base = float(np.clip(24.0 / np.sqrt(network.n), 0.4, 1.6))
    kind = np.where(inside, np.minimum(code[network.edges[:, 0]], COLOURS), COLOURS + 1)
    key = kind * 3 + level
    parts = []
    for k in np.unique(key[drawn])[::-1]:
        ends = at[network.edges[drawn[key[drawn] == k]]]
        lines = "".join(f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" for (a, b), (c, d) in ends)
        name = "between" if k // 3 > COLOURS else f"within {_class(int(k // 3))}"
        width = base * (0.6, 1.0, 1.6)[int(k % 3)]
        parts.append(f'<path class="{name}" stroke-width="{width:.2f}" d="{lines}"/>')
    return parts


def _legend(labels: list[Any], count: Ints, top: float) -> tuple[list[str], float]:
    """Names of groups with their colours and sizes, in lines; and the height."""
    parts, x, y = [], 16.0, top
    entries = [(g, f"{words.short(labels[g], 24)} ({count[g]:,})") for g in range(min(len(labels), COLOURS))]
    if len(labels) > COLOURS:
        rest = len(labels) - COLOURS
        entries.append((COLOURS, f"{rest:,} more ({count[COLOURS:].sum():,})"))
    for g, text in entries:
        wide = 26.0 + 6.6 * len(text)
        if x + wide > 432.0 and x > 16.0:
            x, y = 16.0, y + 19.0
        parts.append(f'<circle class="node {_class(g)}" cx="{x + 5:.1f}" cy="{y - 4:.1f}" r="5"/>')
        parts.append(f'<text x="{x + 15:.1f}" y="{y:.1f}">{escape(text)}</text>')
        x += wide
    return parts, y - top + 30.0


def _leaves(merges: Sequence[tuple[float, Sequence[int], int]], code: Ints, n: int) -> tuple[Ints, int]:
    """An order of clients in which no branches cross, groups of a kind beside each other; and how many are left."""
    members: dict[int, list[int]] = {c: [c] for c in range(n)}
    home = np.arange(n)

    def rank(c: int) -> tuple[int, int, int]:
        kinds = np.bincount(code[members[c]])
        return int(kinds.argmax()), -len(members[c]), c

    for _, clients, _ in merges:
        parts = sorted(dict.fromkeys(int(home[c]) for c in clients), key=rank)
        joined = [c for part in parts for c in members.pop(part)]
        members[parts[0]] = joined
        home[joined] = parts[0]
    return np.array([c for part in sorted(members, key=rank) for c in members[part]], dtype=np.int64), len(members)


def _frame(merges: Sequence[tuple[float, Sequence[int], int]], chosen: float | None, leaves: int, named: bool) -> Axes:
    """From a little below the first positive lambda to a little above the last."""
    seen = [lam for lam, _, _ in merges if lam > 0.0] + ([chosen] if chosen else [])
    low, high = (min(seen), max(seen)) if seen else (1.0, 10.0)
    room = max((high / low) ** 0.08, 1.2)
    height = float(np.clip(13.0 * leaves if named else 8.0 * leaves, 120.0, 620.0 if named else 380.0)) + 60.0
    left = 110.0 if named else 20.0
    return Axes((low / room**1.5, high * room), (0.0, 1.0), log=True, height=height, left=left, top=24.0, bottom=36.0)


def _branches(
    merges: Sequence[tuple[float, Sequence[int], int]], code: Ints, rows: Floats, axes: Axes, n: int
) -> list[str]:
    """Paths of branches, one for each colour: a line from where a group was made to where it merges."""
    lines: dict[str, list[str]] = {}
    home, drawn = np.arange(n), np.isfinite(rows)
    y, x, colour = rows.copy(), np.full(n, axes.left), code.copy()
    members: dict[int, list[int]] = {c: [c] for c in range(n)}

    def line(c: int, to: float) -> None:
        kind = _class(int(colour[c])) if colour[c] >= 0 else "gx"
        lines.setdefault(kind, []).append(f"M{x[c]:.1f} {y[c]:.1f}H{to:.1f}")

    for lam, clients, _ in merges:
        parts = list(dict.fromkeys(int(home[c]) for c in clients))
        seen = [c for c in parts if drawn[c]]
        to = float(np.clip(axes.across(max(lam, axes.x[0])), axes.left, axes.width - axes.right))
        head = seen[0] if seen else parts[0]
        kinds = {int(colour[c]) for c in parts}
        joined = [c for part in parts for c in members.pop(part)]
        members[head] = joined
        home[joined] = head
        if len(seen) > 1:
            for c in seen:
                line(c, to)
        colour[head] = kinds.pop() if len(kinds) == 1 else -1
        if len(seen) > 1:
            ends = y[seen]
            kind = _class(int(colour[head])) if colour[head] >= 0 else "gx"
            lines.setdefault(kind, []).append(f"M{to:.1f} {ends.min():.1f}V{ends.max():.1f}")
            y[head], x[head] = float(ends.mean()), to
    for c in members:
        if drawn[c]:
            line(c, axes.width - axes.right)
    thin = " thin" if int(drawn.sum()) > LABELLED * 3 else ""
    return [f'<path class="branch{thin} {kind}" d="{"".join(d)}"/>' for kind, d in sorted(lines.items(), reverse=True)]
