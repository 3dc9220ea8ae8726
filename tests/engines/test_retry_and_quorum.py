"""Sites that are slow, away or broken: who is waited for, who is left out, and when a run stops."""

import re
import time
from zlib import crc32

import numpy as np
import pytest

from coterie.engines import wire
from coterie.engines.message_checks import disagreeing
from coterie.engines.retry_and_quorum import BelowQuorum, Policy
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.federation import work
from tests.contract.cases import quadratic
from tests.engines.sites import Local, nodes, transport
from tests.messages import names

pytestmark = pytest.mark.usefixtures("in_full")

PARTS = [[22, 3, 8], list(range(9, 22)), [0, 1, 2, 4, 5, 6, 7]]
LOOSE = Policy(strict=False, retries=4)


@work
def gradient(site, x):
    return {"g": site.objective.gradient(np.broadcast_to(x, (len(site), 3))), "n": np.ones(len(site))}


@work
def fails_at_site_1(site):
    if np.any(site.ids == quadratic().ids[9]):
        raise OSError(28, "No space left on device")
    return {"n": np.ones(len(site))}


def ask(fed):
    return fed.ask(gradient, x=np.zeros(3))


def remote(fault=None, policy=LOOSE, **options):
    return Remote(transport(quadratic(), PARTS, fault=fault), policy=policy, **options)


def changed(change):
    """A fault: the values of site 1's replies to questions, changed."""

    def fault(name, call, reply):
        answer = wire.decode(reply, writable=True)
        if name != "site 1" or "values" not in answer:
            return reply
        return wire.encode(change(answer))

    return fault


def other_version(name, call, reply):
    whole = bytes([reply[0] - wire.VERSION + 9]) + reply[1:-4]
    return reply if name != "site 1" or call == 1 else whole + crc32(whole).to_bytes(4, "little")


def garbage(name, call, reply):
    return reply if name != "site 1" or call == 1 else b"\xc3\x09" + bytes(range(100))


def values(**change):
    return lambda answer: answer | {"values": answer["values"] | change}


BROKEN = {
    "garbage": (garbage, "cannot be read"),
    "another version": (other_version, "format 9, not 3"),
    "no dict": (changed(lambda answer: [1, 2]), "no answer"),
    "another exchange": (changed(lambda answer: answer | {"exchange": [1, 1]}), "another request"),
    "a number for the exchange": (changed(lambda answer: answer | {"exchange": 7}), "another request"),
    "gradients that are none": (changed(lambda answer: answer | {"gradients": -1}), "another request"),
    "NaN": (changed(values(g=np.full((13, 3), np.nan))), "NaN"),
    "fewer rows": (changed(values(n=np.ones(12))), "13 rows"),
    "a number for rows": (changed(values(n=1.0)), "no array|13 rows"),
    "another name": (changed(values(h=np.ones(13))), "where most answer"),
    "another type": (changed(values(n=np.ones(13, np.float32))), "where most answer"),
    "another shape": (changed(values(g=np.ones((13, 4)))), "where most answer"),
    "text": (changed(values(n="many")), "no array"),
}


@pytest.mark.parametrize("fault, why", BROKEN.values(), ids=BROKEN)
def test_a_broken_site_is_left_out_and_named(fault, why):
    fed = remote(fault)
    whole = ask(remote())
    for _ in range(2):
        replies = ask(fed)
        np.testing.assert_array_equal(replies.missing, np.sort(PARTS[1]))
        np.testing.assert_array_equal(replies["g"], whole["g"][replies.rows])
    assert list(fed.quarantined) == ["site 1"]
    assert re.search(why, fed.quarantined["site 1"])
    sent = len(fed._transport.sent)
    ask(fed)
    assert len(fed._transport.sent) == sent + 2, "it is not asked any more"


@pytest.mark.parametrize("place", [0, 4, 5, 40])
def test_a_bit_that_flipped_is_asked_for_again(place):
    def fault(name, call, reply):
        flips = name == "site 1" and call == 2
        return reply[:place] + bytes([reply[place] ^ 2]) + reply[place + 1 :] if flips else reply

    fed = remote(fault)
    assert len(ask(fed).missing) == 0 and not fed.quarantined and fed._transport.calls == 3


@pytest.mark.parametrize("fault, why", [v for k, v in BROKEN.items() if k not in ("garbage", "NaN")])
def test_strictly_a_broken_site_ends_the_run_by_name(fault, why):
    with pytest.raises(CoterieError, match=f"site 1.*({why})"):
        ask(remote(fault, Policy(retries=4)))


def test_numbers_that_most_sites_answer_as_nan_are_the_runs_own():
    fed = remote()
    replies = fed.ask(gradient, x=np.full(3, np.nan))
    assert not fed.quarantined and np.isnan(replies["g"]).all()


def test_a_site_whose_work_fails_is_missing_and_comes_back():
    fed = remote()
    replies = fed.ask(fails_at_site_1)
    np.testing.assert_array_equal(replies.missing, np.sort(PARTS[1]))
    assert fed.troubles == {"site 1": "work failed: OSError: [Errno 28] No space left on device"}
    assert len(ask(fed).missing) == 0 and not fed.troubles
    with pytest.raises(CoterieError, match=names("site 1 work failed")):
        remote(policy=Policy()).ask(fails_at_site_1)


def silent_from(first, last=10**9):
    return lambda name, call, reply: None if name == "site 1" and first <= call <= last else reply


def test_below_the_quorum_the_run_stops_and_goes_on_later(tmp_path):
    policy = Policy(strict=False, retries=1, min_clients="all")
    expected = remote().total(gradient, x=np.ones(3))
    fed = remote(silent_from(3), policy, journal=tmp_path)
    fed.total(gradient, x=np.zeros(3))
    with pytest.raises(BelowQuorum, match=r"10 of 23 clients answered.*site 1: did not answer.*it goes on"):
        fed.total(gradient, x=np.ones(3))
    assert fed.number == 1
    again = Remote(fed._transport, policy=policy, journal=tmp_path)
    fed._transport.fault = None
    sums = again.total(gradient, x=np.zeros(3))
    sums = again.total(gradient, x=np.ones(3))
    np.testing.assert_array_equal(sums["g"], expected["g"])


@pytest.mark.parametrize("quorum, enough", [({"min_clients": 9}, True), ({"min_clients": 10}, False),
                                            ({"min_per_cluster": 1}, False)])  # fmt: skip
def test_quorums_of_clients_and_of_every_cluster(quorum, enough):
    problem = quadratic()
    alone = np.flatnonzero(problem.clusters == 2)
    parts = [np.setdiff1d(np.arange(10), alone), np.union1d(np.arange(10, 23), alone)]
    assert len(alone) and len(parts[0]) == 9
    fed = Remote(transport(problem, parts, fault=silent_from(2)), policy=Policy(strict=False, retries=0, **quorum))
    if enough:
        assert len(ask(fed).rows) == 9
    else:
        with pytest.raises(BelowQuorum, match="asks for"):
            ask(fed)


def test_a_site_that_was_away_is_not_waited_for_until_its_time():
    fed = remote(silent_from(2, 2), Policy(strict=False, retries=0, rejoin=3600.0))
    assert len(ask(fed).missing) == 13
    assert len(ask(fed).missing) == 13 and "asked again later" in fed.troubles["site 1"]
    fed._retry._away[1] = time.monotonic() - 1.0
    assert len(ask(fed).missing) == 0
    needed = remote(silent_from(2, 2), Policy(strict=False, retries=0, rejoin=3600.0, min_per_cluster=0))
    ask(needed)
    needed._retry.policy = Policy(strict=False, retries=0, rejoin=3600.0, min_clients="all")
    assert len(ask(needed).missing) == 0, "a quorum that needs it asks it at once"


def test_a_site_that_stays_away_holds_up_the_others_less_and_less():
    waited = []

    def dead(name, call, reply):
        return None if name == "site 1" and call > 1 else reply

    fed = remote(dead, Policy(strict=False, retries=0, deadline=3600.0, rejoin=100.0))
    send = fed._transport.send
    fed._transport.send = lambda messages, timeout: (waited.append((set(messages), timeout)), send(messages, timeout))[
        1
    ]
    away = []
    for _ in range(7):
        assert len(ask(fed).missing) == 13
        away.append(fed._retry._away[1] - time.monotonic())
        fed._retry._away[1] = 0.0
    alone = [timeout for names, timeout in waited if names == {"site 1"}]
    assert len(alone) == 6 and max(alone) <= 100.0, "it is asked after the others, and not for the whole deadline"
    np.testing.assert_allclose(away, [100.0, 200.0, 400.0, 800.0, 1600.0, 1600.0, 1600.0], atol=50.0)
    fed._transport.fault = None
    assert len(ask(fed).missing) == 0
    waited.clear()
    assert len(ask(fed).missing) == 0 and len(waited) == 1, "once it answered it is one of all again"


def test_a_site_that_is_back_is_asked_where_another_has_left_too_little_time_and_too_few():
    def fault(name, call, reply):
        if (name, call) == ("site 2", 3):
            time.sleep(0.3)
            return None
        return silent_from(2, 2)(name, call, reply)

    fed = remote(fault, Policy(strict=False, retries=0, rejoin=3600.0))
    ask(fed)
    fed._retry._away[1] = 0.0
    fed._retry.policy = Policy(strict=False, retries=0, rejoin=3600.0, deadline=0.2, min_clients=10)
    assert len(ask(fed).missing) == 7 and list(fed.troubles) == ["site 2"]


def test_sites_that_are_left_out_are_not_counted_on():
    fed = remote(silent_from(2, 2), Policy(strict=False, retries=0, rejoin=3600.0, min_clients=10))
    assert len(ask(fed).missing) == 13
    fed._retry.quarantined["site 2"] = "it was broken"
    assert len(ask(fed).missing) == 7, "a quorum needs the site that was away"


def test_a_site_that_was_away_once_and_refuses_now_is_not_called_late():
    fed = remote(silent_from(2, 2), Policy(strict=False, retries=0))
    ask(fed)
    assert fed._retry.late == ["site 1"]
    fed.ask(fails_at_site_1)
    assert list(fed.troubles) == ["site 1"] and not fed._retry.late


def test_a_deadline_ends_an_exchange():
    def slow(name, call, reply):
        if name == "site 1" and call > 1:
            time.sleep(0.02)
            return None
        return reply

    fed = remote(slow, Policy(strict=False, retries=10**6, deadline=0.3, pause=0.01))
    start = time.monotonic()
    assert len(ask(fed).missing) == 13
    assert 0.3 <= time.monotonic() - start < 30.0


def test_the_ledger_and_the_watch_tell_what_was_sent():
    seen = []
    fed = remote(silent_from(2, 2), watch=seen.append)
    ask(fed)
    fed.total(gradient, to=[0, 1], x=np.zeros(3))
    sent = fed._transport.sent
    assert fed.ledger.bytes_down == sum(len(data) for _, data in sent)
    assert [e.number for e in seen] == [1, 2] and seen[0].kind == "ask" and seen[0].missing == {}
    assert seen[0].down == sum(len(data) for _, data in sent[3:6]) + len(sent[6][1]), "asked twice"
    assert seen[0].clients == (23, 23) and seen[1].clients == (2, 2) and seen[1].asked == ("site 2",)
    assert sum(e.up for e in seen) < fed.ledger.bytes_up


def test_groups_that_are_too_small_are_refused():
    options = {"min_group": 2}
    fed = Remote(transport(quadratic(), PARTS, **options), policy=LOOSE)
    assert fed.total(gradient, x=np.zeros(3))["n"] == 23
    replies = ask(fed)
    assert len(replies.rows) == 0
    assert "does not answer about so few rows" in fed.troubles["site 0"]
    sums = fed.total(gradient, by=np.arange(23) // 12, x=np.zeros(3))
    assert list(sums.count) == [10, 10] and "site 0" in fed.troubles


@pytest.mark.parametrize("wrong, why", [({"deadline": 0}, "deadline"), ({"retries": -1}, "retries"),
                                        ({"min_clients": "most"}, "min_clients"),
                                        ({"deadline": float("nan")}, "deadline")])  # fmt: skip
def test_policies_that_make_no_sense(wrong, why):
    with pytest.raises(CoterieError, match=why):
        Policy(**wrong)


def test_a_client_at_two_sites_is_named():
    problem = quadratic()
    with pytest.raises(CoterieError, match=names("Client 9 site 1 2")):
        Remote(transport(problem, [PARTS[0], PARTS[1], [*PARTS[2], 9]]))


def test_sites_that_cannot_take_part():
    found = {name: node.receive for name, node in nodes(quadratic(), PARTS).items()}
    found["site 1"] = lambda data: wire.encode({"refused": "not today"})
    with pytest.raises(CoterieError, match="not today"):
        Remote(Local(found))
    with pytest.raises(BelowQuorum, match=names("site 1 cannot take part")):
        Remote(Local(found), policy=Policy(strict=False, min_clients="all"))
    fed = Remote(Local(found), policy=LOOSE)
    assert len(fed.clients) == 10 and fed.names == ["site 0", "site 2"]


def test_the_order_of_clients_is_that_of_a_table():
    problem = quadratic()
    fed = Remote(transport(problem, PARTS))
    np.testing.assert_array_equal(fed.participants.labels, np.arange(23))
    np.testing.assert_array_equal(fed.clients.ids, problem.ids)
    np.testing.assert_array_equal(fed.clients.clusters, problem.clusters)
    np.testing.assert_array_equal(fed.participants.weights, problem.weights)
    assert fed.participants.levels[0].name == "0" and len(fed.participants.levels[0].labels) == 5


def test_where_no_shape_is_that_of_most_nobody_is_taken_for_sound():
    replies = {s: {"values": {"x": np.ones(s + 2)}} for s in range(2)}
    wrong = disagreeing(replies, {0: None, 1: None}, False)
    assert list(wrong) == [0, 1] and all("as many answer something else" in text for text in wrong.values())
