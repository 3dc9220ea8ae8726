"""What has left a site, so that no two sums together tell of a few rows; and which formulas were asked today.

A sum over some clients is a sum over their rows. The rows of a formula are cut into the finest parts by which sums over
them differ: every part must have ``min_group`` rows, and must not differ by fewer from parts of the rows of any other
formula, or split, that were asked here at any time (two X'X that are one row apart give the row).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import files
from coterie.deployment.site.site_toml import Disclosure
from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import read_durable, write_durable
from coterie.engines.site import clients, covers
from coterie.errors import CoterieError, fitting, plural
from coterie.federation import Ints

LOST = (
    "nothing is answered without what it says has left, and once it is gone a sum may leave that differs by a row from "
    "an earlier one"
)
DECLINES = (
    "the answer would tell of too few rows by the rules of its owner (min_group and [disclosure] in site.toml): "
    "'problem.txt' in the site's folder says which. Where an earlier formula used a few rows more or fewer as values "
    "are missing, keep its columns, or let the owner leave out so many rows that min_group differ. The rule 'complete' "
    "prevents it."
)


class TooFew(CoterieError):
    """Why an answer would tell of too few rows, for the owner alone."""


class TooSmall(TooFew):
    """The same of a client or group that is small whatever its rows hold: such a refusal tells nothing of them."""


@dataclass(frozen=True)
class Behind:
    """The n rows that an objective of m clients was made of.

    Each is known by ``rows``, over all formulas and runs; clients have ``counts`` of them, one client after the other,
    and ``labelled`` that have their label, whatever else they hold. ``values`` (n, q) are the columns and the outcome,
    ``cells`` (n, t) the cell of every term that has categories.
    """

    rows: npt.NDArray[np.uint64]
    counts: Ints
    labelled: Ints
    values: npt.NDArray[np.float64]
    cells: Ints

    @cached_property
    def name(self) -> str:
        """The same of the same rows of the same clients."""
        return blake2b(self.rows.tobytes() + self.counts.tobytes(), digest_size=16).hexdigest()

    @cached_property
    def content(self) -> str:
        """The same of the same rows under the same formula."""
        parts = (np.ascontiguousarray(part).tobytes() for part in (self.values, self.cells))
        return blake2b(b"".join(parts), digest_size=16).hexdigest()

    def take(self, chosen: npt.NDArray[np.bool_]) -> Behind:
        """Some of the rows, of the same clients."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        counts = np.bincount(owner[chosen], minlength=len(self.counts)).astype(np.int64)
        return replace(
            self, rows=self.rows[chosen], counts=counts, values=self.values[chosen], cells=self.cells[chosen]
        )


def nameless(run: str, counts: Ints) -> Behind:
    """Rows of an objective that its site made itself, which are known within one run only."""
    total = int(counts.sum())
    start = int.from_bytes(blake2b(run.encode(), digest_size=7).digest())
    rows = np.arange(start, start + total, dtype=np.uint64)
    return Behind(rows, counts, counts, np.empty((total, 0)), np.empty((total, 0), np.int64))


class Releases:
    """The memory of a site, on disk before an answer leaves; the file is made when something is to be remembered."""

    def __init__(self, path: Path, site: str) -> None:
        self._path = path
        self._stamp: tuple[int, ...] = ()
        self._seen: set[bytes] = set()
        self._kept: dict[str, Any] = {"site": site, "day": "", "asked": [], "ids": np.empty(0, np.uint64), "bases": {}}
        self._draft, self._drafted = self._kept, set[bytes]()

    def ask(self, task: Mapping[str, Any], limit: int) -> None:
        """Count a formula, unless it was asked before today; a CoterieError where the owner's limit is reached."""
        if not self._count("asked", dict(task), limit):
            raise CoterieError(
                f"{limit} different formulas were asked today, and its owner allows no more (formulas_per_day): ask "
                f"again {self._tomorrow}."
            )

    def decline(self, what: Any, limit: int) -> None:
        """Count a refusal that rows decided, unless the same was refused today: it tells one bit of them."""
        self._count("declined", what, limit)

    def need_bits(self, limit: int) -> None:
        """Raise where as many refusals have told of rows today as the owner allows."""
        if len(self._today("declined")) >= limit:
            raise CoterieError(
                f"{limit} sums were refused today for what rows hold, and its owner lets nothing leave after so many "
                f"(refusals_per_day): ask again {self._tomorrow}."
            )

    def today(self) -> tuple[int, int]:
        """How many formulas were asked today, and how many sums refused for what rows hold."""
        return len(self._today("asked")), len(self._today("declined"))

    def _count(self, name: str, what: Any, limit: int) -> bool:
        """Keep what was asked today; False where the limit is reached."""
        counted, digest = self._today(name), blake2b(wire.encode(what), digest_size=12).digest()
        if digest not in counted and len(counted) >= limit:
            return False
        if digest not in counted:
            today = {key: self._today(key) for key in ("asked", "declined")} | {name: [*counted, digest]}
            self._write(self._kept | today | {"day": max(self._kept["day"], _day())})
        return True

    def _today(self, name: str) -> list[bytes]:
        """What was counted on this day, or on a later one: a clock that is put back gives nobody another day."""
        self._read()
        return list(self._kept.get(name, ())) if self._kept["day"] >= _day() else []

    @property
    def _tomorrow(self) -> str:
        back = f", when this site's clock is past {self._kept['day']} again" if self._kept["day"] > _day() else ""
        return f"tomorrow, after midnight UTC{back}"

    def need(
        self,
        parts: Sequence[Behind],
        request: Mapping[str, Any],
        clusters: Ints,
        min_group: int,
        rules: Disclosure,
        width: int = 0,
    ) -> None:
        """Raise TooFew where an answer would tell of too few rows; else :meth:`remember` keeps of which it tells.

        ``parts`` are those of one objective, and of what is held out beside it: of three, the second is of both others
        together, so that the last says nothing new. ``width`` is the formula's number of columns.
        """
        self._read()
        self._draft, self._drafted = self._kept, set()
        groupings, new = _groupings(request, clusters), []
        for part in parts:
            for labels in groupings:
                what = f"{part.name} {part.content} {min_group} {rules}".encode() + labels.tobytes()
                key = blake2b(what, digest_size=16).digest()
                if key not in self._seen:
                    new.append((part, labels, key))
        for part, labels, _ in new:
            few = np.bincount(labels[labels >= 0], part.labelled[labels >= 0])
            if np.any((few > 0) & (few < min_group)):
                raise TooSmall(f"A client or group has fewer than {min_group} rows with its label (min_group).")
            sizes = np.bincount(labels[labels >= 0], part.counts[labels >= 0])
            if np.any((sizes > 0) & (sizes < min_group)):  # of clients asked twice, too: the second time tells of them
                raise TooFew(f"A group has fewer than {min_group} rows (min_group).")
        if new and len(parts[0].rows) < rules.rows_per_column * width:
            rows = plural(len(parts[0].rows), "row")
            raise TooFew(f"{rows} can be used for {plural(width, 'column')} (rows_per_column).")
        for part, labels, key in new:
            _need_levels(part, labels, rules.min_level)
            self._need_apart(part, labels, min_group, rest=len(parts) > 2 and part is parts[2])
            self._drafted.add(key)

    def remember(self) -> None:
        """Write down the sums of the last :meth:`need`, before they leave; those of a work that failed do not."""
        if self._draft is not self._kept:
            self._write(self._draft)
        self._seen |= self._drafted

    def _need_apart(self, part: Behind, labels: Ints, least: int, rest: bool) -> None:
        """Cut the rows of a formula by a further grouping of its clients; the ``rest`` of others says nothing new."""
        kept = self._draft
        before = kept["bases"].get(part.name)
        atoms = np.full(len(labels), -1) if before is None else np.asarray(before["atoms"])
        after = _cut(atoms, labels)
        if np.array_equal(after, atoms):
            return
        sizes = np.bincount(after[after >= 0], part.counts[after >= 0])
        if np.any(few := (sizes > 0) & (sizes < least)):
            raise TooFew(
                f"Sums that have left and the one asked for would together tell of {plural(sizes[few][0], 'row')}."
            )
        ids, at = _places(np.asarray(kept["ids"]), part.rows)
        mine = np.full(len(ids), -1)
        mine[at] = np.repeat(after, part.counts)
        sums, over = 0 if rest else np.count_nonzero(sizes), mine >= 0
        for other in kept["bases"].values():
            if other is before:
                continue
            theirs = np.full(len(ids), -1)
            theirs[other["at"]] = np.repeat(other["atoms"], other["counts"])
            if (near := closest(mine, theirs)) < least:
                raise TooFew(f"A sum has left before whose rows differ from these by {near}.")
            if np.any((mine >= 0) & (theirs >= 0)):
                over |= theirs >= 0
                sums += 0 if other.get("rest") else np.count_nonzero(np.bincount(theirs[theirs >= 0]))
        if sums * least > over.sum():
            raise TooFew(
                f"With this, {sums:,} different sums would have left over {over.sum():,} rows, and each needs {least} "
                "(min_group): many sums over other rows each time tell of single ones."
            )
        entry = {"atoms": after, "counts": part.counts, "at": at, "rest": rest}
        self._draft = kept | {"ids": ids, "bases": kept["bases"] | {part.name: entry}}

    def _read(self) -> None:
        """Take what the file says: another process of the site may have written it since."""
        if (now := files.stamp(self._path)) and now != self._stamp:
            kept = read_durable(self._path, LOST)
            with fitting(f"'{self._path}'", f"{LOST[0].upper()}{LOST[1:]}."):
                lists = kept["asked"], kept.get("declined", [])
                mine = kept["site"] == self._kept["site"] and isinstance(kept["day"], str)
                if not mine or not all(isinstance(part, list) for part in lists):
                    raise TypeError
                for entry in kept["bases"].values():
                    at, owners = kept["ids"][entry["at"]], np.repeat(entry["atoms"], entry["counts"])
                    if at.dtype != np.uint64 or at.shape != owners.shape:
                        raise ValueError
            self._kept, self._stamp, self._seen = kept, now, set()

    def _write(self, kept: dict[str, Any]) -> None:
        write_durable(self._path, wire.pieces(kept))
        self._kept, self._stamp = kept, files.stamp(self._path)


def _day() -> str:
    return datetime.now(UTC).date().isoformat()


def fewest_rows(about: Mapping[str, Any], request: Mapping[str, Any]) -> int | None:
    """The fewest rows that a row of the reply stands for: of a client, or of a group of a sum; None for no request.

    ``about`` has ``counts`` and ``clusters`` of the site's clients.
    """
    who, labels = _groups_of(request, np.asarray(about["clusters"]))
    return int(covers(np.asarray(about["counts"]), who, labels).min()) if len(who) else None


def _groups_of(request: Mapping[str, Any], clusters: Ints) -> tuple[Ints, Ints]:
    """The client of each row of an exchange (n,), and the group whose sum it goes into: its own where it is asked."""
    rows, by = clients(request.get("rows"), clusters), request.get("by")
    who = np.arange(len(clusters)) if rows is None else rows
    if request["kind"] == "ask":
        return who, who
    if by is None:
        return who, np.zeros(len(who), np.int64)
    return who, clusters[who] if isinstance(by, str) else np.asarray(by, dtype=np.int64)


def _groupings(request: Mapping[str, Any], clusters: Ints) -> list[Ints]:
    """The group (m,) of every client, -1 of those that are not asked; one for each group where some share a client."""
    (who, labels), m = _groups_of(request, clusters), len(clusters)
    if len(labels) != len(who):
        raise CoterieError(f"A sum by {len(labels)} groups was asked of {len(who)} clients: each has one.")
    pairs = np.unique(np.stack([labels, who]), axis=1)  # a client that is asked twice in a group counts once
    once = len(np.unique(pairs[1])) == pairs.shape[1]
    found = dict[bytes, Ints]()
    for members in [pairs] if once else np.split(pairs, np.flatnonzero(np.diff(pairs[0])) + 1, axis=1):
        grouping = np.full(m, -1)
        grouping[members[1]] = members[0] if once else 0
        found[grouping.tobytes()] = grouping
    return list(found.values()) if len(who) else []


def _need_levels(part: Behind, labels: Ints, least: int) -> None:
    """Raise where a group has a level, a class or a cell of some rows, but fewer than ``least``."""
    if least <= 1:
        return
    group = np.repeat(labels, part.counts)
    values, cells, group = part.values[group >= 0], part.cells[group >= 0], group[group >= 0]
    for column in cells.T:
        n = _pairs(group, column)[3]
        if n.size and n.min() < least:
            raise TooFew(f"A level of a category, or a cell of several, has {plural(n.min(), 'row')}.")
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.diff(np.append(starts, len(group)))
    for column in values.T if len(starts) else ():
        v = column[order]
        low, high = (np.repeat(end.reduceat(v, starts), sizes) for end in (np.minimum, np.maximum))
        at_low, at_high, some = (np.add.reduceat(at.astype(np.int64), starts) for at in (v == low, v == high, v != 0.0))
        two = (at_low + at_high == sizes) & (np.minimum(at_low, at_high) < least)
        if np.any(two) or np.any((some > 0) & (some < least)):
            raise TooFew("A column of the formula, or the outcome, has a value of its own in too few rows.")


def _cut(atoms: Ints, labels: Ints) -> Ints:
    """The parts of clients that neither grouping tells apart, numbered from 0; -1 where neither has any."""
    x, y, at, _ = _pairs(atoms, labels)
    any_ = (x >= 0) | (y >= 0)
    found = np.where(any_, np.cumsum(any_) - 1, -1)[at]
    first = np.unique(found[found >= 0], return_index=True)[1]
    rank = np.empty(len(first) + 1, np.int64)  # by first client, so that what is cut no further stays as it is
    rank[-1] = -1
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[found])


def _places(ids: npt.NDArray[np.uint64], rows: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], Ints]:
    """The rows known so far with those that are new, and where some stand among them."""
    ids = np.concatenate([ids, np.setdiff1d(rows, ids)])
    order = np.argsort(ids, kind="stable")
    return ids, order[np.searchsorted(ids, rows, sorter=order)]


def closest(a: Ints, b: Ints) -> int:
    """The fewest rows, but not none, by which parts of one side, or all of them, differ from any parts of the other.

    ``a`` and ``b`` (n,) are the part of each row, -1 of those in none.
    """
    found: list[int] = []
    for x, y in ((a, b), (b, a)):
        mine, theirs, _, n = _pairs(x[x >= 0], y[x >= 0])
        size = np.bincount(y[y >= 0], minlength=1)
        wrong = np.where(theirs >= 0, np.minimum(n, size[theirs] - n), n)  # a part is best taken, or best left
        found += np.bincount(mine, wrong).astype(int).tolist()
        all_ = np.bincount(theirs + 1, n, minlength=len(size) + 1).astype(np.int64)
        found.append(int(all_[0] + np.minimum(all_[1:], size - all_[1:]).sum()))
    return min((d for d in found if d > 0), default=len(a) + 1)


def _pairs(x: Ints, y: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The pairs that occur in two columns of numbers from -1; which each row has, and how many rows have each."""
    wide = int(y.max(initial=-1)) + 2
    codes, at, n = np.unique((x + 1) * wide + y + 1, return_inverse=True, return_counts=True)
    return codes // wide - 1, codes % wide - 1, at.reshape(-1), n
