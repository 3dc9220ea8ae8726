"""What runs inside Flower (flwr 1.42): the ClientApp of a site, the ServerApp of a coordinator, bytes between them.

Flower authenticates a node by its key and calls it by a number; the name under which the coordinator registered that
key is the site's name here, so no site can take another's. Only what flwr documents for apps is used. Where a site's or
the coordinator's folder is, its own start command said; nothing that arrives can change it.
"""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.deployment import membership
from coterie.deployment.certificates import private
from coterie.deployment.federation_toml import Config
from coterie.deployment.flower.supervisor import FILES, LOG, MARK, refused
from coterie.deployment.logs import RunLog
from coterie.deployment.processes import PATIENCE, end_with_parent, gathered
from coterie.deployment.site.site_toml import Member
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

Receiver = Callable[[bytes], bytes]
RECORD, DATA, SITE = "c", "d", "s"  # as short as can be: they travel with every message
DAY = 86_400.0
log = logging.getLogger(__name__)


class FlowerTransport:
    """Carries bytes to the sites of a running Flower app, all at once, over the ``grid`` that a ServerApp is given.

    ``sites`` are the names of all sites of the federation, also of those that are away. Sites that are not here yet are
    waited for for ``join`` seconds, or fewer where ``strangers()`` says that the coordinator refuses somebody; who
    comes later is still asked. Seconds between looks for replies are ``poll``, and ``look`` for nodes that left.
    ``refused`` are the sites whose last reply was not taken, and why.

    A CoterieError at the start says that no site came, that of a run which needs the ``whole`` federation some did not
    (BelowQuorum), or that two nodes are registered under one name.
    """

    def __init__(
        self, grid: Grid, sites: Sequence[str], *, join: float = PATIENCE, poll: float = 0.2, look: float = 2.0,
        whole: bool = False, strangers: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self._grid, self._poll, self._look = grid, poll, look
        self.refused: dict[str, str] = {}
        here = gathered(sites, self._nodes, join, whole, strangers, strangers, poll)
        self.sites, self.absent = sorted(sites), frozenset(sites).difference(here)

    def send(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | None]:
        """All at once; replies within ``timeout`` seconds, None from a node that left or was started anew meanwhile."""
        from flwr.app import ConfigRecord, Message, RecordDict

        end = time.monotonic() + timeout
        nodes = self._nodes()
        found: dict[str, bytes | None] = dict.fromkeys(messages)
        ttl = min(max(timeout, 1.0), DAY)  # what a node did not fetch in time, it never gets
        asked = [site for site in messages if site in nodes]
        pushed = [
            Message(
                RecordDict({RECORD: ConfigRecord({DATA: messages[site], SITE: site})}),
                dst_node_id=nodes[site][0],
                message_type="query",
                ttl=ttl,
            )
            for site in asked
        ]
        numbers = self._grid.push_messages(pushed) if pushed else []
        waiting = {number: site for number, site in zip(numbers, asked, strict=True) if number}
        looked = time.monotonic()
        while waiting and time.monotonic() < end:
            for reply in self._grid.pull_messages(list(waiting)):
                site = waiting.pop(reply.metadata.reply_to_message_id, None)
                if site is not None:
                    found[site] = self._content(site, reply)
            if waiting and time.monotonic() - looked >= self._look:
                now, looked = self._nodes(), time.monotonic()
                waiting = {n: site for n, site in waiting.items() if now.get(site) == nodes[site]}
            if waiting:
                time.sleep(min(self._poll, max(end - time.monotonic(), 0.0)))
        return found

    def close(self) -> None:
        """Nothing to end: the run of the app ends with its main function."""

    def _nodes(self) -> dict[str, tuple[int, str]]:
        """Number of each site's node that is here now, and since when."""
        here: dict[str, tuple[int, str]] = {}
        for node in filter(lambda node: node.name, self._grid.get_nodes()):
            if node.name in here:
                raise CoterieError(
                    f"Two nodes are registered as site {node.name!r}: give every site a name of its own."
                )
            here[node.name] = node.node_id, node.last_activated_at
        return here

    def _content(self, site: str, reply: Message) -> bytes | None:
        """The bytes of a reply; None for an error, for something else, or under another site's name."""
        problem = ""
        if reply.has_error():
            problem = f"{reply.error.reason or 'no reason given'} (code {reply.error.code})"
        else:
            record: Mapping[str, Any] = reply.content.config_records.get(RECORD, {})
            data, says = record.get(DATA), record.get(SITE)
            if not isinstance(data, bytes):
                problem = "its reply holds no bytes"
            elif says != site:
                problem = f"its folder is that of site {says!r}, and its key that of {site!r}"
            else:
                return data
        self.refused[site] = problem
        log.warning("Site %s: %s.", site, problem)
        return None


def site(context: Any) -> tuple[str, Receiver]:
    """Name of the site here, and what answers its messages."""
    from coterie.deployment.site import receiver
    from coterie.deployment.site.redaction_and_owner_log import redact_paths

    try:
        return Member.read(folder()).name, receiver.receiver(folder())
    except CoterieError as problem:  # whose text Flower sends on
        raise CoterieError(redact_paths(str(problem), folder())) from problem


def client(end: Callable[[Context], tuple[str, Receiver]] = site) -> ClientApp:
    """The ClientApp of a site: bytes in, bytes out.

    ``end(context)`` gives the name of the site and its receiver; a process of the app lives for one message. A message
    that is addressed to another site is answered by an error.
    """
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator, unused-ignore]
    def answer(message: Message, context: Context) -> Message:
        name, receive = end(context)
        record: Mapping[str, Any] = message.content.config_records[RECORD]
        if record[SITE] != name:
            raise CoterieError(f"This is site {name!r}, and the message is for {record[SITE]!r}: each has its own key.")
        reply = ConfigRecord({DATA: receive(record[DATA]), SITE: name})
        return Message(RecordDict({RECORD: reply}), reply_to=message)

    return app


Program = Callable[[FlowerTransport, Path, str], object]


def folder() -> Path:
    """The coordinator's or site's folder."""
    return Path(os.environ["COTERIE_FOLDER"])


def run_whole(grid: Any, folder: Path, run: str, digest: str) -> None:
    """Run the program of a run over the sites that are here, or say who is not where it needs all."""
    from coterie.deployment.coordinator import run as programs

    (whole, join), config = programs.waits(folder, run), Config.read(folder)
    try:
        strangers = partial(refused, folder / FILES / LOG)
        transport = FlowerTransport(grid, membership.wanted(folder, run), join=join, whole=whole, strangers=strangers)
    except CoterieError as problem:
        RunLog(folder / "runs" / run, config.sites).end("below quorum", str(problem))
        raise
    programs.run(transport, folder, run, digest)


def server(program: Program | None = None) -> Any:
    """The ServerApp of a coordinator, which runs ``program(transport, folder, run)``, by default a run's own."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Any, context: Any) -> None:
        end_with_parent()  # where the coordinator was killed, its run is started again, and one must go on alone
        run, _, digest = str(context.run_config["run"]).partition(" ")
        mark = folder() / "runs" / run / MARK
        state: dict[str, object] = {"job": context.run_id, "pid": os.getpid(), "state": "running"}

        def say(**more: object) -> None:
            private(mark, json.dumps(state | more).encode())

        say()
        try:
            if program is None:
                run_whole(grid, folder(), run, digest)
            else:
                program(FlowerTransport(grid, Config.read(folder()).sites), folder(), run)
        except Exception as problem:
            say(state="failed", error=str(problem) or type(problem).__name__, trace=traceback.format_exc())
            raise
        say(state="finished")

    return app
