"""A call of :func:`coterie.fit` whose rows lie at the sites of a federation: what its run does, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import files
from coterie.deployment import folders
from coterie.deployment.coordinator.run import ADVICE, verify
from coterie.deployment.coordinator.run_toml import ADVISE, COMPARE, RunConfig
from coterie.deployment.federation_toml import LONGEST
from coterie.errors import CoterieError, listed
from coterie.evidence.comparison import BASELINES
from coterie.families import DEFAULT
from coterie.methods.registry import FITTED
from coterie.options import declared, need_names
from coterie.results.advice import Advice
from coterie.results.fit_options import Columns, Options
from coterie.results.fit_result import FitResult
from coterie.results.saved_results import load
from coterie.results.saved_values import from_json

Go = Callable[[Any, Path, str, float], object]
"""What follows a run to its end: called with the engine, the coordinator's folder, the run's name and the seconds."""
_ROWS_TOGETHER = ("order_by", "split_by")
_TASK = (*(name for name in declared(Columns) if name != "formula"), "family")
_OPTIONS = [name for name in declared(Options) if name not in (*_TASK, *_ROWS_TOGETHER, "method", "seed")]


def program(
    formula: str | None, given: Mapping[str, Any], objective: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What ``run.toml`` says, of those arguments of :func:`coterie.fit` that are given.

    ``objective`` stands for a table: the ``factory`` that makes a site's, and its ``options``. A method is "auto", a
    name, or module:function. A CoterieError names what is missing, and what sites do not take.
    """
    for name in [name for name in _ROWS_TOGETHER if name in given]:
        raise CoterieError(f"Over sites there is no {name}: sites hold out rows by the seed alone.")
    method, rounds = given.get("method", "auto"), given.get("rounds")
    several: dict[str, Any] = {"methods": list(given["methods"])} if "methods" in given else {}
    if several and isinstance(rounds, int) and given.get("main") is None:
        several["rounds"], rounds = rounds, None
    if rounds is not None and not isinstance(rounds, Mapping):
        rounds = {FITTED[method].length if method in FITTED else "rounds": rounds}
    rounds = files.plain(dict(rounds or {}) | ({} if given.get("main") is None else {"main": given["main"]}))
    options = {name: files.plain(given[name]) for name in _OPTIONS if name in given and name != "rounds"}
    task: dict[str, Any] = {name: given[name] for name in _TASK if name in given}
    if objective is not None:
        if formula is not None or task:
            raise CoterieError(
                "--objective stands for a table: leave out --formula, --family and the names of columns."
            )
        if method == "auto":
            raise CoterieError("Which method trains the objective? Name one with --method, such as fedavg.")
        task = dict(objective)
    elif formula is None:
        raise CoterieError("Say what is modelled: add --formula 'outcome ~ columns', or --objective module:function.")
    else:
        task = {"formula": formula, "family": DEFAULT, "missing": "error"} | task
    if several:
        method, options = COMPARE, options | several
    if method == "auto":
        method = "given-strengths" if "gamma" in given else "hierarchical"
    if objective is not None or ":" in method:
        if options:
            raise CoterieError(
                f"{listed(options)} {'is' if len(options) == 1 else 'are'} for methods on a formula, not for "
                f"'{method}': "
                "give its options by rounds (--rounds NAME=VALUE)."
            )
        options = rounds
    elif rounds:
        options["rounds"] = rounds
    seed = {"seed": given["seed"]} if "seed" in given else {}
    return {"program": method, **seed, "task": task, "options": options}


def comparing(methods: Sequence[str]) -> dict[str, Any]:
    """Arguments of a call that compares: one split, and the methods beside `local` and `pooled`, always in."""
    found = [name for name in dict.fromkeys(methods) if name not in BASELINES]
    if len(found) > 1 or "all" in found:
        return {"splits": 1, "methods": found}
    return {"splits": 1, "method": next(iter([*found, *methods]), "auto")}


def carried_out(
    folder: str | Path, what: Mapping[str, Any], name: str | None = None, timeout: float = LONGEST, go: Go | None = None
) -> Path:
    """Run a program over all sites, or go on with the run of that name; the folder of the run comes back.

    Whatever the coordinator can know to be wrong is said before any site is asked, and leaves nothing behind.
    """
    home, config, engine = folders.opened(folder)
    run_id = name or folders.unused(home, what["program"])
    with folders.begun(home, run_id, what) as there:
        verify(home, RunConfig(**what), config)
        try:
            if go is None:
                engine.run(home, run_id, timeout)
            else:
                go(engine, home, run_id, timeout)
        except CoterieError as problem:  # sites may be away since a certificate has ended
            said = folders.trouble(engine, home)
            if said is None or said[-40:] in str(problem):
                raise
            raise CoterieError(f"{problem} {said}") from problem
    return there


def advice_asked(formula: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What ``run.toml`` says of advice, of the arguments of :func:`coterie.advise`; by default one split is made."""
    rounds = {name: given[name] for name in ("collaborators", "within", "prior") if given.get(name) is not None}
    kept = {name: value for name, value in given.items() if name not in rounds and value not in (None, (), [])}
    return program(formula, {"splits": 1} | kept | {"method": ADVISE, "rounds": rounds})


def advise(folder: str | Path, formula: str, given: Mapping[str, Any]) -> Advice:
    """Advice on the clients of the sites; ``engine`` is as for :func:`fit`."""
    return advice_in(carried_out(folder, advice_asked(formula, given), **_named(given.get("engine", {}))))


def advice_in(run: Path) -> Advice:
    """The advice that a run left."""
    return Advice.from_document(from_json(files.content(run / "result" / ADVICE)))


def result_in(run: Path) -> FitResult | None:
    """The result of a formula's run; None of what is no model of a table."""
    found = load(run / "result") if (run / "result" / "model.json").is_file() else None
    return found if isinstance(found, FitResult) else None


def fit(folder: str | Path, formula: str, given: Mapping[str, Any]) -> FitResult:
    """Fit a formula over the sites, whose engine runs; ``engine`` may give the run's ``name``, and a ``timeout``."""
    found = result_in(carried_out(folder, program(formula, given), **_named(given.get("engine", {}))))
    if found is None:
        raise CoterieError(f"'{given['method']}' makes no model of a table: run it with 'coterie fit'.")
    return found


def _named(engine: Any) -> dict[str, Any]:
    """The name of a run and its timeout."""
    if not isinstance(engine, Mapping):
        raise CoterieError(
            f"The federation's folder says over which engine it runs: leave engine='{engine}' out, or name the run "
            'with engine={"name": "exact"}.'
        )
    need_names("The engine of a federation", engine, ("name", "timeout"))
    return dict(engine)
