"""A real deployment over mutual TLS: the numbers of one process, processes killed on the way, strangers at the port."""

import os
import threading
import time

import pytest

pytest.importorskip("nvflare")

from coterie.deployment.nvflare import operator_commands as nvflare
from coterie.deployment.nvflare import provisioning
from coterie.errors import CoterieError
from tests.deployment.nvflare import strangers
from tests.deployment.nvflare.deployed import deployed

# NVFlare gives aiohttp an argument of an old name.
pytestmark = [
    pytest.mark.slow,  # all of them, one after another, as they share a deployment
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

CASE = "own-40-3"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("nvflare"), ("north", "south")) as found:
        yield found


@pytest.mark.soak  # the run below is one that is disturbed
def test_a_run_gives_the_numbers_of_one_process(place):
    told = place.run("plain", cases=[CASE])[CASE]
    place.need_result("plain", CASE)
    assert told["exchanges"] == 41 and told["bytes_down"] > 0 and told["bytes_up"] > 0
    state = nvflare.status(place.coordinator)
    assert state["running"] and state["sites"] == {"north": "online", "south": "online"}
    assert "plain" in [job["job_name"] for job in state["jobs"]]


def test_processes_that_are_killed_change_nothing(place):
    """The job's process of a site first, then that of the coordinator, each at some exchange."""

    def kill():
        for folder, exchange in ((place.site("north"), 7), (place.coordinator, 23)):
            place.wait_for("killed", exchange)
            victims.append(nvflare.found(folder / provisioning.WORKSPACE)[-1])
            os.kill(victims[-1], 9)

    victims = []
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    told = place.run("killed", cases=[CASE], pause=0.1, policy={"deadline": 20.0, "min_clients": "all"})
    killer.join(1.0)
    assert len(victims) == 2
    place.need_result("killed", CASE)
    assert told[CASE]["exchanges"] >= 41 and told[CASE]["bytes_down"] > 0 and told[CASE]["bytes_up"] > 0
    state = nvflare.status(place.coordinator)
    assert state["running"] and state["sites"] == {"north": "online", "south": "online"}
    assert len([job for job in state["jobs"] if job["job_name"] == "killed"]) == 3
    with pytest.raises(CoterieError, match="runs already"):
        place.start(place.site("north"))


def test_connections_without_a_valid_certificate_of_ours_are_refused_and_logged(place, tmp_path):
    def pair(home):
        return [str(home / provisioning.WORKSPACE / "startup" / f"client.{end}") for end in ("crt", "key")]

    root = str(place.coordinator / provisioning.WORKSPACE / "startup" / "rootCA.pem")
    other = strangers.of_another_authority(place, tmp_path / "theirs", "north")
    old = strangers.expired(place, tmp_path / "old", "north")
    for options in ({}, {"root": root}, {"root": root, "pair": pair(other)}, {"root": root, "pair": pair(old)}):
        try:
            said = strangers.greet(place.config, **options)
        except OSError:
            said = b""
        assert said == b""
    said = strangers.greet(place.config, root=root, pair=pair(place.site("north")))
    assert said.startswith(b"HTTP/1")
    for home, why in ((other, "is not trusted .* another federation"), (old, "ended on .* UTC: .* renew")):
        with pytest.raises(CoterieError, match=why):
            nvflare.need_trust(home)
    assert nvflare.need_trust(place.site("north")) is None
    with pytest.raises(CoterieError, match="handshakes failed in the last"):
        nvflare.need_trust(place.coordinator)
    log = place.coordinator / provisioning.WORKSPACE / provisioning.REFUSED
    reasons = (
        "http request",
        "did not return a certificate",
        "unable to get local issuer certificate",
        "certificate has expired",
    )
    end = time.monotonic() + 10.0
    while not all(reason in log.read_text() for reason in reasons) and time.monotonic() < end:
        time.sleep(0.1)
    refused = log.read_text()
    assert [reason for reason in reasons if reason not in refused] == []
