"""A call of :func:`coterie.fit` or advice whose rows lie at the sites of a federation: its run, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from coterie import files
from coterie.deployment import folders, logs
from coterie.deployment.coordinator.run import ADVICE, verify
from coterie.deployment.coordinator.run_toml import RunConfig, advice_asked
from coterie.deployment.federation_toml import LONGEST
from coterie.errors import CoterieError
from coterie.options import need_names
from coterie.results.advice import Advice
from coterie.results.fit_result import FitResult
from coterie.results.saved_results import MODEL, TRAINING, load
from coterie.results.saved_values import from_json, unplain
from coterie.results.training_result import TrainingResult
from coterie.status_line import AFTER, status

Go = Callable[[Any, Path, str, float], object]
"""What follows a run to its end: called with the engine, the coordinator's folder, the run's name and the seconds."""

_LOOK = 0.5  # seconds between looks at where a run is


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
            with _shown(there):
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


@contextmanager
def _shown(run: Path) -> Iterator[None]:
    """To a person, a line meanwhile: at which exchange the run is, and how long its loops still take."""
    ended = Event()

    def look(live: Any) -> None:
        while not ended.wait(_LOOK):
            with suppress(CoterieError):
                live.update(f"Run '{run.name}': {logs.standing(logs.read_status(run))}")

    with status(f"Run '{run.name}' begins ...", AFTER) as line:
        looking = Thread(target=look, args=(line.live,), daemon=True)
        try:
            if line.live is not None:
                looking.start()
            yield
        finally:
            ended.set()
            if looking.is_alive():
                looking.join()


def advise(folder: str | Path, formula: str, given: Mapping[str, Any]) -> Advice:
    """Advice on the clients of the sites; ``engine`` is as for :func:`fit`."""
    return advice_in(carried_out(folder, advice_asked(formula, given), **_named(given.get("engine", {}))))


def advice_in(run: Path) -> Advice:
    """The advice that a run left."""
    return Advice.from_document(unplain(from_json(files.content(run / "result" / ADVICE))))


def result_in(run: Path) -> FitResult | TrainingResult | None:
    """The result of a formula's run, or of nets that were compared; None of what is neither."""
    there = any((run / "result" / form.file).is_file() for form in (MODEL, TRAINING))
    return load(run / "result") if there else None


def fit(folder: str | Path, what: Mapping[str, Any], given: Mapping[str, Any]) -> FitResult | TrainingResult:
    """Run a program over the sites, whose engine runs; ``engine`` may give the run's ``name``, and a ``timeout``."""
    found = result_in(carried_out(folder, what, **_named(given.get("engine", {}))))
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
