"""Four hospitals whose rows stay where they are, in this process: folders of sites, and a transport to their hosts."""

from __future__ import annotations

from pathlib import Path

import coterie.data.datasets
from coterie.deployment import toml_files
from coterie.deployment.federation_toml import SCHEMA, Config
from coterie.deployment.schema import propose
from coterie.deployment.site.preview import LocalTransport
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member

FORMULA = "disease ~ age + sex + cp + oldpeak + exang"
TASK = {"formula": FORMULA, "family": "binomial", "missing": "drop"}
EXACT = {"program": "hierarchical", "task": TASK, "options": {"covariance": "isotropic"}}


def heart():
    """The table, with hospitals named as sites are."""
    table = coterie.data.datasets.fetch("heart")
    return table.assign(hospital=table["hospital"].str.lower().str.split().str[0])


def folders(root: Path, table, site="hospital", labels=(), policy=None, min_group=5) -> tuple[Path, list[Path]]:
    """The coordinator's folder and the sites', each with the rows of its own."""
    names = tuple(sorted(table[site].unique()))
    config = Config("heart", "nvflare", sites=names, policy=policy or {})
    schema, _ = propose(table, labels=[site, *labels])
    coordinator, homes = root / "coordinator", [root / "sites" / name for name in names]
    for home in (coordinator, *homes):
        home.mkdir(parents=True)
        config.write(home)
        schema.write(home / SCHEMA)
    for name, home in zip(names, homes, strict=True):
        table[table[site] == name].to_csv(home / "data.csv", index=False)
        Member(name, "data.csv", min_group, disclosure={"min_level": 1, "works": ["coterie.*"]}).write(home)
    return coordinator, homes


def begin(coordinator: Path, run: str, program) -> Path:
    """The folder of a run, with what it is to do."""
    home = coordinator / "runs" / run
    toml_files.write(home / "run.toml", program)
    return home


def transport(homes):
    """To the hosts of some sites."""
    return LocalTransport({home.name: SiteReceiver(home).receive for home in homes})
