"""The configuration of a federation, the same in every copy of its folder, and that of one site, which is its owner's.

``federation.toml``:

```toml
name = "heart"
engine = "nvflare"          # or "flower"
host = "127.0.0.1"          # where the coordinator listens
port = 8002
sites = ["basel", "bern"]
seed = 0
[policy]                    # deadline, retries, min_clients, min_per_cluster, strict, rejoin
deadline = 60.0
[secure]                    # secure sums, where asked for
[privacy]                   # differential privacy, where asked for
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from coterie import files
from coterie.deployment import toml
from coterie.deployment.disclosure import REMARKS, Disclosure
from coterie.errors import CoterieError, nearest

ENGINES = ("flower", "nvflare")
FEDERATION, SITE, SCHEMA, RUN = "federation.toml", "site.toml", "schema.toml", "run.toml"
MIN_GROUP = 5
"""Rows that a sum, or a client's reply, must cover to leave a site."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_TAKEN = ("server", "coordinator", "admin")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")


@dataclass(frozen=True)
class Config:
    """What all members of a federation agree on.

    Attributes
    ----------
    name : str
        Of the federation.
    engine : {"flower", "nvflare"}
    host : str
        Name or address at which the sites reach the coordinator.
    port : int
    sites : tuple of str
        Names of the sites, sorted; each has a folder, a certificate and a key of that name.
    seed : int
        Of all random numbers of a run that is given no seed of its own.
    policy, secure, privacy : dict
        Keyword arguments of :class:`coterie.engines.policy.Policy`, and of secure sums and differential privacy.
    """

    name: str
    engine: str
    host: str = "127.0.0.1"
    port: int = 8002
    sites: tuple[str, ...] = ()
    seed: int = 0
    policy: dict[str, Any] = field(default_factory=dict)
    secure: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("federation", self.name)
        if self.engine not in ENGINES:
            raise CoterieError(f"There is no engine '{self.engine}'; use {' or '.join(ENGINES)}.")
        if not isinstance(self.host, str) or not re.fullmatch(r"[\w.:-]+", self.host):
            raise CoterieError(f"'{self.host}' is no host: write a name such as fed.example.org, or an address.")
        if isinstance(self.port, bool) or not isinstance(self.port, int) or not 0 < self.port < 65536:
            raise CoterieError(f"The port must be a whole number from 1 to 65535, not {self.port!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise CoterieError(f"The seed must be a whole number from 0, not {self.seed!r}.")
        for part in ("policy", "secure", "privacy"):
            if not isinstance(getattr(self, part), dict):
                raise CoterieError(f"[{part}] must be a table of names and values.")
        object.__setattr__(self, "sites", check_sites(self.sites))

    @classmethod
    def read(cls, path: str | Path) -> Config:
        """From a file, or from the folder that holds ``federation.toml``.

        Raises
        ------
        CoterieError
            If there is none, it is not TOML, a key or a value is wrong, or two sites have the same name.
        """
        path = files.local(path)
        path = path / FEDERATION if path.suffix != ".toml" else path
        return toml.into(cls, path, "a federation's configuration", ("name", "engine", "sites"))

    def write(self, path: str | Path) -> None:
        """Write ``federation.toml``, whole or not at all; a folder may be named too."""
        path = files.local(path)
        path = path / FEDERATION if path.suffix != ".toml" else path
        toml.write(path, asdict(self), "A federation of coterie: the same file for the coordinator and every site.")

    def need_site(self, name: str) -> None:
        """A CoterieError unless there is a site of this name."""
        if name not in self.sites:
            raise CoterieError(f"There is no site '{name}' in federation '{self.name}'.{nearest(name, self.sites)}")


@dataclass(frozen=True)
class Member:
    """``site.toml``: what one site's owner says, which nobody else can change.

    Attributes
    ----------
    name : str
        One of the federation's sites.
    data : str
        The site's table, relative to its folder: CSV, Parquet, Feather or NPZ; text for an objective of its own.
    min_group : int
        Rows that a sum, or the reply of a client, must cover to leave, and by which two sums must differ. With 1, and
        no [privacy], formulas and sums are bound by no rules of ``disclosure``.
    allow : tuple of str
        ``module:function`` of objectives that a run may ask for, and modules whose work it may name. Nothing else is
        ever imported because a message says so.
    ask, total : tuple of str
        Patterns of works ("coterie.methods.tree.*") whose answers may leave, client by client or as sums; by default
        all. What a program asks, ``coterie federation preview`` lists.
    privacy : dict
        Keyword arguments of :class:`coterie.engines.privacy.Guard`: only sums that are clipped and noised so leave,
        until the budget is spent, whatever the coordinator asks. Empty: no guard.
    disclosure : dict
        Keyword arguments of :class:`coterie.deployment.disclosure.Disclosure`, whose defaults hold for the others.
    """

    name: str
    data: str = ""
    min_group: int = MIN_GROUP
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ("*",)
    total: tuple[str, ...] = ("*",)
    privacy: dict[str, Any] = field(default_factory=dict)
    disclosure: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("site", self.name)
        for kind in ("ask", "total"):
            patterns = getattr(self, kind)
            if isinstance(patterns, str) or not all(isinstance(p, str) for p in patterns):
                raise CoterieError(f"{kind} must be a list of patterns such as 'coterie.methods.*', not {patterns!r}.")
            object.__setattr__(self, kind, tuple(patterns))
        if isinstance(self.min_group, bool) or not isinstance(self.min_group, int) or self.min_group < 1:
            raise CoterieError(f"min_group must be a whole number of rows from 1, not {self.min_group!r}.")
        if isinstance(self.allow, str) or not all(isinstance(a, str) and _MODULE.fullmatch(a) for a in self.allow):
            raise CoterieError(f"allow must be a list of 'module' or 'module:function', not {self.allow!r}.")
        for part in ("privacy", "disclosure"):
            if not isinstance(getattr(self, part), dict):
                raise CoterieError(f"[{part}] must be a table of names and values.")
        _ = self.rules
        if not isinstance(self.data, str):
            raise CoterieError(f"data must be the path of a table, not {self.data!r}.")
        object.__setattr__(self, "allow", tuple(self.allow))

    @classmethod
    def read(cls, folder: str | Path) -> Member:
        """From a site's folder; a CoterieError says what is missing or wrong."""
        return toml.into(cls, files.local(folder) / SITE, "a site's configuration", ("name",))

    def write(self, folder: str | Path) -> None:
        """Write ``site.toml`` into a site's folder."""
        said = {name: value for name, value in asdict(self).items() if value != {}}
        toml.write(
            files.local(folder) / SITE, said, "What the owner of this site's data allows; it stays here.", REMARKS
        )

    @property
    def rules(self) -> Disclosure:
        """The owner's rules of disclosure."""
        return toml.made("[disclosure]", Disclosure, self.disclosure)

    @property
    def guarded(self) -> bool:
        """Whether rules of disclosure hold."""
        return self.min_group > 1 or bool(self.privacy)

    def need(self, kind: str, work: Any) -> None:
        """A CoterieError unless the owner lets the answers of ``work`` leave by "ask" or by "total"."""
        patterns = self.ask if kind == "ask" else self.total
        if not any(fnmatchcase(str(work), pattern) for pattern in patterns):
            raise CoterieError(f"The owner does not let answers to {work} leave by {kind}: see {kind} in {SITE}.")

    def need_sum(self, work: str) -> None:
        """A CoterieError unless the owner's rules let ``work`` read a table."""
        mine = {entry.partition(":")[0] for entry in self.allow}
        if work.partition(":")[0] not in mine and not any(fnmatchcase(work, p) for p in self.rules.works):
            raise CoterieError(
                f"The owner does not let {work} read a table, which may tell of single rows: see works under "
                f"[disclosure] in {SITE}."
            )

    def table(self, folder: Path) -> Path:
        """The site's data file; a CoterieError unless it is there."""
        if not self.data:
            raise CoterieError(f"There are no data: name the table in '{folder / SITE}' (data = \"...\").")
        path = (folder / files.local(self.data)).resolve()
        if not path.is_file():
            raise CoterieError(f"There is no file '{path}': correct data in '{folder / SITE}'.")
        return path


def check_name(what: str, name: Any) -> None:
    """A CoterieError for a name that cannot be one of a folder, a certificate and a node at once."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CoterieError(f"A {what}'s name is letters, digits, - and _ (at most 63), not {name!r}.")


def check_sites(sites: Any) -> tuple[str, ...]:
    """Names of sites, sorted; a CoterieError for none, one that cannot be, or two that are the same."""
    if isinstance(sites, str | Mapping) or not sites:
        raise CoterieError("A federation needs its sites: name one at least.")
    seen: dict[str, str] = {}
    for name in sites:
        check_name("site", name)
        if name.lower() in _TAKEN:
            raise CoterieError(f"A site cannot be called '{name}', which is the coordinator's: choose another name.")
        if name.lower() in seen:
            raise CoterieError(f"Two sites are called '{seen[name.lower()]}': every site needs a name of its own.")
        seen[name.lower()] = name
    return tuple(sorted(sites))
