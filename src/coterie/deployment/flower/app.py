"""The app that Flower runs: its ClientApp at each site, its ServerApp where the coordinator lives.

Where a site's or the coordinator's folder is, its own start command said; nothing that arrives can change it.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.deployment.certificates import private
from coterie.deployment.federation_toml import Config
from coterie.deployment.flower.serve import MARK
from coterie.deployment.flower.transport import FlowerTransport, Receiver, client_app
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
            transport = FlowerTransport(grid, Config.read(folder()).sites)
            if program is None:
                from coterie.deployment.coordinator.run import run as run_program

                run_program(transport, folder(), run, digest)
            else:
                program(transport, folder(), run)
        except Exception as problem:
            say(state="failed", error=str(problem) or type(problem).__name__, trace=traceback.format_exc())
            raise
        say(state="finished")

    return app
