"""Each process of a Flower deployment is killed at random moments: the result is that of an undisturbed run."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("flwr")

from coterie.deployment.flower import operator_commands as flower
from coterie.errors import CoterieError
from tests.deployment.flower.deployed import deployed

pytestmark = pytest.mark.soak

STEPS = 4
POLICY = {"deadline": 240.0, "retries": 10**6, "pause": 0.5, "min_clients": "all", "strict": False}
ONE = threading.Lock()  # two threads that both start a site would be in each other's way
VICTIMS = {  # what the command of the process says, and where it runs
    "superlink": ("flower-superlink", "coordinator"),
    "program": ("flwr-serverapp", "coordinator"),
    "starter of programs": ("flower-superexec", "coordinator"),
    "coordinator": ("flower.supervisor coordinator", "coordinator"),
    "supernode": ("flower-supernode", "sites/a"),
    "client": ("flwr-clientapp", "sites/a"),
    "starter of clients": ("flower-superexec", "sites/b"),
    "site": ("flower.supervisor site", "sites/b"),
}


def processes(folder, text):
    """Processes of a part whose command holds ``text``, in the group of its supervising process."""
    group = int((folder / "flower" / "pid").read_text())
    listed = subprocess.run(["ps", "-ww", "-A", "-o", "pid=,pgid=,args="], capture_output=True, text=True)  # noqa: S607
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, pgid, args in rows if int(pgid) == group and text in args]


class Killer(threading.Thread):
    """Kills a victim again and again while a run goes on, and starts again what it took with it, as an operator does.

    Attributes
    ----------
    kills : int
        How often it has struck.
    """

    def __init__(self, here, victim, rng, most):
        super().__init__()
        self.here, self.rng, self.most, self.kills = here, rng, most, 0
        self.text, self.part = VICTIMS[victim]
        self.over = threading.Event()

    def run(self):
        while self.kills < self.most and not self.over.wait(self.rng.exponential(20.0)):
            while not self.over.is_set() and not self.strike():
                time.sleep(0.05)
            self.over.wait(self.rng.uniform(0.0, 10.0))
            revive(self.here)

    def strike(self):
        """Kill the victim if it lives, some time after it was seen: a client lives for seconds."""
        for pid in processes(self.here.root / self.part, self.text):
            time.sleep(self.rng.uniform(0.0, 2.0))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
                return True
        return False


def disturbed(here, run, killer):
    """A run in which processes are killed; started again where that ended it. How often it was started."""
    killer.start()
    try:
        for attempt in range(1, 8):
            try:
                here.run(run, steps=STEPS, policy=POLICY, timeout=400.0)
                return attempt
            except CoterieError as problem:
                print(f"  {problem}")
            revive(here)
        return 0
    finally:
        killer.over.set()
        killer.join()
        revive(here)


def revive(here):
    """What an operator does: start again what does not run."""
    with ONE:
        for folder, start in [(here.coordinator, flower.start_coordinator)] + [
            (here.site(name), flower.start_site) for name in here.sites
        ]:
            if not runs(folder):
                here.processes.append(start(folder))


def runs(folder):
    """Whether a part runs; where its own SuperLink was just killed, Flower's commands say nothing yet."""
    try:
        return flower.status(folder)["running"]
    except CoterieError:
        return True


@pytest.mark.parametrize("victim", VICTIMS)
def test_runs_survive_any_death(tmp_path, victim):
    rng = np.random.default_rng(sorted(VICTIMS).index(victim))
    left, run = int(os.environ.get("COTERIE_MOMENTS", "20")), 0
    with deployed(tmp_path) as here:
        here.start()
        while left > 0:
            begin = time.monotonic()
            killer = Killer(here, victim, rng, min(left, 4))
            starts = disturbed(here, f"run-{run}", killer)
            print(f"{victim}: {killer.kills} kills, {starts} starts, {time.monotonic() - begin:.0f} s", flush=True)
            assert starts
            here.need_result(f"run-{run}", STEPS)
            left, run = left - killer.kills, run + 1
