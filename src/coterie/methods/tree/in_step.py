"""Calculations that go in step: what they ask of clients at the same time is one exchange.

Each is an ordinary function of a federation, in a thread of its own, which waits for the others' questions. Clients
keep the state of each apart, and all begin at what clients have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar, cast

import numpy as np

from coterie.federation import Federation, Site, Sums, find_work, require_all_replies, work, work_name
from coterie.methods.tree.client_work import Reply
from coterie.numerics.arrays import Floats, Ints

T = TypeVar("T")


class StateOf:
    """The state of clients in one calculation; what it has not written is what clients have."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name

    def __getitem__(self, key: str) -> Floats:
        own = self.site.state.get(f"{self.name}:{key}")
        return self.site.state[key] if own is None or not own.size else own

    def __setitem__(self, key: str, value: Floats) -> None:
        self.site.state[f"{self.name}:{key}"] = value


def release(site: Site, name: str = "") -> None:
    """Keep nothing of a calculation that has ended, or of all: nobody is to read it, and it takes memory."""
    for key in [key for key in site.state if ":" in key and name in ("", key.partition(":")[0])]:
        site.state[key] = np.empty((len(site), 0))


def site_of(site: Site, name: str) -> Site:
    """The same site with the state of a calculation."""
    state: Any = StateOf(site, name)
    own = Site(site.objective, site.clusters, site.weights, site.ids, state, site.seed)
    own._tally = site._tally
    return own


def part(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Those of values by name that are of one calculation."""
    return {key.partition(":")[2]: value for key, value in values.items() if key.partition(":")[0] == name}


@work
def all_of(site: Site, call: str, begun: bool, names: str, **values: Any) -> Reply:
    """The replies of one kind of work to the messages of several calculations."""
    run, out = find_work(call), dict[str, Any]()
    for name in names.split():
        if not begun:
            release(site, name)
        replies = run(site_of(site, name), **part(values, name))
        out |= {f"{name}:{key}": value for key, value in replies.items()}
    return out


class _Caller:
    """A federation as one calculation sees it."""

    def __init__(self, fed: Federation) -> None:
        self.clients, self.ledger, self.begun = fed.clients, fed.ledger, False
        self.asked, self.answers = SimpleQueue[Any](), SimpleQueue[Any]()

    def total(self, work: Any, /, to: Any = None, by: Any = None, groups: Any = None, **message: Any) -> Sums:
        self.asked.put((work, by, message))
        answer = self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return cast(Sums, answer)

    def follow(self, calculation: Callable[[Any], Any]) -> None:
        try:
            self.asked.put((None, None, calculation(self)))
        except BaseException as problem:  # told to who waits
            self.asked.put((None, problem, None))


def in_step(fed: Federation, calculations: Mapping[str, Callable[[Any], T]]) -> dict[str, T]:
    """The results of functions of a federation, by name, whose calls of ``total`` are made together."""
    callers = {name: _Caller(fed) for name in calculations}
    for name, caller in callers.items():
        Thread(target=caller.follow, args=(calculations[name],), daemon=True).start()
    results: dict[str, T] = {}
    waiting = list(callers)
    try:
        while waiting:
            questions: dict[tuple[Any, Any, bool], dict[str, Any]] = {}
            for name in list(waiting):
                work, by, message = callers[name].asked.get()
                if work is None:
                    waiting.remove(name)
                    if by is not None:
                        raise by
                    results[name] = message
                else:
                    questions.setdefault((work, by, callers[name].begun), {})[name] = message
            for (work, by, begun), messages in questions.items():
                _exchange(fed, {name: callers[name] for name in messages}, work, by, begun, messages)
    except BaseException as problem:
        for name in waiting:
            callers[name].answers.put(problem)
        raise
    return {name: results[name] for name in calculations}


def _exchange(
    fed: Federation, callers: dict[str, _Caller], work: Any, by: Any, begun: bool, messages: dict[str, Any]
) -> None:
    checks = {name: one for name, message in messages.items() if (one := message.pop("check", None))}
    sent = {f"{name}:{key}": value for name, message in messages.items() for key, value in message.items()}

    def check(rows: Ints, values: Mapping[str, Any]) -> None:
        for name, of_one in checks.items():
            of_one(rows, part(values, name))

    about: dict[str, Any] = {"call": work_name(work), "begun": begun, "names": " ".join(messages)}
    sums = require_all_replies(fed.total(all_of, by=by, check=check, **about, **sent))
    for name, caller in callers.items():
        caller.begun = True
        caller.answers.put(Sums(part(sums, name), sums.to, sums.rows, sums.missing, sums.count))
