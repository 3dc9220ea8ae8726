"""At a site, before anything leaves it: exactly what a program would send.

The program runs here, on this site's own data, in a federation whose other sites are stand-ins that hold the same rows
under other names. Nothing is sent; what this site would have answered is listed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.deployment import tasks
from coterie.deployment.config import SCHEMA, Config, Member
from coterie.deployment.leaving import described
from coterie.deployment.tasks import Holding
from coterie.engines import wire
from coterie.engines.node import Node
from coterie.errors import CoterieError

STAND_INS = 3
"""Other sites at most."""
Run = Callable[["Here", Path, str], object]


@dataclass
class Leaving:
    """What leaves a site for one work of a program.

    Attributes
    ----------
    kind, work : str
        "open", or "ask" and "total" with the name of the work.
    values : dict of str to str
        Type and shape of everything in an answer, as in the last.
    answers : int
        How often.
    bytes : int
        Of all answers together.
    covers : int or None
        The fewest rows that stand behind a number of any answer.
    refused : list of str
        What the site would refuse to answer, and why.
    """

    kind: str
    work: str = ""
    values: dict[str, str] = field(default_factory=dict)
    answers: int = 0
    bytes: int = 0
    covers: int | None = None
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Preview:
    """What leaves, how the program ended ("" or what stopped it), and whether sums leave masked."""

    leaving: list[Leaving]
    ended: str = ""
    masked: bool = False


class Here:
    """A transport to receivers in this process, asked one after another.

    Parameters
    ----------
    receivers : dict of str to callable
        ``receiver(bytes) -> bytes`` by site.
    """

    def __init__(self, receivers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._receivers = dict(receivers)
        self.sites: Sequence[str] = sorted(self._receivers)

    def send(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | None]:
        """The replies."""
        return {site: self._receivers[site](data) for site, data in messages.items()}

    def close(self) -> None:
        """Nothing is open."""


def preview(folder: Path, program: Mapping[str, Any], run: Run, min_group: int | None = None) -> Preview:
    """What a program would make a site send.

    Parameters
    ----------
    folder : path
        The site's.
    program : dict
        What ``run.toml`` says.
    run : callable
        ``run(transport, folder, run_id)``: :func:`coterie.deployment.run.run`.
    min_group : int, optional
        Rows that a number must cover; by default what ``site.toml`` says.

    Raises
    ------
    CoterieError
        For what is wrong with the site's folder.
    """
    from coterie.deployment import toml

    member, config = Member.read(folder), Config.read(folder)
    config.need_site(member.name)
    member = member if min_group is None else replace(member, min_group=min_group)
    names = [name for name in config.sites if name != member.name][:STAND_INS]
    seen: dict[tuple[str, str], Leaving] = {}
    receivers = {name: Stand(folder, member, name).receive for name in names}
    receivers[member.name] = Stand(folder, member, member.name, seen).receive
    with _drawer(folder) as drawer:
        replace(config, sites=tuple(receivers), policy={}, secure={}).write(drawer)
        if (folder / SCHEMA).exists():
            shutil.copy(folder / SCHEMA, drawer / SCHEMA)
        toml.write(drawer / "runs" / "preview" / "run.toml", program)
        ended = ""
        try:
            run(Here(receivers), drawer, "preview")
        except CoterieError as problem:
            ended = str(problem)
    return Preview(list(seen.values()), ended, bool(config.secure))


@contextmanager
def _drawer(folder: Path) -> Iterator[Path]:
    """A folder within the site's, for its owner alone, that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="preview-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Stand:
    """A receiver that keeps nothing on disk: the site itself, or one that holds the same rows under another name.

    Parameters
    ----------
    folder, member
        Of the site whose rows they are.
    name : str
    seen : dict, optional
        Where what leaves is noted.
    """

    def __init__(
        self, folder: Path, member: Member, name: str, seen: dict[tuple[str, str], Leaving] | None = None
    ) -> None:
        self._folder, self._member, self._name, self._seen = folder, member, name, seen
        self._nodes: dict[str, Node] = {}

    def receive(self, data: bytes) -> bytes:
        """Answer one message."""
        request = wire.decode(data)
        try:
            reply = self._answer(request, data[-16:])
        except CoterieError as problem:
            reply = wire.encode({"refused": f"Site '{self._name}': {problem}"})
        if self._seen is not None:
            self._note(described(request, reply, self._nodes.get(request.get("run", ""))), self._seen)
        return reply

    def _answer(self, request: dict[str, Any], key: bytes) -> bytes:
        if request["kind"] != "open":
            if request.get("run") not in self._nodes:
                raise CoterieError("A program must open the run first.")
            return self._nodes[request["run"]].answer(request, key)
        held = tasks.prepare(self._folder, self._member, request["task"])
        if self._name != self._member.name or held.labels.dtype.kind != "U":
            held = renamed(held, self._name)
        info = {"levels": list(held.levels), "min_group": self._member.min_group}
        node = self._nodes[request["run"]] = Node(
            self._name, held.objective, held.clusters, np.ones(len(held.ids)), held.ids, seed=int(request["seed"]),
            labels=held.labels, levels=list(held.levels.values()), info=info,
            min_group=self._member.min_group,
        )  # fmt: skip
        return wire.encode(node.about() | {"done": "open"})

    @staticmethod
    def _note(entry: Mapping[str, Any], seen: dict[tuple[str, str], Leaving]) -> None:
        key = str(entry["kind"]), str(entry.get("work", ""))
        found = seen.setdefault(key, Leaving(*key))
        refused = entry.get("refused") or entry.get("failed")
        if refused is not None:
            found.refused.append(str(refused))
            return
        found.values = dict(entry.get("values", {}))
        if key[0] == "open":
            found.values = {
                "labels of clients and clusters, rows of each client": f"{entry.get('clients', 0):,} clients"
            }
        found.answers += 1
        found.bytes += int(entry["bytes"])
        covers = entry.get("covers")
        if covers is not None:
            found.covers = covers if found.covers is None else min(found.covers, covers)


def renamed(held: Holding, name: str) -> Holding:
    """The same rows as other clients, of a site called ``name``, in the same order; clusters stay."""
    from coterie.data.labels import label_ids

    old = held.labels.tolist() if held.labels.dtype.kind == "U" else [f"{i:09d}" for i in range(len(held.labels))]
    labels = np.array([f"{name}/{label}" for label in old], dtype=str)
    return replace(held, labels=labels, ids=label_ids(labels))
