"""Where a federation's sums are secure (``[secure]`` in ``federation.toml``): who is who, in its folders.

Each site makes its own long-term keys, ``secure/identity``, which its owner alone may read and which never leave it.
The public half, ``secure/<name>.pub``, goes to the other sites. Each pins the public halves of all in its own
``secure/peers.toml``, by which sites know each other whatever the coordinator says; no message changes that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import files
from coterie.deployment import toml_files
from coterie.deployment.federation_toml import Config
from coterie.deployment.site.site_toml import Member
from coterie.engines import secure_sum
from coterie.errors import CoterieError, listed, or_say
from coterie.options import of

FILES, IDENTITY, PEERS = "secure", "identity", "peers.toml"
_TITLE = "coterie public identity"


def settings(config: Config) -> secure_sum.Secure | None:
    """The settings of secure sums; None where sums are in the clear."""
    return of(secure_sum.Secure, config.secure, "[secure]") if config.secure else None


def need(config: Config) -> None:
    """A CoterieError where there are fewer sites than a secure sum must have, or settings that hide nothing."""
    secure, n = settings(config), len(config.sites)
    if secure is None:
        return
    if n < (least := secure.least(n)):
        raise CoterieError(
            f"Secure sums need {least} sites at least, and there are {n}: with two, each knows the other's part."
        )
    secure.opening(n)


def defaults(sites: int) -> dict[str, int]:
    """What ``[secure]`` says of a number of sites where nothing else is asked for."""
    secure = secure_sum.Secure()
    return {"threshold": secure.opening(sites), "min_sites": secure.least(sites)}


def make(folder: Path, name: str) -> Path:
    """Make a site's identity, unless it is there; the file with its public half comes back."""
    path = folder / FILES / IDENTITY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    if not path.exists():
        secure_sum.Identity.new().save(path)
    public = path.with_name(f"{name}.pub")
    files.write(public, [f"{_TITLE} {name} {secure_sum.Identity.load(path).public.hex()}\n".encode()])
    return public


def read(paths: Iterable[Path]) -> dict[str, bytes]:
    """The public identities in files that :func:`make` wrote, by site."""
    contents = {}
    for path in paths:
        with or_say(f"'{path}' cannot be read"):
            contents[path] = files.content(path)
    return parse(contents)


def parse(contents: Mapping[Any, bytes]) -> dict[str, bytes]:
    """The public identities that files hold, whose contents are known by their names."""
    found: dict[str, bytes] = {}
    for path, content in contents.items():
        said = re.fullmatch(rf"{_TITLE} (\S+) ([0-9a-fA-F]{{128}})\s*".encode(), content)
        if said is None:
            raise CoterieError(f"'{path}' is not the public identity of a site: ask its owner for the file again.")
        name, key = said[1].decode(errors="replace"), bytes.fromhex(said[2].decode())
        if found.get(name, key) != key:
            raise CoterieError(f"There are two public identities of site '{name}': ask its owner which one is right.")
        found[name] = key
    return found


def pin(folder: Path, config: Config, found: Mapping[str, bytes]) -> str:
    """Write the public identities of all sites into a site's own list; its fingerprint comes back.

    A CoterieError says that a site is missing or unknown, two have the same identity, this site's is not its own, or a
    site that was in the list before had another one.
    """
    if missing := set(config.sites) - set(found):
        raise CoterieError(
            f"There is no public identity of {listed(sorted(missing))}: name the .pub files of all sites."
        )
    for name in found:
        config.need_site(name)
    if len(set(found.values())) < len(found):
        raise CoterieError("Two sites have the same identity: every site makes one of its own.")
    own, path = Member.read(folder).name, folder / FILES / PEERS
    if found[own] != secure_sum.Identity.load(folder / FILES / IDENTITY).public:
        raise CoterieError(f"The public identity of '{own}' is not that of this folder: somebody else made it.")
    before = _pinned(path) if path.exists() else {}
    if changed := [name for name, key in before.items() if name in found and found[name] != key]:
        raise CoterieError(
            f"The list in '{path}' has another identity of {listed(changed)}: ask its owner, and delete the list only "
            "if the new one is right."
        )
    peers = {name: found[name].hex() for name in config.sites}
    toml_files.write(path, {"peers": peers}, "Public identities of all sites.")
    return fingerprint(found)


def fingerprint(found: Mapping[str, bytes]) -> str:
    """What tells a list of public identities from any other, for people to compare."""
    from coterie.deployment.certificates import fingerprint as words

    return words("".join(f"{name} {key.hex()}\n" for name, key in sorted(found.items())).encode())


def init(config: Config, sites: Sequence[Path]) -> str:
    """What all sites do, where all their folders are on one machine, to try it out; the list's fingerprint."""
    need(config)
    found = read([make(home, name) for name, home in zip(config.sites, sites, strict=True)])
    prints = {pin(home, config, found) for home in sites}
    return prints.pop()


def ready(folder: Path, config: Config, name: str) -> tuple[secure_sum.Identity, dict[str, bytes]]:
    """A site's identity and its list; a CoterieError says which of them is still to be made."""
    own, path = folder / FILES / IDENTITY, folder / FILES / PEERS
    if not own.exists():
        raise CoterieError(
            f"Site '{name}' has no identity for secure sums yet: 'coterie federation identity {folder}' makes it there."
        )
    if not path.exists() or set(peers := _pinned(path)) != set(config.sites):
        raise CoterieError(
            f"Site '{name}' has no list of the identities of all sites yet: 'coterie federation identity {folder} "
            "basel.pub ...' with the .pub files of all sites makes it."
        )
    return secure_sum.Identity.load(own), peers


def _pinned(path: Path) -> dict[str, bytes]:
    try:
        return {site: bytes.fromhex(key) for site, key in files.read_toml(path, "who is who")["peers"].items()}
    except (KeyError, ValueError, AttributeError, TypeError) as problem:
        raise CoterieError(
            f"'{path}' does not say who is who: pin the public identities of all sites again."
        ) from problem


def agreed(folder: Path, config: Config, name: str) -> dict[str, Any]:
    """What a run is begun with at a site: the settings of secure sums, and who is who; nothing without them."""
    if not config.secure:
        return {}
    return {"settings": dict(config.secure), "peers": ready(folder, config, name)[1]}


def secure_site(folder: Path, agreed: Mapping[str, Any], name: str, run: str) -> secure_sum.SecureSite | None:
    """A site's side of secure sums in a run that was begun with what :func:`agreed` gave; None without."""
    if not agreed:
        return None
    secure, identity = of(secure_sum.Secure, agreed["settings"], "[secure]"), folder / FILES / IDENTITY
    return secure_sum.SecureSite(name, run, secure, secure_sum.Identity.load(identity), agreed["peers"])
