"""At a site, before anything leaves it: exactly what a program would send.

The program runs here, on this site's own data, in a federation whose other sites are stand-ins that hold the same rows
under other names. Nothing is sent; what this site would have answered is listed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.labels import label_ids
from coterie.deployment import toml_files
from coterie.deployment.federation_toml import BOOK, RELEASES, SCHEMA, Config
from coterie.deployment.site import prepared_data
from coterie.deployment.site.prepared_data import Prepared
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.redaction_and_owner_log import summary
from coterie.deployment.site.site_toml import Member
from coterie.engines.site import Node
from coterie.errors import CoterieError, plural
from coterie.user_code import find_in

STAND_INS = 3  # other sites at most
Run = Callable[["LocalTransport", Path, str], object]


@dataclass
class Leaving:
    """What leaves a site for one work of a program.

    ``kind`` is "open", or "ask" and "total" with the name of the work; ``values`` are type and shape of everything in
    the last answer; ``bytes`` are of all answers together, ``covers`` the fewest rows that stand behind a number of
    any; ``refused`` says what the site would refuse to answer, and why.
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


class LocalTransport:
    """A transport to receivers in this process, ``receiver(bytes) -> bytes`` by site, asked one after another."""

    def __init__(self, receivers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._receivers = dict(receivers)
        self.sites: Sequence[str] = sorted(self._receivers)

    def send(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | None]:
        """The replies."""
        return {site: self._receivers[site](data) for site, data in messages.items()}

    def close(self) -> None:
        """Nothing is open."""


def preview(folder: Path, program: Mapping[str, Any], run: Run, min_group: int | None = None) -> Preview:
    """What a program (as in ``run.toml``) would make a site send.

    ``run`` is :func:`coterie.deployment.coordinator.run.run`; ``min_group`` stands for what ``site.toml`` says. A
    CoterieError says what is wrong with the site's folder.
    """
    find_in(folder)
    member, config = Member.read(folder), Config.read(folder)
    config.need_site(member.name)
    masked, member = bool(config.secure), member if min_group is None else replace(member, min_group=min_group)
    others = [name for name in config.sites if name != member.name][:STAND_INS]
    config = replace(config, sites=(member.name, *others), policy={}, secure={})
    seen: dict[tuple[str, str], Leaving] = {}

    def noted(request: Any, reply: bytes, seconds: float, node: Node | None, sent: int) -> None:
        entry = summary(request, reply, node)
        key = str(entry["kind"]), str(entry.get("work", ""))
        found = seen.setdefault(key, Leaving(*key))
        if (refused := entry.get("refused") or entry.get("failed")) is not None:
            found.refused.append(str(refused))
            return
        found.values = dict(entry.get("values", {}))
        if key[0] == "open":
            found.values = {
                "labels of clients and clusters, rows of each client": plural(entry.get("clients", 0), "client")
            }
        found.answers += 1
        found.bytes += sent
        found.covers = min((n for n in (found.covers, entry.get("covers")) if n is not None), default=None)

    def prepared(folder: Path, here: Member, task: Mapping[str, Any], data: str) -> Prepared:
        held = prepared_data.prepare(folder, member, task)  # without the fingerprint of the data: nothing is to be kept
        return held if here.name == member.name and held.labels.dtype.kind == "U" else renamed(held, here.name)

    with tempfile.TemporaryDirectory(prefix="preview-", dir=folder, ignore_cleanup_errors=True) as path:
        drawer = Path(path)  # for the owner alone
        config.write(drawer)
        if (folder / SCHEMA).exists():
            shutil.copy(folder / SCHEMA, drawer / SCHEMA)
        toml_files.write(drawer / "runs" / "preview" / "run.toml", program)
        receivers = {}
        for name in config.sites:
            keep = drawer / "sites" / name
            keep.mkdir(parents=True)
            for memory in (BOOK, RELEASES):  # what has left, and what is left of the budget; this copy is spent
                if (folder / memory).exists():
                    shutil.copy(folder / memory, keep / memory)
            host = SiteReceiver(
                folder, noted if name == member.name else None,
                member=replace(member, name=name), config=config, drawer=keep, prepare=prepared,
            )  # fmt: skip
            receivers[name] = host.receive
        ended = ""
        try:
            run(LocalTransport(receivers), drawer, "preview")
        except CoterieError as problem:
            ended = str(problem)
        except (Exception, SystemExit) as problem:  # a program of one's own: what has left by then is still shown
            ended = f"The program raised {type(problem).__name__}: {problem}".rstrip(": ")
    ended = _without_stand_ins(ended.replace(str(drawer), str(folder)), member.name, others)
    return Preview(list(seen.values()), ended, masked)


def _without_stand_ins(text: str, name: str, others: Sequence[str]) -> str:
    """What ended a program, in words about this site alone: stand-ins have no say, nor a name."""
    if not others:
        return text
    other = f"(?:{'|'.join(map(re.escape, others))})"
    text = re.sub(rf"(?<![\w-])(?:{other}, )*{re.escape(name)}(?:, {other})*(?![\w-])", lambda _: name, text)
    text = re.sub(rf"Site '{other}'", "A stand-in", text)
    return re.sub(
        rf"(?P<before>^|\bAt |\(|; ){other}(?:, {other})*(?=: |, | cannot take part)", r"\g<before>a stand-in", text
    )


def renamed(held: Prepared, name: str) -> Prepared:
    """The same rows as other clients, of a site called ``name``, in the same order; clusters stay."""
    old = held.labels.tolist() if held.labels.dtype.kind == "U" else [f"{i:09d}" for i in range(len(held.labels))]
    labels = np.array([f"{name}/{label}" for label in old], dtype=str)
    return replace(held, labels=labels, ids=label_ids(labels))
