"""The two sides of a job for tests: methods whose sites hold shares of the clients.

``own-STEPS-DIM`` is a small one of this file; all others are rows of the contract suite, whose import takes seconds.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

if "tests" not in sys.modules:  # a job's process, where another package's tests may lie on the path
    sys.modules["tests"] = ModuleType("tests")
    sys.modules["tests"].__path__ = [str(Path(__file__).resolve().parents[2])]
    # NVFlare looks whether tensors may travel, which loads torch where it is installed: seconds for every process.
    sys.modules["nvflare.app_opt.pt.decomposers"] = None

from coterie.deployment.federation_toml import Config
from coterie.deployment.nvflare.job import CoordinatorJob, SiteJob
from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import write_durable
from coterie.engines.header_compression import CoordinatorLink
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.site import Node
from coterie.engines.site_enrolment import Remote
from coterie.federation import work
from coterie.objectives.quadratic import Quadratic

M = 12


@work
def step(site, x):
    u = site.state.get("u", np.zeros((len(site), len(x))))
    site.state["u"] = u - 0.2 * (site.objective.gradient(u) + 0.5 * (u - x))
    return {"u": site.weights[:, None] * site.state["u"], "w": site.weights}


@work
def models(site):
    return {"u": site.state["u"]}


def quadratics(dim):
    rng = np.random.default_rng(5)
    root = rng.normal(size=(M, dim, dim))
    objective = Quadratic(root @ root.transpose(0, 2, 1) / (2 * dim) + np.eye(dim), rng.normal(size=(M, dim)))
    clusters, ids = np.repeat(np.arange(3), M // 3), rng.integers(0, 2**64, M, dtype=np.uint64)
    return SimpleNamespace(objective=objective, clusters=clusters, weights=rng.uniform(1, 2, M), ids=ids)


def tied(steps, dim, fed):
    """Personal models that live at the sites, tied to a shared one: steps + 1 exchanges."""
    x = np.zeros(dim)
    for _ in range(steps):
        sums = fed.total(step, x=x)
        x = sums["u"] / sums["w"]
    return {"x": x, "u": fed.ask(models)["u"]}


def case(name):
    """A method and its problem by name; ``own-STEPS-DIM`` is that of this file."""
    if name.startswith("own-"):
        steps, dim = map(int, name.split("-")[1:])
        return SimpleNamespace(problem=partial(quadratics, dim), run=partial(tied, steps, dim), tolerance=1e-12)
    from tests.contract.registry import CASES

    return next(c for c in CASES if c.name == name)


def node(name, sites, method, folder):
    """The node of one site: clients are dealt out, so that every site has some of every cluster."""
    problem = case(method).problem()
    rows = np.arange(len(problem.ids))[sorted(sites).index(name) :: len(sites)]
    clusters = problem.clusters[rows]
    return Node(
        name,
        problem.objective.take(rows),
        np.unique(clusters, return_inverse=True)[1],
        problem.weights[rows],
        problem.ids[rows],
        seed=7,
        labels=rows,
        levels=[clusters],
        folder=folder,
    )


class Program(CoordinatorJob):
    """Runs the cases that ``options.json`` in the run's folder names, and writes their results."""

    def program(self, transport, folder, run_id):
        home = folder / "runs" / run_id
        options = json.loads((home / "options.json").read_text())
        told = {}
        for name in options["cases"]:
            begun = time.perf_counter()
            fed = Remote(
                transport,
                run=f"{run_id}.{name}",
                seed=7,
                policy=Policy(**options["policy"]),
                journal=home / "journal" / name,
                watch=watch(home, options.get("pause", 0.0)),
            )
            result = dict(case(name).run(fed))
            write_durable(home / name, wire.pieces(result))
            told[name] = fed.ledger.as_dict() | {"wall": time.perf_counter() - begun}
        (home / "told.json").write_text(json.dumps(told))


def watch(home, pause):
    """The file tells how far a run is; slow runs give tests time to kill somebody."""

    def seen(event):
        with (home / "seen").open("a") as file:
            file.write(f"{event.number} {event.seconds:.4f} {' '.join(event.missing)}\n")
        time.sleep(pause)

    return seen


class Share(SiteJob):
    """Holds its share of the clients of any case: a run is called ``run.case``, its node is made when first asked."""

    def receiver(self, folder):
        sites, found = Config.read(folder).sites, {}

        def answer(request, key):
            run = request["run"]
            if run not in found:
                found[run] = node(folder.name, sites, run.partition(".")[2], folder / "runs" / run)
            return found[run].answer(request, key)

        return partial(CoordinatorLink().answered, answer=answer)
