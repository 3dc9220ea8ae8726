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

from coterie.deployment import flower
from coterie.errors import CoterieError
from tests.engines.flower.deployed import deployed

pytestmark = pytest.mark.soak

STEPS = 4
POLICY = {"deadline": 240.0, "retries": 10**6, "pause": 0.5, "min_clients": "all", "strict": False}
VICTIMS = {  # what the command of the process says, and where it runs
    "superlink": ("flower-superlink", "coordinator"),
    "program": ("flwr-serverapp", "coordinator"),
    "starter of programs": ("flower-superexec", "coordinator"),
    "coordinator": ("flower_serve coordinator", "coordinator"),
    "supernode": ("flower-supernode", "sites/a"),
    "client": ("flwr-clientapp", "sites/a"),
    "starter of clients": ("flower-superexec", "sites/b"),
    "site": ("flower_serve site", "sites/b"),
}


def processes(folder, text):
    """Processes of a part whose command holds ``text``, in the group of its supervising process."""
    group = int((folder / "flower" / "pid").read_text())
    listed = subprocess.run(["ps", "-ww", "-A", "-o", "pid=,pgid=,args="], capture_output=True, text=True)  # noqa: S607
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, pgid, args in rows if int(pgid) == group and text in args]


def killed(here, victim, moment, seconds=120.0):
    """Kill a victim once it lives, ``moment`` seconds from now at the earliest; whether there was one."""
    text, part = VICTIMS[victim]
    time.sleep(moment)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for pid in processes(here.root / part, text):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        time.sleep(0.05)
    return False


def disturbed(here, run, victim, moment):
    """A run in which one process is killed; started again where that ended it. How often it was started."""
    killer = threading.Thread(target=killed, args=(here, victim, moment))
    killer.start()
    try:
        for attempt in range(1, 6):
            try:
                here.run(run, steps=STEPS, policy=POLICY, timeout=400.0)
                return attempt
            except CoterieError as problem:
                print(f"  {problem}")
                killer.join()
            revive(here)
        return 0
    finally:
        killer.join()
        revive(here)


def revive(here):
    """What an operator does: start again what does not run."""
    for folder, start in [(here.coordinator, flower.start_coordinator)] + [
        (here.site(name), flower.start_site) for name in here.sites
    ]:
        if not flower.status(folder)["running"]:
            here.processes.append(start(folder))


@pytest.mark.parametrize("victim", VICTIMS)
def test_runs_survive_any_death(tmp_path, victim):
    rng = np.random.default_rng(sorted(VICTIMS).index(victim))
    moments = rng.uniform(0.0, 40.0, int(os.environ.get("COTERIE_KILLS", "3")))
    with deployed(tmp_path) as here:
        here.start()
        for number, moment in enumerate(moments):
            begin = time.monotonic()
            starts = disturbed(here, f"run-{number}", victim, moment)
            print(f"{victim} killed after {moment:.1f} s: {starts} starts, {time.monotonic() - begin:.0f} s")
            assert starts
            here.need_result(f"run-{number}", STEPS)
