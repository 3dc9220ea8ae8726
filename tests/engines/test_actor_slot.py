"""Where a site of Ray lives, without Ray."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from coterie.engines.ray import actors
from coterie.engines.ray.actors import ActorSlot
from coterie.errors import CoterieError


class Objective:
    def __len__(self):
        return 2


def make():
    return Objective(), np.zeros(2, np.int64), np.ones(2), np.arange(2, dtype=np.uint64)


def test_two_federations_do_not_share_a_folder_nor_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(actors, "_WAIT", 0.2)
    slots = ActorSlot(), ActorSlot()
    slots[0].open(make, "site 0", tmp_path, {}, {})
    slots[0].open(make, "site 0", tmp_path, {}, {})  # its own lock is none to it
    with pytest.raises(CoterieError, match=r"Another federation uses .*: end it, or give this one a folder of its own"):
        slots[1].open(make, "site 0", tmp_path, {}, {})
    del slots
    ActorSlot().open(make, "site 0", tmp_path, {}, {})


def test_an_actor_that_comes_back_waits_for_the_one_that_died(tmp_path):
    code = """if True:
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from test_actor_slot import ActorSlot, make
        slot = ActorSlot()
        slot.open(make, "site 0", Path(sys.argv[1]), {}, {})
        print(1, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", code, tmp_path, Path(__file__).parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.read(1) == b"1"
            threading.Timer(0.3, other.kill).start()
            ActorSlot().open(make, "site 0", tmp_path, {}, {})
            assert other.wait(60) < 0
        finally:
            other.kill()
