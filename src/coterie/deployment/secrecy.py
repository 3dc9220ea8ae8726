"""Where a federation's sums are secure (``[secure]`` in ``federation.toml``): who is who, in its folders.

Each site's ``secure/identity`` holds its long-term keys, for its owner alone; every folder's ``secure/peers.toml`` has
the public halves of all, by which sites know each other whatever the coordinator says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.deployment import toml
from coterie.deployment.config import Config
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.engines.secure_sum import Party, Secure

FILES, IDENTITY, PEERS = "secure", "identity", "peers.toml"


def settings(config: Config) -> Secure | None:
    """The settings of secure sums; None where sums are in the clear."""
    if not config.secure:
        return None
    from coterie.engines.secure_sum import Secure

    return toml.made("[secure]", Secure, config.secure)


def defaults(sites: int) -> dict[str, int]:
    """What ``[secure]`` says of a number of sites where nothing else is asked for."""
    from coterie.engines.secure_sum import Secure

    secure = Secure()
    return {"threshold": secure.opening(sites), "min_sites": secure.least(sites)}


def promise(config: Config) -> str:
    """What secure sums protect from whom, for who chooses them."""
    secure = settings(config)
    return "" if secure is None else secure.promise(len(config.sites))


def need(config: Config) -> None:
    """A CoterieError where there are fewer sites than a secure sum must have."""
    secure = settings(config)
    if secure is not None and len(config.sites) < (least := secure.least(len(config.sites))):
        raise CoterieError(
            f"Secure sums need {least} sites at least, and there are {len(config.sites)}: with two, each knows the "
            "other's part."
        )


def init(config: Config, coordinator: Path, sites: Sequence[Path]) -> None:
    """Write identities where sums are secure; those that are there already are kept.

    Parameters
    ----------
    config : Config
    coordinator : path
    sites : sequence of path
        Folders, in the order of ``config.sites``.
    """
    if (secure := settings(config)) is None:
        return
    from coterie.engines.secure_sum import Identity

    need(config)
    secure.opening(len(sites))
    public = {}
    for name, home in zip(config.sites, sites, strict=True):
        path = home / FILES / IDENTITY
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            Identity.new().save(path)
        public[name] = Identity.load(path).public.hex()
    for home in (coordinator, *sites):
        toml.write(home / FILES / PEERS, {"peers": public}, "Public identities of all sites.")


def party(folder: Path, config: Config, name: str, run: str) -> Party | None:
    """A site's side of secure sums in a run; None where sums are in the clear."""
    if (secure := settings(config)) is None:
        return None
    from coterie.engines.secure_sum import Identity, Party

    path = folder / FILES / PEERS
    try:
        peers = {site: bytes.fromhex(key) for site, key in toml.read(path, "who is who")["peers"].items()}
    except (KeyError, ValueError, AttributeError, TypeError) as problem:
        raise CoterieError(f"'{path}' does not say who is who: copy the site's folder again.") from problem
    return Party(name, run, secure, Identity.load(folder / FILES / IDENTITY), peers)
