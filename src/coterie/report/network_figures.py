"""Pictures of a similarity network: clients placed by their ties, and the tree in which they merge as lambda grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import plural
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints, kernel
from coterie.relations.clusters import leading_eigenvectors
from coterie.relations.network import Network
from coterie.report import words
from coterie.report.svg import COLOURS, Axes, Figure, colour, evenly, legend_rows, mark, picture, text

SHOWN = 1500  # so many clients are circles of their own; more are dots of one path for each group
EDGES = 15_000
LEAVES = 200
LABELLED = 48  # leaves of a tree that have their names beside them, at most

Merges = Sequence[tuple[float, Sequence[int], int]]
"""Where groups merge, rising, as in a :class:`coterie.relations.clusters.MergeTree`: lambda, a client of
each group, and how many clients the new one has."""


def network_figure(
    network: Network, place: Floats, groups: npt.NDArray[Any], names: Sequence[Any], client: str = "client"
) -> Figure:
    """The network, its clients at places (n, 2) and in the colours of their groups (n,), of those that merged.

    Names are shown where the pointer rests on a client, for 1,500 clients at most; ``client`` is a noun.
    """
    n, low, wide = network.n, place.min(axis=0), np.maximum(np.ptp(place, axis=0), 1e-9)
    scale = min(408.0 / wide[0], 340.0 / wide[1]) if n > 1 else 1.0  # 440 wide, as high as needed, 360 at most
    at = (place - low) * scale + np.array([220.0 - scale * wide[0] / 2.0, 14.0])
    code, labels = _groups(groups)
    a, b = groups[network.edges[:, 0]], groups[network.edges[:, 1]]
    inside = np.asarray(a == b)
    size = float(np.clip(60.0 / np.sqrt(n), 1.6, 6.5))
    parts = _ties(network, at, code, inside)
    if n <= SHOWN:
        for name, g, (x, y) in zip(names, code, at, strict=True):
            title = f"{words.short(name)}: {words.short(labels[g]) if g < len(labels) else 'alone'}"
            parts.append(mark("circle", f"node {colour(g)}", title, cx=x, cy=y, r=size))
    else:
        for g in np.unique(code):
            dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in at[code == g])
            parts.append(mark("path", f"dots {colour(int(g))}", stroke_width=2.0 * size, d=dots))
    legend, height = legend_rows(_legend(labels, code), float(at[:, 1].max()) + 16.0)
    pieces = int(network.components.max(initial=-1)) + 1
    said = f"{words.counted(n, client)}, {plural(len(network), 'tie')}"
    said += f", in {pieces:,} pieces" if pieces > 1 else ""
    if len(network):
        share = float(network.weight[inside].sum() / network.weight.sum())
        kind = " by weight" if np.ptp(network.weight) > 0.0 else ""
        said += f"; {words.percent(share)} of ties{kind} lie within a group, drawn in its colour"
    said += f". {EDGES:,} ties are drawn" if len(network) > EDGES else ""
    title = "Who is tied to whom"
    return Figure(title, picture(parts + legend, height, f"{title}: {said}."), f"{said}.")


def merge_figure(
    merges: Merges, groups: npt.NDArray[Any], names: Sequence[Any], chosen: float | None = None, client: str = "client"
) -> Figure:
    """The tree of merges along a path of lambda, leaves on the left, the lambda that was chosen marked.

    Branches have the colour of the group that all their clients are of. Names stand beside the leaves, for 48 at most.
    """
    n = len(groups)
    code, labels = _groups(groups)
    order, joins, roots = _joins(merges, code, n)
    kept = order[evenly(n, LEAVES)]
    named = len(kept) <= LABELLED
    axes = _frame(merges, chosen, len(kept), named)
    y = np.full(n, np.nan)
    y[kept] = axes.down(1.0 - (np.arange(len(kept)) + 0.5) / len(kept))
    parts = []
    if named:
        parts += [text(axes.left - 9, y[c] + 4, words.short(names[c], 14), anchor="end") for c in kept]
    parts += _branches(joins, roots, code.copy(), y, axes)
    parts.append(axes.level("axis", 0.0))
    left = "group is" if len(roots) == 1 else "groups are"
    said = f"{words.counted(n, client)}; {len(roots):,} {left} left at the largest λ"
    if chosen is not None and chosen > 0.0:
        x = float(axes.across(chosen))
        parts.append(mark("path", "chosen", d=f"M{x:.1f} {axes.top - 4:g}V{axes.base:.1f}"))
        parts.append(text(x, axes.top - 10, "chosen"))
        said = f"{said}; {words.number(chosen)} was chosen"
    said += f". {len(kept)} of them are drawn" if len(kept) < n else ""
    title = "How clients merge"
    svg = axes.draw(parts, f"{title}: {said}.", "λ", ticks="x", legend=_legend(labels, code))
    return Figure(title, svg, f"{said}.")


def _groups(groups: npt.NDArray[Any]) -> tuple[Ints, list[Any]]:
    """Each client's group, the largest first where there are more than colours, else in the order of labels.

    Groups of one client are one kind, ``alone``, without a colour.
    """
    labels, code, count = np.unique(groups, return_inverse=True, return_counts=True)
    several = np.flatnonzero(count > 1)
    if len(several) > COLOURS:
        several = several[np.argsort(-count[several], kind="stable")]
    place = np.full(len(labels), max(len(several), COLOURS))
    place[several] = np.arange(len(several))
    return place[code].astype(np.int64), list(labels[several])


def _legend(labels: list[Any], code: Ints) -> list[tuple[str, str]]:
    """Names of groups with their sizes; those without a colour of their own together."""
    count = np.bincount(code, minlength=len(labels))
    entries = [(f"node {colour(g)}", f"{words.short(v, 24)} ({count[g]:,})") for g, v in enumerate(labels[:COLOURS])]
    if (rest := len(labels) - COLOURS) > 0:
        entries.append(("node gx", f"{rest:,} more ({count[COLOURS : len(labels)].sum():,})"))
    if alone := int((code >= max(len(labels), COLOURS)).sum()):
        entries.append(("node gx", f"alone ({alone:,})"))
    return entries


def _ties(network: Network, at: Floats, code: Ints, inside: npt.NDArray[np.bool_]) -> list[str]:
    """Ties as one path for each group and width: wider where they are stronger."""
    weight = network.weight
    if not len(weight):
        return []
    if float(np.ptp(weight)) > 0.0:
        drawn = np.argsort(-weight, kind="stable")[:EDGES]
        level = np.digitize(weight, np.quantile(weight, [1 / 3, 2 / 3]))
    else:
        drawn, level = evenly(len(weight), EDGES), np.ones(len(weight), dtype=np.int64)
    base = float(np.clip(24.0 / np.sqrt(network.n), 0.4, 1.6))
    kind = np.where(inside, np.minimum(code[network.edges[:, 0]], COLOURS), COLOURS + 1)
    key = kind * 3 + level
    parts = []
    for k in np.unique(key[drawn])[::-1]:
        ends = at[network.edges[drawn[key[drawn] == k]]]
        lines = "".join(f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" for (a, b), (c, d) in ends)
        name = "between" if k // 3 > COLOURS else f"within {colour(int(k // 3))}"
        width = base * (0.6, 1.0, 1.6)[int(k % 3)]
        parts.append(mark("path", name, stroke_width=f"{width:.2f}", d=lines))
    return parts


def _joins(merges: Merges, code: Ints, n: int) -> tuple[Ints, list[tuple[float, list[int]]], list[int]]:
    """An order of clients in which no branches cross, groups of a kind beside each other; and the tree.

    A merge is a lambda and the groups that meet, each called by one of its clients; the first gives its name to the new
    group. Names of the groups that are left come last.
    """
    members: dict[int, list[int]] = {c: [c] for c in range(n)}
    home = np.arange(n)

    def rank(c: int) -> tuple[int, int, int]:
        return int(np.bincount(code[members[c]]).argmax()), -len(members[c]), c

    joins = []
    for lam, clients, _ in merges:
        parts = sorted(dict.fromkeys(int(home[c]) for c in clients), key=rank)
        joined = [c for part in parts for c in members.pop(part)]
        members[parts[0]] = joined
        home[joined] = parts[0]
        joins.append((lam, parts))
    roots = sorted(members, key=rank)
    return np.array([c for part in roots for c in members[part]], dtype=np.int64), joins, roots


def _frame(merges: Merges, chosen: float | None, leaves: int, named: bool) -> Axes:
    """From a little below the first positive lambda to a little above the last."""
    seen = [lam for lam, _, _ in merges if lam > 0.0] + ([chosen] if chosen else [])
    low, high = (min(seen), max(seen)) if seen else (1.0, 10.0)
    room = max((high / low) ** 0.08, 1.2)
    height = float(np.clip(13.0 * leaves if named else 8.0 * leaves, 120.0, 620.0 if named else 380.0)) + 72.0
    left = 110.0 if named else 20.0
    return Axes((low / room**1.5, high * room), (0.0, 1.0), log=True, height=height, left=left, top=24.0, bottom=48.0)


def _branches(joins: list[tuple[float, list[int]]], roots: list[int], code: Ints, y: Floats, axes: Axes) -> list[str]:
    """Paths of branches, one for each colour: a line from where a group was made to where it merges.

    ``y`` (n,) has the heights of clients, NaN for those that are not drawn; ``code`` and it come to be those of groups.
    """
    lines: dict[str, list[str]] = {}
    x, drawn = np.full(len(y), axes.left), int(np.isfinite(y).sum())

    def add(group: int, way: str) -> None:
        lines.setdefault(colour(int(code[group])), []).append(way)

    for lam, parts in joins:
        seen = [c for c in parts if np.isfinite(y[c])]
        to = float(np.clip(axes.across(max(lam, axes.x[0])), axes.left, axes.end))
        for c in seen if len(seen) > 1 else []:
            add(c, f"M{x[c]:.1f} {y[c]:.1f}H{to:.1f}")
        head, ends = parts[0], y[seen]
        code[head] = code[head] if len({*code[parts]}) == 1 else -1
        if len(seen) > 1:
            add(head, f"M{to:.1f} {ends.min():.1f}V{ends.max():.1f}")
            y[head], x[head] = float(ends.mean()), to
        elif seen:
            y[head], x[head] = y[seen[0]], x[seen[0]]
    for c in roots:
        if np.isfinite(y[c]):
            add(c, f"M{x[c]:.1f} {y[c]:.1f}H{axes.end:.1f}")
    thin = " thin" if drawn > LABELLED * 3 else ""
    return [mark("path", f"branch{thin} {kind}", d="".join(d)) for kind, d in sorted(lines.items(), reverse=True)]


STEPS = 300
EXACT = 300  # clients up to whose number all push each other one by one


def spring_layout(network: Network) -> Floats:
    """Places (n, 2) to draw the clients of a network at, around 0, the farthest at distance 1; as wide as can be.

    They start at two eigenvectors of the network. Then ties pull by the square of their length times their weight over
    the mean weight (less where a client has more than 4 in the mean), clients push each other apart by the inverse of
    their distance (those in cells of a grid that are not neighbours as one, at their centre), and a faint pull to the
    centre keeps components in sight. An iteration costs ``O(M + n^1.5)``.
    """
    n = network.n
    if n <= 2:
        return np.array([[-1.0, 0.0], [1.0, 0.0]])[:n] * (n > 1)
    start = leading_eigenvectors(network.adjacency, 3)[:, 1:]
    start = start * np.where(start[np.abs(start).argmax(axis=0), [0, 1]] < 0.0, -1.0, 1.0)
    start = start / np.maximum(np.sqrt(np.mean(start**2, axis=0)), 1e-12)
    jitter = keyed_random.uniform(0, "positions", np.arange(n, dtype=np.uint64), 0, 2) - 0.5
    place = np.ascontiguousarray((start + 0.5 * jitter) * 0.5 * np.sqrt(n))
    pull = network.weight
    if len(network):
        pull = np.minimum(pull / pull.mean(), 4.0) * min(1.0, 4.0 / float(network.degree.mean()))
    relax(place, network.edges, pull, 1 if n <= EXACT else int(2.0 * n**0.25), STEPS if n <= 1000 else STEPS // 2)
    place -= place.mean(axis=0)
    axes = np.linalg.svd(place, full_matrices=False)[2]
    place = place @ (axes * np.where(axes[[0, 1], np.abs(axes).argmax(axis=1)] < 0.0, -1.0, 1.0)[:, None]).T
    return np.asarray(place / max(float(np.linalg.norm(place, axis=1).max()), 1e-12))


@kernel
def relax(place: Floats, edges: Ints, pull: Floats, side: int, steps: int) -> None:
    """Move all places (n, 2) by forces, ever less far: see :func:`spring_layout`."""
    n = place.shape[0]
    force = np.empty((n, 2))
    for step in range(steps):
        most = 0.1 * np.sqrt(n) * (1.0 - step / steps) ** 2 + 0.02
        repel(place, side, force)
        for i in range(n):
            for c in range(2):
                force[i, c] -= 0.3 * place[i, c]
        for e in range(edges.shape[0]):
            i, j = edges[e, 0], edges[e, 1]
            x, y = place[i, 0] - place[j, 0], place[i, 1] - place[j, 1]
            t = pull[e] * np.sqrt(x * x + y * y)
            force[i, 0] -= t * x
            force[i, 1] -= t * y
            force[j, 0] += t * x
            force[j, 1] += t * y
        for i in range(n):
            size = np.sqrt(force[i, 0] ** 2 + force[i, 1] ** 2)
            t = min(size, most) / max(size, 1e-12)
            place[i, 0] += t * force[i, 0]
            place[i, 1] += t * force[i, 1]


@kernel
def repel(place: Floats, side: int, force: Floats) -> None:
    """Write how all push each other apart (n, 2): from neighbouring cells of a grid of side x side one by one."""
    n = place.shape[0]
    cells = side * side
    low = np.array([place[:, 0].min(), place[:, 1].min()])
    wide = max(place[:, 0].max() - low[0], place[:, 1].max() - low[1], 1e-12) * (1.0 + 1e-9) / side
    cell, start = np.empty(n, dtype=np.int64), np.zeros(cells + 1, dtype=np.int64)
    centre = np.zeros((cells, 2))
    for i in range(n):
        a, b = int((place[i, 0] - low[0]) / wide), int((place[i, 1] - low[1]) / wide)
        cell[i] = min(a, side - 1) * side + min(b, side - 1)
        start[cell[i] + 1] += 1
        centre[cell[i], 0] += place[i, 0]
        centre[cell[i], 1] += place[i, 1]
    for c in range(cells):
        if start[c + 1] > 0:
            centre[c, 0] /= start[c + 1]
            centre[c, 1] /= start[c + 1]
        start[c + 1] += start[c]
    fill, members = start[:-1].copy(), np.empty(n, dtype=np.int64)
    for i in range(n):
        members[fill[cell[i]]] = i
        fill[cell[i]] += 1
    for i in range(n):
        fx, fy = 0.0, 0.0
        a, b = cell[i] // side, cell[i] % side
        for c in range(cells):
            if start[c + 1] == start[c]:
                continue
            if abs(c // side - a) <= 1 and abs(c % side - b) <= 1:
                for at in range(start[c], start[c + 1]):
                    x, y = place[i, 0] - place[members[at], 0], place[i, 1] - place[members[at], 1]
                    t = 1.0 / max(x * x + y * y, 1e-4)
                    fx += t * x
                    fy += t * y
            else:
                x, y = place[i, 0] - centre[c, 0], place[i, 1] - centre[c, 1]
                t = (start[c + 1] - start[c]) / (x * x + y * y)
                fx += t * x
                fy += t * y
        force[i, 0], force[i, 1] = fx, fy
