"""Keys that sites make themselves: a request goes to the federation, what was signed comes back, and no key travels.

A request (``basel.request``) holds a certificate request, which proves that who asks has the key, and the public
identity for secure sums. What comes back (``basel.signed``) holds the certificate, ``federation.toml`` as it is now and
the public identities of all sites. Neither is secret; whoever carries them could replace them, so both ends print a
fingerprint to compare.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from coterie import files
from coterie.deployment import certificates, folders, secure_sum_setup, toml_files
from coterie.deployment.federation_toml import COORDINATOR, FEDERATION, SCHEMA, Config, check_name
from coterie.deployment.folders import PENDING
from coterie.deployment.membership import Register
from coterie.deployment.site.site_toml import Member
from coterie.errors import CoterieError, listed
from coterie.options import Checked, Option, of

T = TypeVar("T")
SIGNED = "signed"
"""In a federation's folder: what goes back to sites."""


@dataclass(frozen=True)
class Request(Checked):
    """``NAME.request``."""

    site: Annotated[str, Option("Who asks.", read=lambda name: check_name("site", name))]
    federation: Annotated[str, Option("Whom.")]
    csr: Annotated[str, Option("A certificate request (PKCS #10).")]
    identity: Annotated[str, Option("The public identity for secure sums, as its .pub file has it.")] = ""


@dataclass(frozen=True)
class Signed(Checked):
    """``NAME.signed``: ``files`` go into the site's folder, but for its key; ``identities`` are .pub files."""

    site: Annotated[str, Option("Whose request it was.")]
    key: Annotated[str, Option("The public key that was signed.")]
    config: Annotated[dict[str, Any], Option("federation.toml.")] = field(default_factory=dict)
    files: Annotated[dict[str, Any], Option("What is installed at the site.")] = field(default_factory=dict)
    identities: Annotated[dict[str, Any], Option("Public identities for secure sums, by site.")] = field(
        default_factory=dict
    )


def _read(cls: type[T], path: Path, what: str) -> T:
    """A file that came from the other end; one that goes there instead is told from one that is damaged."""
    tables = files.read_toml(path, what)
    if cls is Signed and "csr" in tables:
        raise CoterieError(f"'{path}' is a request: the federation signs it, and what comes back is accepted here.")
    if cls is Request and "files" in tables:
        raise CoterieError(f"'{path}' was signed already: its site accepts it ('coterie federation accept').")
    return toml_files.into(cls, path, what)


def request(folder: Path) -> tuple[Path, str]:
    """Make a site's key, which stays there, and the request for it; the request's file and its fingerprint.

    A request that was not answered yet is written again, with the same key.
    """
    member, config = Member.read(folder), Config.read(folder)
    path = folder / PENDING
    if not path.exists():
        certificates.private(path, folders.engine(config.engine).new_key())
    identity = ""
    if config.secure:
        identity = secure_sum_setup.make(folder, member.name).read_text()
    asked = Request(member.name, config.name, certificates.request(path, member.name), identity)
    file = folder / f"{member.name}.request"
    toml_files.write(file, asdict(asked), "A request to a federation of coterie; nothing in it is secret.")
    return file, certificates.fingerprint(certificates.public_at(path).encode())


def sign(folder: Path, path: Path) -> tuple[Path, str]:
    """Sign a request, whoever sent it: its site belongs to the federation from now on, by this key and no other.

    What goes back to the site, and the fingerprint of its key.
    """
    need_authority(folder)
    config, asked = Config.read(folder), _read(Request, path, "a request")
    if asked.federation != config.name:
        raise CoterieError(f"'{path}' is a request to '{asked.federation}', and this is federation '{config.name}'.")
    config.need_site(asked.site)
    if config.secure and not asked.identity:
        raise CoterieError(f"'{path}' has no identity for secure sums: ask for it again with this federation's folder.")
    if asked.identity and list(secure_sum_setup.parse({path: asked.identity.encode()})) != [asked.site]:
        raise CoterieError(f"'{path}' has the identity of another site: ask '{asked.site}' for it again.")
    csr = certificates.requested(asked.csr)
    key = certificates.public(csr)
    mark = certificates.fingerprint(key.encode())
    home = folder / COORDINATOR
    register, back = Register.read(home), folder / SIGNED / f"{asked.site}.signed"
    if mark in register.ended:
        raise CoterieError(f"The key in '{path}' was revoked ({register.ended[mark]}): ask for another.")
    if other := next((site for site, known in register.keys.items() if known == key and site != asked.site), ""):
        raise CoterieError(f"The key in '{path}' is that of site '{other}': ask '{asked.site}' for one of its own.")
    made: Mapping[str, str] = folders.engine(config.engine).admit(folder, config, asked.site, csr)
    register.signed(asked.site, key).write(home)
    if asked.identity:
        file = folder / SIGNED / f"{asked.site}.pub"
        file.parent.mkdir(exist_ok=True)
        file.write_text(asked.identity)
    back.parent.mkdir(exist_ok=True)
    toml_files.write(back, asdict(Signed(asked.site, key, files=dict(made))))
    tell(folder, config)
    return back, mark


def tell(folder: Path, config: Config) -> None:
    """Write into all that goes back to sites what the federation is now, and the identities that are known."""
    known = {path.stem: path.read_text() for path in sorted((folder / SIGNED).glob("*.pub"))}
    known = {name: text for name, text in known.items() if name in config.sites}
    for path in sorted((folder / SIGNED).glob("*.signed")):
        signed = toml_files.into(Signed, path, "what was signed")
        signed = replace(signed, config=asdict(config), identities=known)
        toml_files.write(path, asdict(signed), "From a federation of coterie to a site; nothing in it is secret.")


def accept(folder: Path, path: Path) -> list[str]:
    """Install at a site what was signed: its certificate, ``federation.toml``, who is who; what an owner should know.

    A CoterieError where it is another site's, another federation's, or for a key that is not here: nothing is changed.
    """
    member, config, signed = Member.read(folder), Config.read(folder), _read(Signed, path, "what was signed")
    if signed.site != member.name:
        raise CoterieError(f"'{path}' is for site '{signed.site}', and '{folder}' is the folder of '{member.name}'.")
    after, said = of(Config, signed.config, f"'{path}'"), []
    if (after.name, after.engine) != (config.name, config.engine):
        raise CoterieError(f"'{path}' is of federation '{after.name}' over {after.engine}: ask for the right file.")
    after.need_site(member.name)
    engine = folders.engine(config.engine)
    pending, own = folder / PENDING, folder / engine.KEY
    fresh = pending.exists() and certificates.public_at(pending) == signed.key
    if not fresh and not (own.exists() and certificates.public_at(own) == signed.key):
        raise CoterieError(f"'{path}' was signed for another key than this site's: ask for it again with 'request'.")
    beside = Path(engine.KEY).parent
    if any(Path(name).parent != beside or Path(name).name == own.name for name in signed.files):
        raise CoterieError(f"'{path}' holds files that are none of a site's: ask the federation for it again.")
    if signed.files.get(engine.ROOT) != (folder / engine.ROOT).read_text():
        raise CoterieError(f"'{path}' is of another authority than this site's folder: ask the federation for both.")
    if fresh:
        certificates.private(own, pending.read_bytes())
        said.append(f"Site '{member.name}' has its certificate: start it, or stop it and start it again.")
    for name, text in signed.files.items():
        certificates.private(folder / name, text.encode())
    pending.unlink(missing_ok=True)
    if after != config:
        after.write(folder)
        pairs = zip(asdict(config).items(), asdict(after).values(), strict=True)
        changed = [f"{key} is {new}, and was {old}" for (key, old), new in pairs if old != new]
        said += [f"{FEDERATION} has changed: {line}." for line in changed]
    if after.secure:
        said.append(_pinned(folder, after, signed))
    return said


def _pinned(folder: Path, config: Config, signed: Signed) -> str:
    if missing := sorted(set(config.sites) - signed.identities.keys()):
        return (
            f"Not all identities for secure sums are known yet, without {listed(missing)}: accept again when they are."
        )
    found = secure_sum_setup.parse({f"{name}.pub": str(text).encode() for name, text in signed.identities.items()})
    prints = secure_sum_setup.pin(folder, config, found)
    return f"Identities of all sites: {prints}. Compare it with every other site, not by way of the coordinator."


def add(folder: Path, name: str) -> Path:
    """Make the folder of a further site, without a key; it belongs to runs that begin once its request is signed."""
    need_authority(folder)
    config = Config.read(folder)
    if name in config.sites:
        raise CoterieError(f"Federation '{config.name}' has a site '{name}' already: it asks with 'request'.")
    config = _of_sites(config, (*config.sites, name))
    folders.init(folder, config, at_home=(name,))
    if (agreed := folder / COORDINATOR / SCHEMA).exists():
        shutil.copy(agreed, folder / folders.SITES / name / SCHEMA)
    tell(folder, config)
    return folder / folders.SITES / name


def remove(folder: Path, name: str) -> None:
    """Take a site out of a federation: it is asked no more, and a run that it takes part in begins anew without it."""
    config = Config.read(folder)
    config.need_site(name)
    if len(config.sites) == 1:
        raise CoterieError(f"'{name}' is the only site of federation '{config.name}', which needs one at least.")
    after = _of_sites(config, tuple(site for site in config.sites if site != name))
    secure_sum_setup.need(after)
    _expel(folder, name, "")
    for place in (folder, folder / COORDINATOR):
        after.write(place)
    for path in (folder / SIGNED).glob(f"{name}.*"):
        path.unlink()
    tell(folder, after)


def revoke(folder: Path, name: str, why: str) -> None:
    """Let a site's key count no more; the site belongs again once a request with another key is signed."""
    Config.read(folder).need_site(name)
    _expel(folder, name, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {why}")


def _expel(folder: Path, name: str, why: str) -> None:
    home = folder / COORDINATOR
    Register.read(home).without(name, why).write(home)  # first: from here on no run asks it
    folders.engine(Config.read(folder).engine).expel(home, name)


def _of_sites(config: Config, sites: tuple[str, ...]) -> Config:
    """With other sites; thresholds of secure sums that were the default for their number are so again."""
    usual = bool(config.secure) and config.secure == secure_sum_setup.defaults(len(config.sites))
    return replace(config, sites=sites, secure=secure_sum_setup.defaults(len(sites)) if usual else config.secure)


def need_authority(folder: Path) -> None:
    """A CoterieError unless a folder is that of a whole federation, with what signs."""
    if not (folder / "authority").is_dir() or not os.access(folder / "authority", os.R_OK):
        raise CoterieError(f"'{folder}' has no authority: name the folder that 'coterie federation init' wrote.")
