"""Who belongs to a federation now, whose keys count, and with whom a run was begun.

``members.toml`` in the coordinator's folder has the keys that were signed for sites, and who was revoked when and why;
who belongs at all is in ``federation.toml``. Both may change while a run goes on: a site that was added takes part in
the next one. From one that was removed or revoked nothing may stay in the result, so a run that it took part in begins
anew without it, in another course under its own name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from coterie import files
from coterie.deployment import toml_files
from coterie.deployment.federation_toml import FEDERATION, Config
from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import write_durable
from coterie.engines.site_enrolment import Transport
from coterie.errors import fitting, listed
from coterie.options import Checked, Option

MEMBERS, BEGUN = "members.toml", "sites.json"


class SitesGone(Exception):
    """Sites that are asked do not belong to the federation any more; no CoterieError, which a program may pass over."""

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__(f"{listed(sites)} belongs to the federation no more: the run begins anew without it.")
        self.sites = tuple(sites)


@dataclass(frozen=True)
class Register(Checked):
    """``members.toml``: of sites that made their own, the public key that counts; of those revoked, when and why."""

    keys: Annotated[dict[str, Any], Option("Of sites that make their own: what was signed last.")] = field(
        default_factory=dict
    )
    revoked: Annotated[dict[str, Any], Option("Sites whose keys do not count, since when and why.")] = field(
        default_factory=dict
    )
    ended: Annotated[dict[str, Any], Option("Fingerprints of all keys that were revoked, since when and why.")] = field(
        default_factory=dict
    )

    @classmethod
    def read(cls, folder: Path) -> Register:
        """Of a coordinator's folder."""
        path = folder / MEMBERS
        return toml_files.into(cls, path, "the register of sites") if path.exists() else cls()

    def write(self, folder: Path) -> None:
        """Into a coordinator's folder, whole or not at all."""
        toml_files.write(folder / MEMBERS, asdict(self), "Whose keys count; 'coterie federation' writes it.")

    def signed(self, name: str, key: str) -> Register:
        """With a site's new key, by which it belongs again."""
        rest = {site: why for site, why in self.revoked.items() if site != name}
        return replace(self, keys={**self.keys, name: key}, revoked=rest)

    def without(self, name: str, why: str = "") -> Register:
        """Without a site's key; for a reason ``why`` it is revoked, and the site must ask for another."""
        keys, revoked = (
            {site: said for site, said in part.items() if site != name} for part in (self.keys, self.revoked)
        )
        if not why:
            return Register(keys, revoked, self.ended)
        from coterie.deployment import certificates

        key = self.keys.get(name)
        ended = {certificates.fingerprint(key.encode()): why} if key else {}
        return Register(keys | {name: ""}, revoked | {name: why}, self.ended | ended)


def belonging(folder: Path) -> tuple[str, ...]:
    """The sites of a coordinator's federation, but for those whose key is revoked, or not signed yet."""
    keys = Register.read(folder).keys
    return tuple(name for name in Config.read(folder).sites if keys.get(name) != "")


def wanted(folder: Path, run_id: str) -> tuple[str, ...]:
    """The sites that a run is to have: of those it was begun with, where it was, all that belong still."""
    here, begun = belonging(folder), _begun(folder / "runs" / run_id)
    return here if begun is None else tuple(name for name in begun["sites"] if name in here)


def _begun(home: Path) -> dict[str, Any] | None:
    """The sites, the course and the settings of secure sums with which a run was begun."""
    try:
        text = (home / BEGUN).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    with fitting(f"'{home / BEGUN}'", "Run again under another name."):
        found: dict[str, Any] = json.loads(text)
        if not (isinstance(found["sites"], list) and isinstance(found["course"], int)):
            raise TypeError
        return found


class Members:
    """A transport to the sites that a run was begun with, which asks none that does not belong any more.

    ``refused`` are sites that cannot take part, by what the engine knows of them, and why. ``course`` is "" of a run
    that nobody had to leave, and ``secure`` what ``[secure]`` said when it was begun.
    """

    def __init__(
        self, transport: Transport, folder: Path, home: Path, refused: Mapping[str, str] | None = None
    ) -> None:
        self._transport, self._folder, self._refused = transport, folder, dict(refused or {})
        self._stamps: list[tuple[int, ...]] = []
        self._here: frozenset[str] = frozenset()
        here, config, begun = self._belonging(), Config.read(folder), _begun(home)
        before = sorted(transport.sites) if begun is None else list(begun["sites"])
        self.sites = [name for name in before if name in here]
        if begun is None or self.sites != before:
            course = 1 if begun is None else begun["course"] + 1
            begun = {"sites": self.sites, "course": course, "secure": config.secure}
            write_durable(home / BEGUN, [json.dumps(begun).encode()])
        self.secure: dict[str, Any] = begun["secure"]
        self.course = f"course-{begun['course']}" if begun["course"] > 1 else ""

    @property
    def absent(self) -> Sequence[str]:
        """Sites that were not there in time."""
        return tuple(getattr(self._transport, "absent", ()))

    def send(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | None]:
        """All at once; SitesGone where one of them has left the federation since the run began."""
        if gone := sorted(messages.keys() - self._belonging()):
            raise SitesGone(gone)
        said = {name: wire.encode({"refused": why}) for name, why in self._refused.items() if name in messages}
        asked = {name: data for name, data in messages.items() if name not in said}
        return {**self._transport.send(asked, timeout), **said}

    def close(self) -> None:
        """Let go of the network."""
        self._transport.close()

    def _belonging(self) -> frozenset[str]:
        """Who belongs now: the files are read when they have changed."""
        stamps = [files.stamp(self._folder / name) for name in (FEDERATION, MEMBERS)]
        if stamps != self._stamps:
            self._here, self._stamps = frozenset(belonging(self._folder)), stamps
        return self._here
