"""The two sides of an NVFlare job of a deployed federation: a program at the coordinator, a host at each site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.engines.nvflare.job import Server, Site
from coterie.engines.nvflare.transport import CollabTransport


class Coordinator(Server):
    """Runs the program that ``runs/<id>/run.toml`` names, if it has the digest that the command saw."""

    def __init__(self, run_id: str, sites: Sequence[str], digest: str) -> None:
        super().__init__(run_id, sites)
        self.digest = digest

    def program(self, transport: CollabTransport, folder: Path, run_id: str) -> None:
        """The run's program, to its end."""
        from coterie.deployment.coordinator.run import run

        run(transport, folder, run_id, self.digest)


class Member(Site):
    """Answers from the site's own folder."""

    def receiver(self, folder: Path) -> Callable[[bytes], bytes]:
        """The host of the site's data."""
        from coterie.deployment.site import receiver

        return receiver.receiver(folder)
