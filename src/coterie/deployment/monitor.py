"""How a coordinator or a site is, for those who keep watch: metrics in Prometheus' text format, and a page to read.

All of it is read from files of the folder; nothing is written, and nobody can change anything by what is served. At a
site the names of works and formulas stay out of it: numbers of answers, bytes, refusals and what is left of budgets.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from coterie.deployment import folders, logs
from coterie.deployment.federation_toml import BOOK, RELEASES, SITE, Config
from coterie.deployment.membership import Register
from coterie.deployment.site.disclosure import Releases
from coterie.deployment.site.site_toml import Member
from coterie.engines.privacy import Guard
from coterie.errors import CoterieError, plural
from coterie.options import call
from coterie.report.page import page
from coterie.report.tables import Table

RUNS = 12  # the last so many are shown
FRESH = 15.0  # seconds for which an engine's word on who is connected counts
SOON, LATE, LOW = 30 * 86400.0, 600.0, 2**30
"""When an alarm is raised: seconds until a certificate ends, seconds that a site is missing, bytes left on the disk."""
PATIENCE = 20.0  # seconds for which a caller may be silent
NEAR = 0.8  # of a day's limit, or of a budget
_HELP = {
    "up": "Whether what is watched runs",
    "site_online": "Whether a site is connected",
    "site_belongs": "Whether a site's key counts",
    "run_exchanges_total": "Exchanges of a run",
    "run_bytes_total": "Bytes of a run's messages",
    "run_running": "Whether a run goes on",
    "run_updated_timestamp_seconds": "Last exchange of a run",
    "run_site_missing_timestamp_seconds": "Since when a site is missing",
    "run_site_quarantined": "Sites left out of a run",
    "answers_total": "Answers that left",
    "answers_bytes_total": "Bytes that left",
    "answer_timestamp_seconds": "The last answer",
    "formulas": "Different formulas asked today",
    "formulas_limit": "Formulas that the owner allows in a day",
    "refusals": "Sums refused today for what rows hold",
    "refusals_limit": "Such refusals after which nothing leaves until tomorrow",
    "epsilon_spent": "Privacy budget that is spent",
    "epsilon_limit": "Privacy budget",
    "certificate_ends_timestamp_seconds": "When the certificate ends",
    "disk_free_bytes": "Left on the disk",
    "alarms": "What needs somebody",
}


@dataclass
class Found:
    """What a look found: samples by name and labels, sentences that need somebody, tables for the page."""

    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    def add(self, name: str, value: float | bool, **labels: str) -> None:
        """One number."""
        self.samples.append((name, labels, float(value)))

    def need(self, name: str, value: float, limit: float, what: str) -> None:
        """A number that has a limit, with an alarm where it comes near."""
        self.add(name, value)
        self.add(f"{name.removesuffix('_spent')}_limit", limit)
        if value >= NEAR * limit:
            self.alarms.append(f"{what}: {value:.3g} of {limit:.3g}")

    def prometheus(self) -> str:
        """In Prometheus' text format, version 0.0.4."""
        lines = []
        for name in dict.fromkeys(name for name, *_ in self.samples):
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP coterie_{name} {_HELP[name]}.", f"# TYPE coterie_{name} {kind}"]
            for known, labels, value in self.samples:
                if known == name:
                    inner = ",".join(f"{key}={_quoted(text)}" for key, text in labels.items())
                    lines.append(f"coterie_{name}{'{' + inner + '}' if inner else ''} {value:.17g}")
        return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def until(ends: datetime) -> str:
    """What a certificate that ends then did, or does."""
    return f"{'ended on' if ends.timestamp() < time.time() else 'holds until'} {ends:%Y-%m-%d}"


class Watch:
    """A coordinator's or a site's folder; each :meth:`look` reads what has come to its files since the last."""

    def __init__(self, folder: Path) -> None:
        self.home, self.config, self._engine = folders.opened(folder, either=True)
        self.site = Member.read(self.home).name if (self.home / SITE).is_file() else ""
        self._standing: tuple[float, dict[str, Any]] = (-FRESH, {})
        self._counts: Counter[str] = Counter()
        self._offset, self._last = 0, ""

    def look(self) -> Found:
        """What the folder says now."""
        found, running = Found(), self._engine_status()
        found.add("up", running.get("running", False))
        found.facts = [f"over {self.config.engine}", "running" if running.get("running") else "stopped"]
        if (ends := self._engine.ends(self.home)) is not None:
            found.add("certificate_ends_timestamp_seconds", ends.timestamp())
            found.facts.append(f"its certificate {until(ends)}")
            if ends.timestamp() - time.time() < SOON:
                found.alarms.append(f"The certificate {until(ends)}: renew it")
        free = shutil.disk_usage(self.home).free
        found.add("disk_free_bytes", free)
        if free < LOW:
            found.alarms.append(f"{free / 2**20:,.0f} MiB are left on the disk")
        if self.site:
            self._look_at_site(found)
        else:
            self._look_at_coordinator(found, running.get("sites", {}), running.get("running", False))
        found.add("alarms", len(found.alarms))
        return found

    def _engine_status(self) -> dict[str, Any]:
        when, known = self._standing
        if time.monotonic() - when >= FRESH:
            try:
                known = self._engine.status(self.home)
            except CoterieError:
                known = {}
            self._standing = time.monotonic(), known
        return known

    def _look_at_coordinator(self, found: Found, connected: Mapping[str, str], up: bool) -> None:
        register, config = Register.read(self.home), Config.read(self.home)
        rows = []
        for name in config.sites:
            state, revoked = str(connected.get(name, "offline")), register.revoked.get(name)
            belongs = register.keys.get(name) != ""
            found.add("site_online", state == "online", site=name)
            found.add("site_belongs", belongs, site=name)
            rows.append((name, state, "" if belongs else f"revoked {revoked}" if revoked else "its key is not signed"))
        found.tables.append(Table("Sites", ("site", "connection", "key"), tuple(rows), texts=3))
        runs = sorted((self.home / "runs").glob(f"*/{logs.STATUS}"), key=lambda path: path.stat().st_mtime)[-RUNS:]
        shown = []
        for path in reversed(runs):
            with suppress(CoterieError, KeyError, TypeError, ValueError):
                run = logs.read_status(path.parent)
                if path == runs[-1] and (ended := logs.trouble(run, goes_on=up)):
                    found.alarms.append(ended)
                shown.append(self._look_at_run(found, run))
        columns = ("run", "state", "missing or left out", "exchanges", "down, kB", "up, kB", "last exchange, UTC")
        found.tables.append(Table("Runs", columns, tuple(shown), texts=3))

    def _look_at_run(self, found: Found, run: Mapping[str, Any]) -> tuple[str, ...]:
        name, updated = run["run"], run.get("updated", run["since"])
        found.add("run_exchanges_total", run["exchange"], run=name)
        for direction in ("down", "up"):
            found.add("run_bytes_total", run[f"bytes_{direction}"], run=name, direction=direction)
        found.add("run_running", run["state"] == "running", run=name)
        found.add("run_updated_timestamp_seconds", _seconds(updated), run=name)
        for site, what in run["missing"].items():
            found.add("run_site_missing_timestamp_seconds", _seconds(what["since"]), run=name, site=site)
            if run["state"] == "running" and time.time() - _seconds(what["since"]) > LATE:
                found.alarms.append(f"'{site}' is missing from run '{name}' since {what['since']}")
        for site, why in run["quarantined"].items():
            found.add("run_site_quarantined", 1, run=name, site=site)
            found.alarms.append(f"'{site}' was left out of run '{name}': {why}")
        away = [*run["missing"], *run["quarantined"], *run.get("away", {})]
        numbers = (run["exchange"], run["bytes_down"] / 1e3, run["bytes_up"] / 1e3)
        return (name, run["state"], ", ".join(away), *(f"{n:,.0f}" for n in numbers), updated[:19].replace("T", " "))

    def _look_at_site(self, found: Found) -> None:
        member = Member.read(self.home)
        news, self._offset = logs.news(self.home / logs.LOG, self._offset)
        for entry in news:
            kind = next((word for word in ("refused", "failed", "garbled", "late") if word in entry), "answered")
            self._counts[kind if kind != "refused" or entry.get("kind") != "open" else "refused formula"] += 1
            self._counts["bytes"] += int(entry.get("bytes", 0))
            self._last = str(entry.get("time", self._last))
        counts = {name: n for name, n in self._counts.items() if name != "bytes"}
        for name, n in sorted(counts.items()):
            found.add("answers_total", n, outcome=name)
        found.add("answers_bytes_total", self._counts["bytes"])
        if self._last:
            found.add("answer_timestamp_seconds", _seconds(self._last))
        asked, declined = Releases(self.home / RELEASES, member.name).today()
        rules = member.disclosure
        if member.guarded:
            found.need("formulas", asked, rules.formulas_per_day, "Formulas that were asked today")
            found.need("refusals", declined, rules.refusals_per_day, "Sums refused today for what rows hold")
        rows = [("answers", f"{sum(counts.values()):,}"), *((f"of them {n}", f"{c:,}") for n, c in counts.items())]
        rows += [("bytes that left", f"{self._counts['bytes']:,}"), ("last answer, UTC", self._last[:19])]
        rows += [("formulas today", f"{asked} of {rules.formulas_per_day}")]
        if (guard := guard_of(self.home, member)) is not None:
            found.need("epsilon_spent", guard.spent, guard.budget, "Privacy budget that is spent")
            rows.append(("epsilon", f"{guard.spent:.3g} of {guard.budget:g}"))
        if refused := counts.get("refused formula", 0):
            found.alarms.append(f"{plural(refused, 'formula')} refused by the owner's rules: log.jsonl says which")
        found.tables.append(Table(f"Site {self.site}", ("what left", "how much"), tuple(rows)))

    def page(self) -> str:
        """The page."""
        found, who = self.look(), f"site {self.site}" if self.site else "coordinator"
        headline = (
            f"Federation {self.config.name}: {plural(len(found.alarms), 'alarm') if found.alarms else 'no alarms'}"
        )
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        values = {"alarms": found.alarms, "tables": found.tables, "facts": [*found.facts, now]}
        return page("status.html", headline=headline, question=f"{who}, read only", **values)


def guard_of(home: Path, member: Member) -> Guard | None:
    """The guard of a site's privacy budget, to be read only; None where its owner set none."""
    if not member.privacy:
        return None
    return call(Guard, member.privacy, "[privacy]", lambda request, key: b"", book=home / BOOK)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def server(watch: Watch, host: str, port: int) -> ThreadingHTTPServer:
    """The server of a folder's ``/metrics`` and of its page at ``/``; call its ``serve_forever``."""
    hosts, one_at_a_time = {host, "localhost", "127.0.0.1"}, threading.Lock()
    here_alone = host == "localhost" or host.startswith("127.")
    pages: dict[str, tuple[str, Callable[[], str]]] = {
        "/metrics": ("text/plain; version=0.0.4; charset=utf-8", lambda: watch.look().prometheus()),
        "/": ("text/html; charset=utf-8", watch.page),
    }

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            said = pages.get(self.path)
            named = self.headers.get("Host", host)
            # a page of another site may not read this one under a name of its own (DNS rebinding)
            if said is None or (here_alone and (named.rpartition(":")[0] or named) not in hosts):
                self.send_error(404)
                return
            with one_at_a_time:  # a look goes on where the last has stopped to read
                kind, text = said[0], said[1]()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text.encode())

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Looks are not worth a line."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as problem:
        raise CoterieError(f"{host}:{port} cannot be opened ({problem.strerror}): choose another --port.") from problem
