"""A Flower deployment on this machine, ended with all its processes whatever happens."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from coterie.deployment.federation_toml import Config
from coterie.deployment.flower import operator_commands as flower
from coterie.deployment.processes import free_port
from coterie.deployment.site.site_toml import Member
from coterie.engines import InProcess
from tests.deployment.flower import quadratics

HERE = Path(__file__).resolve().parent


class Deployed:
    """The folder of a federation; ``coordinator`` and ``site(name)`` are its parts."""

    def __init__(self, root: Path, sites, days=365.0):
        self.root, self.sites = root, tuple(sites)
        self.config = Config("test", "flower", port=free_port(), sites=self.sites)
        flower.init(root, self.config, days=days)
        self.coordinator = root / "coordinator"
        self.config.write(self.coordinator)
        for part in ("client", "server"):
            text = f"from quadratics import {part}\n\napp = {part}()\n"
            (self.coordinator / "flower" / "app" / f"{part}.py").write_text(text)
        self.processes = []
        for name in self.sites:
            self.config.write(self.site(name))
            Member(name).write(self.site(name))

    def site(self, name):
        return self.root / "sites" / name

    def start(self):
        self.processes.append(flower.start_coordinator(self.coordinator))
        self.processes += [flower.start_site(self.site(name)) for name in self.sites]

    def home(self, run):
        return self.coordinator / "runs" / run

    def ask(self, run, **options):
        self.home(run).mkdir(parents=True, exist_ok=True)
        (self.home(run) / "options.json").write_text(json.dumps(options))

    def run(self, run, timeout=300.0, **options):
        """Run the program of ``quadratics``; what it said of its costs."""
        self.ask(run, **options)
        flower.run(self.coordinator, run, timeout)
        return json.loads((self.home(run) / "told.json").read_text())

    def need_result(self, run, steps):
        """The result of a run is that of the same method in process."""
        objective, weights, ids = quadratics.problem()
        x, u = quadratics.fit(InProcess(objective, None, weights, ids), steps)
        with np.load(self.home(run) / "result.npz") as found:
            np.testing.assert_allclose(found["x"], x, rtol=1e-12)
            np.testing.assert_allclose(found["u"], u, rtol=1e-12)

    def stop(self):
        for folder in [*(self.site(name) for name in self.sites), self.coordinator]:
            flower.stop(folder)
        for process in self.processes:
            process.wait(30.0)

    def log(self, *parts):
        path = self.root.joinpath(*parts)
        return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def deployed(root, sites=("a", "b"), days=365.0):
    """A deployment whose programs find the app in this folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *([before] if before else [])])
    found = Deployed(root, sites, days)
    try:
        yield found
    finally:
        found.stop()
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
