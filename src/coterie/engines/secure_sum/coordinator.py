"""The coordinator's side of secure sums: it adds masked sums, and takes the masks off with the sites' help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.engines.message_checks import most_common, outnumbered
from coterie.engines.retry_and_quorum import BelowQuorum, Retry
from coterie.engines.secure_sum import crypto, fixed_point
from coterie.engines.secure_sum.crypto import seed_check
from coterie.engines.secure_sum.fixed_point import Layout, Words, unpack
from coterie.engines.secure_sum.protocol import Bools, Key, Round, Secure, read_lives, smallest_group
from coterie.errors import CoterieError
from coterie.federation import Ints


class KeyOffers:
    """Keys that sites have offered for their next sums; nothing here is secret, and nothing needs to be kept.

    ``holders`` are all sites that hold shares, as the offers say; ``lives`` what sites that were here have said of
    their memory (keys are good if they were made for all of these); ``asked`` the sites that were asked to join, ever.
    """

    def __init__(self, secure: Secure) -> None:
        self.secure = secure
        self.holders: list[str] = []
        self.lives: dict[str, bytes] = {}
        self.asked: set[str] = set()
        self._offers: dict[str, tuple[Key, dict[str, bytes], dict[str, bytes]]] = {}

    @property
    def t(self) -> int:
        """How many sites must help to open a sum."""
        return self.secure.opening(len(self.holders))

    @property
    def least(self) -> int:
        """How many sites every group of a sum must cover."""
        return self.secure.least(len(self.holders))

    def outside(self, names: Sequence[str]) -> list[str]:
        """The sites of ``names`` that must join before they can take part."""
        return [name for name in names if name not in self._offers or self._offers[name][2] != self.lives]

    def agree(self, replies: Iterable[Mapping[str, Any]]) -> None:
        """Take for the holders of shares whom most of the sites that join first share their keys with."""
        shares = [r.get("shares") for r in replies]
        listed = most_common(tuple(sorted(s)) for s in shares if isinstance(s, dict))
        self.holders = self.holders or list(listed or ())

    def joined(self, name: str, reply: Mapping[str, Any], told: Mapping[str, bytes], anew: bool = False) -> None:
        """Keep what a site offered that was ``told`` some lives; a CoterieError if it is no offer.

        Only where it may have begun ``anew`` may its own life be another: a site that said so every time would keep
        all others from having keys for the same lives.
        """
        own = read_lives({name: reply.get("life")})
        if not anew and told.get(name) != own[name]:
            raise CoterieError(f"{name} says in the middle of a secure sum that it has begun anew.")
        key, shares = Key.read(reply.get("key")), reply.get("shares")
        if not isinstance(shares, dict) or not all(isinstance(s, bytes) for s in shares.values()):
            raise CoterieError(f"{name} did not share its keys.")
        self.holders = self.holders or sorted(shares)
        if sorted(shares) != self.holders:
            raise CoterieError(f"{name} shares its keys with other sites than most: list the same sites everywhere.")
        self.lives |= own
        self._offers[name] = key, shares, {**told, **own}

    def check(self, groups: Mapping[str, Ints]) -> None:
        """Raise a CoterieError if a group has clients at fewer than ``min_sites`` sites, all of them counted."""
        present, cover = _cover(groups)
        thin = smallest_group(cover, self.least)
        if thin is not None:
            raise CoterieError(
                f"Group {present[thin[0]]} of a secure sum has clients at {thin[1]} of the sites, and min_sites is "
                f"{self.least}: its sum could tell what one holds. Use larger groups, or lower min_sites at all sites."
            )

    def open(self, groups: Mapping[str, Ints], unequal: bool = False) -> MaskedSum:
        """A sum over some sites, which uses up their keys.

        ``groups`` are those that each site has clients in, [0] where there are none; ``unequal``: they may have unequal
        shapes, so that sums are lists of groups. BelowQuorum if a group has clients at fewer than ``min_sites`` of
        them.
        """
        present, cover = _cover(groups)
        offers = {name: self._offers[name] for name in sorted(groups)}
        round_ = Round({name: key for name, (key, *_) in offers.items()}, cover, self.lives)
        self.enough(present, cover)
        for name in offers:
            del self._offers[name]
        return MaskedSum(self, round_, present, {name: shares for name, (_, shares, _) in offers.items()}, unequal)

    def enough(self, present: Ints, cover: Bools) -> None:
        """Raise BelowQuorum if the sites that are there leave a group (a row of ``cover``) at too few of them."""
        thin = smallest_group(cover, self.least)
        if thin is not None:
            raise BelowQuorum(
                f"{thin[1]} of the sites with clients in group {present[thin[0]]} take part in a secure sum, and "
                f"min_sites is {self.least}. Nothing is lost: run again when more are back, and it goes on."
            )


def _cover(groups: Mapping[str, Ints]) -> tuple[Ints, Bools]:
    """Groups that have clients somewhere, and which of the sites, sorted by name, have clients in them."""
    present = np.unique(np.concatenate(list(groups.values())))
    return present, np.stack([np.isin(present, groups[name]) for name in sorted(groups)], axis=1)


class MaskedSum:
    """One sum on its way: masked sums come in, then the word of who opens it over whom, then shares, then the result.

    ``present`` are the groups that have clients at some site; ``request`` is what every site is told together with the
    work.
    """

    def __init__(
        self, keys: KeyOffers, round_: Round, present: Ints, shares: Mapping[str, Mapping[str, bytes]], unequal: bool
    ) -> None:
        self.present, self._round, self._keys, self._shares = present, round_, keys, shares
        self._unequal = unequal
        self.request = round_.as_dict()
        self._came: dict[str, tuple[Words, Layout]] = {}
        self._sent: dict[str, bytes] = {}
        self._confirmed: dict[str, bytes] = {}
        self._revealed: dict[str, list[bytes]] = {}
        self._secrets: dict[str, bytes] = {}

    def take(self, name: str, reply: Mapping[str, Any]) -> None:
        """Keep a site's masked sums and its next keys; a CoterieError if they have not the form of them."""
        layout, words = Layout.read(reply.get("layout")), reply.get("words")
        if reply.get("round") != self._round.digest:
            raise CoterieError(f"{name} answered another secure sum than the one it was asked for.")
        if layout.rows != (len(self._round.rows(name)) if layout.names else 0):
            raise CoterieError(f"{name} sent sums of {layout.rows} groups, which are not those it was asked for.")
        if not isinstance(words, np.ndarray) or words.dtype != np.uint64 or words.shape != (layout.size(), 2):
            raise CoterieError(f"{name} sent masked sums that do not have the shape it says they have.")
        if not self._unequal and any(len(shapes) > 1 for shapes in layout.shapes):
            raise CoterieError(f"{name} sent sums whose groups have unequal shapes.")
        if not isinstance(reply.get("sent"), bytes):
            raise CoterieError(f"{name} did not sign what it sent.")
        self._keys.joined(name, reply, self._round.lives)
        self._came[name], self._sent[name] = (words, layout), reply["sent"]

    def disagreeing(self) -> dict[str, str]:
        """Sites that speak of other names, types or shapes than most, and why; their sums are taken out."""
        wrong = outnumbered({name: _described(layout, self._unequal) for name, (_, layout) in self._came.items()})
        for name in wrong:
            del self._came[name]
        return wrong

    def candidates(self) -> dict[str, dict[str, Any]]:
        """What each site that holds shares is asked to confirm once all masked sums are there that will come.

        BelowQuorum if those that came leave a group at fewer sites than ``min_sites``.
        """
        answered = np.array([name in self._came for name in self._round.names])
        self._keys.enough(self.present, self._round.cover[:, answered])
        sent = [self._sent[name] if name in self._came else b"" for name in self._round.names]
        asked = {"round": self.request, "answered": answered, "sent": sent}
        return {name: asked for name in self._keys.holders if name in self._round.lives}

    def confirm(self, name: str, reply: Mapping[str, Any]) -> None:
        """Keep a site's word on whom the sum is over; a CoterieError if it has not the form of one."""
        if not isinstance(reply.get("signature"), bytes) or reply.get("round") != self._round.digest:
            raise CoterieError(f"{name} did not confirm the secure sum it was asked to open.")
        self._confirmed[name] = reply["signature"]

    def questions(self) -> dict[str, dict[str, Any]]:
        """What each site that holds shares is asked once enough have confirmed whom the sum is over.

        BelowQuorum if too few have, or those that came leave a group at fewer sites than ``min_sites``.
        """
        self._need_helpers(self._confirmed)
        return {
            name: {
                **{part: asked[part] for part in ("round", "answered")},
                "confirmed": self._confirmed,
                "shares": [self._shares[owner][name] for owner in self._round.names],
            }
            for name, asked in self.candidates().items()
        }

    def reveal(self, name: str, reply: Mapping[str, Any]) -> None:
        """Keep a site's shares; a CoterieError if they have not the form of them."""
        shares = reply.get("shares")
        sound = isinstance(shares, list) and [len(s) for s in shares if isinstance(s, bytes)] == (
            [crypto.SHARE] * len(self._round.names)
        )
        if not sound or reply.get("round") != self._round.digest:
            raise CoterieError(f"{name} sent no shares of the secure sum it was asked to open.")
        self._revealed[name] = shares  # type: ignore[assignment]

    def enough(self, kind: str) -> bool:
        """Whether enough sites have helped to open the sum, by a request of the kind "confirm" or "unmask"."""
        return len(self._confirmed if kind == "confirm" else self._revealed) >= self._keys.t

    def _need_helpers(self, helpers: Mapping[str, Any]) -> None:
        if self._came and len(helpers) < self._keys.t:
            raise BelowQuorum(
                f"{len(helpers)} sites helped to open a secure sum, and it takes {self._keys.t}: "
                "go on when more of them are back."
            )

    def result(self) -> tuple[Ints, dict[str, tuple[Any, np.dtype[Any]]]]:
        """Groups, and by name their sums over the sites that answered, with the type of what was summed.

        BelowQuorum if too few sites helped; a CoterieError if sites disagree on names, types or shapes, or shares do
        not belong together.
        """
        self._need_helpers(self._revealed)
        if not self._came:
            return self.present[:0], {}
        layout = self._layout()
        if not layout.names:
            return self.present[:0], {}
        answered = [name in self._came for name in self._round.names]
        rows = [int(r) for r in np.flatnonzero(self._round.cover[:, answered].any(axis=1))]
        total = np.zeros((layout.size(), 2), np.uint64)
        for name, (words, _) in self._came.items():
            at = layout.words_of(np.isin(rows, self._round.rows(name)))
            total[at] = fixed_point.add(total[at], self._stripped(name, words))
        return self.present[rows], unpack(total, layout, self._keys.secure.fraction)

    def _layout(self) -> Layout:
        """The layout of all groups that came, which every site agrees with."""
        shapes: dict[int, tuple[Any, ...]] = {}
        for name, (_, layout) in self._came.items():
            for r, row in enumerate(self._round.rows(name)[: layout.rows]):
                if shapes.setdefault(int(row), layout.row(r)) != layout.row(r):
                    raise CoterieError(f"Work returned {layout.names} with other shapes at {name} than elsewhere.")
        head = next(iter(self._came.values()))[1]
        if not head.names:
            return head
        each = zip(*(shapes[r] for r in sorted(shapes)), strict=True)
        return replace(head, rows=len(shapes), shapes=tuple(s if len(set(s)) > 1 else s[:1] for s in each))

    def _stripped(self, name: str, words: Words) -> Words:
        """A site's words without its own mask and without those it shares with sites whose words are not here."""
        layout, purpose = self._came[name][1], self._round.purpose()
        words = fixed_point.subtract(words, crypto.stream(crypto.derive(self._secret(name), purpose), len(words)))
        for other in self._round.names:
            if other not in self._came and self._round.common(name, other).any():
                key = crypto.agree(self._secret(other), self._round.keys[name].public, purpose)
                self._round.mask(words, layout, name, other, key, off=True)
        return words

    def _secret(self, owner: str) -> bytes:
        """The mask seed of a site whose words came, or the private key of one whose words did not."""
        if owner in self._secrets:
            return self._secrets[owner]
        column, places = self._round.names.index(owner), self._keys.holders
        key, helpers, t = self._round.keys[owner], sorted(self._revealed), self._keys.t
        # One helper that lies is in some of the turns round the table, and not in all of them if there is one to spare.
        for turn in range(len(helpers) if len(helpers) > t else 1):
            some = [helpers[(turn + i) % len(helpers)] for i in range(t)]
            try:
                secret = crypto.join_secret({places.index(h) + 1: self._revealed[h][column] for h in some})
            except CoterieError:
                continue
            came = owner in self._came
            if (seed_check(secret) == key.check) if came else (crypto.public(secret) == key.public):
                self._secrets[owner] = secret
                return secret
        raise CoterieError(f"The shares that sites revealed of the keys of {owner} do not belong together.")


def _described(layout: Layout, unequal: bool) -> str:
    named = zip(layout.names, layout.dtypes, layout.shapes, strict=True)
    return ", ".join(f"{name} ({dtype[1:]} {'by group' if unequal else shapes[0]})" for name, dtype, shapes in named)


class SecureExchange:
    """One secure sum around its exchange: :meth:`requests` begins it, :meth:`take` and :meth:`open` end it.

    ``groups`` are those that each site has clients in, by its name, [0] where there are none; ``beside`` is what every
    request says beside. After :meth:`open`, ``sums`` are the groups that have sums, and by name the sums with the type
    of what was summed.
    """

    def __init__(
        self, retry: Retry, keys: KeyOffers, groups: Mapping[str, Ints], unequal: bool, beside: Mapping[str, Any]
    ) -> None:
        self._retry, self._keys = retry, keys
        self._groups, self._unequal, self._beside = groups, unequal, beside
        self._sum: MaskedSum | None = None
        self._away: dict[str, str] = {}
        self.sums: tuple[Ints, dict[str, tuple[Any, np.dtype[Any]]]] = (np.empty(0, np.int64), {})

    def requests(self, requests: Mapping[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """The requests to the sites that can take part, with what makes their sums secure; who has no keys joins first.

        A CoterieError if a group has clients at fewer sites than ``min_sites``, BelowQuorum if those that can take part
        are too few.
        """
        names, keys, gone = self._retry.names, self._keys, set[str]()
        for anew in (True, False):  # first who is new says so, then all make keys for those who are there
            outside = set(keys.outside(list(self._groups))) - gone
            if outside and anew:
                outside |= set(names) - keys.asked  # who has no part in this sum may help to open it
            gone |= self._join([s for s, name in enumerate(names) if name in outside], anew)
        gone |= set(keys.outside(list(self._groups)))
        there = {name: g for name, g in self._groups.items() if name not in gone}
        if not there:
            return {}
        keys.check(self._groups)
        self._sum = keys.open(there, self._unequal)
        secure = {"secure": self._sum.request}
        return {s: request | secure for s, request in requests.items() if names[s] in there}

    def _join(self, sites: list[int], anew: bool) -> set[str]:
        """Let sites join; those that did not."""
        names, told = self._retry.names, dict(self._keys.lives)
        self._keys.asked |= {names[s] for s in sites}
        joining = self._retry.collect({s: {"kind": "join", "lives": told, **self._beside} for s in sites}, {})
        self._missed()
        self._keys.agree(joining.values())
        self._retry.judge(joining, lambda s, reply: self._keys.joined(names[s], reply, told, anew))
        self._missed()
        return {names[s] for s in sites if s not in joining}

    def _missed(self) -> None:
        """Remember what keeps sites of this sum away."""
        self._away |= {name: text for name, text in self._retry.troubles.items() if name in self._groups}

    def take(self, found: dict[int, Any]) -> None:
        """Keep the masked sums of the replies ``found``; replies that cannot be used are judged and taken out of it."""
        if self._sum is None:
            return
        masked, names = self._sum, self._retry.names
        self._retry.judge(found, lambda s, reply: masked.take(names[s], reply["values"]))
        self._retry.leave_out({names.index(name): text for name, text in masked.disagreeing().items()}, found)
        self._away |= self._retry.troubles
        for reply in found.values():
            reply["values"] = {}

    def open(self, found: Mapping[int, Any]) -> None:
        """Take the sums over the sites ``found`` from behind their masks; BelowQuorum if any are too few."""
        if self._sum is None or not found:
            self._retry.troubles = self._away
            return
        masked, names = self._sum, self._retry.names
        for kind, about, use in (
            ("confirm", masked.candidates, masked.confirm),
            ("unmask", masked.questions, masked.reveal),
        ):
            questions = about()
            rest = [s for s, name in enumerate(names) if name in questions and s not in found]
            for helpers in (list(found), rest):
                if not masked.enough(kind):
                    asked = {s: {"kind": kind, **self._beside, **questions[names[s]]} for s in helpers}
                    helped = self._retry.collect(asked, {})
                    self._retry.judge(helped, lambda s, reply, use=use: use(names[s], reply))  # type: ignore[misc]
        self._retry.troubles = self._away
        self.sums = masked.result()
