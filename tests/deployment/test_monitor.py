"""What is served to those who keep watch: numbers of the files, alarms, and a page that changes nothing."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection

import pytest

from coterie.deployment import folders, logs, monitor
from coterie.deployment.membership import Register
from coterie.errors import CoterieError
from tests.cli.test_federation import Engine
from tests.deployment import sites as here

LINE = re.compile(r'coterie_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')


class Ends(Engine):
    """An engine whose certificate ends in so many days."""

    days = 300

    def ends(self, folder):
        return datetime.now(UTC) + timedelta(days=self.days)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A federation that runs, after a fit of which a site was missing."""
    here.build(tmp_path)
    engine = Ends()
    engine.running = True
    monkeypatch.setattr(folders, "engine", lambda name: engine)
    log = logs.RunLog(tmp_path / "coordinator" / "runs" / "fit-1", here.NAMES)
    log.status |= {"exchange": 7, "bytes_down": 1200, "bytes_up": 3400}
    log.status["missing"] = {"chur": {"since": "2026-01-01T00:00:00Z", "exchange": 3, "why": "did not answer"}}
    log.quarantine({"bern": 'its "x" holds NaN'})
    log.note({})
    return tmp_path


@contextmanager
def served(folder, host="127.0.0.1"):
    with monitor.server(monitor.Watch(folder), host, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def get(path, method="GET", **headers):
            connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10.0)
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        get.port = server.server_port
        yield get
        server.shutdown()


def numbers(text):
    """The samples of a scrape, by name and labels; every line has the form that Prometheus reads."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines), [line for line in lines if not LINE.fullmatch(line)]
    helped = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(set(helped)) == len(helped) and {re.split(r"[{ ]", line)[0] for line in lines} == set(helped)
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_coordinator_tells_of_sites_runs_and_what_needs_somebody(place):
    Register(revoked={"basel": "2026: stolen"}, keys={"basel": ""}).write(place / "coordinator")
    with served(place / "coordinator") as get:
        status, text = get("/metrics")
        found = numbers(text)
        assert status == 200 and found["coterie_up"] == 1
        assert found['coterie_run_exchanges_total{run="fit-1"}'] == 7
        assert found['coterie_run_bytes_total{run="fit-1",direction="up"}'] == 3400
        assert found['coterie_site_belongs{site="basel"}'] == 0 == 1 - found['coterie_site_belongs{site="bern"}']
        since = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        assert found['coterie_run_site_missing_timestamp_seconds{run="fit-1",site="chur"}'] == since
        assert found["coterie_alarms"] == 2
        status, page = get("/")
    assert status == 200 and "Federation heart: 2 alarms" in page
    assert "revoked 2026: stolen" in page and "&#39;chur&#39; is missing" in page and "holds NaN" in page


@pytest.mark.parametrize(
    ("state", "runs", "alarm"),
    [
        ("failed", True, "Run 'fit-2' ended as 'failed': the disk is full"),
        ("below quorum", True, "Run 'fit-2' ended as 'below quorum': the disk is full"),
        ("running", False, "Run 'fit-2' was cut short"),
        ("finished", False, None),
    ],
)
def test_the_last_run_is_an_alarm_where_it_did_not_end_well(place, state, runs, alarm):
    log = logs.RunLog(place / "coordinator" / "runs" / "fit-2", here.NAMES)
    log.end(state, "the disk is full")
    os.utime(log.folder / logs.STATUS, (time.time() + 9.0,) * 2)
    watch = monitor.Watch(place / "coordinator")
    watch._engine.running = runs
    said = [text for text in watch.look().alarms if "fit-2" in text]
    assert [text.startswith(alarm) for text in said] == ([] if alarm is None else [True])


def test_a_site_tells_of_what_left_and_what_is_left_of_its_budgets(place):
    home = here.home(place, "basel")
    host = here.hosts(place, ["basel"])["basel"]
    with served(home) as get:
        before = numbers(get("/metrics")[1])
        assert before["coterie_formulas"] == 0 and before["coterie_formulas_limit"] == 50
        assert "done" in here.say(host, kind="open", run="r", task=here.task(place), seed=0)
        refused = here.task(place, "score ~ I(1 / age)")
        assert "refused" in here.say(host, kind="open", run="q", task=refused, seed=0)
        with (home / logs.LOG).open("a") as file:
            file.write('{"time": "cut sho')
        text = get("/metrics")[1]
        after = numbers(text)
        page = get("/")[1]
    assert after["coterie_formulas"] == 2
    assert after['coterie_answers_total{outcome="answered"}'] == 1
    assert after['coterie_answers_total{outcome="refused formula"}'] == 1 == after["coterie_alarms"]
    sent = sum(entry["bytes"] for entry in logs.read(home / logs.LOG))
    assert after["coterie_answers_bytes_total"] == sent > 0
    for secret in ("score", "data.csv", str(place)):
        assert secret not in text and secret not in page


def test_a_budget_a_certificate_and_a_disk_that_near_their_end_are_alarms(place, monkeypatch):
    monkeypatch.setattr(Ends, "days", 12)
    monkeypatch.setattr(monitor, "LOW", 2**80)
    found = monitor.Watch(here.home(place, "basel")).look()
    assert [alarm.split()[0] for alarm in found.alarms][:1] == ["The"] and len(found.alarms) == 2
    assert f"its certificate {monitor.until(datetime(2020, 3, 4, tzinfo=UTC))}" == "its certificate ended on 2020-03-04"
    found.need("refusals", 17, 20, "Refusals")
    assert found.alarms[-1] == "Refusals: 17 of 20"


def test_nothing_else_is_served_and_nothing_can_be_changed(place):
    with served(place / "coordinator") as get:
        for path in ("/federation.toml", "/../site.toml", "/metrics/", "/?x=1"):
            assert get(path)[0] == 404
        assert get("/", "POST")[0] == 501
        assert get("/", "HEAD") == (200, "") and get("/else", "HEAD")[0] == 404
        assert get("/", Host="evil.example:80")[0] == 404
        assert get("/", Host="localhost")[0] == 200  # behind a proxy that leaves the port out
    with served(place / "coordinator", "0.0.0.0") as get:  # noqa: S104 - for others, by any name
        assert get("/metrics", Host="fed.example.org:9464")[0] == 200
    watch = monitor.Watch(place / "coordinator")
    with (
        monitor.server(watch, "127.0.0.1", 0) as one,
        pytest.raises(CoterieError, match="choose another --port"),
    ):
        monitor.server(watch, "127.0.0.1", one.server_port)


def test_looks_at_once_count_an_answer_once(place):
    home = here.home(place, "basel")
    (home / logs.LOG).write_text('{"time": "2026-01-01T00:00:00Z", "bytes": 3}\n' * 5000)
    with served(home) as get, ThreadPoolExecutor(8) as callers:
        texts = [text for _, text in callers.map(get, ["/metrics"] * 24)]
    assert {numbers(text)["coterie_answers_bytes_total"] for text in texts} == {15000}


def test_a_caller_that_says_nothing_is_let_go(place, monkeypatch):
    monkeypatch.setattr(monitor, "PATIENCE", 0.1)
    with served(place / "coordinator") as get, socket.create_connection(("127.0.0.1", get.port), 10.0) as silent:
        assert silent.recv(1) == b"" and get("/")[0] == 200


def test_labels_are_escaped():
    found = monitor.Found()
    found.add("site_online", True, site='a"b\\c\nd')
    assert found.prometheus().splitlines()[-1] == 'coterie_site_online{site="a\\"b\\\\c\\nd"} 1'
    assert json.loads('"a\\"b\\\\c\\nd"') == 'a"b\\c\nd'
