"""Real processes on this machine: a coordinator and sites with TLS and node keys."""

import pytest

pytest.importorskip("flwr")

from coterie.deployment.flower import operator_commands as flower
from coterie.errors import CoterieError
from tests.deployment.flower.deployed import deployed


@pytest.mark.slow
@pytest.mark.parametrize("sites", ["a", pytest.param("ab", marks=pytest.mark.soak)])
def test_a_deployed_run_gives_what_it_gives_in_process(sites, tmp_path):
    """One site goes through all of it; each more starts five processes and imports Flower in each."""
    with deployed(tmp_path, sites) as here:
        with pytest.raises(CoterieError, match="No coordinator runs"):
            flower.run(here.coordinator, "first", 10.0)
        here.start()
        with pytest.raises(CoterieError, match="runs already"):
            flower.start_site(here.site("a"))
        told = here.run("first", steps=1)
        here.need_result("first", 1)
        assert told["exchanges"] == 2 and told["transport"] == {}
        found = flower.status(here.coordinator)
        assert found["running"] and found["sites"] == dict.fromkeys(sites, "online")
        assert [job["status"] for job in found["jobs"]] == ["finished:completed"]
        # The engine counts what it carried, and payloads are nearly all of it.
        traffic = found["jobs"][0]["network-traffic"]
        assert told["bytes_down"] < traffic["outbound-bytes"] and told["bytes_up"] < traffic["inbound-bytes"]
    assert not flower.status(here.coordinator)["running"] and not flower.status(here.site("a"))["running"]


def test_a_run_that_began_and_ended_between_two_looks_is_not_said_to_have_failed(tmp_path, monkeypatch):
    ended = {"runs": [{"status": "finished:completed", "status-details": "N/A"}]}
    monkeypatch.setattr(flower.supervisor, "flwr", lambda *_: ended)
    mark = tmp_path / "flower.json"
    mark.write_text('{"job": 7}')
    with pytest.raises(CoterieError, match="Run exact did not begin"):
        flower._need_begun(tmp_path, "exact", "7", mark)
    mark.write_text('{"job": 7, "pid": 1, "state": "finished"}')
    assert flower._need_begun(tmp_path, "exact", "7", mark) is None
