"""A federation whose sites are elsewhere: who is there, and which clients each holds, is asked first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from coterie import files
from coterie.data.clients import Level, arrange
from coterie.data.labels import Coded, Labels, encode
from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import read_durable, write_durable
from coterie.engines.coordinator import Coordinator, Exchanged
from coterie.engines.cost_ledger import Ledger
from coterie.engines.retry_and_quorum import BelowQuorum, Policy, Refused, Retry, reasons
from coterie.engines.routing import roster
from coterie.errors import CoterieError, fitting, listed, shortened
from coterie.federation import Array, Ints, Roster

if TYPE_CHECKING:
    from coterie.engines.secure_sum import Secure


NOTES = 20  # notes on its data that are taken from a site at most
_LABELS = "iufbU"  # kinds of arrays that name clients and clusters
_KINDS = {"ids": "u", "clusters": "iu", "weights": "iuf", "counts": "iu", "labels": _LABELS}
_MOST = 2**53  # rows, and what is counted of them


class Transport(Protocol):
    """What carries bytes to sites: an engine's own network.

    It may have ``absent``: names of sites that were not there in time, and are not waited for where a quorum is enough.
    """

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites, which the engine vouches for."""

    def send(self, messages: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | None]:
        """Send all messages at once, and return the replies that came within ``timeout`` seconds.

        A site without a reply is None or left out; so at once is one that the engine knows to be dead. A late reply to
        an earlier call is never taken for a reply to this one. Nothing is raised for what one site does.
        """

    def close(self) -> None:
        """Let go of the network."""


@dataclass(frozen=True)
class Participants:
    """All clients, as the sites told of them, in the order of a table: by coarsest to finest cluster, then by label.

    ``sites`` are the clients of each site; ``labels``, ``weights`` and ``counts`` (m,) what each client is called, its
    weight and its rows; ``levels`` the clusters, fine to coarse; ``info`` what each site told beside, by its name.
    """

    roster: Roster
    sites: list[Ints]
    labels: Labels
    weights: Array
    counts: Ints
    levels: tuple[Level, ...]
    info: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, told: Mapping[str, Mapping[str, Any]]) -> Participants:
        """The clients of sites that told of them; a client at two sites, and clusters that do not nest, are refused."""
        owner = np.repeat(np.arange(len(told)), [len(t["ids"]) for t in told.values()])
        if not len(owner):
            raise CoterieError("No site has a client with rows: look at the tables of the sites.")
        labels = _column(t["labels"] for t in told.values())
        _distinct(labels, owner, list(told))
        with_rows = {name: t for name, t in told.items() if len(t["ids"])}
        names = _levels(with_rows)
        columns = [(n, _column(t["levels"][j] for t in with_rows.values())) for j, n in enumerate(names)]
        tree = arrange([("client", labels), *columns])
        rank = np.empty(len(owner), np.int64)
        rank[tree.order] = np.arange(len(owner))
        sites = [rank[owner == s] for s in range(len(told))]
        if any(np.any(rows[1:] < rows[:-1]) for rows in sites):
            raise CoterieError("Labels are numbers at one site and text at another: make them one kind at all sites.")

        def joined(field: str) -> Array:
            return np.concatenate([t[field] for t in told.values()])[tree.order]

        ids = np.concatenate([t["ids"] for t in told.values()]).astype(np.uint64)[tree.order]
        info = {name: dict(t["info"]) for name, t in told.items()}
        everyone = roster(len(ids), tree.clusters, ids)
        return cls(everyone, sites, tree.labels, joined("weights"), joined("counts"), tree.levels, info)

    @property
    def notes(self) -> list[str]:
        """What sites say of their data, each note once."""
        return list(dict.fromkeys(note for told in self.info.values() for note in told.get("notes", ())))


def _column(parts: Iterable[Array]) -> Coded:
    """One column of labels out of the sites' parts; text where any of them is text."""
    arrays = [np.asarray(part) for part in parts]
    filled = [a for a in arrays if len(a)]
    if len({a.dtype.kind in "iu" for a in filled}) > 1:
        filled = [a.astype(str) for a in filled]
    return encode(np.concatenate(filled) if filled[0].dtype.kind in "iufb" else np.concatenate(filled).astype(object))


def _distinct(labels: Coded, owner: Ints, sites: Sequence[str]) -> None:
    count = np.bincount(labels.codes, minlength=len(labels.labels))
    for code in np.flatnonzero(count > 1)[:1]:
        where = [sites[s] for s in owner[labels.codes == code]]
        raise CoterieError(
            f"Client {labels.labels[code]!s} is at {' and at '.join(where)}: a client has one site. Give different "
            "clients different labels, or bring its rows together."
        )


def _levels(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of the cluster columns, the same at all sites."""
    first, *rest = [(site, list(t["info"].get("levels", range(len(t["levels"]))))) for site, t in told.items()]
    for site, names in rest:
        if names != first[1]:
            raise CoterieError(f"Sites {first[0]} and {site} have different cluster columns: {first[1]} and {names}.")
    return [str(name) for name in first[1]]


class Remote(Coordinator):
    """A coordinator of sites that a transport reaches.

    The sites keep their state under the name of the ``run``. ``task`` is what they are to prepare from their data; None
    where they are prepared already. ``policy``, ``journal``, ``watch`` and ``secure`` are as for
    :class:`~coterie.engines.coordinator.Coordinator`. ``participants`` are all clients with their labels, clusters and
    sizes; ``away`` are the sites that take no part, and why. ``need`` makes of what a site tells why it can take none.
    ``whole``: the policy's quorum says who takes part, and all of them have to answer every exchange.

    BelowQuorum if too few sites answer; a CoterieError if a client is at two sites, or sites disagree on clusters.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        run: str = "run",
        task: Mapping[str, Any] | None = None,
        seed: int = 0,
        policy: Policy | None = None,
        journal: str | Path | None = None,
        watch: Callable[[Exchanged], None] | None = None,
        secure: Secure | None = None,
        need: Callable[[Mapping[str, Any]], str | None] = lambda _: None,
        whole: bool = False,
    ) -> None:
        names, policy = sorted(transport.sites), policy or Policy()
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise CoterieError(f"Two sites are called {twice[0]!r}: give each a name of its own.")
        opening: dict[str, Any] = {"kind": "about", "run": run}
        if task is not None:
            opening |= {"kind": "open", "task": dict(task), "seed": seed}
        self._transport, self.ledger = transport, Ledger()
        self.away: dict[str, str] = {}
        self.seed = seed
        path = None if journal is None else files.local(journal) / "participants"
        if path is not None and path.exists():
            with fitting(f"The journal {journal}", "Begin again with an empty folder."):
                asked, told = read_durable(path)
                if wire.encode(asked) != wire.encode([opening, names]):
                    raise CoterieError(f"{journal} is the journal of another run: begin again with an empty folder.")
                if not (told.keys() <= set(names) and all(map(_tells, told.values()))):
                    raise ValueError
                participants = Participants.of(told)
        else:
            told = self._open(names, opening, policy, need)
            participants = Participants.of(told)
        if path is not None and not path.exists():  # what does not fit together may be put right, and is not kept
            write_durable(path, wire.pieces([[opening, names], told]))
        for name in names:
            if name not in told:
                self.away.setdefault(name, "it was not there when the run began")
            elif not len(told[name]["ids"]):
                self.away[name] = next(iter(told[name]["info"].get("notes", ())), "it has no clients")
        self.participants = participants
        policy = replace(policy, min_clients="all") if whole else policy
        running = {"policy": policy, "journal": journal, "watch": watch, "secure": secure, "ledger": self.ledger}
        super().__init__(participants.roster, participants.sites, names=list(told), **running)  # type: ignore[arg-type]
        self._beside = {"run": run}

    def _open(
        self, names: list[str], opening: dict[str, Any], policy: Policy, need: Callable[[Mapping[str, Any]], str | None]
    ) -> dict[str, Any]:
        """What the sites tell of their clients, by name."""
        retry = Retry(names, policy, lambda messages, attempt, timeout: self._carry(names, messages, timeout))
        absent = () if policy.min_clients == "all" else getattr(self._transport, "absent", ())
        told = retry.collect({s: opening for s, name in enumerate(names) if name not in absent}, {})
        retry.leave_out({s: "its answer does not say who is there" for s, t in told.items() if not _tells(t)}, told)
        another = {s: t["name"] for s, t in told.items() if t.get("name", names[s]) != names[s]}
        wrong = {s: f"it calls itself '{name}': another site's folder is used there" for s, name in another.items()}
        retry.leave_out(wrong, told)
        other = {s: upgrade(t["info"]["version"]) for s, t in told.items() if "version" in t["info"]}
        retry.leave_out({s: text for s, text in other.items() if text}, told)
        retry.leave_out({s: why for s, t in told.items() if (why := need(t))}, told)
        for t in told.values():
            t["info"]["notes"] = [shortened(note) for note in t["info"].get("notes", [])[:NOTES]]
        self.away, clients = dict(retry.troubles), sum(len(t["ids"]) for t in told.values())
        if retry.troubles and (policy.min_clients == "all" or not told or clients < policy.min_clients):
            who, why = listed(retry.troubles), reasons(retry.troubles)
            short = "" if policy.min_clients == "all" else f", and {clients:,} clients are left"
            text = f"{who} cannot take part ({why}){short}. Nothing was begun: put that right, and run again."
            raise BelowQuorum(text) if retry.late else Refused(text)
        return {names[s]: t for s, t in told.items()}

    def exchange(self, messages: Mapping[int, bytes], attempt: int, timeout: float) -> Mapping[int, bytes | None]:
        """All sites at once, over the transport."""
        return self._carry(self.names, messages, timeout)

    def _carry(self, names: Sequence[str], messages: Mapping[int, bytes], timeout: float) -> dict[int, bytes | None]:
        answers = self._transport.send({names[s]: data for s, data in messages.items()}, timeout)
        self.ledger.bytes_down += sum(map(len, messages.values()))
        self.ledger.bytes_up += sum(len(a) for a in answers.values() if a is not None)
        return {s: answers.get(names[s]) for s in messages}

    def close(self) -> None:
        """Let go of the transport."""
        self._transport.close()


def upgrade(version: str) -> str:
    """Who must be upgraded where a site has another ``version``; "" where the two talk: of neighbours, by the minor."""
    from coterie import __version__

    said = f"it has coterie {version}, and the coordinator {__version__}: "
    ours, theirs = (re.match(r"([0-9]{1,6})\.([0-9]{1,6})(?![0-9])", text) for text in (__version__, version))
    if ours is None or theirs is None:
        return "" if version == __version__ else f"{said}install one"
    (here, minor), (there, other) = (tuple(map(int, found.groups())) for found in (ours, theirs))
    if here == there and abs(minor - other) <= 1:
        return ""
    older = "site" if (there, other) < (here, minor) else "coordinator"
    return f"{said}only versions next to each other talk, so upgrade the {older}"


def _tells(answer: Mapping[str, Any]) -> bool:
    """Whether an answer says who is there, each part of it in the kind that a site has it in."""
    levels, info, ids = answer.get("levels"), answer.get("info"), answer.get("ids")
    if not (isinstance(levels, list) and isinstance(info, dict) and isinstance(ids, np.ndarray) and ids.ndim == 1):
        return False
    notes, names, least = info.get("notes", []), info.get("levels", [""] * len(levels)), info.get("min_group", 0)
    if not (isinstance(notes, list) and isinstance(names, list) and len(names) == len(levels)):
        return False
    said = answer.get("name", ""), info.get("version", ""), *notes, *names
    if not (all(isinstance(text, str) for text in said) and type(least) is int and 0 <= least < _MOST):
        return False
    parts = [(answer.get(name), kinds) for name, kinds in _KINDS.items()] + [(level, _LABELS) for level in levels]
    if not all(isinstance(a, np.ndarray) and a.shape == ids.shape and a.dtype.kind in kinds for a, kinds in parts):
        return False
    weights, counts = answer["weights"], answer["counts"]
    return bool(np.all((weights >= 0) & (weights < np.inf)) and np.all((counts >= 0) & (counts < _MOST)))
