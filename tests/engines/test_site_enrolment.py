"""What sites tell of themselves when a run begins, whoever they are."""

import re

import numpy as np
import pytest

from coterie.engines import wire
from coterie.engines.retry_and_quorum import BelowQuorum, Policy, Refused
from coterie.engines.site_enrolment import Remote, upgrade
from coterie.errors import CoterieError
from tests.contract.cases import quadratic
from tests.deployment.site.test_strangers import VALUES
from tests.engines.sites import Local, nodes
from tests.messages import names

PARTS = [[22, 3, 8], list(range(9, 22)), [0, 1, 2, 4, 5, 6, 7]]


def telling(change):
    """Sites of which the first tells something ``change`` makes of what it would."""
    found = {name: node.receive for name, node in nodes(quadratic(), PARTS, info={"min_group": 1}).items()}
    honest = found["site 0"]

    def other(data):
        return wire.encode(change(wire.decode(honest(data))))

    return Local(found | {"site 0": other})


def other_arrays(part):
    yield from (np.full(part.shape, value) for value in (np.nan, -5, np.inf, 2**62, "a", 1j))
    yield from (part[:-1], part.reshape(-1, 1), part.astype(str), part.astype(float) + 0.5)


def test_a_site_that_tells_anything_at_all_is_taken_or_left_out_by_name():
    told = next(iter(nodes(quadratic(), PARTS).values())).about() | {"levels": [quadratic().clusters[[3, 8, 22]]]}
    told["info"] = {"min_group": 1, "notes": ["one"], "version": "", "levels": ["0"]}
    changes = [{name: value} for name in told for value in VALUES]
    changes += [{n: other} for n, part in told.items() if isinstance(part, np.ndarray) for other in other_arrays(part)]
    changes += [{"info": told["info"] | {name: value}} for name in told["info"] for value in VALUES]
    changes += [{"info": {"notes": [value], "levels": [value]}} for value in VALUES]
    changes += [{"levels": [value]} for value in VALUES]
    changes += [{name: value} for name in ("refused", "failed", "busy", "garbled", "late") for value in VALUES]
    least, left_out = Policy(strict=False, min_clients=20, retries=0), 0
    for change in changes:
        place = telling(lambda honest, change=change: honest | change)
        try:
            fed = Remote(place, policy=least)
        except CoterieError as problem:  # clients that two sites have, labels of two kinds
            assert re.search("site [012]|Labels|clusters", str(problem)), problem
            continue
        assert len(fed.clients) == (20 if "site 0" in fed.away else 23)
        left_out += "site 0" in fed.away
    assert left_out > len(changes) / 2


def few(told):
    return "it has too few" if len(told["ids"]) == 3 else None


def test_a_site_that_cannot_take_part_is_left_out_where_enough_clients_are_left():
    place = telling(dict)
    fed = Remote(place, policy=Policy(strict=False, min_clients=20), need=few)
    assert fed.away == {"site 0": "it has too few"} and len(fed.clients) == 20
    for least, text in ((21, "has too few and 20 clients are left"), ("all", "has too few")):
        with pytest.raises(Refused, match=names(f"site 0 cannot take part {text}")):
            Remote(place, policy=Policy(strict=False, min_clients=least), need=few)


def test_sites_that_are_away_when_a_run_begins_count_for_its_quorum():
    found = {name: node.receive for name, node in nodes(quadratic(), PARTS).items()}
    place = Local(found, lambda name, call, reply: None if name == "site 1" else reply)
    assert len(Remote(place, policy=Policy(strict=False, min_clients=10, retries=0)).clients) == 10
    with pytest.raises(BelowQuorum, match=names("site 1 10 clients are left")):
        Remote(place, policy=Policy(strict=False, min_clients=11, retries=0))


@pytest.mark.parametrize(
    ("ours", "theirs", "who"),
    [
        ("0.4.1", "0.4.0", ""),
        ("0.4.1", "0.5.0.dev3", ""),
        ("0.4.1", "0.3.9", ""),
        ("0.4.1", "0.2.9", "upgrade the site"),
        ("0.4.1", "0.6.0", "upgrade the coordinator"),
        ("1.0.0", "0.9.0", "upgrade the site"),
        ("0.9.0", "1.0.0", "upgrade the coordinator"),
        ("0.4.1", "", "install one"),
        ("0.4.1", "0.4.1+local", ""),
        ("0.4.1", "0.99999999999", "install one"),
    ],
)
def test_versions_next_to_each_other_talk_and_others_say_which_is_to_be_upgraded(ours, theirs, who, monkeypatch):
    monkeypatch.setattr("coterie.__version__", ours)
    said = upgrade(theirs)
    assert said.endswith(who) and bool(said) == bool(who)
