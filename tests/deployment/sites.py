"""A federation's folder with a few hospitals, whose sites answer in this process."""

from __future__ import annotations

import numpy as np
import pandas as pd

from coterie.deployment.federation_toml import Config
from coterie.deployment.schema import Schema, propose, unite
from coterie.deployment.site.preview import LocalTransport
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member
from coterie.engines import wire

NAMES = ("basel", "bern", "chur")
FORMULA = "score ~ age + C(pain)"
CATEGORIES = ("pain", "ward")


def table(site: int, rows: int = 40) -> pd.DataFrame:
    """One hospital's rows: pain is 1, 2 or 3, and 4 at the last hospital only; every ward is at one hospital."""
    rng = np.random.default_rng(site)
    age = rng.normal(50.0 + 5.0 * site, 9.0, rows).round(1)
    pain = rng.integers(1, 5 if site == len(NAMES) - 1 else 4, rows)
    score = (0.3 * site + 0.05 * age + 0.5 * (pain == 2) + rng.normal(size=rows)).round(3)
    ward = np.array(["a", "b"])[np.arange(rows) % 2]
    frame = pd.DataFrame({"age": age, "pain": pain, "score": score, "ward": [f"{NAMES[site]}-{w}" for w in ward]})
    return frame.assign(kind=np.array(["day", "night"])[np.arange(rows) % 2])


def tables() -> dict[str, pd.DataFrame]:
    """All of them, by name."""
    return {name: table(s) for s, name in enumerate(NAMES)}


def of_own_code(tmp_path, config, module, text, **member):
    """The folders of a coordinator and of sites, each of which allows ``make`` of a module with some text."""
    coordinator, homes = tmp_path / "coordinator", [tmp_path / "sites" / name for name in config.sites]
    for place in (coordinator, *homes):
        place.mkdir(parents=True)
        config.write(place)
    for name, place in zip(config.sites, homes, strict=True):
        (place / f"{module}.py").write_text(text)
        Member(name, allow=(f"{module}:make",), **member).write(place)
    return coordinator, homes


def home(folder, name):
    """A site's folder."""
    return folder / "sites" / name


LENIENT = {"min_level": 1, "rows_per_column": 1, "works": ["*"]}
"""Rules of disclosure for tables of 40 rows."""


def build(folder, frames=None, min_group=5, labels=("ward", "kind"), disclosure=LENIENT, **more):
    """The folders of sites with their tables and proposals, and the coordinator's; the schema of all comes back."""
    frames = tables() if frames is None else frames
    config = Config("heart", "nvflare", sites=tuple(frames), **more)
    proposals = {}
    for name, frame in frames.items():
        own = home(folder, name)
        own.mkdir(parents=True)
        frame.to_csv(own / "data.csv", index=False)
        Member(name, "data.csv", min_group, disclosure=disclosure).write(own)
        config.write(own)
        proposals[name], _ = propose(frame, labels, [name for name in ("pain",) if name in frame])
        proposals[name].write(own / "schema.toml")
    united, problems = unite(proposals)
    (folder / "coordinator").mkdir()
    config.write(folder / "coordinator")
    united.write(folder / "coordinator" / "schema.toml")
    assert problems == []
    return united


def task(folder, formula=FORMULA, **more):
    """What a run asks for, with the coordinator's schema."""
    schema = Schema.read(folder / "coordinator" / "schema.toml")
    return {"kind": "table", "formula": formula, "schema": schema.plain(), **more}


def hosts(folder, names=NAMES, **options):
    """The sites of a folder, as new processes would make them."""
    return {name: SiteReceiver(home(folder, name), **options) for name in names}


def transport(folder, names=NAMES):
    return LocalTransport({name: host.receive for name, host in hosts(folder, names).items()})


def say(host, **request):
    """A host's answer to one request."""
    return wire.decode(host.receive(wire.encode(request)))
