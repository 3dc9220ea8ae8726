"""`coterie federation`: several owners of data, each with its own folder, and one coordinator."""

from __future__ import annotations

import typer

from coterie.cli import federation_inspect as inspect
from coterie.cli import federation_run as run
from coterie.cli import federation_setup as setup
from coterie.cli.common import Commands

app = Commands(no_args_is_help=False, rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """One model for several owners of data, who keep their rows: over Flower or NVFlare, with certificates and keys."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("init", epilog=setup.INIT)(setup.init)
app.command("schema", epilog=setup.SCHEMA)(setup.schema)
app.command("identity", epilog=setup.IDENTITY)(setup.identity)
app.command("start-coordinator", epilog=run.COORDINATOR)(run.start_coordinator)
app.command("start-site", epilog=run.SITE)(run.start_site)
app.command("check", epilog=inspect.CHECK)(inspect.check)
app.command("preview", epilog=inspect.PREVIEW)(inspect.preview)
app.command("run", epilog=run.RUN)(run.run)
app.command("status", epilog=run.STATUS)(run.status)
app.command("log", epilog=inspect.LOG)(inspect.log)
app.command("stop", epilog=run.STOP)(run.stop)
