"""Bytes of a sum at the coordinator, with and without trees of aggregators: measured, and the law that they follow.

Every client is a site. An exchange sends a model of 1,000 numbers to all, and brings the sum of as many back; counted
is the second, whose messages leave out what both ends know. ``python -m benchmarks.trees FIGURE.png COSTS.json`` draws
it beside what ``measured`` of ``benchmarks.cost`` gave by axis.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.cost import GOALS, SIZES
from coterie.deployment.site.preview import LocalTransport
from coterie.engines.aggregator import Aggregator
from coterie.engines.site import Node
from coterie.engines.site_enrolment import Remote
from coterie.federation import Site, work
from coterie.objectives.quadratic import Quadratic

NUMBERS, FAN = 1_000, 10
FLAT, TREES = (10, 100, 1_000, 10_000), (10, 100, 1_000)
FAR = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8)


@work
def stepped(site: Site, w: np.ndarray) -> dict[str, np.ndarray]:
    """A model from every client."""
    return {"x": np.tile(w, (len(site), 1))}


def receivers(clients: int) -> dict[str, Node | Aggregator]:
    """A site for each client."""
    one, found = np.zeros(1, np.int64), {}
    for i in range(clients):
        ids = np.array([i], np.uint64)
        found[f"site {i}"] = Node(f"site {i}", Quadratic(np.eye(1)[None], np.zeros((1, 1))), one, np.ones(1), ids)
    return found


def tree(clients: int, fan: int | None = None) -> Remote:
    """A coordinator over sites, or over so many aggregators, each over as many, down to the sites."""
    below = receivers(clients)
    while fan is not None and len(below) > fan:
        names = list(below)
        groups = [names[k : k + fan] for k in range(0, len(names), fan)]
        hubs = [LocalTransport({name: below[name].receive for name in group}) for group in groups]
        below = {f"hub {k} of {len(hubs)}": Aggregator(f"hub {k} of {len(hubs)}", hub) for k, hub in enumerate(hubs)}
    return Remote(LocalTransport({name: one.receive for name, one in below.items()}))


def bytes_of(fed: Remote) -> int:
    """Both ways at the coordinator, in the second of two exchanges."""
    for _ in range(2):
        before = fed.ledger.bytes_down + fed.ledger.bytes_up
        found = fed.total(stepped, w=np.arange(float(NUMBERS)))
    assert np.array_equal(found["x"], len(fed.clients) * np.arange(float(NUMBERS)))
    return fed.ledger.bytes_down + fed.ledger.bytes_up - before


def measured() -> dict[str, dict[int, int]]:
    """Bytes by number of clients."""
    return {"flat": {n: bytes_of(tree(n)) for n in FLAT}, "tree": {n: bytes_of(tree(n, FAN)) for n in TREES}}


def figure(path: str, costs: dict[str, list[object]], found: dict[str, dict[int, int]]) -> None:
    """Cost of a round on every axis, and bytes at the coordinator."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    _, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for axis, (took, slope, last) in costs.items():
        goal = f", at most {GOALS[axis]} asked" if axis in GOALS else ""
        left.loglog(SIZES[axis], took, "o-", label=f"{axis}: {slope:.2f}, last decade {last:.2f}{goal}")
    left.set(xlabel="number of them", ylabel="CPU seconds of a round", title="What a round costs")
    left.legend(fontsize=7)
    link = found["flat"][max(FLAT)] / max(FLAT)
    for name, law, marks in (("no tree", [link * n for n in FAR], "flat"), ("trees", [link * FAN] * len(FAR), "tree")):
        (line,) = right.loglog(FAR, law, "--", label=f"{name}: computed, {link:,.0f} bytes a link")
        right.loglog(
            list(found[marks]), list(found[marks].values()), "o", color=line.get_color(), label=f"{name}: measured"
        )
    right.set(xlabel="clients", ylabel="bytes at the coordinator", title=f"A sum of 1,000 numbers, trees of {FAN}")
    right.legend(fontsize=7)
    plt.savefig(path, dpi=110)


if __name__ == "__main__":
    found = measured()
    print(json.dumps(found))
    if len(sys.argv) > 2:
        figure(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), found)
