"""`coterie federation`: several owners of data, each with its own folder, and one coordinator."""

from __future__ import annotations

from coterie.cli import federation_run as run
from coterie.cli import federation_setup as setup
from coterie.cli.terminal import Group

app = Group(
    "One model for several owners of data, who keep their rows: over Flower or NVFlare, with certificates and keys."
)
for command, example in {
    setup.init: "heart --engine nvflare --site basel --site bern --host fed.example.org",
    setup.schema: "heart/sites/basel --category pain --unit chol=mg/dl",
    setup.identity: "heart/sites/basel basel.pub bern.pub chur.pub",
    run.start_coordinator: "heart",
    run.start_site: "heart/sites/basel",
    run.check: "heart",
    run.preview: "heart/sites/basel --formula 'disease ~ age' --method hierarchical",
    run.status: "heart",
    run.log: "heart/sites/basel",
    run.stop: "heart",
}.items():
    name = command.__name__.replace("_", "-")
    app.command(name, epilog=f"Example: coterie federation {name} {example}")(command)  # type: ignore[type-var]
