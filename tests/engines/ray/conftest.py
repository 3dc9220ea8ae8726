"""Ray is begun once for all tests here, which stand together, and actors are used again: they take long to begin."""

import os
import sys
import types
from pathlib import Path

import pytest

from coterie.engines.ray import Ray
from coterie.engines.ray.actors import ActorSlots
from tests.contract import cases

ROOT = Path(__file__).parents[3]


def find_tests(root=str(ROOT / "tests")):
    """Let an actor import test modules under the names that pytest gives them."""
    package = sys.modules.setdefault("tests", types.ModuleType("tests"))
    package.__path__ = [root]


@pytest.fixture(autouse=True)
def cluster():
    ray = pytest.importorskip("ray")
    if ray.is_initialized():
        return
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100 * 2**20,
    )


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
    """Ray ends with the last of its tests here: idle, it takes a twentieth of a core from all that follow."""
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        FREE.clear()
        if (ray := sys.modules.get("ray")) is not None:
            ray.shutdown()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """All tests of Ray count as slow, so that they stand together and one process begins it."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)


FREE = []


@pytest.fixture
def pool(monkeypatch):
    """Federations of a test take actors that earlier tests have left, and leave them when it ends."""
    fresh, taken = ActorSlots._start, []

    def start(slots):
        slots._actor["num_cpus"] = 0  # actors that others have left reserve nothing
        actor = FREE.pop() if FREE else fresh(slots)
        actor.run.remote(find_tests)  # of one that was killed too
        taken.append(actor)
        return actor

    def close(slots):
        FREE.extend(slots.actors)
        taken[:] = [actor for actor in taken if actor not in slots.actors]

    monkeypatch.setattr(ActorSlots, "_start", start)
    monkeypatch.setattr(ActorSlots, "close", close)
    yield
    FREE.extend(taken)


@pytest.fixture(params=["ray"])
def engine(request, pool, monkeypatch):
    monkeypatch.setitem(cases.ENGINES, "ray", Ray)
    return request.param
