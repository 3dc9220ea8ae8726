"""A site's side of secure sums: it masks what it sends, and helps to open sums of many."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.engines.message_checks import Refusal
from coterie.engines.secure_sum import crypto, fixed_point
from coterie.engines.secure_sum.crypto import Identity, signed
from coterie.engines.secure_sum.fixed_point import pack
from coterie.engines.secure_sum.protocol import LIFE, Bools, Key, Round, Secure, context, read_lives, smallest_group
from coterie.errors import CoterieError, plural


class SecureSite:
    """One site's keys, and what it does with them.

    Every key is used for one sum, and opened in one sum over one set of sites: of a key of any site, this site reveals
    its share of the mask seed or of the private key, never of both, for good, and only once ``threshold`` sites have
    signed that they know of no other set. What must survive a fault is in :attr:`state`: save it before a reply leaves.

    A state is born with a random ``life``, and every key is made for the lives of the sites that share it. So where a
    state is deleted, and with it what was revealed, nothing that was made for it counts any more, in a run of the same
    name either. Keys and shares of one run are good for nothing in another.

    ``peers`` are the public identities of all sites, this one included; another source of ``entropy`` is for tests
    alone.
    """

    def __init__(
        self,
        name: str,
        run: str,
        secure: Secure,
        identity: Identity,
        peers: Mapping[str, bytes],
        *,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if peers.get(name) != identity.public:
            raise CoterieError(f"The identity of {name} is not the one its federation lists: copy its folder again.")
        if len(set(peers.values())) < len(peers):
            raise CoterieError("Two sites have the same identity: every site makes one of its own.")
        self.name, self._secure, self._identity, self._entropy = name, secure, identity, entropy
        self._peers = dict(sorted(peers.items()))
        self._run, self._t, self._least = run, secure.opening(len(peers)), secure.least(len(peers))
        self._bound, self._channels = b"", dict[tuple[str, str], bytes]()
        self.state: dict[str, Any] = {"epoch": 0, "public": b"", "secret": b"", "seed": b"", "confirmed": {}}
        self.state["life"] = entropy(LIFE)

    def join(self, lives: Any) -> dict[str, Any]:
        """Fresh keys for the next sum, with shares of them for every site; earlier ones are forgotten.

        ``lives`` are those of the sites that are to hold shares, as they say; false ones make shares that nobody can
        open.
        """
        lives = read_lives(lives) | {self.name: self.state["life"]}
        bound = self._context(lives)
        epoch = max(self.state["epoch"] + 1, time.time_ns())  # rises even where a site has lost its memory
        secret, seed = self._entropy(32), self._entropy(32)
        public, check = crypto.public(secret), crypto.seed_check(seed)
        unsigned = Key(epoch, public, check, b"")
        key = Key(epoch, public, check, self._identity.sign(unsigned.statement(self.name, bound)))
        both = [crypto.split_secret(s, self._t, len(self._peers), self._entropy) for s in (seed, secret)]
        shares = dict.fromkeys(self._peers, b"")
        for peer, *share in zip(self._peers, *both, strict=True):
            if peer in lives:
                channel, about = self._channel(self.name, peer, bound), key.bound(self.name, peer, bound)
                shares[peer] = crypto.seal(channel, b"".join(share), about, self._entropy(crypto.NONCE))
        self.state |= {"epoch": epoch, "public": public, "secret": secret, "seed": seed}
        return {"life": self.state["life"], "key": key.as_list(), "shares": shares}

    def check(self, saved: Any) -> Round:
        """The round that a sum is asked for, if this site can take part in it; otherwise a Refusal says why."""
        round_ = self._mine(saved)
        self._need_signed(round_, self._context(round_.lives))
        mine = round_.keys.get(self.name)
        if mine is None or not self.state["secret"] or mine.public != self.state["public"]:
            raise Refusal(f"{self.name} does not hold the key it is asked to use: it must join secure sums again.")
        thin = smallest_group(round_.cover, self._least)
        if thin is not None:
            raise Refusal(f"{self.name} refuses a sum over {plural(thin[1], 'site')} (min_sites {self._least}).")
        return round_

    def masked(self, round_: Round, sums: Mapping[str, Any], grouped: bool) -> dict[str, Any]:
        """Masked sums, with a leading axis of the site's groups where ``grouped``, and its keys for the next sum."""
        words, layout = pack(sums, grouped, self._secure.fraction, len(self._peers))
        mine = round_.rows(self.name)
        if layout.names and layout.rows != len(mine):
            raise Refusal(f"{self.name} has sums of {layout.rows} groups and was asked for {len(mine)}.")
        purpose = round_.purpose()
        words = fixed_point.add(words, crypto.stream(crypto.derive(self.state["seed"], purpose), len(words)))
        for peer, key in round_.keys.items():
            if peer != self.name and layout.names and round_.common(self.name, peer).any():
                secret = crypto.agree(self.state["secret"], key.public, purpose)
                round_.mask(words, layout, self.name, peer, secret)
        sent = self._identity.sign(round_.sent(self.name, self._context(round_.lives)))
        reply = {"round": round_.digest, "layout": layout.as_dict(), "words": words, "sent": sent}
        return reply | self.join(round_.lives)

    def confirm(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A site's word, for good, that it helps to open a sum over these sites and over no others.

        ``request``: "round"; "answered", (sites,) bool: whose masked sums have arrived; "sent": what each of these
        signed. A Refusal if a group would be a sum over fewer sites than ``min_sites``, one of them took no part,
        something else was confirmed of the same key, or the keys were not made for what this site remembers.
        """
        round_, answered, bound = self._question(request)
        self._need_signed(round_, bound)
        for name, came, signature in zip(round_.names, answered, request["sent"], strict=True):
            if came and not signed(signature, round_.sent(name, bound), self._peers[name]):
                raise Refusal(f"{self.name} does not open a sum that {name} did not send its part of.")
        self._settle(round_, answered, bound)
        return {"round": round_.digest, "signature": self._identity.sign(round_.opened(answered, bound))}

    def unmask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The site's shares of what takes the masks off a sum.

        ``request``: "round" and "answered", as for :meth:`confirm`; "confirmed": what sites signed there, by name;
        "shares": for each site of the round the encrypted share that it made for this one. A Refusal if fewer sites
        than the threshold confirmed this, or this site something else.
        """
        round_, answered, bound = self._question(request)
        statement, confirmed = round_.opened(answered, bound), request["confirmed"]
        sure = sum(signed(signature, statement, self._peers.get(name, b"")) for name, signature in confirmed.items())
        if sure < self._t:
            raise Refusal(
                f"{self.name} does not open a sum that {plural(sure, 'site')} confirm, of {self._t} (threshold)."
            )
        if len(request["shares"]) != len(answered):
            raise Refusal("A secure sum was to be opened without shares of all its keys.")
        self._settle(round_, answered, bound)
        found = []
        for (owner, key), came, sealed in zip(round_.keys.items(), answered, request["shares"], strict=True):
            share = self._opened(owner, key, sealed, bound)
            found.append(share[: crypto.SHARE] if came else share[crypto.SHARE :])
        return {"round": round_.digest, "shares": found}

    def _question(self, request: Mapping[str, Any]) -> tuple[Round, Bools, bytes]:
        """The round that is to be opened, over which of its sites, and what its keys are bound to."""
        round_ = self._mine(request["round"])
        answered: Bools = np.asarray(request["answered"])
        if answered.dtype != bool or answered.shape != (len(round_.names),):
            raise Refusal("A secure sum was to be opened without saying who answered.")
        thin = smallest_group(round_.cover[:, answered], self._least)
        if thin is not None:
            raise Refusal(f"{self.name} does not open a sum over {plural(thin[1], 'site')} (min_sites {self._least}).")
        return round_, answered, self._context(round_.lives)

    def _settle(self, round_: Round, answered: Bools, bound: bytes) -> None:
        """Remember in which sum, over which sites, the keys of a round are opened; a Refusal if it is another one."""
        question = hashlib.sha256(round_.opened(answered, bound)).digest()
        settled = dict(self.state["confirmed"])
        for owner, key in round_.keys.items():
            epoch, before = settled.get(owner, (0, question))
            if key.epoch < epoch or (key.epoch == epoch and question != before):
                raise Refusal(f"{self.name} has confirmed another sum with the same or a later key of {owner}.")
            settled[owner] = [key.epoch, question]
        self.state["confirmed"] = settled

    def _need_signed(self, round_: Round, bound: bytes) -> None:
        """Raise a Refusal unless every key of a round is signed by the site that this one knows by its name."""
        for name, key in round_.keys.items():
            if not signed(key.signature, key.statement(name, bound), self._peers.get(name, b"")):
                raise Refusal(
                    f"{self.name} refuses the key of {name}, which is not signed by the {name} it knows: "
                    "use the same sites, keys and settings of secure sums everywhere."
                )

    def _mine(self, saved: Any) -> Round:
        """The round that was asked for, if its keys were made for this site's present life."""
        round_ = Round.read(saved)
        if round_.lives.get(self.name) != self.state["life"]:
            raise Refusal(f"{self.name} has begun anew since these keys were made: it must join secure sums again.")
        return round_

    def _context(self, lives: Mapping[str, bytes]) -> bytes:
        """What keys and shares that are made for some lives are bound to."""
        bound = context(self._secure, self._run, self._peers, lives)
        if bound != self._bound:
            self._bound, self._channels = bound, {}
        return bound

    def _opened(self, owner: str, key: Key, sealed: bytes, bound: bytes) -> bytes:
        if owner not in self._peers:
            raise Refusal(f"{self.name} does not know {owner}: use the same sites everywhere.")
        try:
            return crypto.unseal(self._channel(owner, self.name, bound), sealed, key.bound(owner, self.name, bound))
        except CoterieError as problem:
            raise Refusal(f"{self.name} cannot open its share of the keys of {owner}.") from problem

    def _channel(self, owner: str, holder: str, bound: bytes) -> bytes:
        if (owner, holder) not in self._channels:
            peer = self._peers[holder if owner == self.name else owner]
            purpose = b"coterie secure sum share " + bound + f"{owner}\0{holder}".encode()
            self._channels[owner, holder] = self._identity.channel(peer, purpose)
        return self._channels[owner, holder]


def secure_sites(names: Sequence[str], secure: Secure) -> Callable[[str], SecureSite]:
    """Fresh identities for sites in one process: a function that makes the party of a name, as often as it is asked."""
    identities = {name: Identity.new() for name in names}
    peers = {name: identity.public for name, identity in identities.items()}
    return lambda name: SecureSite(name, "run", secure, identities[name], peers)
