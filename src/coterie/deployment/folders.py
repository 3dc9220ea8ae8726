"""The folder of a federation: where its parts are, and how they are first written."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from coterie import files, options
from coterie.deployment import secure_sum_setup, toml_files
from coterie.deployment.federation_toml import COORDINATOR, FEDERATION, RUN, SCHEMA, SITE, Config, check_name
from coterie.deployment.membership import Register
from coterie.deployment.schema import Schema
from coterie.deployment.site.site_toml import MIN_GROUP, Disclosure, Member
from coterie.errors import CoterieError, listed, nearest, or_say

SITES, RUNS = "sites", "runs"
_PACKAGES = {"flower": "flwr", "nvflare": "nvflare"}


def engine(name: str) -> Any:
    """``coterie.deployment.<name>.operator_commands``; a CoterieError names the extra where it is not installed.

    The module has functions of folders, those of a coordinator or a site but for three: ``init(folder, config,
    at_home)`` writes certificates, keys and settings of a federation, and keeps what is there, and makes no keys of
    sites ``at_home``; ``admit(folder, config, site, csr)`` signs a request, and gives what the site installs, by path
    in its folder; ``renew(folder)`` makes the coordinator's certificates anew. ``expel(folder, site)`` at a coordinator
    lets a site in no more; ``new_key()`` is one of a site, which keeps it at ``KEY`` and its authority's certificate at
    ``ROOT``. ``ends(folder)`` is when certificates end. ``start_coordinator(folder)``,
    which waits until sites can connect, and ``start_site(folder)`` give a process; ``run(folder, run_id, timeout)``
    runs ``runs/<run_id>/run.toml`` to its end, or goes on with it; ``status(folder)`` has "running", "pid" and, of
    a coordinator, "sites" ("online" or "offline" by name) and "jobs"; ``need_trust(folder)`` raises where certificates
    do not hold; ``stop(folder)`` ends all processes.
    """
    package = _PACKAGES[name]
    if find_spec(package) is None:
        raise CoterieError(
            f"The engine '{name}' needs {package}, which is not installed: pip install 'coterie[{name}]'."
        )
    return import_module(f"coterie.deployment.{name}.operator_commands")


def coordinator(folder: str | Path) -> Path:
    """The coordinator's folder: the one that is named, or ``coordinator`` in it."""
    path = files.local(folder)
    if not path.is_dir():
        raise CoterieError(f"There is no folder '{path}'.")
    inner = path / COORDINATOR
    found = inner if (inner / FEDERATION).is_file() else path
    if (found / SITE).is_file():
        raise CoterieError(f"'{path}' is the folder of a site: name that of the federation, or its coordinator's.")
    if not (found / FEDERATION).is_file():
        raise CoterieError(f"'{path}' is not a federation folder: make one with 'coterie federation init'.")
    return found


PENDING = "request.key"
"""In a site's folder: the key of its request, which becomes the site's own when what was signed is accepted."""


def opened(folder: str | Path, either: bool = False) -> tuple[Path, Config, Any]:
    """A coordinator's folder, or ``either`` that or a site's, its configuration, and what its engine does."""
    home = site(folder) if either and (files.local(folder) / SITE).is_file() else coordinator(folder)
    config = Config.read(home)
    return home, config, engine(config.engine)


def site(folder: str | Path, name: str | None = None) -> Path:
    """A site's folder: the one that is named, or ``sites/<name>`` in it; a CoterieError where it is none."""
    path = files.local(folder)
    if not path.is_dir():
        raise CoterieError(f"There is no folder '{path}'.")
    if name is not None and not (path / SITE).is_file():
        Config.read(path).need_site(name)
        path = path / SITES / name
    if not (path / SITE).is_file():
        inner = sorted(p.parent.name for p in path.glob(f"{SITES}/*/{SITE}"))
        hint = f" Name one in it: '{path / SITES / inner[0]}' or another of {listed(inner)}." if inner else ""
        raise CoterieError(f"'{path}' is not the folder of a site: it has no {SITE}.{hint}")
    member = Member.read(path)
    if name is not None and name != member.name:
        raise CoterieError(f"'{path}' is the folder of site '{member.name}', not of '{name}'.")
    Config.read(path).need_site(member.name)
    return path


def init(
    folder: Path,
    config: Config,
    data: Mapping[str, str] | None = None,
    schema: Schema | None = None,
    min_group: int = MIN_GROUP,
    allow: tuple[str, ...] = (),
    disclosure: Mapping[str, Any] | None = None,
    at_home: Sequence[str] = (),
) -> None:
    """Write a federation's folder; what is there already is kept, so that a site can be added.

    Sites ``at_home`` make their own keys (:mod:`coterie.deployment.joining`): their folders hold nothing secret.

    ``data`` names the tables of sites that are known here; every copy gets the ``schema``, every site at first
    ``min_group``, ``allow`` and the rules of ``disclosure``, which its owner may change.
    """
    folder, made = files.local(folder), engine(config.engine)
    data = dict(data or {})
    rules = options.of(Disclosure, disclosure or {}, "--disclosure")
    members = [Member(name, data.get(name, ""), min_group, allow, disclosure=rules) for name in config.sites]
    secure_sum_setup.need(config)
    _need_same(folder, config)
    for name, table in data.items():
        config.need_site(name)
        own = folder / SITES / name
        if (own / SITE).exists() and Member.read(own).data != table:
            raise CoterieError(f"'{own / SITE}' is there and its owner's: write data = \"{table}\" there, not --data.")
    homes = [folder / COORDINATOR, *(folder / SITES / name for name in config.sites)]
    with _whole_or_nothing(folder):
        with or_say(f"'{folder}' cannot be written"):
            for home in (folder, folder / SITES, *homes):
                home.mkdir(parents=True, exist_ok=True)
                home.chmod(0o700)
        for home in (folder, *homes):
            config.write(home)
            if schema is not None and home != folder:
                schema.write(home / SCHEMA)
        for member, home in zip(members, homes[1:], strict=True):
            if not (home / SITE).exists():
                member.write(home)
        register = Register.read(homes[0])
        if missing := [name for name in at_home if name not in register.keys]:
            register = replace(register, keys=register.keys | dict.fromkeys(missing, ""))
            register.write(homes[0])
        made.init(folder, config, tuple(register.keys))


@contextmanager
def _whole_or_nothing(folder: Path) -> Iterator[None]:
    """Nothing stays of a new folder that is not filled to the end: half of it would be in the way of the next."""
    fresh = not folder.is_dir() or not any(folder.iterdir())
    try:
        yield
    except BaseException:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _need_same(folder: Path, config: Config) -> None:
    if folder.exists() and not folder.is_dir():
        raise CoterieError(f"'{folder}' is a file; name a folder.")
    if not (folder / FEDERATION).exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise CoterieError(f"'{folder}' holds other things: name an empty folder.")
        return
    before = Config.read(folder)
    for what in ("name", "engine", "host"):
        if getattr(before, what) != getattr(config, what):
            raise CoterieError(
                f"'{folder}' is a federation whose {what} is '{getattr(before, what)}', not "
                f"'{getattr(config, what)}': name another folder."
            )
    if gone := set(before.sites) - set(config.sites):
        raise CoterieError(f"'{folder}' has the site '{min(gone)}' too: name all its sites and those to add.")


@contextmanager
def begun(folder: Path, run: str, program: Mapping[str, Any]) -> Iterator[Path]:
    """The folder of a run with its ``run.toml``; one that is there already must say the same, and is gone on with.

    Where it ends with an error before a coordinator began it, nothing is left of it.
    """
    check_name("run", run)
    home = folder / RUNS / run
    if (path := home / RUN).exists():
        if files.read_toml(path, "what a run does") != tomllib.loads(toml_files.text(program)):
            raise CoterieError(f"There is a run '{run}' with other options: give the new one another name (--name).")
    else:
        home.mkdir(parents=True, exist_ok=True)
        toml_files.write(path, program, "What this run does; started again, it goes on where it stood.")
    try:
        yield home
    except CoterieError:
        if [path.name for path in home.iterdir()] == [RUN]:
            shutil.rmtree(home)
        raise


def unused(home: Path, program: str) -> str:
    """A name for a run that is not taken."""
    word = "".join(c if c.isalnum() else "-" for c in program).strip("-") or "run"
    return next(name for n in count(1) if not (home / RUNS / (name := f"{word}-{n}")).exists())


def run_folder(folder: Path, run: str | None) -> Path:
    """A run of a coordinator: by name, or the one that changed last, checks aside."""
    runs = folder / RUNS
    found = sorted((p for p in runs.glob("*") if p.is_dir()), key=lambda p: p.stat().st_mtime) if runs.is_dir() else []
    if run is None:
        found = [p for p in found if not _is_check(p)]
        if not found:
            raise CoterieError(f"There was no run yet in '{folder}'.")
        return found[-1]
    if not (runs / run).is_dir():
        raise CoterieError(f"There is no run '{run}' in '{folder}'.{nearest(run, [p.name for p in found])}")
    return runs / run


def _is_check(run: Path) -> bool:
    try:
        return files.read_toml(run / RUN, "what a run does").get("program") == "check"
    except CoterieError:
        return False


def need_key(home: Path, engine: Any) -> None:
    """A CoterieError where a site has no key yet, or has the certificate of another."""
    if not (home / engine.KEY).exists():
        if (home / PENDING).exists():
            raise CoterieError(
                f"The request of '{home}' is made: once the federation has signed it ('coterie federation sign'), "
                f"'coterie federation accept {home} FILE' installs what comes back."
            )
        raise CoterieError(
            f"There is no key in '{home}' yet: 'coterie federation request {home}' makes it there, and 'coterie "
            "federation accept' installs what was signed."
        )
    if (own := (home / engine.KEY).with_suffix(".crt")).exists():  # Flower's sites have none
        from coterie.deployment import certificates

        certificates.need_valid(own, Member.read(home).name)


def trouble(engine: Any, home: Path) -> str | None:
    """What is wrong with the certificates of a folder, or with who shows others at its port; None if nothing is."""
    try:
        engine.need_trust(home)
    except CoterieError as problem:
        return str(problem)
    return None
