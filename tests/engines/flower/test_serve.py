"""The processes of a part are started again when they die: a site's all together, a coordinator's one by one."""

import os
import time

import pytest

from coterie.deployment.flower.serve import environment
from coterie.deployment.processes import Child, tend


def test_processes_of_one_message_keep_what_they_compile(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in environment(tmp_path)


@pytest.mark.parametrize("as_one", [True, False])
def test_what_dies_starts_again(as_one, tmp_path):
    children = [Child(name, ["sleep", "60"], tmp_path, os.environ) for name in ("one", "other")]
    try:
        tend(children, as_one)
        one, other = (child._process.pid for child in children)
        assert not any(child.died() for child in children)
        os.kill(one, 9)
        end = time.monotonic() + 30.0
        while any(child._process is None or child._process.pid == one for child in children[:1]):
            assert time.monotonic() < end
            tend(children, as_one)
            time.sleep(0.02)
        tend(children, as_one)
        assert (children[1]._process.pid != other) == as_one
        assert all(child._process.poll() is None for child in children)
    finally:
        for child in children:
            child.end()
