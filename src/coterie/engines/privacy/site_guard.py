"""A site's own end of privacy: whatever a coordinator asks, only private sums leave, and no more than were agreed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import read_durable, write_durable
from coterie.engines.header_compression import CoordinatorLink
from coterie.engines.message_checks import NUMBERED, Answer, failed, need_form
from coterie.engines.privacy import gaussian_mechanism as gaussian
from coterie.engines.privacy.gaussian_mechanism import ABOUT_ROWS, PUBLIC, Event
from coterie.errors import CoterieError, fitting
from coterie.federation import Ints, PerRow, work_name
from coterie.options import Option, checked

_CLIPPED = work_name(gaussian.clipped)
_MANY = 2**20  # sums of one kind that no book can count


class Guard:
    """What answers in front of another, and refuses what would cost a site's clients more than they agreed to.

    It lets ``ask`` through for works that say nothing of rows, and ``total`` for clipped sums with enough noise, until
    the budget is spent. What was asked before, and is answered again from memory, is not charged again, nor is a late
    copy of what was.

    ``answer(request, key)`` gives bytes, as ``Node.answer``. By default the noise of this site's own clients must be
    enough, in every group that is asked: nobody else is trusted. A number of ``clients`` *trusts the coordinator* to
    add up that many, here and elsewhere, and to see their sum only; no site can check that. 1 asks every client for all
    of the noise. The file ``book`` remembers what was spent; without one it is forgotten when this process ends.
    """

    @checked
    def __init__(
        self,
        answer: Answer,
        *,
        clip: float | Mapping[str, float],
        noise: Annotated[float, Option("Noise multiplier of the sums, the least that is accepted.", low=0.0)],
        epsilon: Annotated[float, Option("What may be spent here, by all runs together.", above=0.0)],
        clients: Annotated[int | None, Option("How many clients' noise is enough together.", low=1)] = None,
        delta: Annotated[float, Option("Chance that epsilon does not hold.", above=0.0, below=1.0)] = 1e-5,
        unit: Annotated[Literal["client", "row"], Option("What is hidden: all rows of a client, or one.")] = "client",
        book: str | Path | None = None,
        public: Annotated[tuple[str, ...], Option("Further works whose replies say nothing of rows.")] = (),
    ) -> None:
        gaussian.accounting()
        self._answer, self.clip, self.noise, self.clients = answer, clip, float(noise), clients
        self.budget, self.delta, self.unit = float(epsilon), float(delta), unit
        self._public = PUBLIC | frozenset(public) | (ABOUT_ROWS if unit == "row" else frozenset())
        self._book = None if book is None else Path(book)
        self._counts: dict[Event, int] = {}
        self._last, self._link = b"", CoordinatorLink()
        self._read()

    @property
    def spent(self) -> float:
        """Epsilon so far."""
        return gaussian.epsilon(self._counts, self.delta)

    def ahead(self, runs: Sequence[tuple[int, float]], groups: Sequence[int] = (1,)) -> tuple[Ints, list[list[float]]]:
        """What further runs, (exchanges, sampling) each, would spend, before any of it is.

        How many exchanges of each would be answered, after those of the runs before that would be; and the epsilon so
        far and after each run, if all of them were, of as many clients (or rows) together as ``groups`` says. Every
        client is charged alike, asked or not.
        """
        counts, charged, answered, spent = dict(self._counts), dict(self._counts), [], []
        for exchanges, sampling in ((0, 1.0), *runs):
            event = Event(self.noise, sampling)
            before = charged.get(event, 0)

            def cost(n: int, event: Event = event, before: int = before) -> float:
                return gaussian.epsilon(charged | {event: before + n}, self.delta)

            most = self.budget * (1.0 + 1e-9)
            answered.append(exchanges if cost(exchanges) <= most else bisect_right(range(1, exchanges), most, key=cost))
            charged[event] = before + answered[-1]
            counts[event] = counts.get(event, 0) + exchanges
            spent.append([gaussian.group_epsilon(counts, self.delta, size) for size in groups])
        return np.asarray(answered[1:], dtype=np.int64), spent

    def receive(self, data: bytes) -> bytes:
        """Answer one message, or refuse it."""
        return self._link.answered(data, self)

    def __call__(self, request: Any, key: bytes) -> bytes:
        """Answer a request that was decoded, or refuse it; ``key`` is the digest of its message."""
        try:
            self._read()
            if not self._late(request):
                if self._last and key != self._last:
                    # No repeat is free once something else was asked: it might make the work run again.
                    self._write(self._counts, b"")
                if isinstance(request, Mapping) and request.get("kind") in ("ask", "total"):
                    self._allow(request, key)
        except CoterieError as problem:
            return wire.encode({"refused": str(problem)})
        except Exception as problem:
            return failed(problem)
        return self._answer(request, key)

    def _late(self, request: Any) -> bool:
        """Whether a request is answered by its number alone: it came before, or before what came since."""
        if not isinstance(request, Mapping) or request.get("kind") not in NUMBERED or "number" not in request:
            return False
        need_form(request)
        last = {"kind": "last"} | {name: request[name] for name in ("run",) if name in request}
        return bool(request["number"] <= wire.decode(self._answer(last, b"")).get("number", 0))

    def _allow(self, request: Mapping[str, Any], key: bytes) -> None:
        """Charge the request; a CoterieError says why it is refused."""
        need_form(request)
        if request["work"] in self._public:
            return
        if request["kind"] != "total" or request["work"] != _CLIPPED:
            raise CoterieError(f"This site gives private sums only, and was asked for {request['work']}.")
        message, rows = request["message"], request["rows"]
        if rows is not None and rows.dtype != bool and len(np.unique(rows)) < len(rows):
            raise CoterieError("A private sum was asked that counts a client of this site twice.")
        self._check(message)
        self._enough(request, message["noise"])
        if key == self._last:
            return  # the stored reply goes out again, with the noise that it had
        event = Event(self.noise, float(message["sampling"]))
        counts = self._counts | {event: self._counts.get(event, 0) + 1}
        cost = gaussian.epsilon(counts, self.delta)
        if cost > self.budget * (1.0 + 1e-9):
            raise CoterieError(
                f"This site's privacy budget is spent: another sum would cost an epsilon of {cost:.3g}, and "
                f"{self.budget:g} is allowed."
            )
        self._write(counts, key)

    def _read(self) -> None:
        """Take what the book says: another process of the site may have written it since."""
        if self._book is not None and self._book.exists():
            kept = read_durable(self._book, "nothing is given without what it says was spent")
            with fitting(f"The book of privacy {self._book}", "Nothing is given without what it says was spent."):
                counts = [(Event(float(noise), float(part)), int(n)) for noise, part, n in kept["counts"]]
                sound = all(1e6 > e.noise >= 0.0 < e.sampling <= 1.0 and 0 < n < _MANY for e, n in counts)
                if not sound or len(dict(counts)) < len(counts):
                    raise ValueError
                self._counts, self._last = dict(counts), bytes(kept["last"])

    def _write(self, counts: dict[Event, int], last: bytes) -> None:
        """Charge, in the book first: what cannot be written there is not given."""
        if self._book is not None:
            entries = [[e.noise, e.sampling, n] for e, n in counts.items()]
            write_durable(self._book, wire.pieces({"counts": entries, "last": last}))
        self._counts, self._last = counts, last

    def _enough(self, request: Mapping[str, Any], asked: Any) -> None:
        """Refuse a sum with too little noise, by what this site sees itself: its own clients in every group."""
        noise = np.asarray(asked.value if isinstance(asked, PerRow) else asked, dtype=np.float64)
        if self.clients is not None:
            share = self.noise / math.sqrt(self.clients)
            if not np.all(noise >= share * (1.0 - 1e-9)):
                raise CoterieError(f"A sum was asked with less noise than a share of {share:.3g} for each client.")
            return
        who, by = self._clusters(request), request["by"]
        labels = who if isinstance(by, str) else np.zeros_like(who) if by is None else np.asarray(by, dtype=np.int64)
        if noise.ndim and not isinstance(asked, PerRow):
            raise CoterieError("A sum was asked with noise that does not say which client adds it.")
        each = np.broadcast_to(noise, who.shape)
        # Noise lies on a grid of its own size: finer bits of who adds less than the others would shine through theirs.
        _, first, at, size = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
        enough = each * np.sqrt(size)[at] >= self.noise * (1.0 - 1e-9)
        if not np.all(enough & (each == each[first][at])):
            raise CoterieError(
                f"A sum was asked in which the noise of this site's own clients is less than {self.noise:.3g}: let "
                "Private add it with hide='site'."
            )

    def _clusters(self, request: Mapping[str, Any]) -> Ints:
        """The cluster of each client that is asked, as this site has them."""
        about = {"kind": "about"} | {name: request[name] for name in ("run",) if name in request}
        told, rows = wire.decode(self._answer(about, b"")), request["rows"]
        if "clusters" not in told:
            raise CoterieError(str(told.get("refused", "This site does not know its own clients.")))
        clusters: Ints = np.asarray(told["clusters"], dtype=np.int64)
        if rows is not None:
            clusters = clusters[rows[clusters] if rows.dtype == bool else rows.astype(np.int64)]
        return clusters

    def _check(self, message: Mapping[str, Any]) -> None:
        """Refuse a bound that is too wide, noise that is too little, or such as can be repeated."""
        if message["seed"] is not None:
            raise CoterieError("A sum was asked with noise that can be repeated from a seed.")
        if (message["form"] == "rows") != (self.unit == "row"):
            raise CoterieError(f"This site hides {self.unit}s, and was asked for a sum that does not.")
        if not 0.0 < float(message["sampling"]) <= 1.0:
            raise CoterieError("A sum was asked with a sampling probability that is none.")
        bound, most = message["bound"], self.clip
        if isinstance(bound, Mapping) != isinstance(most, Mapping):
            raise CoterieError("A sum was asked with bounds of another kind than this site agreed to.")
        asked = bound if isinstance(bound, Mapping) else {"": bound}
        agreed = most if isinstance(most, Mapping) else {"": most}
        for name, value in asked.items():
            if not 0.0 < float(value) <= agreed.get(name, 0.0) * (1.0 + 1e-9):
                raise CoterieError(f"A sum was asked with the bound {value} of {name or 'updates'}: it is too wide.")
