"""The transport over clients called as NVFlare's are: all methods give what they give in process; sites may fail."""

import inspect
import threading
import time

import numpy as np
import pytest

pytest.importorskip("nvflare")

from coterie.deployment.nvflare import transport as sending
from coterie.deployment.nvflare.transport import JobEndedError
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.site_enrolment import Remote
from tests.contract import cases, test_engines
from tests.contract.cases import CASES, make_federation, quadratic
from tests.contract.conftest import fed  # noqa: F401 - a fixture
from tests.contract.test_laws import close, partitions
from tests.deployment.nvflare.proxies import transport
from tests.engines.sites import nodes

ECHO = {name: (lambda data, name=name: data + name.encode()) for name in ("b", "a")}

# The tests of the parts of the contract that take a federation, with one whose sites are NVFlare's clients.
globals().update(
    {
        name: test
        for name, test in vars(test_engines).items()
        if name.startswith("test_") and {"fed", "engine"} & {*inspect.signature(test).parameters} == {"fed"}
    }
)


def federation(objective, clusters, weights, ids, *, seed=7, sites=1, faults=None, policy=None, **options):
    problem = cases.Problem(objective, np.asarray(clusters), np.asarray(weights), np.asarray(ids))
    parts = np.array_split(np.arange(len(objective)), sites) if isinstance(sites, int) else sites
    receivers = {name: node.receive for name, node in nodes(problem, parts, seed=seed).items()}
    return Remote(transport(receivers, faults, **options)[0], policy=policy)


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setitem(cases.ENGINES, "nvflare", federation)
    return "nvflare"


SHORT = {"pooled", "tied", "main-clients", "heads", "packed", "stochastic", "async-l2gd", "exact-hierarchical-gaussian"}
every_case = pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=() if c.name in SHORT else pytest.mark.soak) for c in CASES]
)


def test_the_short_form_names_rows_of_the_suite():
    assert {c.name for c in CASES} >= SHORT


@every_case
def test_any_partition_into_sites_gives_the_same_numbers(case, engine):
    problem = case.problem()
    expected = case.run(make_federation("inprocess", problem))
    close(case.run(make_federation(engine, problem, partitions(len(problem.ids), 0))), expected, case.tolerance)


@pytest.mark.parametrize("fault", ["lost", "late", "error"])
def test_messages_that_fail_and_are_sent_again_change_nothing(fault):
    problem, case = quadratic(), next(c for c in CASES if c.name == "tied")
    faults = {"site 1": lambda call: fault if call % 3 == 0 else "", "site 0": lambda call: fault if call == 5 else ""}
    found = make_federation("loopback", problem, 3)
    disturbed = federation(
        problem.objective, problem.clusters, problem.weights, problem.ids, sites=3, faults=faults, look=0.02,
        policy=Policy(deadline=5.0, retries=100, pause=0.01),
    )  # fmt: skip
    send = disturbed._transport.send
    disturbed._transport.send = lambda messages, timeout: send(messages, min(timeout, 0.05))
    close(case.run(disturbed), case.run(found), 1e-12)


def test_everybody_is_asked_at_once_and_answers_for_himself():
    sender, clients = transport(ECHO)
    assert sender.sites == ["a", "b"]
    assert sender.send({"a": b"1", "b": b"2"}, 5.0) == {"a": b"1a", "b": b"2b"}
    assert sender.send({"b": b"3"}, float("inf")) == {"b": b"3b"}
    assert clients["a"].calls == 1 and not clients["a"].probes
    sender.close()


def test_a_dead_site_costs_one_timeout_and_is_asked_again_once_it_lives():
    sender, clients = transport(ECHO, {"a": lambda call: "dead" if call == 2 else ""}, look=0.02)
    both = {"a": b"1", "b": b"2"}
    assert sender.send(both, 5.0)["a"] == b"1a"
    assert sender.send(both, 0.3) == {"a": None, "b": b"2b"}
    calls, start = clients["a"].calls, time.perf_counter()
    for _ in range(5):
        assert sender.send(both, 60.0) == {"a": None, "b": b"2b"}
    assert time.perf_counter() - start < 5.0 and clients["a"].calls == calls
    clients["a"].lives = True
    answers = []
    while not answers or (answers[-1]["a"] is None and len(answers) < 500):
        answers.append(sender.send(both, 5.0))
        time.sleep(0.01)
    assert answers[-1] == {"a": b"1a", "b": b"2b"}


def test_a_site_that_does_not_live_is_given_up_long_before_the_deadline():
    sender, clients = transport(ECHO, {"a": lambda call: "dead"}, look=0.02)
    sender._clients["a"] = lambda timeout: clients["a"](min(timeout, 3.0))  # the test need not wait for an hour
    start = time.perf_counter()
    assert sender.send({"a": b"1", "b": b"2"}, 3600.0) == {"a": None, "b": b"2b"}
    assert time.perf_counter() - start < 3.0


def test_a_slow_site_that_lives_is_waited_for():
    def slow(data):
        time.sleep(0.4)
        return data

    sender, clients = transport({"a": slow}, look=0.02)
    assert sender.send({"a": b"1"}, 60.0) == {"a": b"1"}
    assert clients["a"].probes > 2


def test_a_late_reply_is_never_taken_for_the_next_one():
    sender, clients = transport({"a": lambda data: data}, {"a": lambda call: "late" if call % 2 else ""}, look=0.02)
    answers = []
    for i in range(20):
        text = str(i).encode()
        answers.append(sender.send({"a": text}, 0.03)["a"])
        assert answers[-1] in (None, text)
        time.sleep(0.04)
    assert None in answers and clients["a"].calls > 2


def test_sites_that_nvflare_knows_to_be_gone_are_not_asked():
    sender, clients = transport(ECHO, sites=["a", "b", "c"])
    assert sender.sites == ["a", "b", "c"]
    assert sender.send(dict.fromkeys("abc", b""), 60.0) == {"a": b"a", "b": b"b", "c": None}
    sender.lost("a")
    assert sender.send({"a": b"", "b": b""}, 60.0) == {"a": None, "b": b"b"} and clients["a"].calls == 1
    sender.found("a")
    assert sender.send({"a": b"", "b": b""}, 60.0) == {"a": b"a", "b": b"b"}


def test_an_answer_that_is_no_bytes_is_none():
    sender, _ = transport({"a": lambda data: {"not": "bytes"}})
    assert sender.send({"a": b""}, 5.0) == {"a": None}


def test_the_end_of_the_job_is_an_error_at_once():
    ended = []
    sender, _ = transport(ECHO, {"a": lambda call: "error"}, ended=lambda: bool(ended))
    assert sender.send({"a": b"", "b": b""}, 60.0) == {"a": None, "b": b"b"}
    ended.append(True)
    with pytest.raises(JobEndedError, match="one of its processes has died"):
        sender.send({"b": b""}, 60.0)


def test_the_end_of_the_job_is_noticed_long_before_a_site_is_asked_whether_it_lives(monkeypatch):
    monkeypatch.setattr(sending, "_TICK", 0.02)
    ended, late, answered = threading.Event(), threading.Event(), []

    def slow(data):
        answered.append(late.wait(10.0))
        return data

    sender, _ = transport({"a": slow}, ended=ended.is_set, look=3600.0)
    threading.Timer(0.1, ended.set).start()
    with pytest.raises(JobEndedError):
        sender.send({"a": b""}, 3600.0)
    assert not answered
    late.set()


def test_the_end_of_the_job_is_noticed_where_no_site_can_be_asked():
    sender, _ = transport(ECHO, ended=lambda: True)
    sender.lost("a")
    with pytest.raises(JobEndedError):
        sender.send({"a": b""}, 60.0)
