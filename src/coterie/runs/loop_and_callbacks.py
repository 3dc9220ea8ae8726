"""One run: a ``for`` loop over a method's states, and the callbacks that watch it and may end it early."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from operator import itemgetter
from typing import Any

from coterie import files
from coterie.errors import RAISED, CoterieError
from coterie.runs.config import Config, called
from coterie.status_line import steps

State = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """A run after a round."""

    method: str
    round: int  # done
    rounds: int  # planned
    seconds: float  # since the run began
    bytes_up: int  # to the server since then
    bytes_down: int
    scores: Mapping[str, float] = field(default_factory=dict)  # the last held-out ones; none before the first
    fresh: bool = False  # whether they are of this round
    state: State = field(default_factory=dict)  # the method's; not to be changed


class Callback:
    """A callback that does nothing: the base of others. It gets a :class:`Look` after every round."""

    def start(self, settings: Mapping[str, Any]) -> None:
        """Before the first round, with the settings of the run."""

    def look(self, look: Look) -> bool | None:
        """After a round; True ends the run."""

    def end(self) -> None:
        """After the last round, also where the run failed."""


def follow(
    method: Any,
    fed: Any,
    state: State,
    rounds: int,
    looks: Sequence[Callable[[State], bool | None]] = (),
    keep: Callable[[State, bool], None] | None = None,
) -> tuple[State, str]:
    """All rounds from a state on; the last state, and "stopped" where a look ended the run, else the method's status.

    Every look is told of every state and may answer True, which ends the run; ``keep`` is then given each state of a
    run that goes well, and whether it is the last.
    """
    done = state["t"]
    states = method.run(fed, range(done + 1, rounds + 1), state)
    for state in steps(states, rounds, "Rounds", itemgetter("t"), done):
        told = [look(state) for look in looks]
        last = any(told) or state["t"] == rounds
        if state["status"] != "running":
            continue
        if keep is not None:
            keep(state, last)
        if last:
            return state, "stopped" if state["t"] < rounds else "running"
    return state, str(state["status"])


class UserDefined(Callback):
    """A function of a look, or an object with some of ``start``, ``look`` and ``end``, by its import path.

    Where it fails, a CoterieError says so.
    """

    def __init__(self, path: str, inner: Any) -> None:
        self.path = path
        self.asked = {name: getattr(inner, name) for name in ("start", "look", "end") if hasattr(inner, name)}
        if "look" not in self.asked:
            self.asked = {"look": inner}

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            return self.asked[name](*arguments) if name in self.asked else None
        except CoterieError:
            raise
        except RAISED as e:
            raise CoterieError(f"The callback '{self.path}' raises {type(e).__name__} in {name}: {e}.") from e

    def start(self, settings: Mapping[str, Any]) -> None:
        """Hand it on."""
        self._ask("start", settings)

    def look(self, look: Look) -> bool | None:
        """Hand it on."""
        return bool(self._ask("look", look))

    def end(self) -> None:
        """Hand it on."""
        self._ask("end")


class TensorBoard(Callback):
    """Scores and bytes as scalars of TensorBoard, in a folder for every method below the one that is given."""

    def __init__(self, folder: str) -> None:
        self.folder = files.local(folder)
        self._made: Any = None
        module = _first("TensorBoard", "tensorboardX", "tensorboard.summary")
        self._writer = getattr(module, "SummaryWriter", None) or module.Writer

    def start(self, settings: Mapping[str, Any]) -> None:
        """Open the folder."""
        self._made = self._writer(f"{self.folder}/{settings['method'].replace(':', '.')}-seed{settings['seed']}")

    def look(self, look: Look) -> None:
        """Write what was evaluated."""
        for name, value in _scalars(look).items():
            self._made.add_scalar(name, value, look.round)

    def end(self) -> None:
        """Write what is left."""
        if self._made is not None:
            self._made.close()
            self._made = None


class MLflow(Callback):
    """Settings as parameters and scores as metrics of a run of an experiment in MLflow."""

    def __init__(self, experiment: str) -> None:
        self.mlflow = _first("MLflow", "mlflow")
        self.experiment, self.open = experiment, False

    def start(self, settings: Mapping[str, Any]) -> None:
        """Begin a run."""
        self.mlflow.set_experiment(self.experiment)
        self.mlflow.start_run(run_name=f"{settings['method']} seed {settings['seed']}")
        self.open = True
        self.mlflow.log_params({name: str(value) for name, value in settings.items()})

    def look(self, look: Look) -> None:
        """Log what was evaluated."""
        if scalars := _scalars(look):
            self.mlflow.log_metrics(scalars, step=look.round)

    def end(self) -> None:
        """End the run."""
        if self.open:
            self.mlflow.end_run()
            self.open = False


def _scalars(look: Look) -> dict[str, float]:
    """What is worth a point of a curve: nothing where nothing was evaluated."""
    if not look.fresh:
        return {}
    return {**look.scores, "bytes_up": look.bytes_up, "bytes_down": look.bytes_down, "seconds": look.seconds}


def _first(what: str, *modules: str) -> Any:
    """The first of some modules that is installed; a CoterieError says what to install."""
    for name in modules:
        with suppress(ImportError):
            return import_module(name)
    package = modules[0].partition(".")[0]
    raise CoterieError(f"{what} is asked for and not installed: pip install {package}, or leave it out of [run].")


def callbacks(config: Config) -> list[Callback]:
    """The callbacks that a configuration asks for."""
    run = config.run
    out: list[Callback] = [TensorBoard(run["tensorboard"])] if run["tensorboard"] else []
    out += [MLflow(run["mlflow"])] if run["mlflow"] else []
    for path in run["callbacks"]:
        found = config.load(path, "The callback")
        found = called(found, f"The callback '{path}'", {}) if isinstance(found, type) else found
        if not (hasattr(found, "look") or callable(found)):
            raise CoterieError(f"The callback '{path}' is no function, and has no 'look' to call after a round.")
        out.append(UserDefined(path, found))
    return out
