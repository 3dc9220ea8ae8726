"""A real deployment over mutual TLS: the numbers of one process, processes killed on the way, strangers at the port."""

import os
import threading
import time

import pytest

pytest.importorskip("nvflare")

from coterie.deployment import nvflare
from coterie.engines.nvflare import kit, processes, refusals
from coterie.errors import CoterieError
from tests.engines.nvflare import strangers
from tests.engines.nvflare.deployed import deployed

# NVFlare gives aiohttp an argument of an old name.
pytestmark = pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("nvflare"), ("north", "south")) as found:
        yield found


def test_a_run_gives_the_numbers_of_one_process(place):
    told = place.run("plain", cases=["own"])["own"]
    place.need_result("plain", "own")
    assert told["exchanges"] == 41 and told["bytes_down"] > 0 and told["bytes_up"] > 0
    state = nvflare.status(place.coordinator)
    assert state["running"] and state["sites"] == {"north": "online", "south": "online"}
    assert [job["job_name"] for job in state["jobs"]] == ["plain"]
    with pytest.raises(CoterieError, match="runs already"):
        place.start(place.site("north"))


def test_processes_that_are_killed_change_nothing(place):
    """The job's process of a site first, then that of the coordinator, each at some exchange."""

    def kill():
        for folder, exchange in ((place.site("north"), 7), (place.coordinator, 23)):
            place.wait_for("killed", exchange)
            victims.append(processes.found(folder / kit.WORKSPACE)[-1])
            os.kill(victims[-1], 9)

    victims = []
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    place.run("killed", cases=["own"], pause=0.1, policy={"deadline": 20.0, "min_clients": "all"})
    killer.join(1.0)
    assert len(victims) == 2
    place.need_result("killed", "own")
    assert len([job for job in nvflare.status(place.coordinator)["jobs"] if job["job_name"] == "killed"]) == 3


def test_connections_without_our_certificate_are_refused_and_logged(place):
    root = str(place.coordinator / kit.WORKSPACE / "startup" / "rootCA.pem")
    log = place.coordinator / kit.WORKSPACE / refusals.FILE
    for options in ({}, {"root": root}):
        try:
            said = strangers.greet(place.config, **options)
        except OSError:
            said = b""
        assert said == b""
    end = time.monotonic() + 10.0
    while "peer did not return a certificate" not in log.read_text() and time.monotonic() < end:
        time.sleep(0.1)
    assert "peer did not return a certificate" in log.read_text() and "http request" in log.read_text()
    assert nvflare.status(place.coordinator)["sites"] == {"north": "online", "south": "online"}
