"""An app whose sites hold quadratics, for tests of real deployments: personal models that are tied to a shared one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from coterie.engines.retry_and_quorum import Policy
from coterie.engines.site import Node
from coterie.engines.site_enrolment import Remote
from coterie.federation import work
from coterie.objectives.quadratic import Quadratic

M, D = 11, 3


@work
def step(site, x, padding=b""):
    u = site.state.get("u", np.zeros((len(site), D)))
    site.state["u"] = u - 0.2 * (site.objective.gradient(u) + 0.5 * (u - x))
    return {"u": site.weights[:, None] * site.state["u"], "w": site.weights}


@work
def models(site):
    return {"u": site.state["u"]}


def problem():
    """Objective, weights and ids of all clients."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(M, D, D))
    ids = rng.integers(0, 2**64, M, dtype=np.uint64)
    return Quadratic(root @ root.transpose(0, 2, 1) / D + np.eye(D), rng.normal(size=(M, D))), rng.uniform(1, 2, M), ids


def fit(fed, steps, padding=0):
    """Some steps of every client, and their models: steps + 1 exchanges."""
    x = np.zeros(D)
    for _ in range(steps):
        sums = fed.total(step, x=x, **({"padding": bytes(padding)} if padding else {}))
        x = sums["u"] / sums["w"]
    return x, fed.ask(models)["u"]


def node(name, sites, folder):
    """One site's node: its share of the clients, its state on disk."""
    rows = np.array_split(np.arange(M), len(sites))[sites.index(name)]
    objective, weights, ids = problem()
    clusters = np.zeros(len(rows), np.int64)
    return Node(
        name, objective.take(rows), clusters, weights[rows], ids[rows], labels=rows, levels=[clusters], folder=folder
    )


def end(context):
    from coterie.deployment.federation_toml import Config
    from coterie.deployment.flower.app import folder
    from coterie.deployment.site.site_toml import Member

    name = Member.read(folder()).name
    return name, node(name, Config.read(folder()).sites, folder() / "runs" / str(context.run_config["run"])).receive


def program(transport, folder: Path, run: str) -> None:
    home = folder / "runs" / run
    options = json.loads((home / "options.json").read_text())
    fed = Remote(transport, run=run, policy=Policy(**options.get("policy", {})), journal=home / "journal")
    x, u = fit(fed, options["steps"], options.get("padding", 0))
    np.savez(home / "result.npz", x=x, u=u)
    told = fed.ledger.as_dict() | {"transport": transport.refused}
    (home / "told.json").write_text(json.dumps(told))


def client():
    from coterie.deployment.flower.app import client

    return client(end)


def server():
    from coterie.deployment.flower.app import server

    return server(program)
