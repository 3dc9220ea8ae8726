"""What a coordinator does in a run, over any transport: a program is verified, carried out, and its result kept."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from safetensors.numpy import save as to_bytes

from coterie import files
from coterie.data.prepare_table import check_choices, check_roles, check_trials
from coterie.data.splits import BY
from coterie.deployment import secure_sum_setup
from coterie.deployment.coordinator import nets
from coterie.deployment.coordinator.advise import advise
from coterie.deployment.coordinator.check_sites import GATHER, run_check
from coterie.deployment.coordinator.fit import fit, need_rows, settled
from coterie.deployment.coordinator.run_toml import ADVISE, CHECK, COMPARE, NETS, RunConfig, digest
from coterie.deployment.federation_toml import RUN, SCHEMA, Config
from coterie.deployment.logs import RunLog
from coterie.deployment.membership import Members, SitesGone
from coterie.deployment.processes import PATIENCE
from coterie.deployment.schema import Schema, clusters_of, design_of
from coterie.engines.checkpoint_and_journal import write_durable
from coterie.engines.coordinator import Exchanged
from coterie.engines.retry_and_quorum import BelowQuorum, Policy
from coterie.engines.site import NO_RECORD
from coterie.engines.site_enrolment import Remote, Transport
from coterie.errors import CoterieError, NotAll, fitting, joined, listed, nearest
from coterie.families import DEFAULT
from coterie.methods.registry import TRAINED, trained_method
from coterie.options import Checked, Option, call, of
from coterie.results.call_as_config import table_call_sections
from coterie.results.fit_result import FitResult
from coterie.results.saved_values import plain
from coterie.runs.loop_and_callbacks import follow
from coterie.status_line import told
from coterie.user_code import import_object

RESULT, JOURNAL, ADVICE = "result", "journal", "advice.json"
PATIENT: dict[str, Any] = {
    "deadline": 240.0, "retries": 10**6, "pause": 0.5, "min_clients": "all", "strict": False, "rejoin": 30.0,
}  # fmt: skip
"""Policy of a deployed run where nothing else is said: a site has four minutes to come back, none may be missing."""


def run(
    transport: Transport,
    folder: str | Path,
    run_id: str,
    expected: str | None = None,
    refused: Mapping[str, str] | None = None,
) -> None:
    """Run the program of ``folder/runs/<run_id>``, or go on with it, and leave its result there.

    The sites are those that the engine vouches for, but for ``refused``, by site and reason. ``expected`` is the digest
    of the program that the command named. Where a site leaves the federation meanwhile, the run begins anew without it.
    A CoterieError, which ``status.json`` has too, says what ends it; a BelowQuorum, that it goes on if it is run again.
    """
    folder = files.local(folder)
    home = folder / "runs" / run_id
    log = RunLog(home, tuple(transport.sites))
    try:
        if expected is not None and digest(folder, run_id) != expected:
            raise CoterieError(f"'{home / RUN}' is not what the command wrote: give the run another name.")
        program, config = RunConfig.read(home / RUN), Config.read(folder)
        ended = False
        while not ended:
            members = Members(transport, folder, home, refused)
            log.status["sites"] = members.sites
            try:
                if program.program == CHECK:
                    run_check(members, folder, run_id, bool(program.options.get("unite")))
                else:
                    with told(log.at):
                        _run(members, folder, home, program, replace(config, secure=members.secure), log)
                ended = True
            except SitesGone as change:
                log.anew(str(change))
    except BelowQuorum as problem:
        if NO_RECORD in str(problem):
            text = (
                f"Sites keep a run '{run_id}' that this coordinator has no record of: its folder was removed, or the "
                "run is another's. Give this one another name (--name)."
            )
            log.end("failed", text)
            raise CoterieError(text) from problem
        log.end("below quorum", str(problem))
        raise
    except OSError as problem:
        why = (problem.strerror or str(problem)).lower()
        text = f"The coordinator cannot write in '{home}' ({why}): put that right, then run again, and it goes on."
        log.end("failed", text)
        raise CoterieError(text) from problem
    except NotAll as problem:  # counted all the same: under its name the run would go through it again
        who = listed(log.status["missing"]) or "a site"
        text = (
            f"In an exchange {who} did not answer, and {program.program} needs all sites: run it under "
            'another name. With min_clients = "all" under [policy] a run waits there, and goes on.'
        )
        log.end("failed", text)
        raise CoterieError(text) from problem
    except Exception as problem:
        log.end("failed", str(problem) or type(problem).__name__)
        raise
    except BaseException:
        log.end("stopped", "It was ended from outside; run again, and it goes on.")
        raise
    log.end("finished")


def verify(folder: Path, program: RunConfig, config: Config) -> None:
    """Raise for what a program's coordinator, whose folder it is, can know to be wrong without a row.

    That is: options and values that the method does not have, a formula that does not fit the schema, and a function
    that cannot be found or called with the options.
    """
    policy(config.policy)
    if program.program == CHECK:
        return
    if "factory" not in (task := program.task):
        check_choices(task.get("family", DEFAULT), task.get("missing", "error"))
        if "formula" in task and (folder / SCHEMA).exists():
            schema = Schema.read(folder / SCHEMA)
            parsed = design_of(schema, task).parsed
            roles = {role: task[role] for role in ("offset", "weights") if task.get(role)}
            said = {**program.options, **program.options.get("data", {})}
            by = {name: said[name] for name in BY if said.get(name)}
            if len(by) > 1:
                raise CoterieError(f"{joined([*by])} each say which rows are held out: name one of them.")
            named = [task.get("client"), *roles.values(), *clusters_of(task), *by.values()]
            if lost := [name for name in named if name and name not in schema.columns]:
                raise CoterieError(f"The schema has no column '{lost[0]}'.{nearest(lost[0], schema.columns)}")
            check_roles(parsed, task.get("client"), clusters_of(task), roles)
            check_trials(parsed, task.get("family", DEFAULT), roles.get("weights"))
    if program.program == NETS:
        nets.need_possible(nets.configured(program.options, config.seed, folder), config)
    elif program.fits:
        if config.privacy:
            raise CoterieError(
                f"The sums of method '{program.program}' have no bound, so noise cannot make them private: leave "
                "[privacy] out of federation.toml, or train a model by its name."
            )
        settled(program, schema_of(folder), program.seeded(config))
    elif program.program in TRAINED:
        training(program, program.seeded(config))
    else:
        function(folder, program)


def schema_of(folder: Path) -> Schema:
    """The coordinator's schema."""
    path = folder / SCHEMA
    if not path.exists():
        raise CoterieError(f"The coordinator has no {SCHEMA}: 'coterie federation check --unite' makes one.")
    return Schema.read(path)


@dataclass(frozen=True)
class TrainingLength(Checked):
    """How long a method trains."""

    rounds: Annotated[int, Option("Of training.", low=1)] = 20
    keep_every: Annotated[int, Option("Rounds after which its state is kept.", low=1)] = 10


def training(program: RunConfig, seed: int) -> tuple[Any, TrainingLength]:
    """A method that trains at home, and for how long."""
    options, found = dict(program.options), trained_method(program.program)
    length = TrainingLength(**{key: options.pop(key) for key in ("rounds", "keep_every") if key in options})
    found.check(options)
    if several := [key for key, value in options.items() if found.several(key, value)]:
        raise CoterieError(
            f"{several[0]} must be one value: several methods or settings are what 'coterie compare' chooses among."
        )
    return found.make(seed, **options), length


def function(folder: Path, program: RunConfig) -> Any:
    """A program of the coordinator's owner, which takes the federation and the options."""
    found = import_object(program.program, folder=folder)
    if isinstance(found, type):
        raise CoterieError(
            f"'{program.program}' is a class, and a program is a function that is called with the federation: write "
            "one that runs the method and returns what is to be kept."
        )
    try:
        inspect.signature(found).bind(None, **program.options)
    except (TypeError, ValueError) as problem:
        raise CoterieError(
            f"'{program.program}' cannot be called with the federation and these options: {problem}."
        ) from problem
    return found


def _run(transport: Members, folder: Path, home: Path, program: RunConfig, config: Config, log: RunLog) -> None:
    verify(folder, program, config)
    schema = Schema.read(folder / SCHEMA) if (folder / SCHEMA).exists() else None
    feds, fresh = list[Remote](), list[Exchanged]()  # without any that is fresh the result is there, with its seconds
    # Such a run is of no use where a site tells nothing of some clients.
    every_client = program.fits and program.program != ADVISE and bool(program.task.get("client"))

    def opened(part: str = "", seed: int | None = None, **task: Any) -> Remote:
        """The federation of the run, or of a part of it, whose exchanges are counted on."""

        def watch(event: Exchanged) -> None:
            fresh[:] = [event]
            log(replace(event, number=event.number + sum(other.number for other in feds if other is not fed)))
            log.quarantine({site: why for fed in feds for site, why in fed.quarantined.items()})

        fed = Remote(
            transport,
            run=".".join(filter(None, (home.name, transport.course, part))),
            task=program.asked(schema) | task,
            seed=program.drawn(config) if seed is None else seed,
            policy=policy(config.policy),
            journal=journal / part,
            watch=watch,
            secure=secure_sum_setup.settings(config),
            need=need_rows if every_client and not part else lambda _: None,
            whole=program.program not in TRAINED and (program.fits or program.program == NETS),  # nobody is left out
        )
        feds.append(fed)
        return fed

    journal = home / "-".join(filter(None, (JOURNAL, transport.course)))
    went = (journal / "participants").exists()
    fed = opened()
    log.opened({name: len(rows) for name, rows in zip(fed.names, fed.sites, strict=True)}, fed.away)
    if not (program.fits or program.program in (NETS, *TRAINED)):
        _save(home / RESULT, dict(function(folder, program)(fed, **program.options)))
        return
    with fitting(f"The journal of run '{home.name}'", "Run again under another name.") if went else nullcontext():
        if program.program == NETS:
            found = nets.compare(nets.configured(program.options, config.seed, folder), fed, opened, schema)
            if fresh or not (home / RESULT).exists():
                found.save(home / RESULT)
        elif program.fits:
            schema, seeded = schema_of(folder), replace(program, seed=program.seeded(config))
            if program.program == ADVISE:
                said = advise(fed, seeded, schema, opened, bool(config.secure)).document()
                write_durable(home / RESULT / ADVICE, [json.dumps(plain(said), ensure_ascii=False).encode()])
                return

            def save(result: FitResult) -> None:
                said = {"method": "auto" if program.program == COMPARE else result.method, "seed": program.seed}
                call = table_call_sections(str(folder), program.task | program.options | said)
                if "splits" in program.options:  # whose default is another over sites
                    call.setdefault("evidence", {})["splits"] = program.options["splits"]
                if fresh or not (home / RESULT).exists():
                    replace(result, call=call).save(home / RESULT)

            fit(fed, seeded, schema, save, opened, secure=bool(config.secure))
        else:
            _save(home / RESULT, _trained(fed, program, config))


def policy(given: Mapping[str, Any]) -> Policy:
    """The policy of a deployed run, from ``[policy]`` of ``federation.toml``."""
    return of(Policy, PATIENT | dict(given), "[policy]")


def waits(folder: Path, run_id: str) -> tuple[bool, float]:
    """Whether a run needs all sites from its start, and how many seconds it waits for them."""
    checks = files.read_toml(folder / "runs" / run_id / RUN, "the program of a run").get("program") == CHECK
    whole = not checks and policy(Config.read(folder).policy).min_clients == "all"
    return whole, GATHER if checks else PATIENCE


def _trained(fed: Any, program: RunConfig, config: Config) -> dict[str, Any]:
    """The state at the end of a method that trains at home; it is kept in the journal every few rounds."""
    method, length = training(program, program.seeded(config))
    if hasattr(method, "labels"):
        method = replace(method, labels=fed.participants.labels)
    home = fed
    if config.privacy:
        from coterie.engines.privacy import Private

        fed = call(Private, {"rounds": length.rounds} | config.privacy, "[privacy]", fed)
    kept = fed.kept
    begun = dict(kept) if kept is not None else method.init(fed)

    def keep(state: Mapping[str, Any], _: bool) -> None:
        if state["t"] % length.keep_every == 0:
            fed.keep(state)

    state, _ = follow(method, fed, begun, length.rounds, keep=keep)
    found = {**state, "ledger": home.ledger.as_dict(), "clients": [str(label) for label in home.participants.labels]}
    return found | ({"privacy": fed.statement} if config.privacy else {})


def _save(folder: Path, found: Mapping[str, Any]) -> None:
    """Arrays in ``arrays.safetensors``, and all else in ``result.json``, which is written last."""
    flat = dict(_flattened("", found))
    arrays = {
        k: np.ascontiguousarray(v) for k, v in flat.items() if isinstance(v, np.ndarray) and v.dtype.kind in "biuf"
    }
    rest = {k: _as_json(v) for k, v in flat.items() if k not in arrays}
    write_durable(folder / "arrays.safetensors", [to_bytes(arrays)])
    write_durable(folder / "result.json", [json.dumps(rest, indent=1, ensure_ascii=False).encode()])


def _flattened(prefix: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        yield prefix, value
        return
    for name, inner in value.items():
        yield from _flattened(f"{prefix}.{name}" if prefix else str(name), inner)


def _as_json(value: Any) -> Any:
    """A value as JSON has it; numbers that are none become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_as_json(v) for v in value]
    return value if isinstance(value, str | bool | int) or value is None else str(value)
