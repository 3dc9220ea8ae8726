"""`coterie federation init`, `schema`, `identity`; `request`, `sign`, `accept`, `add`, `remove`, `revoke`, `renew`.

What is written before anything runs, and who belongs by which keys.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.declared_options import assignments, flag, here, optional, own_option, place, takes
from coterie.cli.fit_over_sites import SiteFolder
from coterie.cli.outputs import check_folder
from coterie.cli.terminal import say
from coterie.deployment import folders, secure_sum_setup
from coterie.deployment.federation_toml import COORDINATOR, FEDERATION, SCHEMA, SITE, Config
from coterie.deployment.schema import Schema, propose
from coterie.deployment.site.site_toml import MIN_GROUP, Member
from coterie.engines.retry_and_quorum import Policy
from coterie.errors import CoterieError, plural
from coterie.options import declared, of
from coterie.status_line import status

Rules = Annotated[
    list[str] | None,
    own_option(
        "--disclosure",
        "NAME=VALUE",
        "What may be known of rows, until a site's owner says otherwise: min_level=5, rows_per_column=10 and "
        "others that stand under 'disclosure' in site.toml.",
    ),
]
_declared = declared(Config)
OPTIONS = {
    "engine": flag(_declared["engine"]),
    "site": flag(replace(_declared["sites"], name="site", default=Parameter.empty)),
    "name": optional(_declared["name"], " By default that of the folder."),
    **{name: flag(_declared[name]) for name in ("host", "port", "seed", "policy")},
    **{name: flag(declared(Member)[name]) for name in ("min_group", "allow")},
}
"""Of ``init``: what ``federation.toml`` says, and at first every ``site.toml``."""


@takes(OPTIONS)
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(parser=here, metavar="FOLDER", help="Where to write the federation.")],
    schema: Annotated[
        Path | None, typer.Option("--schema", parser=here, metavar="FILE", help="A schema.toml that all sites get.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="SITE=TABLE", help="The table of a site that is on this machine."),
    ] = None,
    disclosure: Rules = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Hide each site's part of every sum; needs three sites at least.")
    ] = False,
    own_keys: Annotated[
        bool,
        typer.Option("--own-keys", help="Make no keys of sites: each makes its own ('request'). Without, to try out."),
    ] = False,
) -> None:
    """Write a folder with configuration, certificates and keys for a coordinator and each of its sites."""
    check_folder(folder, "FOLDER")
    given: dict[str, Any] = {name: context.params[name] for name in ("engine", "host", "port", "seed")}
    given |= {"name": context.params["name"] or folder.resolve().name, "sites": context.params["site"] or ()}
    waits, rules = assignments("--policy", context.params["policy"]), assignments("--disclosure", disclosure)
    of(Policy, waits, "--policy")
    config = Config(**given, policy=waits, secure=secure_sum_setup.defaults(len(given["sites"])) if secure else {})
    tables = {where: str(path.resolve()) for where, path in _tables(data).items()}
    agreed = None if schema is None else Schema.read(schema)
    with status("Making certificates and keys ..."):
        at_home = config.sites if own_keys else ()
        allow, least = tuple(context.params["allow"] or ()), context.params["min_group"]
        folders.init(folder, config, tables, agreed, least, allow, rules, at_home)
    say(f"Wrote federation '{config.name}' of {plural(len(config.sites), 'site')} over {config.engine} to {folder}.")
    if own_keys:
        say(f"Send each site its own folder {folder}/sites/<name>, which holds nothing secret; keep the rest.")
        say("Each site makes its key there ('coterie federation request SITE'), and sends its .request file.")
    else:
        say(f"Send each site its own folder {folder}/sites/<name> over a confidential channel; keep the rest.")
        say("Whoever made these keys can pose as any site. Where sites should trust nobody with theirs: --own-keys.")
    if (hidden := secure_sum_setup.settings(config)) is not None:
        say(hidden.promise(len(config.sites)))
        say(
            "Each site makes its own identity for secure sums: coterie federation identity SITE. Its .pub file goes to "
            "all other sites."
        )
    first = shlex.quote(str(folder / "sites" / config.sites[0]))
    todo = ["name its table in site.toml"] * (len(tables) < len(config.sites) and not allow)
    todo += [f"describe its columns with 'coterie federation schema {first}'"] * (agreed is None and not allow)
    if todo:
        say(f"At each site: {', then '.join(todo)}.")
    say(f"Then start: coterie federation start-coordinator {shlex.quote(str(folder / 'coordinator'))}")


def _tables(data: list[str] | None) -> dict[str, Path]:
    """What --data says, with the files looked for."""
    found: dict[str, Path] = {}
    for text in data or []:
        site, path = _named("--data", "SITE=TABLE, such as basel=basel.csv", text)
        found[site] = here(path)
        if not found[site].is_file():
            raise CoterieError(f"There is no file '{path}'.")
    return found


def _named(option: str, form: str, text: str) -> tuple[str, str]:
    """A name and its value, as ``NAME=VALUE`` has them."""
    name, sign, value = text.partition("=")
    if not sign or not name or not value:
        raise CoterieError(f"{option} takes {form}, not '{text}'.")
    return name, value


def schema(
    site: Annotated[
        Path, typer.Argument(parser=here, metavar="SITE", help="The site's folder, or a table with --out.")
    ],
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="COLUMN", help="A column that names clients or clusters.")
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option("--category", metavar="COLUMN", help="A column of numbers that are names of categories."),
    ] = None,
    unit: Annotated[
        list[str] | None,
        typer.Option("--unit", metavar="COLUMN=UNIT", help="In what a column is measured, such as chol=mg/dl."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=here, metavar="FILE", help="By default schema.toml in the site's folder."),
    ] = None,
) -> None:
    """Describe a site's columns (types, levels, units) in its schema.toml, for its owner to look through."""
    from coterie.data.table_files import read_table

    if site.is_file():
        if out is None:
            raise CoterieError(f"'{site}' is a table: say with --out where its schema goes.")
        table, least = site, MIN_GROUP
    elif (site / SITE).is_file():
        member = Member.read(site)
        table, least, out = member.table(site), member.min_group, out or site / SCHEMA
    else:
        raise CoterieError(f"'{site}' is neither a table nor the folder of a site.")
    known = Schema.read(out) if out.exists() else None
    units = dict(_named("--unit", "COLUMN=UNIT, such as chol=mg/dl", text) for text in unit or [])
    df = read_table(table, label or [], None if known is None else known.na_values)
    found, notes = propose(df, label or [], category or [], least, known, units)
    found.write(out)
    for note in notes:
        say(f"Note: {note}")
    kinds = Counter(column.kind for column in found.columns.values())
    counts = ", ".join(f"{n} {kind.name if n == 1 else kind.plural}" for kind, n in kinds.items())
    say(f"Wrote {plural(len(found.columns), 'column')} ({counts}) to {out}.")
    say("Look through it: write the units and, where you know them, the smallest and largest values allowed.")


def identity(
    site: SiteFolder,
    public: Annotated[
        list[Path] | None,
        typer.Argument(parser=here, metavar="[PUBLIC]...", help="The .pub files of all sites, this one's too."),
    ] = None,
) -> None:
    """Make a site's identity for secure sums, at the site; with the public files of all sites, pin who is who.

    The folder of a whole federation, to try it out on one machine, does both for all its sites.
    """
    whole = not (site / SITE).is_file() and (site / FEDERATION).is_file()
    home = site if whole else folders.site(site)
    config = Config.read(home)
    if not config.secure:
        raise CoterieError(f"Federation '{config.name}' has no secure sums: make it with 'init --secure'.")
    secure_sum_setup.need(config)
    if whole:
        homes = [folders.site(site, name) for name in config.sites]
        fingerprint = secure_sum_setup.init(config, homes)
        say(f"All sites are on one machine. Fingerprint: {fingerprint}")
        return
    name = Member.read(home).name
    file = secure_sum_setup.make(home, name)
    if not public:
        say(f"Site '{name}' has its identity, which stays in {home}. Give all other sites {file}.")
        say(f"With theirs: coterie federation identity {shlex.quote(str(home))} *.pub")
        return
    fingerprint = secure_sum_setup.pin(home, config, secure_sum_setup.read(public))
    say(f"Pinned the identities of {plural(len(config.sites), 'site')}: {fingerprint}")
    say("Compare this fingerprint with every other site, by a way that the coordinator does not control.")


Whole = Annotated[
    Path, typer.Argument(parser=place, metavar="FOLDER", help="The federation's folder, with its authority.")
]
SiteName = Annotated[str, typer.Argument(metavar="NAME", help="Of the site.")]
_COMPARE = "Compare it with the other end, by telephone or another way that nobody between you controls."


def request(site: SiteFolder) -> None:
    """At a site: make its key, which stays there, and a request for its certificate; also to renew one."""
    from coterie.deployment import joining

    file, fingerprint = joining.request(folders.site(site))
    say(f"Send {file} to the federation; nothing in it is secret. The key stays in {site}.")
    say(f"Fingerprint: {fingerprint}. {_COMPARE}")


def sign(
    folder: Whole,
    requests: Annotated[list[Path], typer.Argument(parser=place, metavar="REQUEST...", help="The .request files.")],
) -> None:
    """Sign what sites ask for: each belongs to the federation from then on by this key, and by no earlier one."""
    from coterie.deployment import joining

    for path in requests:
        back, fingerprint = joining.sign(folder, path)
        say(f"Signed '{path.name}', fingerprint {fingerprint}. {_COMPARE}")
        say(f"Send {back} to the site, which takes it with 'coterie federation accept'; nothing in it is secret.")


def accept(
    site: SiteFolder,
    signed: Annotated[Path, typer.Argument(parser=place, metavar="SIGNED", help="The .signed file.")],
) -> None:
    """At a site: install what was signed for it, and see what has changed in the federation."""
    from coterie.deployment import joining

    for line in joining.accept(folders.site(site), signed) or ["Nothing has changed."]:
        say(line)


def add(folder: Whole, name: SiteName) -> None:
    """Add a site; runs that go on are not touched. Its folder has no key: the site makes its own with 'request'."""
    from coterie.deployment import joining

    home = joining.add(folder, name)
    say(f"Send site '{name}' the folder {home}, in which nothing is secret yet, and which it must get unchanged.")
    say(f"There: name its table in site.toml, then 'coterie federation request {shlex.quote(str(home))}'.")


def remove(folder: Whole, name: SiteName) -> None:
    """Take a site out of the federation: it is refused from now on, and runs begin anew without it."""
    from coterie.deployment import joining

    joining.remove(folder, name)
    say(f"Site '{name}' is out. A run that it took part in begins anew without it.")
    say(f"Send the other sites what is in {folder / joining.SIGNED}, where there are secure sums.")


def revoke(
    folder: Whole,
    name: SiteName,
    why: Annotated[
        str, typer.Option("--why", metavar="TEXT", help="What happened, for the record.")
    ] = "no reason was given",
) -> None:
    """Let a site's key count no more, such as a stolen one; a new request of the site lets it in again."""
    from coterie.deployment import joining

    joining.revoke(folder, name, why)
    say(f"The key of site '{name}' counts no more. A run that it took part in begins anew without it.")
    say("The site belongs again when a request of a new key is signed: 'coterie federation request' there.")


def renew(folder: Whole) -> None:
    """Make the coordinator's own certificates anew, for another year; start the coordinator again to use them."""
    from coterie.deployment import joining

    joining.need_authority(folder)
    engine = folders.engine(Config.read(folder).engine)
    engine.renew(folder)
    say(f"The coordinator's certificates hold until {engine.ends(folder / COORDINATOR):%Y-%m-%d}. Start it again.")
