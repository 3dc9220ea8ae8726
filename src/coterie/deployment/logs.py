"""One line an exchange, at the coordinator and at every site, written so that no fault leaves half a line to a reader.

Files hold JSON lines; :func:`words` makes a line for people of each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from coterie import files
from coterie.engines.checkpoint_and_journal import write_durable
from coterie.engines.coordinator import Exchanged
from coterie.errors import CoterieError, plural, shortened

LOG, STATUS = "log.jsonl", "status.json"
AGAIN = "goes on in a new job"  # state of a run whose job ended and is followed by another
RECENT = timedelta(minutes=3)
_TAIL = 65_536  # bytes of an engine's log that are looked at


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line to a file: all of it or, where the disk is full, none of it.

    A line goes out in one call, so that no other process can write into it; a line that a fault cut short is ended
    first, and readers pass over it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(entry, ensure_ascii=False, default=str).encode(errors="replace") + b"\n"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            line = b"\n" + line
        files.append(file, line)
    finally:
        os.close(file)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, those that a fault cut short left out; none where there is no file."""
    return news(path)[0]


def news(path: Path, begin: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The whole lines behind so many bytes of a file, and where they end; all where it was begun anew since."""
    found: list[dict[str, Any]] = []
    if not path.exists():
        return found, 0
    end = begin if begin <= path.stat().st_size else 0
    with path.open("rb") as file:
        file.seek(end)
        for line in file:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            with suppress(ValueError):
                if isinstance(entry := json.loads(line), dict):
                    found.append(entry)
    return found, end


def recent(path: Path, mark: str) -> list[tuple[datetime, str]]:
    """When, and what after ``mark``, an engine's log has said in the last minutes (:data:`RECENT`)."""
    found: list[tuple[datetime, str]] = []
    if not path.exists():
        return found
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL, 0))
        for line in file.read().decode(errors="replace").splitlines():
            with suppress(ValueError):
                if mark in line and abs(datetime.now() - (when := datetime.fromisoformat(line[:19]))) < RECENT:
                    found.append((when, line.partition(mark)[2].rstrip(".")))
    return found


class RunLog:
    """The exchanges of a run and how it stands: ``watch`` of a coordinator of remote sites.

    The run's folder gets ``log.jsonl`` and ``status.json``. A full disk stops the log, not the run.
    """

    def __init__(self, folder: Path, sites: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.status: dict[str, Any] = {"run": folder.name, "state": "running", "since": now(), "exchange": 0}
        self.status |= {"missing": {}, "quarantined": {}, "bytes_down": 0, "bytes_up": 0, "sites": list(sites)}
        with suppress(CoterieError):
            before = read_status(folder)
            self.status |= {k: before[k] for k in ("since", "bytes_down", "bytes_up", "exchange") if k in before}

    def __call__(self, event: Exchanged) -> None:
        """Note one exchange."""
        moment, status, work = now(), self.status, event.work.removeprefix("coterie.")
        missing = {
            site: status["missing"].get(site, {"since": moment, "exchange": event.number}) | {"why": why}
            for site, why in event.missing.items()
        }
        others = status["missing"].items()
        missing |= {site: what for site, what in others if site not in event.asked and site not in event.answered}
        status |= {"missing": missing, "exchange": event.number, "work": work, "updated": moment}
        status["bytes_down"] += event.down
        status["bytes_up"] += event.up
        entry = {"time": moment, "exchange": event.number, "kind": event.kind, "work": work, "asked": len(event.asked)}
        entry |= {"answered": list(event.answered), "missing": dict(event.missing), "clients": list(event.clients)}
        self.note(entry | {"bytes_down": event.down, "bytes_up": event.up, "seconds": round(event.seconds, 6)})

    def opened(self, clients: Mapping[str, int], away: Mapping[str, str]) -> None:
        """Note how many clients each site has, and which sites take no part and why."""
        said = {"clients": {site: n for site, n in clients.items() if n}, "away": dict(away)}
        self.status |= said
        self.note({"time": now(), **said})

    def quarantine(self, sites: Mapping[str, str]) -> None:
        """Note who is left out of the run, and why."""
        if dict(sites) != self.status["quarantined"]:
            self.status["quarantined"] = dict(sites)
            self.note()

    def anew(self, why: str) -> None:
        """Note that the run begins anew, and why."""
        self.status |= {"missing": {}, "quarantined": {}, "exchange": 0, "away": {}}
        self.note({"time": now(), "state": "begins anew", "why": why})

    def at(self, where: str) -> None:
        """Keep where its loops are, which ``status.json`` says from the next exchange on."""
        self.status["at"] = where

    def end(self, state: str, why: str = "") -> None:
        """Note how the run ended: "finished", "below quorum", "failed" or :data:`AGAIN`, and why."""
        said = {"state": state, "why": why}
        self.status |= said | {"updated": now()}
        self.note({"time": self.status["updated"], **said})

    def note(self, entry: Mapping[str, Any] | None = None) -> None:
        """Add a line to the log, and replace ``status.json``, whole."""
        with suppress(OSError):
            if entry is not None:
                append(self.folder / LOG, entry)
            text = json.dumps(self.status, indent=1, ensure_ascii=False)
            write_durable(self.folder / STATUS, [text.encode()])


def read_status(folder: Path) -> dict[str, Any]:
    """The ``status.json`` of a run; a CoterieError where there is none."""
    path = folder / STATUS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CoterieError(f"There is no run '{folder.name}' in '{folder.parent}'.") from None
    except (OSError, ValueError) as problem:
        raise CoterieError(f"'{path}' cannot be read: {problem}.") from problem
    if not isinstance(found, dict):
        raise CoterieError(f"'{path}' is no status of a run: run it again.")
    return found


def standing(run: Mapping[str, Any]) -> str:
    """Where a run is, by its ``status.json``, and how long what it is at still takes, where that is known."""
    return ", ".join(filter(None, (f"exchange {run['exchange']}", run.get("work", ""), run.get("at", ""))))


def trouble(run: Mapping[str, Any], goes_on: bool) -> str:
    """Why somebody has to look after a run, by its ``status.json``, "" where nobody has; whether a coordinator runs."""
    state = run["state"]
    if state == "running" and not goes_on:
        return f"Run '{run['run']}' was cut short: run it again, and it goes on"
    return f"Run '{run['run']}' ended as {state!r}: {run.get('why', '')}" if state in ("failed", "below quorum") else ""


def words(entry: Mapping[str, Any]) -> str:
    """A line for people: of an exchange, of an answer of a site, or of the end of a run."""
    try:
        return _words(entry)
    except Exception:  # a fault in what was read can come out anywhere, as anything
        return f"A line of the log cannot be read: {shortened(json.dumps(entry, default=str))}"


def _words(entry: Mapping[str, Any]) -> str:
    clock = str(entry.get("time", ""))[11:19]
    if "state" in entry:
        return f"{clock}  {entry['state']}{': ' + entry['why'] if entry.get('why') else ''}"
    if "away" in entry:
        there = ", ".join(f"{site} {n:,}" for site, n in entry["clients"].items())
        without = "".join(f"  {site} takes no part: {why}" for site, why in entry["away"].items())
        return f"{clock}  clients: {there}{without}"
    if "answered" in entry:
        missing = "; ".join(f"{site} missing: {why}" for site, why in entry["missing"].items())
        return (
            f"{clock}  exchange {entry['exchange']}  {entry['kind']} {entry['work']}  "
            f"{len(entry['answered'])} of {plural(entry['asked'], 'site')}  {_size(entry['bytes_down'])} down  "
            f"{_size(entry['bytes_up'])} up  {entry['seconds']:.2f} s{f'  {missing}' if missing else ''}"
        )
    what = " ".join(str(entry[k]) for k in ("kind", "work") if entry.get(k))
    number = f"exchange {entry['exchange']}" if "exchange" in entry else str(entry.get("run") or "")
    for trouble in ("refused", "failed", "garbled"):
        if trouble in entry:
            return f"{clock}  {number}  {what}  {trouble}: {entry[trouble]}"
    parts = [f"{clock}  {number}  {what}"]
    parts += [", ".join(f"{name} {shape}" for name, shape in entry.get("values", {}).items())]
    parts += [f"covers {plural(entry['covers'], 'row')} at least"] if "covers" in entry else []
    return "  ".join([p for p in parts if p] + [f"{_size(entry['bytes'])} out", f"{entry['seconds']:.2f} s"])


def _size(n: int) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:,.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1000  # type: ignore[assignment]
    return f"{n:,.1f} GB"
