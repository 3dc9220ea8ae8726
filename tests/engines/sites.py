"""Sites in this process behind a transport by name, for what every engine has in common."""

from __future__ import annotations

import numpy as np

from coterie.engines.site import Node


class Local:
    """A transport to receivers that are here; ``fault(site, number of the call)`` may change or withhold a reply."""

    def __init__(self, receivers, fault=None):
        self.receivers, self.fault, self.calls = dict(receivers), fault, 0
        self.sites = sorted(self.receivers)
        self.sent = []

    def send(self, messages, timeout):
        self.calls += 1
        answers = {}
        for name, data in messages.items():
            self.sent.append((name, data))
            reply = self.receivers[name](data)
            answers[name] = reply if self.fault is None else self.fault(name, self.calls, reply)
        return answers

    def close(self):
        pass


def nodes(problem, parts, folder=None, seed=7, kind=Node, party=None, **options):
    """A node for each part of a problem, by name; labels are such that their order is that of the problem."""
    found = {}
    for s, rows in enumerate(parts):
        rows = np.sort(rows)
        clusters = problem.clusters[rows]
        found[f"site {s}"] = kind(
            f"site {s}",
            problem.objective.take(rows),
            np.unique(clusters, return_inverse=True)[1],
            problem.weights[rows],
            problem.ids[rows],
            seed=seed,
            labels=rows,
            levels=[clusters],
            folder=None if folder is None else folder / f"site-{s}",
            secure=None if party is None else party(f"site {s}"),
            **options,
        )
    return found


def transport(problem, parts, folder=None, fault=None, **options):
    return Local({name: node.receive for name, node in nodes(problem, parts, folder, **options).items()}, fault)
