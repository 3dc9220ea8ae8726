"""Real deployments in full: all rows of the suite in one job, all kinds of strangers, bytes sent, sites away."""

import os
import threading
import time

import pytest

pytest.importorskip("nvflare")

from coterie.deployment import logs
from coterie.deployment.coordinator.run import PATIENT
from coterie.deployment.nvflare import operator_commands as nvflare
from coterie.deployment.nvflare import provisioning
from coterie.engines.retry_and_quorum import BelowQuorum
from tests.contract.registry import CASES
from tests.deployment.nvflare import strangers
from tests.deployment.nvflare.counting import Counting
from tests.deployment.nvflare.deployed import deployed

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]


def test_every_row_of_the_suite_as_a_real_job(tmp_path):
    names = [case.name for case in CASES]
    with deployed(tmp_path, ("a", "b", "c")) as place:
        told = place.run("suite", timeout=1200.0, cases=names, policy={"deadline": 120.0})
        for name in names:
            place.need_result("suite", name)
    assert sum(entry["exchanges"] for entry in told.values()) > 500


def test_strangers_are_refused_and_logged_and_the_run_goes_on(tmp_path):
    with deployed(tmp_path / "ours", ("north", "south")) as place:
        log = place.coordinator / provisioning.WORKSPACE / provisioning.REFUSED
        homes = [
            strangers.of_another_authority(place, tmp_path / "theirs", "north"),
            strangers.expired(place, tmp_path / "old", "north"),
            strangers.unknown(place, "ghost"),
        ]
        try:
            for home in homes:
                place.processes.append(nvflare.start_site(home))
            place.run("meanwhile", timeout=200.0, cases=["own-100-3"], pause=0.1)
            place.need_result("meanwhile", "own-100-3")
            # A client with a certificate of another authority trusts ours as little, and hangs up first.
            assert "it hung up" in log.read_text()
            assert nvflare.status(place.coordinator)["sites"] == {"north": "online", "south": "online"}
            jobs = [p for p in (homes[2] / provisioning.WORKSPACE).iterdir() if (p / "app_ghost").exists()]
            assert jobs == []
        finally:
            for home in homes:
                nvflare.stop(home)


def test_bytes_in_the_ledger_are_on_the_wire(tmp_path):
    """What a counting proxy sees more is NVFlare's part of each message, whatever its length."""
    sites = ("a", "b")
    with deployed(tmp_path, sites, start=False) as place:
        proxy = Counting((place.config.host, place.config.port))
        for site in sites:
            path = place.site(site) / provisioning.WORKSPACE / "startup" / "fed_client.json"
            path.write_text(path.read_text().replace(f":{place.config.port}", f":{proxy.port}"))
        place.start()

        def cost(run, case):
            """Bytes down and up: on the wire, in the ledger; messages."""
            before = proxy.down, proxy.up
            told = place.run(run, cases=[case])[case]
            wire = proxy.down - before[0], proxy.up - before[1]
            time.sleep(8.0)  # the job's own end
            return [*wire, told["bytes_down"], told["bytes_up"], len(sites) * told["exchanges"]]

        extra = {}
        for dim in (3, 300):
            short, long = cost(f"short{dim}", f"own-10-{dim}"), cost(f"long{dim}", f"own-310-{dim}")
            down, up, ledger_down, ledger_up, messages = (b - a for a, b in zip(short, long, strict=True))
            assert ledger_down > 0 and ledger_up > 0
            extra[dim] = (down - ledger_down) / messages, (up - ledger_up) / messages
        proxy.close()
    (tmp_path / "overhead.txt").write_text(str(extra))
    print("bytes of NVFlare and TLS a message, down and up:", extra)
    for small, large in zip(extra[3], extra[300], strict=True):
        assert 0.0 < small < 4000.0 and abs(large - small) < 0.25 * small


def test_a_site_that_stays_away_ends_the_run_resumably_or_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr(nvflare, "PATIENCE", 10.0)
    with deployed(tmp_path, ("a", "b", "c")) as place:
        place.stop_site("c")
        with pytest.raises(BelowQuorum, match="c"):
            place.run("all", 300.0, cases=["own-40-3"], policy={"deadline": 5.0, "min_clients": "all", "retries": 3})
        told = place.run("some", 300.0, cases=["own-40-3"], policy={"deadline": 5.0, "min_clients": 8, "retries": 3})
        assert told["own-40-3"]["exchanges"] == 41
        place.start(place.site("c"))
        place.run("all", 300.0, cases=["own-40-3"], policy={"deadline": 20.0, "min_clients": "all"})
        place.need_result("all", "own-40-3")


def strike(place, run, name, again):
    """Kill all processes of a site at some exchange of a run, and start it again at once or not."""
    place.wait_for(run, 7)
    for process in nvflare.found(place.site(name) / provisioning.WORKSPACE):
        os.kill(process, 9)
    if again:
        place.start(place.site(name))


def test_a_site_killed_in_a_run_is_waited_for_no_longer_than_it_takes_to_come_back(tmp_path, monkeypatch):
    """Far below the deadline of an exchange where it is started again; else the run ends and says who is away."""
    monkeypatch.setattr(nvflare, "PATIENCE", 10.0)
    with deployed(tmp_path, ("north", "south")) as place:
        for run, again, policy in (("back", True, PATIENT), ("gone", False, PATIENT | {"deadline": 10.0})):
            killer = threading.Thread(target=strike, args=(place, run, "north", again), daemon=True)
            killer.start()
            if again:
                place.run(run, PATIENT["deadline"] / 2.0, cases=["own-40-3"], pause=0.1, policy=policy)
                place.need_result(run, "own-40-3")
                said = [e["why"] for e in logs.read(place.home(run) / logs.LOG) if e.get("state") == logs.AGAIN]
                assert ["Without the job: north" in text for text in said] == [True]
            else:
                with pytest.raises(BelowQuorum, match="Not connected: north"):
                    place.run(run, 200.0, whole=True, cases=["own-40-3"], pause=0.1, policy=policy)
                assert nvflare.found(place.site("north") / provisioning.WORKSPACE) == []
            killer.join(60.0)
