"""Where to draw clients, so that those who are tied lie together (Fruchterman, Reingold 1991)."""

from __future__ import annotations

import numpy as np

from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints, kernel
from coterie.relations.clustering import leading_eigenvectors
from coterie.relations.network import Network

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
