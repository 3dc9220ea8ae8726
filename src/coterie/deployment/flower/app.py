"""The app that Flower runs: its ClientApp at each site, its ServerApp where the coordinator lives.

Where a site's or the coordinator's folder is, its own start command said; nothing that arrives can change it.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from coterie.deployment.certificates import private
from coterie.deployment.federation_toml import Config
from coterie.deployment.flower.serve import FILES, LOG, MARK, refused
from coterie.deployment.flower.transport import FlowerTransport, Receiver, client_app
from coterie.deployment.logs import RunLog
from coterie.deployment.processes import end_with_parent
from coterie.deployment.site.site_toml import Member
from coterie.errors import CoterieError

Program = Callable[[FlowerTransport, Path, str], object]


def folder() -> Path:
    """The coordinator's or site's folder."""
    return Path(os.environ["COTERIE_FOLDER"])


def site(context: Any) -> tuple[str, Receiver]:
    """Name of the site here, and what answers its messages."""
    from coterie.deployment.site import payload, receiver

    try:
        return Member.read(folder()).name, receiver.receiver(folder())
    except CoterieError as problem:  # whose text Flower sends on
        raise CoterieError(payload.redact_paths(str(problem), folder())) from problem


def client() -> Any:
    """The ClientApp of a site."""
    return client_app(site)


def run_whole(grid: Any, folder: Path, run: str, digest: str) -> None:
    """Run the program of a run over the sites that are here, or say who is not where it needs all."""
    from coterie.deployment.coordinator import run as programs

    (whole, join), config = programs.waits(folder, run), Config.read(folder)
    try:
        strangers = partial(refused, folder / FILES / LOG)
        transport = FlowerTransport(grid, config.sites, join=join, whole=whole, strangers=strangers)
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
