"""Sites and coordinator by hand: what comes out, what each of them sees, and what is refused."""

import hashlib
import importlib
import sys
import time

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")

from coterie.engines import wire
from coterie.engines.retry_and_quorum import BelowQuorum
from coterie.engines.secure_sum import Identity, KeyOffers, Secure, SecureSite, crypto
from coterie.engines.secure_sum.crypto import signed
from coterie.engines.secure_sum.fixed_point import add, decode, encode, subtract
from coterie.engines.secure_sum.protocol import Round
from coterie.errors import CoterieError
from tests.messages import names


def drawn(name):
    """Fixed bytes in place of random ones."""
    count = [0]

    def entropy(size):
        count[0] += 1
        return hashlib.shake_256(f"{name} {count[0]}".encode()).digest(size)

    return entropy


class Table:
    """Sites around a table, with a coordinator that may be asked to lose some of them."""

    def __init__(self, n, secure=None, run="run"):
        self.names, self.secure = [f"s{i}" for i in range(n)], secure or Secure()
        self.identities = {name: Identity.new(drawn(f"identity {name}")) for name in self.names}
        self.peers = {name: i.public for name, i in self.identities.items()}
        self.run = run
        self.parties = {name: self.party(name) for name in self.names}
        self.collector = KeyOffers(self.secure)

    def party(self, name, **options):
        options = {"run": self.run, "secure": self.secure, "peers": self.peers, "entropy": drawn(name)} | options
        return SecureSite(name, identity=self.identities[name], **options)

    def open(self, groups=None, unequal=False):
        for _ in range(2):
            told = dict(self.collector.lives)
            for name in self.collector.outside(self.names):
                self.collector.joined(name, passed(self.parties[name].join(passed(told))), told, anew=True)
        return self.collector.open(groups or {name: np.zeros(1, np.int64) for name in self.names}, unequal)

    def masked(self, tally, name, sums, grouped=False):
        party = self.parties[name]
        return passed(party.masked(party.check(passed(tally.request)), sums, grouped))

    def sum(self, sums, before=(), after=(), groups=None, unequal=False):
        """The result, when sites ``before`` and ``after`` are lost before and after they have sent."""
        tally = self.open(groups, unequal)
        for name, values in sums.items():
            if name not in before:
                tally.take(name, self.masked(tally, name, values, groups is not None))
        helpers = [name for name in self.names if name not in before and name not in after]
        for name, question in self.questions(tally, helpers).items():
            if name in helpers:
                tally.reveal(name, passed(self.parties[name].unmask(passed(question))))
        return tally.result()

    def questions(self, tally, helpers=None):
        """What is asked to open a sum, once ``helpers`` have confirmed whom it is over."""
        for name, candidate in tally.candidates().items():
            if helpers is None or name in helpers:
                tally.confirm(name, passed(self.parties[name].confirm(passed(candidate))))
        return {name: passed(question) for name, question in tally.questions().items()}


def passed(value):
    """As it arrives at the other end."""
    return wire.decode(wire.encode(value))


def of(seed, shape=(4,)):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=shape) * 10.0 ** rng.integers(-12, 12, shape), "n": rng.integers(-9, 9, shape)}


def exact(parts, name, dtype=float):
    """The sum in Python's own integers, then as numbers."""
    total = np.zeros((parts[0][name].size, 2), np.uint64)
    for part in parts:
        total = add(total, encode(part[name], 64, 10, name))
    return decode(total, 64, np.dtype(dtype)).reshape(parts[0][name].shape)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 0), (0, 3), (1, 2)])
def test_ten_sites_of_which_three_drop_out_give_the_sum_of_the_rest(before, after):
    table = Table(10)
    for seed in range(3):  # joined once, then with the keys that came with the sum before
        sums = {name: of(10 * seed + i) for i, name in enumerate(table.names)}
        lost = [table.names[i] for i in np.random.default_rng(seed).permutation(10)]
        groups, found = table.sum(sums, lost[:before], lost[before : before + after])
        rest = [s for name, s in sums.items() if name not in lost[:before]]
        np.testing.assert_array_equal(groups, [0])
        np.testing.assert_array_equal(found["x"][0][0], exact(rest, "x"))
        np.testing.assert_array_equal(found["n"][0][0], sum(s["n"] for s in rest))
        plain = sum(s["x"] for s in rest)
        np.testing.assert_allclose(found["x"][0][0], plain, rtol=1e-13, atol=1e-13 * np.abs(plain).max())
        assert len(table.collector.outside(table.names)) == before


def test_groups_that_some_sites_do_not_have():
    """Sites hold different groups, and every group loses other sites."""
    table = Table(7, Secure(min_sites=2))
    rng = np.random.default_rng(5)
    groups = {name: np.sort(rng.permutation(9)[: rng.integers(5, 8)]) * 3 for name in table.names}
    sums = {name: of(i, (len(groups[name]), 2)) for i, name in enumerate(table.names)}
    present, found = table.sum(sums, before=["s4"], after=["s1"], groups=groups)
    for row, g in enumerate(present):
        parts = [{"x": sums[n]["x"][groups[n] == g]} for n in table.names if n != "s4" and g in groups[n]]
        np.testing.assert_array_equal(found["x"][0][row], exact(parts, "x")[0] if len(parts) > 1 else parts[0]["x"][0])


def test_groups_of_unequal_shapes():
    table = Table(4, Secure(min_sites=1))
    groups = {name: np.array([0, 2] if name == "s0" else [2] if name == "s3" else [0, 1, 2]) for name in table.names}
    shape = {0: (2,), 1: (), 2: (3, 1)}
    sums = {
        name: {"x": [np.full(shape[g], 1.0 + i) for g in groups[name]]}
        if name != "s3"
        else {"x": np.full((1, 3, 1), 4.0)}
        for i, name in enumerate(table.names)
    }
    with pytest.raises(CoterieError, match=names("s0 sent sums whose groups unequal shapes")):
        table.sum(sums, groups=groups)
    present, found = table.sum(sums, before=["s1"], groups=groups, unequal=True)
    np.testing.assert_array_equal(present, [0, 1, 2])
    for got, expected in zip(found["x"][0], [[4.0, 4.0], 3.0, [[8.0], [8.0], [8.0]]], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_nobody_and_nothing():
    table = Table(3)
    tally = table.open()
    tally.questions()
    assert tally.result()[1] == {}
    assert table.sum({name: {} for name in table.names})[1] == {}


def test_fixed_keys_give_fixed_bytes(monkeypatch):
    """The formula of the paper in Python's own integers, and the bytes of a reply as they were once."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    table = Table(3)
    tally = table.open()
    secret = {name: party.state["secret"] for name, party in table.parties.items()}
    seed, purpose = table.parties["s1"].state["seed"], b"coterie secure sum mask" + tally._round.digest
    reply = table.masked(tally, "s1", {"x": np.array([0.5, -3.0])})

    def prg(key):
        stream = crypto.stream(key, 2).astype("<u8").tobytes()
        return [int.from_bytes(stream[i : i + 16], "little") for i in (0, 16)]

    own = prg(crypto.derive(seed, purpose))
    before, after = (prg(crypto.agree(secret["s1"], crypto.public(secret[j]), purpose)) for j in ("s0", "s2"))
    numbers = [2**63, -3 * 2**64]
    expected = [(x + b + up - down) % 2**128 for x, b, up, down in zip(numbers, own, after, before, strict=True)]
    assert [int(low) + (int(high) << 64) for low, high in reply["words"]] == expected
    assert hashlib.sha256(wire.encode(reply)).hexdigest() == KNOWN


KNOWN = "bf1d272220a9b7179f67b943770149ea4ee7f2aa1962b5f58092117a84128fba"  # changes with the form of messages


def uniform(words):
    """Whether all bytes, those of each place within a number, and all bits look like drawn ones."""
    places = words.view(np.uint8).reshape(-1, 16)
    for bytes_ in (places.reshape(-1), *places.T):
        count = np.bincount(bytes_, minlength=256).reshape(-1, 1 if len(bytes_) > 2000 else 32).sum(axis=1)
        assert stats.chisquare(count).pvalue > 1e-5
    bits = np.unpackbits(places)
    assert abs(bits.mean() - 0.5) < 2.5 / np.sqrt(bits.size)


def test_a_masked_sum_cannot_be_told_from_noise():
    """Zeros give what large numbers give: in one long sum, and in the first number of sums with many keys."""
    values = {"zeros": np.zeros(4000), "large": np.linspace(-1e17, 1e17, 4000)}
    seen = {}
    for kind, x in values.items():
        table = Table(3)
        for name in table.names:  # other bytes for each kind: equal masks would make them comparable
            table.parties[name] = table.party(name, entropy=drawn(f"{kind} {name}"))
        seen[kind] = table.masked(table.open(), "s1", {"x": x})["words"]
        uniform(seen[kind])
        first = []
        for _ in range(60):
            first.append(table.masked(table.open(), "s1", {"x": x[:1]})["words"][0])
        uniform(np.array(first))
    for column in (0, 1):
        assert stats.ks_2samp(seen["zeros"][:, column], seen["large"][:, column]).pvalue > 1e-4
        assert abs(stats.spearmanr(seen["large"][:, column], values["large"]).statistic) < 5 / np.sqrt(4000)


def test_a_late_sum_of_a_site_that_was_given_up_stays_hidden():
    """Its private key is known by then; its own mask is not."""
    table = Table(5)
    tally, x = table.open(), np.full(4000, 7.0)
    for name in table.names[1:]:
        tally.take(name, table.masked(tally, name, {"x": x}))
    late = table.masked(tally, "s0", {"x": x})["words"]
    for name, question in table.questions(tally).items():
        tally.reveal(name, table.parties[name].unmask(passed(question)))
    np.testing.assert_array_equal(tally.result()[1]["x"][0][0], 28.0)
    for name in table.names[1:]:
        key = crypto.agree(tally._secret("s0"), tally._round.keys[name].public, tally._round.purpose())
        late = subtract(late, crypto.stream(key, 4000))
    assert stats.chisquare(np.bincount(late.view(np.uint8).reshape(-1), minlength=256)).pvalue > 1e-5


# -- what is refused


def test_never_both_secrets_of_one_key():
    table = Table(5)
    tally = table.open()
    for name in table.names[1:]:
        tally.take(name, table.masked(tally, name, of(0)))
    question = table.questions(tally)["s2"]
    first = table.parties["s2"].unmask(question)
    assert table.parties["s2"].unmask(question) == first
    state = passed(table.parties["s2"].state)
    other = question | {"answered": np.ones(5, bool)}
    with pytest.raises(CoterieError, match=r"s2 does not open a sum that 0 sites confirm, of 3 \(threshold\)"):
        table.parties["s2"].unmask(other)
    other["sent"] = [b"", *tally.candidates()["s2"]["sent"][1:]]
    with pytest.raises(CoterieError, match=names("s2 not open sum s0 send part")):
        table.parties["s2"].confirm(other)
    other["sent"][0] = table.masked(tally, "s0", of(0))["sent"]  # it comes late
    refused = pytest.raises(CoterieError, match=names("s2 confirmed sum later key s0"))
    with refused:
        table.parties["s2"].confirm(other)
    table.parties["s2"] = table.party("s2")
    table.parties["s2"].state = state  # died, and came back from its folder
    assert table.parties["s2"].unmask(question) == first
    with pytest.raises(CoterieError, match="has confirmed another"):
        table.parties["s2"].confirm(other)


@pytest.mark.soak("7", "8")
@pytest.mark.parametrize("n", range(3, 9))
def test_what_is_left_of_a_sum_without_those_who_help_the_coordinator_is_over_two_sites(n):
    """With any number of sites away, and any that are fewer than the threshold beside the coordinator."""
    for t in range(n // 2 + 1, n + 1):
        secure = Secure(threshold=t)
        least, (passive, active) = secure.least(n), secure.withstands(n)
        assert passive == (t - 1 if t < n else n - 2) and 0 <= active <= passive
        for away in range(n - 2):
            table = Table(n, secure)
            tally = table.open()
            for name in table.names[away:]:
                tally.take(name, table.masked(tally, name, of(0)))
            table.collector.secure = Secure(threshold=t, min_sites=1)  # a coordinator that does not care
            candidate = passed(tally.candidates()[table.names[-1]])
            if n - away - passive >= 2 and n - away >= least:
                table.parties[table.names[-1]].confirm(candidate)
                continue
            with pytest.raises(CoterieError, match=f"does not open a sum over {n - away} sites"):
                table.parties[table.names[-1]].confirm(candidate)


def test_what_secure_sums_promise_is_said():
    said = {(n, t): Secure(threshold=t).promise(n) for n, t in ((3, 0), (5, 0), (7, 0), (7, 5), (4, 4))}
    assert said[5, 0] == (
        "A secure sum covers 4 of 5 sites at least. A coordinator that follows the protocol reads no single site with "
        "the help of 2 sites, and one that does not with none."
    )
    assert "of 1 site, and one that does not with none" in said[3, 0]
    assert "covers 6 of 7 sites" in said[7, 5] and "of 4 sites, and one that does not with 2" in said[7, 5]
    assert "covers 4 of 4" in said[4, 4] and said[4, 4].endswith("with the help of 2 sites.")
    assert "reads what that site sent" in Secure(min_sites=1).promise(5)
    assert "with no site that tells it what it sent" in Secure(min_sites=2).promise(5)


def test_no_two_sets_of_sites_are_confirmed_for_one_sum():
    """7 sites and a threshold of 5: two sites sign whatever they are given, the others one set each, for good."""
    for split in range(6):
        table = Table(7, Secure(threshold=5))
        tally = table.open()
        for name in table.names:
            tally.take(name, table.masked(tally, name, of(0)))
        whole = passed(tally.candidates()["s0"])
        sets = [whole | {"answered": np.arange(7) != left_out} for left_out in (5, 6)]
        signed_by = [2, 2]  # those who help the coordinator
        for i, name in enumerate(table.names[2:]):
            for which in (0, 1) if i < split else (1, 0):
                try:
                    table.parties[name].confirm(sets[which])
                    signed_by[which] += 1
                except CoterieError as problem:
                    assert "has confirmed another sum" in str(problem)
        assert sum(signed_by) == 9 and min(signed_by) < 5


def test_a_key_is_not_opened_in_another_sum_than_it_was_used_in():
    """One site alone masks in a first sum; a second names its key beside keys of others that answer there."""
    table = Table(5)
    alone = table.open()
    masked = table.masked(alone, "s0", of(0))
    others = table.names[1:]
    for name in others:
        table.collector.joined(name, passed(table.parties[name].join(alone._round.lives)), alone._round.lives)
    offers = {n: table.collector._offers[n][0] for n in others}
    keys = {"s0": alone._round.keys["s0"], **offers}
    forged = Round(keys, np.ones((1, 5), bool), alone._round.lives)
    candidate = {"round": forged.as_dict(), "answered": np.arange(5) != 4}
    sent = {n: masked["sent"] if n == "s0" else table.parties[n].masked(
        table.parties[n].check(passed(forged.as_dict())), of(0), False)["sent"] for n in table.names}  # fmt: skip
    for name in others:
        with pytest.raises(CoterieError, match=names("not open sum s0 send part")):
            table.parties[name].confirm(passed(candidate | {"sent": list(sent.values())}))


def test_one_identity_is_one_site():
    table = Table(3)
    with pytest.raises(CoterieError, match="Two sites have the same identity"):
        table.party("s0", peers=table.peers | {"s2": table.peers["s1"]})


def test_a_site_that_died_after_it_sent_goes_on():
    table = Table(4, Secure(threshold=4))
    sums = {name: of(i) for i, name in enumerate(table.names)}
    tally = table.open()
    for name in table.names:
        tally.take(name, table.masked(tally, name, sums[name]))
        state = passed(table.parties[name].state)
        table.parties[name] = table.party(name)
        table.parties[name].state = state
    for name, question in table.questions(tally).items():
        tally.reveal(name, table.parties[name].unmask(passed(question)))
    np.testing.assert_array_equal(tally.result()[1]["x"][0][0], exact(list(sums.values()), "x"))
    table.sum(sums)


def test_a_key_is_used_once():
    table = Table(3)
    tally = table.open()
    table.masked(tally, "s0", of(0))
    with pytest.raises(CoterieError, match=names("s0 not hold key")):
        table.masked(tally, "s0", of(1))
    assert table.collector.outside(table.names) == table.names


def test_keys_of_strangers_other_runs_and_other_settings_are_refused():
    table = Table(3)
    for other in (Table(3, run="other"), Table(3, Secure(fraction=60))):
        tally = other.open()
        with pytest.raises(CoterieError, match=names("s0 refuses key not signed knows")):
            table.masked(tally, "s0", of(0))
    tally = table.open()
    forged = passed(tally.request)
    forged["keys"][1][1] = crypto.public(bytes(range(32)))  # a key whose private half the coordinator knows
    with pytest.raises(CoterieError, match=names("s0 refuses key s1")):
        table.parties["s0"].check(forged)
    stranger = passed(tally.request)
    stranger["names"] = ["s0", "s1", "t"]
    with pytest.raises(CoterieError, match=names("s0 refuses key t")):
        table.parties["s0"].check(stranger)
    with pytest.raises(CoterieError, match=names("identity s0 not")):
        table.party("s0", peers=table.peers | {"s0": table.peers["s1"]})


def test_sums_over_too_few_sites_are_refused_at_both_ends():
    table = Table(4, Secure(min_sites=3))
    with pytest.raises(BelowQuorum, match=names("2 sites clients group 7")):
        table.open({name: np.array([7 if name < "s2" else 8, 9]) for name in table.names})
    with pytest.raises(CoterieError, match=r"Group 7 .* at 2 of the sites, and min_sites is 3"):
        table.collector.check({name: np.array([7 if name < "s2" else 8, 9]) for name in table.names})
    table.collector.secure = Secure(min_sites=1)  # a coordinator that does not care
    tally = table.open({"s0": np.array([0]), "s1": np.array([0])})
    with pytest.raises(CoterieError, match=r"s0 refuses a sum over 2 sites \(min_sites 3\)"):
        table.masked(tally, "s0", of(0))
    tally = table.open()
    tally.take("s3", table.masked(tally, "s3", of(0)))
    with pytest.raises(CoterieError, match=names("s0 not open sum 1 site")):
        table.questions(tally)


def test_too_few_that_answer_or_help():
    table = Table(4)
    tally = table.open()
    for name in table.names[:2]:
        tally.take(name, table.masked(tally, name, of(0)))
    with pytest.raises(BelowQuorum, match=names("2 sites clients group 0 take part")):
        tally.candidates()
    with pytest.raises(BelowQuorum, match=names("2 sites helped open secure sum takes 3")):
        table.sum({name: of(0) for name in table.names}, after=["s0", "s1"])


def test_shares_that_do_not_fit_are_noticed():
    table = Table(3, Secure(threshold=3))
    tally = table.open()
    for name in table.names:
        tally.take(name, table.masked(tally, name, of(0)))
    for name, question in table.questions(tally).items():
        reply = table.parties[name].unmask(passed(question))
        if name == "s1":
            reply["shares"][0] = reply["shares"][1]
        tally.reveal(name, reply)
    with pytest.raises(CoterieError, match="belong together"):
        tally.result()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda r: r.pop("layout"), "without names and shapes"),
        (lambda r: r["layout"].update(rows=2**62), "sums of 4611686018427387904 groups"),
        (lambda r: r["layout"].update(dtypes=["<f8"]), "do not fit together"),
        (lambda r: r["layout"].update(dtypes=["|O8", "<i8"]), "do not fit together"),
        (lambda r: r["layout"].update(shapes=[[[-4]], [[4]]]), "do not fit together"),
        (lambda r: r["layout"].update(shapes=[[[4]] * 2, [[4]]]), "do not fit together"),
        (lambda r: r.update(words=r["words"][:-1]), "do not have the shape"),
        (lambda r: r.update(words=r["words"].astype(float)), "do not have the shape"),
        (lambda r: r.update(round=bytes(32)), "another secure sum"),
        (lambda r: r.update(key=[1, b"", b"", b""]), "has not the form"),
        (lambda r: r.update(shares={"s0": b""}), "shares its keys with other sites"),
        (lambda r: r.update(shares=None), "did not share"),
    ],
)
def test_replies_that_are_none_are_refused(spoil, sentence):
    table = Table(3)
    tally = table.open()
    reply = table.masked(tally, "s0", of(0))
    spoil(reply)
    with pytest.raises(CoterieError, match=sentence):
        tally.take("s0", reply)


def test_requests_that_are_none_are_refused():
    table = Table(3)
    tally = table.open()
    good = passed(tally.request)
    for change in ({"names": ["s1", "s0", "s2"]}, {"names": 3}, {"cover": np.zeros((1, 9), np.uint8)}, {"keys": []}):
        with pytest.raises(CoterieError, match="secure sum was asked for"):
            table.parties["s0"].check(good | change)
    tally.take("s0", table.masked(tally, "s0", of(0)))
    tally.take("s1", table.masked(tally, "s1", of(0)))
    tally.take("s2", table.masked(tally, "s2", of(0)))
    question = table.questions(tally)["s0"]
    with pytest.raises(CoterieError, match="without saying who answered"):
        table.parties["s0"].unmask(question | {"answered": np.ones(2, bool)})
    with pytest.raises(CoterieError, match=names("s0 cannot open share keys")):
        table.parties["s0"].unmask(question | {"shares": question["shares"][::-1]})


def test_sites_that_answer_something_else_than_most_are_named():
    table = Table(4)
    tally = table.open()
    for i, name in enumerate(table.names):
        tally.take(name, table.masked(tally, name, {"x": np.ones(3)} if i else {"x": np.ones(2)}))
    assert tally.disagreeing() == {"s0": "it answers x (f8 (2,)) where most answer x (f8 (3,))"}


@pytest.mark.parametrize(
    ("options", "sentence"), [({"fraction": 0}, "fraction.*1 to 126"), ({"min_sites": -1}, "min_sites")]
)
def test_settings(options, sentence):
    with pytest.raises(CoterieError, match=sentence):
        Secure(**options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cryptography.exceptions", None)
        with pytest.raises(CoterieError, match=r"pip install 'coterie\[secure\]'"):
            importlib.reload(crypto)
    assert [Secure().opening(n) for n in (1, 2, 3, 4, 10)] == [1, 2, 2, 3, 6]
    for t in (5, 11):
        with pytest.raises(CoterieError, match=names("threshold 6 10")):
            Secure(threshold=t).opening(10)


def test_an_identity_is_a_file_that_only_its_owner_reads(tmp_path):
    path = tmp_path / "identity.key"
    identity = Identity.new()
    identity.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    again = Identity.load(path)
    assert again.public == identity.public and len(identity.public) == 64
    assert signed(again.sign(b"a"), b"a", identity.public) and not signed(again.sign(b"a"), b"b", identity.public)
    with pytest.raises(FileExistsError):
        identity.save(path)
    path.write_text("coterie identity 1\nxy\n")
    for wrong, sentence in ((path, "is not an identity"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(CoterieError, match=sentence):
            Identity.load(wrong)
    with pytest.raises(CoterieError, match="64 bytes"):
        Identity(b"")


def test_a_first_site_that_lists_others_does_not_put_out_the_rest():
    offers = {name: party.join({}) for name, party in Table(4).parties.items()}
    offers["s0"]["shares"] = {"s0": b"", "stranger": b""}
    collector = KeyOffers(Secure())
    collector.agree(offers.values())
    for name in ("s1", "s2", "s3"):
        collector.joined(name, offers[name], {}, anew=True)
    with pytest.raises(CoterieError, match=names("s0 shares keys sites")):
        collector.joined("s0", offers["s0"], {}, anew=True)


def test_two_sites_that_answer_differently_are_both_named():
    table = Table(4)
    tally = table.open()
    for i, name in enumerate(table.names):
        tally.take(name, table.masked(tally, name, {"x": np.ones(2 + i % 2)}))
    assert len(tally.disagreeing()) == 4


@pytest.mark.parametrize("liar", ["s0", "s2", "s4"])
def test_a_helper_that_lies_is_done_without_where_there_are_enough(liar):
    table = Table(5)
    tally = table.open()
    for name in table.names[:4]:
        tally.take(name, table.masked(tally, name, of(0)))
    for name, question in table.questions(tally).items():
        reply = table.parties[name].unmask(passed(question))
        if name == liar:
            reply["shares"] = reply["shares"][::-1]
        tally.reveal(name, reply)
    _, sums = tally.result()
    np.testing.assert_array_equal(sums["n"][0][0], 4 * of(0)["n"])


# -- sites that have forgotten


def test_keys_and_shares_are_bound_to_lives_as_written_down():
    """Signature and share of a key, by the cryptography package and the formula alone."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    table = Table(3)
    lives = {name: bytes([i]) * 16 for i, name in enumerate(table.names)}
    lives["s1"] = table.parties["s1"].state["life"]
    reply = table.parties["s1"].join({"s0": lives["s0"], "s2": lives["s2"]})
    assert reply["life"] == lives["s1"]
    epoch, public, check, signature = reply["key"]
    bound = hashlib.sha256(wire.encode([64, 2, 3, "run", table.peers, lives])).digest()
    statement = wire.encode(["secure sum key", bound, "s1", epoch, public, check])
    Ed25519PublicKey.from_public_bytes(table.peers["s1"][:32]).verify(signature, statement)
    private = X25519PrivateKey.from_private_bytes(table.identities["s2"]._secret[32:])
    common = private.exchange(X25519PublicKey.from_public_bytes(table.peers["s1"][32:]))
    channel = HKDF(SHA256(), 32, None, b"coterie secure sum share " + bound + b"s1\0s2").derive(common)
    sealed, with_ = reply["shares"]["s2"], wire.encode(["secure sum share", bound, "s1", "s2", epoch, public])
    assert len(ChaCha20Poly1305(channel).decrypt(sealed[:12], sealed[12:], with_)) == 2 * 33
    assert table.parties["s1"].join({})["shares"]["s2"] == b"", "nothing for whom nobody has heard of"


def test_what_was_made_before_a_site_forgot_does_not_count():
    """All it has revealed is forgotten too: it would tell the other secret of the same key."""
    table = Table(5)
    tally = table.open()
    for name in table.names:
        tally.take(name, table.masked(tally, name, of(0)))
    question = table.questions(tally)["s2"]
    table.parties["s2"].unmask(question)
    table.parties["s2"] = table.party("s2", entropy=drawn("s2 anew"))  # its folder is gone; run and name are the same
    other = question | {"answered": np.array([False, True, True, True, True])}
    for asked in (question, other):
        with pytest.raises(CoterieError, match=names("s2 begun anew since keys made")):
            table.parties["s2"].unmask(asked)
    forged = passed(tally.request)
    forged["lives"]["s2"] = table.parties["s2"].state["life"]
    with pytest.raises(CoterieError, match=names("s2 refuses key s0")):
        table.parties["s2"].check(forged)
    with pytest.raises(CoterieError, match=names("s2 refuses key s0")):
        table.parties["s2"].confirm(tally.candidates()["s2"] | {"round": forged})
    with pytest.raises(CoterieError, match=names("s2 not open sum 0 sites confirm")):
        table.parties["s2"].unmask(question | {"round": forged})
    sums = {name: of(i) for i, name in enumerate(table.names)}
    table.collector = KeyOffers(table.secure)
    np.testing.assert_array_equal(table.sum(sums)[1]["x"][0][0], exact(list(sums.values()), "x"))


def test_a_site_that_begins_anew_in_the_middle_of_a_sum_is_named():
    table = Table(3)
    tally = table.open()
    reply = table.masked(tally, "s0", of(0))
    with pytest.raises(CoterieError, match=names("s0 says middle secure sum begun anew")):
        tally.take("s0", reply | {"life": bytes(16)})
    for life in (None, b"short"):
        with pytest.raises(CoterieError, match=names("without saying holds keys")):
            table.collector.joined("s0", reply | {"life": life}, {}, anew=True)
    with pytest.raises(CoterieError, match=names("without saying takes part")):
        table.parties["s0"].check(passed(tally.request) | {"lives": {"s0": 3}})
