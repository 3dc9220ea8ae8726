"""`coterie federation`: several owners of data, each with its own folder, and one coordinator; what operators do."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli import federation_setup as setup
from coterie.cli import fit_over_sites as o
from coterie.cli.declared_options import Json, takes
from coterie.cli.terminal import Group, found, say, width
from coterie.deployment import folders, logs, processes, secure_sum_setup
from coterie.deployment.coordinator.check_sites import read_report
from coterie.deployment.federation_toml import SCHEMA, SITE, Config
from coterie.deployment.membership import Register
from coterie.deployment.schema import Schema
from coterie.deployment.site.site_toml import Member
from coterie.errors import CoterieError, fitting, joined, plural
from coterie.status_line import status as waiting

if TYPE_CHECKING:
    from subprocess import Popen

    from coterie.deployment.site.preview import Preview


def start_coordinator(folder: o.Root, foreground: o.Foreground = False) -> None:
    """Start the coordinator of a federation, to which its sites connect."""
    home, config, engine = folders.opened(folder)
    if not _runs(engine, home):
        processes.need_free_port(config.port)
    with waiting("Starting the coordinator ..."):
        process = engine.start_coordinator(home)
    say(f"The coordinator of '{config.name}' listens at {config.host}:{config.port} (process {process.pid}).")
    _stay(process, engine, home, foreground)


def start_site(
    folder: o.SiteFolder,
    site: Annotated[
        str | None, typer.Option("--site", metavar="NAME", help="Of a federation's folder: the site in it.")
    ] = None,
    foreground: o.Foreground = False,
) -> None:
    """Start a site: it answers what its owner allows, and writes what left to log.jsonl."""
    home = folders.site(folder, site)
    member, config = Member.read(home), Config.read(home)
    if member.data or not member.allow:
        member.table(home)
        Schema.read(home / SCHEMA)
    if config.secure:
        secure_sum_setup.ready(home, config, member.name)
    engine = folders.engine(config.engine)
    folders.need_key(home, engine)
    with waiting("Starting the site ..."):
        engine.need_trust(home)
        process = engine.start_site(home)
    say(f"Site '{member.name}' connects to {config.host}:{config.port} (process {process.pid}).")
    _stay(process, engine, home, foreground)


def check(
    folder: o.Root,
    unite: Annotated[
        bool, typer.Option("--unite", help="Add the sites' levels to the coordinator's schema, or make one of theirs.")
    ] = False,
    timeout: o.Timeout = 300.0,
    as_json: Json = False,
) -> None:
    """Ask every site for its clock, its versions and how its columns differ from those of others; no row moves."""
    home, _, engine = folders.opened(folder)
    run_id = folders.unused(home, "check")
    described = {"program": "check", "options": {"unite": unite}}
    with folders.begun(home, run_id, described), waiting("Asking the sites ..."):
        engine.run(home, run_id, timeout)
    report = read_report(home, run_id)
    found(**asdict(report))
    for line in report.lines():
        say(line)
    if len(report.versions) < len(report.sites) and (trouble := folders.trouble(engine, home)):
        say(trouble)
    if not report.sound:
        raise CoterieError("The federation is not ready: put right what is said above, and check again.")


@takes(o.OPTIONS)
def preview(
    context: typer.Context,
    folder: o.SiteFolder,
    objective: o.Objective = None,
    objective_option: o.ObjectiveOption = None,
    min_group: Annotated[
        int | None,
        typer.Option("--min-group", metavar="ROWS", help="Instead of what site.toml says; nothing is changed there."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show exactly what a fit would make this site send: names, shapes, bytes, rows covered. Nothing is sent."""
    from coterie.deployment.coordinator.run import run as run_program
    from coterie.deployment.site.preview import preview as look

    home, run_toml = folders.site(folder), o.program(context)
    with waiting("Running it on this site's own rows ..."):
        seen = look(home, run_toml, run_program, min_group)
    found(**asdict(seen))
    show(seen)
    if seen.ended and not any(item.answers for item in seen.leaving):
        raise CoterieError(f"Nothing would leave: {seen.ended}")
    if any(item.refused for item in seen.leaving):
        raise CoterieError("This site refuses a part of the program: see above.")
    if seen.ended:
        raise CoterieError(f"The program ended before its end: {seen.ended}")


def show(seen: Preview) -> None:
    """A table of what leaves, as wide as the terminal, and what a reader should know besides."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, pad_edge=False)
    for title in ("answer to", "holds", "answers", "bytes", "covers"):
        grid.add_column(title, justify="right" if title in ("answers", "bytes", "covers") else "left", overflow="fold")
    for item in seen.leaving:
        what = f"{item.kind} {item.work}".rstrip()
        holds = "\n".join(f"{name}: {shape}" for name, shape in item.values.items())
        covers = "" if item.covers is None else plural(item.covers, "row")
        grid.add_row(what, holds, f"{item.answers:,}", f"{item.bytes:,}", covers)
    Console(width=width(), markup=False, highlight=False).print(grid)
    print()
    say("Nothing was sent. The other sites were stand-ins with this site's rows, so that counts of answers may differ.")
    if seen.masked:
        say("Each 'total' leaves masked, with keys and shares beside it: others see sums of all sites only.")
    for item in seen.leaving:
        for reason in dict.fromkeys(item.refused):
            say(f"Refused: {reason}")


def _run_ahead(text: str) -> tuple[int, float]:
    try:
        exchanges, _, sampling = text.partition(":")
        ahead = int(exchanges), float(sampling or 1.0)
    except ValueError:
        ahead = 0, 0.0
    if not (ahead[0] >= 1 and 0.0 < ahead[1] <= 1.0):
        raise typer.BadParameter(f"it is exchanges, or exchanges:sampling such as 30:0.1, not {text!r}.")
    return ahead


def budget(
    folder: o.SiteFolder,
    runs: Annotated[
        list[Any] | None,
        typer.Option(
            "--run", parser=_run_ahead, metavar="EXCHANGES[:SAMPLING]", help="A run to come; several, in their order."
        ),
    ] = None,
    groups: Annotated[
        list[int] | None,
        typer.Option("--group", min=2, metavar="N", help="Also of so many together, such as all rows of a patient."),
    ] = None,
    as_json: Json = False,
) -> None:
    """At a site with privacy: the epsilon that is spent, and what runs to come would spend. Nothing is charged."""
    from coterie.deployment.monitor import guard_of

    home = folders.site(folder)
    member = Member.read(home)
    if (guard := guard_of(home, member)) is None:
        raise CoterieError(f"Site '{member.name}' has no [privacy] in site.toml, so that sums of any cost leave it.")
    runs, sizes = runs or [], [1, *(groups or ())]
    answered, spent = guard.ahead(runs, sizes)
    found(epsilon=guard.budget, answered=answered.tolist(), groups=sizes, spent=spent)
    trust = "its own clients" if guard.clients is None else f"{guard.clients:,} clients, whom it trusts to add up"
    say(f"Site '{member.name}' hides every {guard.unit} by the noise of {trust}: multiplier {guard.noise:g}.")
    for k, costs in enumerate(spent):
        what = f"after run {k} ({plural(runs[k - 1][0], 'exchange')})" if k else "spent so far"
        each = (f"{cost:.3g} for {plural(n, guard.unit)}" for n, cost in zip(sizes, costs, strict=True))
        say(f"Epsilon at delta {guard.delta:g}, {what}: {joined(list(each))}.")
    for k, (n, (asked, _)) in enumerate(zip(answered, runs, strict=True)):
        if n < asked:
            say(f"Run {k + 1} would be refused after {n:,} of its {asked:,} exchanges: {guard.budget:g} is allowed.")
            break


def status(folder: o.Either, as_json: Json = False) -> None:
    """Say who is connected, where the last run stands, who is missing since when, and who was left out and why."""
    home, config, engine = folders.opened(folder, either=True)
    now: dict[str, Any] = {"federation": config.name, "engine": config.engine}
    now["trouble"] = folders.trouble(engine, home)
    now["certificate_ends"] = engine.ends(home)
    now["revoked"] = Register.read(home).revoked
    try:
        now |= engine.status(home)
    except CoterieError as problem:  # of an ended certificate, an engine says that it cannot be reached
        raise CoterieError(now["trouble"] or str(problem)) from problem
    try:
        now["run"] = logs.read_status(folders.run_folder(home, None))
    except CoterieError:
        now["run"] = None
    found(**now)
    for line in _standing(now):
        say(line)


def log(
    folder: o.Either,
    name: Annotated[
        str | None, typer.Option("--name", metavar="RUN", help="At the coordinator: the run, by default the last.")
    ] = None,
    last: Annotated[int, typer.Option("--last", metavar="N", help="Only so many lines; 0 for all.")] = 0,
    lines: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
) -> None:
    """Print the log: at the coordinator a line for each exchange, at a site one for each answer that left."""
    home, _, _ = folders.opened(folder, either=True)
    path: Path = home / logs.LOG if (home / SITE).is_file() else folders.run_folder(home, name) / logs.LOG
    entries = logs.read(path)
    if not entries:
        say(f"Nothing is logged in {path} yet.")
    for entry in entries[-last:] if last else entries:
        print(json.dumps(entry, ensure_ascii=False) if lines else logs.words(entry))


def watch(
    folder: o.Either,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="0 for any that is free.")
    ] = 9464,
) -> None:
    """Serve how a coordinator or a site is, read only: a page, and /metrics for Prometheus. Ctrl-C ends it."""
    from coterie.deployment import monitor

    with monitor.server(monitor.Watch(folder), host, port) as server, suppress(KeyboardInterrupt):
        at = f"http://{host}:{server.server_port}"
        say(f"{at}/ is the page, {at}/metrics is for Prometheus.")
        server.serve_forever()


def service(
    folder: o.Either,
    of_watch: Annotated[bool, typer.Option("--watch", help="Of 'coterie federation watch' for this folder.")] = False,
) -> None:
    """Print a service file of systemd that keeps a coordinator or a site running; nothing is installed."""
    home, config, _ = folders.opened(folder, either=True)
    home, is_site = home.resolve(), (home / SITE).is_file()
    who = f"site {Member.read(home).name}" if is_site else "coordinator"
    what, name = f"coterie: {who} of federation {config.name}", f"coterie-{config.name}-{who.rpartition(' ')[2]}"
    if of_watch:
        print(processes.unit(f"{what}, metrics", f"{name}-watch", ["watch", str(home)]), end="")
        return
    start = "start-site" if is_site else "start-coordinator"
    print(processes.unit(what, name, [start, str(home), "--foreground"], ["stop", str(home)]), end="")


def stop(folder: o.Either) -> None:
    """Stop the coordinator, or a site; what it holds on disk stays, and it can be started again."""
    home, _, engine = folders.opened(folder, either=True)
    running = _runs(engine, home)
    engine.stop(home)
    say(f"Stopped what ran in {home}." if running else f"Nothing runs in {home}.")


def _runs(engine: Any, home: Path) -> bool:
    """Whether anything runs in a folder."""
    try:
        return bool(engine.status(home).get("running"))
    except CoterieError:  # it runs, and cannot be asked: its certificate may have ended
        return True


def _stay(process: Popen[bytes], engine: Any, home: Path, foreground: bool) -> None:
    """Wait for the end of a process, or say how to end it."""
    if not foreground:
        say(f"Stop it with: coterie federation stop {shlex.quote(str(home))}")
        return
    try:
        process.wait()
    finally:
        engine.stop(home)
    engine.need_trust(home)  # says why it ended by itself, where that is known


def _standing(found: dict[str, Any]) -> list[str]:
    """The status for people."""
    from coterie.deployment.monitor import until

    out = [f"Federation '{found['federation']}' over {found['engine']}: {'runs' if found['running'] else 'stopped'}."]
    out += [f"Site '{name}': {state}." for name, state in found.get("sites", {}).items()]
    out += [f"Revoked: '{name}' on {why.rstrip('.')}." for name, why in found["revoked"].items()]
    out += [f"Its certificate {until(found['certificate_ends'])}."] if found["certificate_ends"] else []
    out += [found["trouble"]] if found["trouble"] else []
    if found["run"] is None:
        return out
    with fitting("What status.json says of the last run", "Run it again."):
        return out + _of_run(found["run"], bool(found["running"]))


def _of_run(run: dict[str, Any], running: bool) -> list[str]:
    """Where a run stands, and who is not in it."""
    if run["state"] == "running" and not running:
        run = run | {"state": "cut short", "why": "run it again, and it goes on"}
    why = f" ({run['why'].rstrip('.')})" if run.get("why") else ""
    out = [f"Run '{run['run']}': {run['state']}{why}, at {logs.standing(run)}."]
    for site, reason in run.get("away", {}).items():
        out.append(f"Takes no part: '{site}': {reason.rstrip('.')}.")
    for site, what in run.get("missing", {}).items():
        out.append(f"Missing: '{site}' since {what['since']} (exchange {what['exchange']}): {what['why'].rstrip('.')}.")
    for site, reason in run.get("quarantined", {}).items():
        out.append(f"Left out: '{site}': {reason.rstrip('.')}.")
    return out


app = Group(
    "Models for several owners of data, who keep their rows: over Flower or NVFlare, with certificates and keys."
)
for command, example in {
    setup.init: "heart --engine nvflare --site basel --site bern --host fed.example.org",
    setup.schema: "heart/sites/basel --category pain --unit chol=mg/dl",
    setup.identity: "heart/sites/basel basel.pub bern.pub chur.pub",
    setup.request: "heart/sites/basel",
    setup.sign: "heart basel.request",
    setup.accept: "heart/sites/basel basel.signed",
    setup.add: "heart davos",
    setup.remove: "heart davos",
    setup.revoke: "heart davos --why 'a laptop was stolen'",
    setup.renew: "heart",
    start_coordinator: "heart",
    start_site: "heart/sites/basel",
    check: "heart",
    preview: "heart/sites/basel --formula 'disease ~ age' --method hierarchical",
    budget: "heart/sites/basel --run 30 --run 20:0.1 --group 5",
    status: "heart",
    log: "heart/sites/basel",
    watch: "heart --port 9464",
    service: "heart/sites/basel",
    stop: "heart",
}.items():
    name = command.__name__.replace("_", "-")
    app.command(name, epilog=f"Example: coterie federation {name} {example}")(command)  # type: ignore[type-var]
