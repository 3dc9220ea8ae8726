"""The check of all sites before a run: their clocks, versions and schemas. No row moves."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from coterie.deployment.federation_toml import SCHEMA, Config
from coterie.deployment.schema import Schema, unite
from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import write_durable
from coterie.engines.message_checks import ReplyFault, read_reply
from coterie.engines.site_enrolment import NOTES, Transport, upgrade
from coterie.errors import CoterieError, listed, shortened
from coterie.options import Checked, Option, declared, of

RESULT = "result/check.json"
PATIENCE = 60.0
"""Seconds in which sites must answer."""
GATHER = 15.0
"""Seconds in which sites must be connected: one that was just started, or whose coordinator was, takes up to ten."""
DRIFT = 60.0
"""Seconds by which a clock may differ, beside the time that messages take."""


@dataclass(frozen=True)
class Answer(Checked):
    """What a site says."""

    name: Annotated[str, Option("Who it is.")]
    version: Annotated[str, Option("Of its coterie.")]
    clock: Annotated[float, Option("Seconds since 1970.", low=-1e12, high=1e12)]
    problems: Annotated[tuple[str, ...], Option("What is wrong with its table.")]
    columns: Annotated[dict[str, Any] | None, Option("Its schema, where it has a table.")] = None
    doubts: Annotated[tuple[str, ...], Option("What may be right all the same.")] = ()
    present: Annotated[dict[str, tuple[str, ...]], Option("Levels that enough rows have, by column.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Report:
    """What a check found.

    Of each site: what is wrong, its version of coterie ("" where it did not say), seconds by which its clock is ahead.
    Of all: where sites differ (``problems``), the coordinator's schema with all sites' levels, which of these it has
    not yet (``added``), and whether it has none at all (``without``). ``doubts`` may be right all the same: a column
    that lies as one in another unit does, a level that enough rows have at one site alone.
    """

    sites: dict[str, list[str]]
    versions: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    schema: dict[str, Any] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    without: bool = False
    doubts: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether a run can begin."""
        return not self.problems and not any(self.sites.values())

    def lines(self) -> list[str]:
        """The report for people."""
        out = []
        for name, wrong in self.sites.items():
            said = [f"coterie {self.versions[name]}"] if self.versions.get(name) else []
            out.append(f"{name}: {', '.join([*said, '; '.join(wrong) or 'ready'])}")
        out += [f"Schemas differ: {problem}." for problem in self.problems]
        out += [f"Look at it: {doubt}." for doubt in self.doubts]
        if self.added:
            out.append(
                f"Sites have levels that the schema does not have: {listed(self.added, 50)}. Add them with --unite."
            )
        if self.without:
            out.append("The coordinator has no schema.toml yet: --unite makes one of those of the sites.")
        return out


def check_sites(transport: Transport, schema: Schema | None, timeout: float = PATIENCE) -> Report:
    """Ask all sites how they stand, and wait ``timeout`` seconds; ``schema`` is the coordinator's."""
    own = None if schema is None else schema.plain()
    request = wire.encode({"kind": "check", "schema": own})
    before = time.time()
    answers = transport.send(dict.fromkeys(transport.sites, request), timeout)
    after = time.time()
    report = Report({name: [] for name in sorted(transport.sites)})
    proposals: dict[str, Schema] = {}
    present: dict[str, Mapping[str, Sequence[str]]] = {}
    for name, wrong in report.sites.items():
        said = _answer(answers.get(name), name)
        if isinstance(said, str):
            wrong.append(said)
            continue
        report.versions[name] = shortened(said.version, 40)
        if other := upgrade(report.versions[name]):
            wrong.append(other)
        if said.name != name:
            wrong.append(f"it calls itself '{shortened(said.name, 80)}': another site's folder is used there")
        late = said.clock > after  # 0 if it read a time while the messages were on their way
        ahead = report.clocks[name] = said.clock - after if late else min(said.clock - before, 0.0)
        if abs(ahead) > DRIFT:
            wrong.append(f"its clock is {_duration(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}: set it")
        wrong += [shortened(problem) for problem in said.problems]
        report.doubts.extend(f"at {name} {shortened(doubt)}" for doubt in said.doubts[:NOTES])
        present[name] = said.present
        try:
            if said.columns:
                proposals[name] = Schema.of(said.columns)
        except CoterieError as problem:
            wrong.append(f"its answer cannot be used ({shortened(str(problem).rstrip('.'))})")
    united, problems = unite(proposals, schema)
    known = {} if schema is None else schema.columns
    added = [
        f"{shortened(repr(level), 80)} of '{shortened(name, 80)}'"
        for name, column in united.columns.items()
        for level in column.levels
        if name in known and level not in known[name].levels
    ]
    return replace(
        report,
        doubts=report.doubts + _alone(present),
        problems=list(map(shortened, problems)),
        schema=united.plain(),
        added=added,
        without=schema is None and bool(proposals),
    )


def _alone(present: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    """Levels that enough rows have at one site alone, where several tell of the column."""
    where: dict[tuple[str, str], list[str]] = {}
    for site, columns in present.items():
        for name, levels in columns.items():
            for level in levels:
                where.setdefault((name, level), []).append(site)
    sites = Counter(name for columns in present.values() for name in columns)
    found: dict[tuple[str, str], list[str]] = {}
    for (name, level), those in where.items():
        if len(those) == 1 < sites[name]:
            found.setdefault((those[0], name), []).append(repr(level))
    return [
        shortened(f"enough rows have {listed(levels)} of '{name}' at {site} alone, so no other site tells of it")
        for (site, name), levels in found.items()
    ][:NOTES]


def run_check(transport: Transport, folder: Path, run_id: str, add_levels: bool = False) -> Report:
    """The check as the program of a run: its report goes to ``result/check.json`` in the coordinator's folder.

    ``add_levels`` adds the sites' levels to the coordinator's schema, if nothing is wrong with it.
    """
    config = Config.read(folder)
    path = folder / SCHEMA
    report = check_sites(
        transport, Schema.read(path) if path.exists() else None, config.policy.get("deadline", PATIENCE)
    )
    if add_levels and not report.problems and report.schema:
        Schema.of(report.schema).write(path)
        report = replace(report, added=[], without=False)
    write_durable(folder / "runs" / run_id / RESULT, [json.dumps(asdict(report), indent=1).encode()])
    return report


def read_report(folder: Path, run_id: str) -> Report:
    """The report that :func:`run_check` left."""
    path = folder / "runs" / run_id / RESULT
    try:
        return Report(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as problem:
        raise CoterieError(f"The check left no report in '{path}': {problem}.") from problem


def _answer(data: bytes | None, site: str) -> Answer | str:
    """What a site says, or what is wrong with that."""
    if data is None:
        return "it did not answer: start it with 'coterie federation start-site'"
    said = read_reply(data, {"kind": "check"}, site, b"")
    if isinstance(said, ReplyFault):
        return said.text.rstrip(".")
    try:
        return of(Answer, {name: said[name] for name in declared(Answer) if name in said}, "its answer")
    except CoterieError:
        return "its answer is none of coterie's"


def _duration(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 0.95 * size:
            n = seconds / size
            return f"{n:.1f} {unit}s" if abs(n - round(n)) > 0.05 else f"{round(n)} {unit}{'s' * (round(n) > 1)}"
    return f"{seconds:.0f} seconds"
