"""Secure sums in a federation: the laws of the contract hold, whoever is lost between the two steps."""

import functools

import numpy as np
import pytest

pytest.importorskip("cryptography")

from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import load_checkpoint, save_checkpoint
from coterie.engines.retry_and_quorum import BelowQuorum, Policy
from coterie.engines.secure_sum import Secure, secure_sites
from coterie.engines.site import Node
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.federation import work
from tests.contract.cases import last, make_federation, quadratic
from tests.contract.registry import CASES
from tests.contract.test_faults import add, read
from tests.contract.test_laws import close, partitions, same
from tests.engines.faults import Faults
from tests.engines.sites import Local, nodes
from tests.messages import names

M, SITES = 12, 5
ANY = Secure(min_sites=1)
SOME = ["tied", "clusterwise", "heads", "narrow", "exact-given-poisson", "exact-hierarchical-gaussian", "scaffold-rows"]
BEYOND = "network-exact-poisson"  # tries steps at which a loss overflows what sums carry
every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.name, marks=[] if c.name in SOME else [pytest.mark.soak])
        for c in CASES
        if c.name != BEYOND and not c.name.startswith("deep-")
    ],
)


def federation(sites=SITES, secure=Secure(), m=M, k=1, **options):  # noqa: B008
    return make_federation("loopback", quadratic(m, k=k), sites, secure=secure, **options)


class Lost(Faults):
    """Sites that do not get some of the messages of an exchange, counted from 0.

    Without repeats these are the work, the word on who is in the sum, and its opening, after the joining where a site
    has no keys.
    """

    def __init__(self, exchange, steps, sites):
        super().__init__(request=lambda e, s: self.strikes(e, s))
        self.__dict__.update(exchange=exchange, steps=steps, lost=sites, seen={})

    def strikes(self, exchange, site):
        if exchange != self.exchange:
            return False
        at = self.seen[site] = self.seen.get(site, -1) + 1
        return site in self.lost and at in self.steps


# -- the laws


@functools.cache
def undisturbed(case):
    """A run over secure sums in which nothing is lost."""
    problem = case.problem()
    return case.run(make_federation("loopback", problem, partitions(len(problem.ids), 0), secure=ANY))


@every_case
def test_secure_sums_are_the_sums(case):
    close(undisturbed(case), case.run(make_federation("inprocess", case.problem())), case.tolerance)


@pytest.mark.soak("exact-hierarchical-gaussian")
@every_case
def test_faults_with_retries_change_nothing(case, tmp_path):
    """Sums of whole numbers do not depend on an order: lost, damaged, dead and back again, bit for bit."""
    problem = case.problem()
    parts = partitions(len(problem.ids), 0)
    faults = Faults(request=0.1, reply=0.1, damage=0.1, crash=0.2, seed=5)
    options = {"faults": faults, "retries": 100, "folder": tmp_path}
    disturbed = make_federation("loopback", problem, parts, secure=ANY, **options)
    same(case.run(disturbed), undisturbed(case))


def test_the_hierarchical_logistic_fit_over_four_sites():
    case = next(c for c in CASES if c.name == "exact-hierarchical-binomial")
    problem = case.problem()
    parts = [np.arange(len(problem.ids))[s::4] for s in range(4)]  # few clients are alone in their cluster at a site
    fed = make_federation("loopback", problem, parts, secure=Secure(min_sites=2))
    close(case.run(fed), case.run(make_federation("inprocess", problem)), 1e-10)


def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    case = next(c for c in CASES if c.name == "clusterwise")
    problem = case.problem()
    straight = last(case.stream(make_federation("loopback", problem, 3, secure=ANY)))
    fed = make_federation("loopback", problem, 3, secure=ANY, folder=tmp_path / "sites")
    states = case.stream(fed)
    next(states)
    save_checkpoint(tmp_path / "c", fed, next(states))
    next(states)
    again = make_federation("loopback", problem, 3, secure=ANY, folder=tmp_path / "sites")
    same(last(case.stream(again, load_checkpoint(tmp_path / "c", again))), straight)


# -- who is lost when


@pytest.mark.parametrize("retries", [0, 2])
def test_a_site_that_is_lost_before_it_sends_is_missing(retries):
    fed = federation(retries=retries, faults=Lost(2, range(retries + 1), {1}))
    assert fed.total(add, x=1.0)["u"] == M
    sums, gone = fed.total(add, x=10.0), fed.sites[1]
    np.testing.assert_array_equal(sums.missing, gone)
    assert sums["u"] == 11.0 * (M - len(gone)) and sums.count == M - len(gone)
    assert list(fed.troubles) == ["site 1"]
    assert fed.total(add, x=100.0)["u"] == 111.0 * M - 10.0 * len(gone)  # it joins again, without what was not counted
    assert fed.total(read)["u"] == 111.0 * M - 10.0 * len(gone) and not fed.troubles


@pytest.mark.parametrize("steps", [[1], [2], [1, 2]])
def test_a_site_that_is_lost_after_it_sent_is_counted(steps, tmp_path):
    fed = federation(retries=0, faults=Lost(2, steps, {0, 3}), folder=tmp_path)
    fed.total(add, x=1.0)
    sums = fed.total(add, x=10.0)
    assert sums["u"] == 11.0 * M and len(sums.missing) == 0
    for site in range(SITES):  # all die between two exchanges, and come back from their folders
        fed.kill(site)
        fed.revive(site)
    np.testing.assert_array_equal(fed.ask(read)["u"], 11.0)
    assert fed.total(add, x=0.0)["u"] == 11.0 * M


@pytest.mark.parametrize("step", [1, 2])
def test_too_few_to_open_a_sum_count_nothing(step):
    fed = federation(retries=0, faults=Lost(2, [step], {0, 1, 3}))
    fed.total(add, x=1.0)
    with pytest.raises(BelowQuorum, match=names("2 sites helped open secure sum takes 3")):
        fed.total(add, x=10.0)
    assert fed.total(add, x=100.0)["u"] == 101.0 * M  # once they are back


def test_nobody_at_all():
    for step in (0, 1):  # nobody joins, or nobody answers
        fed = federation(retries=0, faults=Lost(1, [step], range(SITES)))
        sums = fed.total(add, x=1.0)
        assert not sums and sums.count == 0 and list(sums.missing) == list(range(M)) and len(fed.troubles) == SITES
        assert fed.total(read)["u"] == 0.0


def test_below_a_quorum_nothing_is_opened():
    seen = []
    fed = federation(
        policy=Policy(min_clients="all", retries=0),
        faults=Lost(1, [1], {2}),
        tap=lambda way, site, data: seen.append(data) if b"confirm" in data or b"unmask" in data else None,
    )
    with pytest.raises(BelowQuorum, match=names("10 of 12 all are needed run again")):
        fed.total(add, x=1.0)
    assert not seen
    assert fed.total(add, x=1.0)["u"] == M


def test_sites_that_are_not_asked_help_to_open():
    fed = federation(secure=Secure(threshold=5, min_sites=3))
    to = np.concatenate([fed.sites[s] for s in range(3)])
    assert fed.total(add, to=to, x=1.0)["u"] == len(to)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kind", ["join", "gradients", "confirm", "unmask"])
def test_a_coordinator_that_is_killed_goes_on(kind, tmp_path):
    """It dies before, during and after each of its messages; sums from its journal and new ones come out the same."""
    problem, secure = quadratic(M), Secure()
    party = secure_sites([f"site {s}" for s in range(3)], secure)
    parts = [np.arange(M)[s::3] for s in range(3)]
    receivers = {}
    for name, node in nodes(problem, parts, tmp_path / "sites").items():
        node._secure = party(name)
        receivers[name] = node.receive
    deaths = [0]

    def run(until):
        count = [0]

        def fault(name, call, reply):
            if reply is not None and kind.encode() in reply:
                count[0] += 1
                if count[0] == until:
                    raise Killed
            return reply

        journal = tmp_path / f"journal {kind}"
        fed = Remote(Local(receivers, fault), policy=Policy(retries=0), journal=journal, secure=secure)
        return [float(fed.total(add, x=float(x))["u"]) for x in (1, 10, 100)]

    for until in (2, 3, 1, 4):
        try:
            found = run(until)
        except Killed:
            deaths[0] += 1
    found = run(-1)
    assert found == [M * 1.0, M * 11.0, M * 111.0] and deaths[0]


def test_a_site_that_lives_for_one_message_and_one_that_never_came(tmp_path):
    """Every message meets a new process with the site's folder; a listed site that is away holds shares, no more."""
    names = [f"site {s}" for s in range(4)]
    problem, party = quadratic(M, k=1), secure_sites(names, Secure(min_sites=3))

    def receiver(name, rows):
        clusters = np.zeros(len(rows), np.int64)
        objective, options = (
            problem.objective.take(rows),
            {"folder": tmp_path / name, "levels": [clusters], "labels": rows},
        )

        def receive(data):
            node = Node(name, objective, clusters, np.ones(len(rows)), problem.ids[rows], secure=party(name), **options)
            return node.receive(data)

        return receive

    receivers = {name: receiver(name, np.arange(M)[s::3]) for s, name in enumerate(names[:3])}
    fed = Remote(Local(receivers), secure=Secure(min_sites=3))
    assert [float(fed.total(add, x=x)["u"]) for x in (1.0, 10.0)] == [M, 11.0 * M]


# -- what is refused


@work
def huge(site, x):
    return {"loss": np.full(len(site), x)}


@pytest.mark.parametrize("x", [np.nan, np.inf, 1e19])
def test_numbers_that_cannot_be_carried_are_refused_at_the_site(x):
    fed = federation()
    with pytest.raises(CoterieError, match=r"At site 0, work failed: .*'loss' holds .* carries numbers below"):
        fed.total(huge, x=x)
    assert fed.total(huge, x=1.0)["loss"] == M


def test_both_ends_must_be_secure():
    problem = quadratic(M)
    party = secure_sites([f"site {s}" for s in range(3)], Secure())
    parts = [np.arange(M)[s::3] for s in range(3)]
    receivers = {}
    for name, node in nodes(problem, parts).items():
        node._secure = party(name)
        receivers[name] = node.receive
    fed = Remote(Local(receivers))
    assert len(fed.ask(read)["u"]) == M
    with pytest.raises(CoterieError, match=names("site 0 masks sums asked clear")):
        fed.total(read)
    fed = Remote(Local({name: node.receive for name, node in nodes(problem, parts).items()}), secure=Secure())
    with pytest.raises(CoterieError, match=names("site 0 takes no part secure sums")):
        fed.total(read)


def test_groups_at_few_sites_are_refused():
    fed = federation(k=3, sites=3)
    with pytest.raises(
        CoterieError, match=r"Group 0 of a secure sum has clients at .* of the sites, and min_sites is 3"
    ):
        fed.total(add, by="cluster", x=1.0)
    with pytest.raises(CoterieError, match="min_sites is 3"):
        fed.total(add, to=[0, 1], x=1.0)


def test_a_site_with_other_shapes_is_left_out():
    fed = federation(
        sites=[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], secure=Secure(min_sites=3), policy=Policy(strict=False)
    )
    ids = fed.clients.ids
    sums = fed.total(uneven, odd=ids[:1])
    np.testing.assert_array_equal(sums.missing, [0, 1, 2])
    np.testing.assert_array_equal(sums["x"], np.full(3, 9.0))
    assert "site 0" in fed.quarantined and "where most answer" in fed.quarantined["site 0"]


@work
def uneven(site, odd):
    return {"x": np.ones((len(site), 2 if np.isin(odd, site.ids).any() else 3))}


@pytest.mark.usefixtures("in_full")
def test_what_passes_by_is_noise():
    """Equal values at all sites: no two masked sums have a word in common, nor are the values among them."""
    up = []
    fed = federation(tap=lambda way, site, data: up.append(data) if way == "up" else None)
    for _ in range(3):
        fed.total(huge, x=0.0)
    words = [w for data in up for w in wire.decode(data).get("values", {}).get("words", np.empty(0)).reshape(-1)]
    assert len(words) == 3 * SITES * 2 and len(set(words)) == len(words) and 0 not in words


@pytest.mark.parametrize("forgets", [0, 4])
def test_a_site_that_has_forgotten_joins_and_all_make_new_keys(forgets):
    """Site 4 takes no part in the first sum, and may help to open it all the same."""
    fed = federation(policy=Policy(strict=False, retries=0))
    some = np.concatenate([fed.sites[s] for s in range(4)])
    assert fed.total(huge, to=some, x=1.0)["loss"] == len(some)
    before = dict(fed._keys.lives)
    assert len(before) == SITES
    fed._nodes[forgets]._secure = fed._secure_site(f"site {forgets}")
    fed.total(huge, x=1.0)
    for _ in range(2):
        assert fed.total(huge, x=1.0)["loss"] == M
    after = fed._keys.lives
    assert [name for name in before if before[name] != after[name]] == [f"site {forgets}"]
    assert not fed.quarantined


@pytest.mark.usefixtures("in_full")
def test_a_sum_costs_a_message_to_join_only_where_somebody_is_new():
    seen = []
    fed = federation(tap=lambda way, site, data: seen.append(wire.decode(data)["kind"]) if way == "down" else None)
    for _ in range(2):
        fed.total(huge, x=1.0)
    kinds = [kind for at, kind in enumerate(seen) if at % SITES == 0]
    assert kinds == ["join", "join", "total", "confirm", "unmask", "total", "confirm", "unmask"]
