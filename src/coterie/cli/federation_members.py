"""`coterie federation request`, `sign`, `accept`, `add`, `remove`, `revoke`, `renew`: who belongs, by which keys."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.declared_options import place
from coterie.cli.fit_over_sites import SiteFolder
from coterie.cli.terminal import say

Whole = Annotated[
    Path, typer.Argument(parser=place, metavar="FOLDER", help="The federation's folder, with its authority.")
]
SiteName = Annotated[str, typer.Argument(metavar="NAME", help="Of the site.")]
_COMPARE = "Compare it with the other end, by telephone or another way that nobody between you controls."


def request(site: SiteFolder) -> None:
    """At a site: make its key, which stays there, and a request for its certificate; also to renew one."""
    from coterie.deployment import folders, joining

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
    from coterie.deployment import folders, joining

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
    from coterie.deployment import folders, joining
    from coterie.deployment.federation_toml import COORDINATOR, Config

    joining.need_authority(folder)
    engine = folders.engine(Config.read(folder).engine)
    engine.renew(folder)
    say(f"The coordinator's certificates hold until {engine.ends(folder / COORDINATOR):%Y-%m-%d}. Start it again.")
