"""The configuration of a federation (``federation.toml``), of which each folder holds a copy; and names of files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from coterie import files
from coterie.deployment import toml_files
from coterie.errors import CoterieError, nearest
from coterie.options import Checked, Option
from coterie.remote import Url

FEDERATION, SITE, SCHEMA, RUN = "federation.toml", "site.toml", "schema.toml", "run.toml"
PROBLEM = "problem.txt"
"""In a site's folder: what was wrong with its table, the last at the end, with rows and values, which do not leave."""
RELEASES, BOOK = "releases", "privacy.book"
"""In a site's folder: what has left it, and what was spent of its privacy budget, by all runs together."""
COORDINATOR = "coordinator"  # the coordinator's folder in that of a federation
LONGEST = 24 * 3600.0  # seconds after which a call gives up on a run, which can go on later
_TAKEN = ("server", "coordinator", "admin")


def is_federation(rows: Any) -> bool:
    """Whether rows are named by the folder of a federation, or of its coordinator."""
    if not isinstance(rows, (str, Path)) or not str(rows).strip():
        return False
    home = files.place(rows)
    return not isinstance(home, Url) and any((home / part / FEDERATION).is_file() for part in ("", COORDINATOR))


def named_in(sections: Mapping[str, Any], folder: Path) -> Path | None:
    """The federation's folder whose rows a configuration in ``folder`` names as its source; None of other rows."""
    data = sections.get("data")
    source = data.get("source") if isinstance(data, Mapping) else None
    home = files.place(source, folder) if isinstance(source, str) and source.strip() else None
    return home if is_federation(home) else None


def check_name(what: str, name: str) -> str:
    """The name, if it can be one of a folder, a certificate and a node at once."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
        raise CoterieError(f"A {what}'s name is letters, digits, - and _ (at most 63), not {name!r}.")
    return name


def _sites(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of sites, sorted; a CoterieError for none, one that cannot be, or two that are the same."""
    if not names:
        raise CoterieError("A federation needs its sites: name one at least.")
    seen: dict[str, str] = {}
    for name in names:
        key = check_name("site", name).lower()
        if key in _TAKEN:
            raise CoterieError(f"A site cannot be called '{name}', which is the coordinator's: choose another name.")
        if key in seen:
            raise CoterieError(f"Two sites are called '{seen[key]}': every site needs a name of its own.")
        seen[key] = name
    return tuple(sorted(names))


def _host(name: str) -> str:
    if not re.fullmatch(r"[\w.:-]+", name):
        raise CoterieError(f"'{name}' is no host: write a name such as fed.example.org, or an address.")
    return name


@dataclass(frozen=True)
class Config(Checked):
    """What all members of a federation agree on: ``federation.toml``."""

    name: Annotated[str, Option("Of the federation.", read=lambda name: check_name("federation", name))]
    engine: Annotated[Literal["flower", "nvflare"], Option("What carries messages.")]
    host: Annotated[str, Option("Name or address at which sites reach the coordinator.", read=_host)] = "127.0.0.1"
    port: Annotated[int, Option("One open port at the coordinator.", low=1, high=65535)] = 8002
    sites: Annotated[tuple[str, ...], Option("Name of a site; several are wanted.", read=_sites, metavar="NAME")] = ()
    seed: Annotated[int, Option("Of a run that is given none.", low=0)] = 0
    policy: Annotated[
        dict[str, Any],
        Option("How the coordinator waits: deadline=60, retries=3, min_clients=2, strict=false and others."),
    ] = field(default_factory=dict)
    secure: Annotated[dict[str, Any], Option("Of secure sums, where asked for.")] = field(default_factory=dict)
    privacy: Annotated[dict[str, Any], Option("Differential privacy, where asked for.")] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Config:
        """From a file, or from the folder that holds ``federation.toml``; a CoterieError says what is wrong with it."""
        return toml_files.into(cls, _file(path), "a federation's configuration")

    def write(self, path: str | Path) -> None:
        """Write ``federation.toml``, whole or not at all; a folder may be named too."""
        head = "A federation of coterie: the same file for the coordinator and every site."
        toml_files.write(_file(path), asdict(self), head)

    def need_site(self, name: str) -> None:
        """A CoterieError unless there is a site of this name."""
        if name not in self.sites:
            raise CoterieError(f"There is no site '{name}' in federation '{self.name}'.{nearest(name, self.sites)}")


def _file(path: str | Path) -> Path:
    path = files.local(path)
    return path if path.suffix == ".toml" else path / FEDERATION
