"""The receiver of a deployed site, made from its folder: whatever asks, it answers, and it never raises.

A run's data are prepared once and kept on disk, so that a process which lives for one message (as Flower's clients do)
has them in milliseconds. The node of a run keeps its state in ``runs/<id>``.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial, wraps
from hashlib import blake2b, file_digest
from pathlib import Path
from threading import Lock
from traceback import format_exception
from typing import Any

import numpy as np

from coterie import files
from coterie.deployment import secure_sum_setup
from coterie.deployment.federation_toml import BOOK, PROBLEM, RELEASES, SCHEMA, SITE, Config
from coterie.deployment.schema import Schema, disagreements, far_apart
from coterie.deployment.site import disclosure, prepared_data
from coterie.deployment.site.nets import told
from coterie.deployment.site.redaction_and_owner_log import holds_numbers, note_answer, redact, tell_owner
from coterie.deployment.site.site_toml import Member
from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import ANEW, read_durable, write_durable
from coterie.engines.header_compression import CoordinatorLink
from coterie.engines.message_checks import Answer, failed, need_form
from coterie.engines.privacy import Guard
from coterie.engines.privacy.gaussian_mechanism import PUBLIC
from coterie.engines.site import Node
from coterie.errors import CoterieError, NoRows, fitting, plural
from coterie.federation import Site, Work
from coterie.options import call

Watch = Callable[[Any, bytes, float, Node | None, int], None]
Prepare = Callable[[Path, Member, Mapping[str, Any], str], prepared_data.Prepared]
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FAILS = f"by the rules of its owner it says no more: '{PROBLEM}' in the site's folder says why the work failed."
FORMS = "forms"
"""What a coordinator need not send again, nor this site: see :mod:`coterie.engines.header_compression`."""
LOCK = "lock"  # held by the process of a site that is answering: two at once would use a key twice, or draw noise twice
WAIT = 60.0  # seconds in which it must let go; after them the coordinator is told to ask again


class SiteReceiver:
    """One site of a deployed federation.

    ``watch(request, reply, seconds, node)`` is called after each answer, by default for the site's own ``log.jsonl``.
    ``member`` and ``config`` stand for the folder's ``site.toml`` and ``federation.toml``, and ``drawer``, a folder
    that is soon thrown away, for all that would be kept in the site's; runs are in memory then. ``prepare`` is that of
    :mod:`coterie.deployment.site.prepared_data`. A CoterieError says what is missing or wrong in the folder.
    """

    def __init__(
        self,
        folder: str | Path,
        watch: Watch | None = None,
        *,
        member: Member | None = None,
        config: Config | None = None,
        drawer: Path | None = None,
        prepare: Prepare = prepared_data.prepare,
    ) -> None:
        self.folder, self._given = Path(folder), member is not None
        self._site_stamp = () if self._given else files.stamp(self.folder / SITE)
        self.member, self.config = member or Member.read(self.folder), config or Config.read(self.folder)
        self.config.need_site(self.member.name)
        self._keep, self._durable, self._prepare = drawer or self.folder, drawer is None, prepare
        self._watch = watch or partial(note_answer, self._keep / "log.jsonl")
        self._releases = disclosure.Releases(self._keep / RELEASES, self.member.name)
        self._runs: dict[str, Node] = {}
        self._prepared: dict[str, prepared_data.Prepared] = {}
        self._run_stamps: dict[str, tuple[int, ...]] = {}
        self._lock, self._link = Lock(), CoordinatorLink(self._keep / FORMS)
        self._guard = self._guarded()

    def receive(self, data: bytes) -> bytes:
        """Answer one message: of the kinds check and open, or one that the node of its run answers."""
        with self._lock:
            self._told: partial[None] | None = None
            sent = self._link.answered(data, self._answer_locked)
            with suppress(OSError):  # a full disk stops the log, not the run
                if self._told is not None:
                    self._told(len(sent))
            return sent

    def _answer_locked(self, request: Any, key: bytes) -> bytes:
        """Answer and log while no other process of the site does; without a lock where files cannot be locked."""
        start = time.perf_counter()
        with ExitStack() as held:
            busy = f"another process of site '{self.member.name}' is answering"
            try:
                with suppress(OSError):
                    held.enter_context(files.locked(self._keep / LOCK, WAIT, busy))
            except CoterieError as problem:
                return wire.encode({"busy": str(problem)})
            run = request["run"] if isinstance(request, dict) and isinstance(request.get("run"), str) else ""
            if run in self._runs and self._run_stamp(run) != self._run_stamps.get(run):
                del self._runs[run]  # another process of this site has answered since
            reply = self._answer_or_refuse(request, key)
            if (node := self._runs.get(run)) is not None:
                self._run_stamps[run] = self._run_stamp(run)
            self._told = partial(self._watch, request, reply, time.perf_counter() - start, node)
        return redact(reply, self.folder, self.member.data)

    def _guarded(self) -> Answer:
        """What answers, behind the guard of the owner's privacy where ``site.toml`` has one."""
        if not self.member.privacy:
            return self._answer
        where = f"[privacy] of '{self.folder / SITE}'"
        return call(Guard, self.member.privacy, where, self._answer, book=self._keep / BOOK)

    def _answer_or_refuse(self, request: Any, key: bytes) -> bytes:
        try:
            if not self._given and (said := files.stamp(self.folder / SITE)) != self._site_stamp:
                self.member, self._site_stamp = Member.read(self.folder), said  # what its owner has written since
                self._guard = self._guarded()
                self._runs.clear()
            return self._by_site_toml(request, key)
        except CoterieError as problem:
            return wire.encode({"refused": f"Site '{self.member.name}': {problem}"})
        except OSError as problem:
            return wire.encode({"failed": f"{(problem.strerror or str(problem)).lower()}"})
        except Exception as problem:
            return failed(problem)

    def _by_site_toml(self, request: Any, key: bytes) -> bytes:
        """Answer what the owner's rules let leave; they come before the guard, which charges what it lets through."""
        if not isinstance(request, dict) or not isinstance(request.get("kind"), str):
            raise CoterieError("A request without a kind: use one version of coterie at all sites.")
        if request["kind"] in ("ask", "total"):
            names = prepared_data.works(request)
            for name in names:
                self.member.need(request["kind"], name)
            prepared_data.learn(self.folder, self.member, names)
            if self.member.guarded and not self.member.privacy:
                return self._by_disclosure(request, key)
        return self._guard(request, key)

    def _by_disclosure(self, request: dict[str, Any], key: bytes) -> bytes:
        """Answer by the rules of the owner, which remember what leaves and count what is refused for what rows hold."""
        rules = self.member.disclosure
        self._releases.need_bits(rules.refusals_per_day)
        bit = {name: request.get(name) for name in ("run", "kind", "work", "message", "rows", "by")}
        try:
            self._need_disclosable(request)
        except disclosure.TooFew as problem:
            self._tell_owner([f"Run '{request['run']}': {problem}"])
            if not isinstance(problem, disclosure.TooSmall):
                self._releases.decline(bit, rules.refusals_per_day)
            raise CoterieError(disclosure.DECLINES) from problem
        reply = self._guard(request, key)
        if holds_numbers(reply):
            self._releases.remember()
        elif FAILS.encode() in reply:
            self._releases.decline(bit, rules.refusals_per_day)
        return reply

    def _need_disclosable(self, request: Mapping[str, Any]) -> None:
        """Refuse an answer that the owner's rules do not let leave. Sums with noise are the guard's to judge."""
        rules, node = self.member.disclosure, self._node_of(request.get("run"))
        if not rules.plain and (request["kind"] == "ask" or "secure" not in request) and request["work"] not in PUBLIC:
            raise CoterieError("Its owner lets nothing leave that is neither a secure sum nor has noise (plain).")
        need_form(request)
        run, held = request["run"], self._prepared[request["run"]]
        for name in prepared_data.works(request) if held.parts else ():
            self.member.need_sum(name)
        counts = node.about()["counts"]
        few = bool(np.any(counts < self.member.min_group))  # else sums over clients can tell of none
        parts = held.parts or held.sides or ((disclosure.nameless(run, counts),) if few else ())
        self._releases.need(parts, request, held.clusters, self.member.min_group, rules, held.width)

    def _hiding_errors(self, work: Work, table: bool) -> Work:
        """A work whose errors say nothing of rows: their words stay here, unless they are coterie's own.

        That a sum over a table, or a private one, fails tells no more than that it does, whatever it fails of.
        """
        ours = work.__module__.split(".")[0] == "coterie" and not table and not self.member.privacy

        @wraps(work)
        def quiet(site: Site, **message: Any) -> Mapping[str, Any]:
            inspect.signature(work).bind(site, **message)
            try:
                return work(site, **message)
            except Exception as problem:
                if ours and isinstance(problem, CoterieError):
                    raise
                self._tell_owner(["".join(format_exception(problem)).rstrip()])
                raise CoterieError(FAILS) from None

        return quiet

    def _tell_owner(self, lines: Iterable[str]) -> None:
        """Write down what does not leave; a full disk keeps it to itself."""
        with suppress(OSError):
            tell_owner(self._keep, lines)

    def _answer(self, request: dict[str, Any], key: bytes) -> bytes:
        if request["kind"] == "check":
            return wire.encode({"done": "check"} | self.check(request))
        run: Any = request.get("run")
        if request["kind"] == "open":
            task, seed = request.get("task"), request.get("seed")
            if not isinstance(task, dict) or not isinstance(seed, int):
                raise CoterieError("A run is opened with a task and a seed: use one version of coterie at all sites.")
            return wire.encode(self._open(run, task, seed))
        node = self._node_of(run)
        if request["kind"] == "about" and self._prepared[run].counts is not None:
            return wire.encode(self._about(run))
        return node.answer(request, key)

    def _node_of(self, run: Any) -> Node:
        """The node of a run that was opened here, by this process or an earlier one."""
        before = self._opened(run)
        if run not in self._runs:
            if before is None:
                raise CoterieError(f"Run '{run}' was not opened here: begin it again.")
            task = before["asked"]["task"]
            if before["stat"] != self._data_stat(task) and self._data_digest(task) != before["data"]:
                raise CoterieError(f"The data of run '{run}' have changed since: put them back, or begin again.")
            self._runs[run] = self._node(run, task, before["asked"]["seed"], before["data"], before["secure"])
        return self._runs[run]

    def _about(self, run: str) -> dict[str, Any]:
        """Who is here, with rows of each client that do not depend on what the rows hold."""
        counts = self._prepared[run].counts
        return self._runs[run].about() | ({} if counts is None else {"counts": counts})

    def check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Versions, the clock, and how this site's schema and table differ from the coordinator's schema.

        Of the table only names of columns leave, and what enough rows have: levels, values that are none of a column,
        and that the mean or the spread of all rows is far from what the owner's own schema says.
        """
        from coterie import __version__

        found: dict[str, Any] = {"name": self.member.name, "version": __version__, "clock": time.time()}
        found |= {"columns": None, "doubts": [], "present": {}}
        if not self.member.data and self.member.allow:  # a site of objectives, without a table
            return found | {"problems": []}
        from coterie.data.table_files import read_table
        from coterie.deployment.site.table import validate_rows

        guarded = self.member.guarded
        least = max(self.member.min_group, self.member.disclosure.min_level) if guarded else 1
        try:
            own, path = Schema.read(self.folder / SCHEMA), self.member.table(self.folder)
        except CoterieError as problem:
            return found | {"problems": [str(problem).rstrip(".")]}
        try:
            df = read_table(path, own.labels, own.na_values)
            own, seen = validate_rows(df, own, least)
        except CoterieError as problem:
            if not guarded:
                return found | {"problems": [str(problem).rstrip(".")]}
            self._tell_owner([str(problem)])
            return found | {"problems": [f"Its table cannot be read: '{PROBLEM}' in the site's folder says why"]}
        if seen.rows:
            self._tell_owner(seen.rows)
        problems, doubts = seen.problems, seen.doubts
        if len(df) < self.member.min_group:
            problems.append("its table has fewer rows than any of its numbers must cover to leave (min_group)")
        if request.get("schema"):
            agreed = Schema.of(request["schema"])
            problems += disagreements(agreed, own)
            doubts = list(dict.fromkeys([*doubts, *far_apart(agreed, own)]))
        if not self.member.privacy:  # whose budget neither of these is charged to
            found |= {"doubts": doubts, "present": seen.present}
        return found | {"problems": problems, "columns": own.statement()}

    def _open(self, run: str, task: dict[str, Any], seed: int) -> dict[str, Any]:
        """Prepare a run, or say again what was prepared: who is here."""
        before, asked = self._opened(run), {"task": task, "seed": seed}
        if self.member.guarded:
            for start in task.get("works", ()) if not self.member.privacy else ():
                self.member.need_some(str(start))
            self._count_formula(task, None if before is None else before["asked"]["task"])
            if (task.get("net") or task.get("hold")) and run not in self._runs:
                self._releases.need_bits(self.member.disclosure.refusals_per_day)
        data = self._data_digest(task)
        if before is not None:
            if wire.encode(before["asked"]) != wire.encode(asked):
                raise CoterieError(f"Run '{run}' exists at this site with different options: choose another name.")
            if before["data"] != data:
                raise CoterieError(f"The data of run '{run}' have changed since: give the new run another name.")
        if run not in self._runs:
            if before is not None:
                secure = before["secure"]  # as it was when the run began, whoever has joined the federation since
            else:
                secure = secure_sum_setup.agreed(self.folder, self.config, self.member.name)
            try:
                node = self._node(run, task, seed, data, secure)
            except disclosure.TooFew as problem:  # whether rows fit a net, or can be split by a column, tells one bit
                self._tell_owner([f"Run '{run}': {problem}"])
                self._releases.decline(task, self.member.disclosure.refusals_per_day)
                why = f"'{PROBLEM}' in its folder says why."
                raise CoterieError(f"Its rows do not fit the net or the split: {why}") from problem
            # The file first: a run that is not in it would end with this process.
            kept = {"asked": asked, "data": data, "stat": self._data_stat(task), "secure": secure}
            write_durable(self._path(run), wire.pieces(kept))
            self._runs[run] = node
        return self._about(run) | {"done": "open"}

    def _count_formula(self, task: Mapping[str, Any], before: Any) -> None:
        """Count a formula that is asked for the first time; refuse sums over fewer sites than the owner wants."""
        rules, secure = self.member.disclosure, secure_sum_setup.settings(self.config)
        if secure is not None and (least := secure.least(len(self.config.sites))) < rules.min_sites:
            raise CoterieError(
                f"Sums over {plural(least, 'site')} may be opened in this federation, and its owner wants "
                f"{rules.min_sites} at least (min_sites)."
            )
        if task.get("kind") == "table" and task != before:
            self._releases.ask({k: v for k, v in task.items() if k != "works"}, rules.formulas_per_day)

    def _node(self, run: str, task: dict[str, Any], seed: int, data: str, secure: Mapping[str, Any]) -> Node:
        from coterie import __version__

        try:
            held = self._prepare(self.folder, self.member, task, data)
        except NoRows as problem:
            reason = str(problem)
            held = prepared_data.without_clients(task, f"{reason[0].lower()}{reason[1:]}")
        info: dict[str, Any] = {"version": __version__, "notes": list(held.notes), "levels": list(held.levels)}
        info["min_group"] = self.member.min_group
        if (task.get("kind") == "factory" or task.get("net")) and len(held.ids):
            info["net"] = told(held.objective)
        self._prepared[run] = held
        return Node(
            self.member.name, held.objective, held.clusters, np.ones(len(held.ids)), held.ids, seed=seed,
            folder=self._path(run).parent if self._durable else None, labels=held.labels,
            levels=list(held.levels.values()), info=info,
            min_group=self.member.min_group if self.member.privacy or not held.parts else 0,  # else the rules look
            secure=secure_sum_setup.secure_site(self.folder, secure, self.member.name, run),
            around=partial(self._hiding_errors, table=bool(held.parts)) if self.member.guarded else None,
        )  # fmt: skip

    def _run_stamp(self, run: str) -> tuple[int, ...]:
        """What tells the state of a run in its folder from what any other call left there."""
        return files.stamp(self._path(run).parent / "head")

    def _opened(self, run: Any) -> dict[str, Any] | None:
        """What a run was opened with here; None where it was not."""
        path = self._path(run)
        if not path.exists():
            return None
        found: dict[str, Any] = read_durable(path, ANEW)
        with fitting(f"What this site keeps of run '{run}'", f"{ANEW.capitalize()}."):
            asked, kinds = found["asked"], {"data": str, "stat": list, "secure": dict}
            if not (type(asked["task"]) is dict and type(asked["seed"]) is int):
                raise TypeError
            if any(type(found[name]) is not kind for name, kind in kinds.items()):
                raise TypeError
            if (secure := found["secure"]) and not (
                type(secure["settings"]) is dict and all(type(key) is bytes for key in secure["peers"].values())
            ):
                raise TypeError
        return found

    def _path(self, run: Any) -> Path:
        """The file of an opened run; a CoterieError for what cannot be the name of one."""
        if not isinstance(run, str) or not _RUN.fullmatch(run):
            raise CoterieError(f"{run!r} is no name of a run.")
        return self._keep / "runs" / run / "opened"

    def _data_stat(self, task: Mapping[str, Any]) -> list[int]:
        """What changes when the data file does, without reading it; a factory looks after its own data."""
        if task.get("kind") != "table":
            return []
        stat = self.member.table(self.folder).stat()
        return [stat.st_size, stat.st_mtime_ns, stat.st_ino]

    def _data_digest(self, task: Mapping[str, Any]) -> str:
        if task.get("kind") != "table":
            return ""
        with self.member.table(self.folder).open("rb") as file:
            return file_digest(file, partial(blake2b, digest_size=16)).hexdigest()


def receiver(folder: Path) -> Callable[[bytes], bytes]:
    """What answers at the site of a folder; where the folder is wrong, it answers that."""
    try:
        return SiteReceiver(folder).receive
    except (CoterieError, OSError) as problem:
        reply = redact(wire.encode({"refused": f"The site cannot take part: {problem}"}), folder)
        return lambda _: reply
