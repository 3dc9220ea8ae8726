"""An NVFlare deployment on this machine, ended with all its processes whatever happens."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np

from coterie.deployment.federation_toml import Config
from coterie.deployment.nvflare import operator_commands as nvflare
from coterie.deployment.nvflare import provisioning
from coterie.engines import InProcess
from coterie.engines.checkpoint_and_journal import read_durable

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))
standin = import_module("collab_standin")  # by the name that jobs find it under


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Deployed:
    """The folder of a federation and what runs in it."""

    def __init__(self, root, sites):
        self.root, self.sites = root, tuple(sites)
        self.config = Config("test", "nvflare", port=free_port(), sites=self.sites)
        nvflare.init(root, self.config)
        self.coordinator = root / "coordinator"
        self.processes = []
        for folder in (self.coordinator, *map(self.site, sites)):
            self.config.write(folder)

    def site(self, name):
        return self.root / "sites" / name

    def home(self, run):
        return self.coordinator / "runs" / run

    def start(self, *folders):
        """Start everybody, or the coordinator's or sites' folders named."""
        for folder in folders or (self.coordinator, *map(self.site, self.sites)):
            start = nvflare.start_coordinator if folder == self.coordinator else nvflare.start_site
            process = start(folder)
            self.processes.append(process)
            threading.Thread(target=process.wait, daemon=True).start()  # no process that was killed stays a zombie

    def run(self, run, timeout=300.0, server=standin.Program, site=standin.Share, whole=False, **options):
        """Run cases as a job, of all sites or not; what it told of their costs."""
        self.home(run).mkdir(parents=True, exist_ok=True)
        (self.home(run) / "options.json").write_text(json.dumps({"policy": {"deadline": 20.0}} | options))
        nvflare.carry_out(self.coordinator, run, timeout, server, site, whole)
        return json.loads((self.home(run) / "told.json").read_text())

    def wait_for(self, run, exchange, timeout=300.0):
        """Until a run has gone through so many exchanges."""
        end = time.monotonic() + timeout
        while self.gone(run) < exchange and time.monotonic() < end:
            time.sleep(0.02)

    def gone(self, run):
        """How many exchanges of a run there have been."""
        path = self.home(run) / "seen"
        return int(path.read_text().splitlines()[-1].split()[0]) if path.exists() else 0

    def need_result(self, run, name, tolerance=None):
        """The result of a case is that in process."""
        case = standin.case(name)
        problem = case.problem()
        fed = InProcess(problem.objective, problem.clusters, problem.weights, problem.ids, seed=7)
        expected, found = dict(case.run(fed)), read_durable(self.home(run) / name)
        tolerance = tolerance or case.tolerance
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            scale = tolerance * max(1.0, np.abs(np.asarray(value)).max(initial=0))
            np.testing.assert_allclose(found[key], value, rtol=tolerance, atol=scale, err_msg=f"{name} {key}")

    def stop_site(self, name):
        nvflare.stop(self.site(name))

    def stop(self):
        for folder in (*map(self.site, self.sites), self.coordinator):
            nvflare.stop(folder)
        for process in self.processes:
            process.wait(10.0)
        for folder in (*map(self.site, self.sites), self.coordinator):
            assert nvflare.found(folder / provisioning.WORKSPACE) == []

    def log(self, folder):
        return "".join(p.read_text(errors="replace") for p in sorted((folder / provisioning.WORKSPACE).glob("*.txt")))


@contextmanager
def deployed(root, sites=("a", "b"), start=True):
    """A running deployment whose members have the classes of ``collab_standin``."""
    before, classes = os.environ.get("PYTHONPATH"), list(provisioning.CLASSES)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *([before] if before else [])])
    provisioning.CLASSES.append("collab_standin.")
    found = Deployed(root, sites)
    try:
        if start:
            found.start()
        yield found
    finally:
        try:
            found.stop()
        finally:
            provisioning.CLASSES[:] = classes
            os.environ.pop("PYTHONPATH")
            if before is not None:
                os.environ["PYTHONPATH"] = before
