"""Every process of an NVFlare deployment killed at twenty random moments: the run ends as if nothing had happened."""

import os
import threading
import time

import numpy as np
import pytest

pytest.importorskip("nvflare")

from coterie.deployment.coordinator.run import PATIENT
from coterie.deployment.nvflare import operator_commands, provisioning
from tests.deployment.nvflare.deployed import deployed

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]
MOMENTS = int(os.environ.get("COTERIE_MOMENTS", "20"))
CASE = "own-40-3"


def strike(place, folder, job, run, rng):
    """Kill the parent or the job's process of a folder at a random moment of a run, and start the parent again."""
    place.wait_for(run, int(rng.integers(0, 40)))
    time.sleep(rng.uniform(0.0, 0.3))
    parent = operator_commands.parent(folder / provisioning.WORKSPACE)
    victims = [p for p in operator_commands.found(folder / provisioning.WORKSPACE) if (p != parent) == job]
    for victim in victims[-1:]:
        os.kill(victim, 9)
    if not job:
        time.sleep(rng.uniform(0.0, 3.0))
        place.start(folder)


@pytest.mark.parametrize("who", ["server parent", "server job", "client parent", "client job"])
def test_a_process_killed_at_a_random_moment_changes_nothing(who, tmp_path):
    rng = np.random.default_rng(len(who))
    with deployed(tmp_path, ("north", "south")) as place:
        folder = place.coordinator if who.startswith("server") else place.site("north")
        for moment in range(MOMENTS):
            run = f"run{moment}"
            killer = threading.Thread(target=strike, args=(place, folder, who.endswith("job"), run, rng), daemon=True)
            killer.start()
            place.run(run, 300.0, cases=[CASE], pause=0.05, policy=PATIENT)
            place.need_result(run, CASE)
            killer.join(60.0)
            assert not killer.is_alive()
