"""The two sides of a job for tests: rows of the contract suite, whose sites hold shares of the clients."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np

if "tests" not in sys.modules:  # a job's process, where another package's tests may lie on the path
    sys.modules["tests"] = ModuleType("tests")
    sys.modules["tests"].__path__ = [str(Path(__file__).resolve().parents[2])]

from coterie.deployment.config import Config
from coterie.engines import checkpoint, wire
from coterie.engines.nvflare.app import Server, Site
from coterie.engines.policy import Policy
from coterie.engines.remote import Remote
from tests.contract.registry import CASES
from tests.engines.sites import nodes

BY_NAME = {case.name: case for case in CASES}


def share(name, sites):
    """The receiver of one site for any case: a run is called ``run.case``, and its node is made when first asked."""
    found = {}

    def receive(folder, data):
        request = wire.decode(data)
        run = request["run"]
        if run not in found:
            found[run] = node(name, sites, run.partition(".")[2], folder / "runs" / run)
        return found[run].answer(request, data[-16:])

    return receive


def node(name, sites, case, folder=None):
    """The node of one site: clients are dealt out, so that every site holds some of every cluster."""
    problem = BY_NAME[case].problem()
    parts = [np.arange(len(problem.ids))[s :: len(sites)] for s in range(len(sites))]
    at = sorted(sites).index(name)
    return nodes(problem, [parts[at]], folder)["site 0"]


class Program(Server):
    """Runs the cases that ``options.json`` in the run's folder names, and writes their results."""

    def program(self, transport, folder, run_id):
        home = folder / "runs" / run_id
        options = json.loads((home / "options.json").read_text())
        told = {}
        for name in options["cases"]:
            run = f"{run_id}.{name}"
            begun = time.perf_counter()
            journal = home / "journal" / name if options.get("journal") else None
            fed = Remote(
                transport,
                run=run,
                seed=7,
                policy=Policy(**options["policy"]),
                journal=journal,
                watch=watch(home, options),
            )
            result = dict(BY_NAME[name].run(fed))
            checkpoint.write(home / name, wire.pieces(result))
            told[name] = fed.ledger.as_dict() | {"wall": time.perf_counter() - begun}
        (home / "told.json").write_text(json.dumps(told))


def watch(home, options):
    """Slow runs give tests time to kill somebody; the file tells how far a run is."""

    def seen(event):
        with (home / "seen").open("a") as file:
            file.write(f"{event.number} {event.seconds:.4f} {' '.join(event.missing)}\n")
        time.sleep(options.get("pause", 0.0))

    return seen


class Share(Site):
    """Holds its share of the clients of any case."""

    def receiver(self, folder):
        config = Config.read(folder)
        receive = share(folder.name, config.sites)
        return lambda data: receive(folder, data)
