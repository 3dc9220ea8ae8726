"""A process that was forked from one that had computed before, as Python's pools of processes are on Linux."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import numpy as np
from coterie.engines import InProcess
from coterie.objectives.quadratic import Quadratic
from coterie.methods.fedavg import FedAvg

def answer():
    fed = InProcess(Quadratic(np.ones((50, 2, 2)) + np.eye(2), np.ones((50, 2))), threads=2, block=10)
    *_, state = FedAvg(eta=0.1).run(fed, [3])
    return float(state["w"][0])

before = answer()
child = os.fork()
if child == 0:
    os._exit(0 if answer() == before else 1)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")
def test_a_forked_process_computes_too():
    subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], check=True, timeout=60)
