"""Coded replies whose bytes are none of the codec's, in messages that are otherwise sound: their site is left out."""

import numpy as np
import pytest

from coterie.codecs.codec import Codec
from coterie.engines import wire
from coterie.engines.retry_and_quorum import Policy
from coterie.errors import CoterieError
from coterie.federation import Ragged
from tests.contract.registry import CASES
from tests.engines.faults import Faults, Loopback

pytestmark = pytest.mark.usefixtures("in_full")

CODED = [c for c in CASES if c.name.endswith(("-coded", "-bytes", "-tv", "-ef21"))]
LIAR, PARTS = 1, [[22, 3, 8], list(range(9, 22)), [0, 1, 2, 4, 5, 6, 7]]


def flipped(payload):
    """One bit of the last row's last byte."""
    values = payload.values.copy()
    values[-1] ^= 1
    return Ragged(values, payload.offsets)


def cut(payload):
    """No bytes for the first row."""
    return Ragged.of([b"", *(payload[i] for i in range(1, len(payload)))])


def numbers(payload):
    """The bytes as numbers, which join those of others."""
    return Ragged(payload.values.astype(np.float64), payload.offsets)


class Lying(Loopback):
    """Site 1 damages every payload that it sends from the third exchange on."""

    def __init__(self, *args, damage=flipped, **options):
        super().__init__(*args, sites=PARTS, seed=7, **options)
        self.damage, self.began = damage, 0

    def deliver(self, site, data, attempt):
        answer = super().deliver(site, data, attempt)
        reply = wire.decode(answer)
        if site != LIAR or self.number < 3 or "payload" not in reply.get("values", {}):
            return answer
        self.began = self.began or self.number
        return wire.encode(reply | {"values": reply["values"] | {"payload": self.damage(reply["values"]["payload"])}})


def lying(case, strict=False, **options):
    problem = case.problem()
    data = problem.objective, problem.clusters, problem.weights, problem.ids
    return data, Lying(*data, policy=Policy(strict=strict), **options)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("case", CODED, ids=lambda case: case.name)
def test_a_site_that_sends_damaged_codes_is_left_out_from_then_on(case):
    data, fed = lying(case)
    found = case.run(fed)
    assert list(fed.quarantined) == ["site 1"] and "cannot be read as codec" in fed.quarantined["site 1"]
    away = Faults(request=lambda exchange, site: site == LIAR and exchange >= fed.began)
    policy = Policy(strict=False, retries=0)
    same(found, case.run(Loopback(*data, sites=PARTS, seed=7, faults=away, policy=policy)))


@pytest.mark.parametrize("damage", [cut, numbers])
def test_whatever_is_wrong_with_the_bytes(damage):
    case = next(c for c in CODED if c.name == "fedavg-coded")
    _, fed = lying(case, damage=damage)
    case.run(fed)
    assert list(fed.quarantined) == ["site 1"]


@pytest.mark.parametrize("case", CODED, ids=lambda case: case.name)
def test_strictly_it_ends_the_run_by_name(case):
    _, fed = lying(case, strict=True)
    with pytest.raises(CoterieError, match=r"At site 1, its answer cannot be used .*codec"):
        case.run(fed)


def test_a_run_that_goes_on_from_its_journal_leaves_it_out_too(tmp_path, monkeypatch):
    case = next(c for c in CODED if c.name == "similarity-network-tv")
    _, fed = lying(case, journal=tmp_path)
    found = case.run(fed)
    _, again = lying(case, journal=tmp_path, damage=None)
    same(case.run(again), found)
    assert again.quarantined == fed.quarantined and again.began == 0


def test_the_first_rows_of_a_codec_are_bytes():
    from coterie.codecs import by_name

    codec: Codec = by_name("sign")
    for payload in (np.zeros((2, 5), np.uint8), Ragged(np.zeros((4, 2), np.uint8), [0, 2, 4])):
        with pytest.raises(CoterieError, match="are rows of bytes"):
            codec.decode(payload, 4)
