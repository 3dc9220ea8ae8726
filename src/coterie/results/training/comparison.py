"""Methods on the same rows over paired seeds: means, paired differences and their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.methods.training import TRAINERS, trainer
from coterie.numerics import keyed
from coterie.numerics.kernels import Floats
from coterie.objectives import parts
from coterie.results.metrics import bootstrap
from coterie.results.training import model
from coterie.results.training.bench import Bench
from coterie.results.training.callbacks import Callback
from coterie.results.training.config import Config
from coterie.results.training.run import Trained, train

if TYPE_CHECKING:
    import pandas as pd

ALWAYS = ("local", "pooled")
Watch = Callable[[str], Sequence[Callback]]


@dataclass(frozen=True)
class Comparison:
    """Methods that were compared.

    Attributes
    ----------
    config : Config
    runs : dict of list of Trained
        A run for each seed, by method.
    groups : list of (m,) int64 or None
        Groups that are known, for each seed.
    tried : dict of int
        Settings among which each method chose, where there were more than one.
    """

    config: Config
    runs: dict[str, list[Trained]]
    groups: list[npt.NDArray[np.int64] | None]
    tried: dict[str, int]

    @property
    def fingerprint(self) -> str:
        """Of the configuration with all methods that were compared."""
        return self.config.fingerprint(*self.runs)

    @property
    def score(self) -> str:
        """What is judged by: "accuracy", or "loss" where there are no classes."""
        return "accuracy" if model.scored(self.config) else "loss"

    def values(self, name: str, what: str = "") -> Floats:
        """A score of every seed (seeds,), by default the one over rows."""
        key = what or self.score
        return np.array([run.scores.summary().get(key, np.nan) for run in self.runs[name]])

    @cached_property
    def best(self) -> str:
        """The method with the best mean score over rows; of equals the first."""
        sign = 1.0 if self.score == "accuracy" else -1.0
        return max(self.runs, key=lambda name: np.nan_to_num(sign * self.values(name).mean(), nan=-np.inf))

    def clients(self, name: str) -> Floats:
        """The score of every client (seeds, m)."""
        runs = self.runs[name]
        return np.stack([r.scores.loss if r.scores.accuracy is None else r.scores.accuracy for r in runs])

    def interval(self, name: str, other: str | None = None) -> tuple[float, float, float]:
        """A method's mean score over rows with its 95% interval; its difference to another one where that is named.

        Over seeds by Student's t; with a single seed, the mean over clients by resampling them.
        """
        value = self.values(name) - (self.values(other) if other else 0.0)
        if len(value) > 1:
            low, high = student(value)
            if self.score == "accuracy" and other is None:  # few seeds say more than can be
                low, high = max(low, 0.0), min(high, 1.0)
            return float(value.mean()), low, high
        each = (self.clients(name) - (self.clients(other) if other else 0.0))[0]
        rng = keyed.generator(self.runs[name][0].seed, "bootstrap", 0, 0)
        return (float(value[0]), *bootstrap(each[np.isfinite(each)], rng))

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row for each method, best first.

        Columns: the score over rows with its interval; over clients, of the worst client and of the 10th percentile
        of clients (the 90th of losses); the paired difference to the best method with its interval; bytes that a
        seed's run sent (NaN where all rows are in one place), seconds that it took, and the settings that were chosen.
        """
        import pandas as pd

        score, rows = self.score, []
        tail = "10th" if score == "accuracy" else "90th"
        for name, runs in self.runs.items():
            row: dict[str, Any] = {"method": name}
            row |= dict(zip((score, f"{score}_low", f"{score}_high"), self.interval(name), strict=True))
            row |= {f"{score}_{end}": self.values(name, f"{score}_{end}").mean() for end in ("clients", "worst", tail)}
            columns = ("to_best", "to_best_low", "to_best_high")
            row |= dict(zip(columns, self.interval(name, self.best), strict=True))
            rows_moved = trainer(name).together  # to one place; what is sent there afterwards stays in it
            moved = [np.nan if rows_moved else r.ledger["bytes_up"] + r.ledger["bytes_down"] for r in runs]
            row |= {"bytes": float(np.mean(moved)), "seconds": float(np.mean([r.seconds for r in runs]))}
            ended = sum(bool(r.trouble) for r in runs)
            rows.append(row | {"diverged": ended, "chosen": "; ".join(dict.fromkeys(map(settings, runs)))})
        frame = pd.DataFrame(rows).set_index("method")
        return frame.sort_values(score, ascending=score == "loss", kind="stable")


def student(values: Floats) -> tuple[float, float]:
    """95% interval of the mean of a few independent numbers."""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean() - half), float(values.mean() + half)


def settings(run: Trained) -> str:
    """Hyper-parameters of a run as text."""
    return ", ".join(f"{name}={value}" for name, value in run.setting.items())


def chosen(bench: Bench, names: Sequence[str]) -> list[str]:
    """The methods to compare: local and pooled always, and all that can be used where "all" is asked for."""
    asked = list(ALWAYS)
    for name in names:
        if name == "all":
            asked += [t.name for t in TRAINERS.values() if usable(bench, t.name)]
        else:
            method = trainer(name, bench.config.folder)
            method.check(bench.config.given(name))
            asked.append(name)
    return list(dict.fromkeys(asked))


def usable(bench: Bench, name: str) -> bool:
    """Whether a method can be used on what there is: known groups, a layout, its layers, privacy of rows."""
    method, config = trainer(name), bench.config
    layout = any(config.layout.values()) or method.layout in config.given(name)
    layers = not method.layers or bool(model.matching(method.layers, list(parts.names(bench.each))))
    rows = not getattr(method.made_of, "by_row", False) or (config.private and config.privacy["unit"] == "row")
    return (bench.data.known or not method.groups) and (layout or not method.layout) and layers and rows


def quiet(_: str) -> Sequence[Callback]:
    """Nobody watches."""
    return ()


def compare(config: Config, names: Sequence[str], watch: Watch = quiet) -> Comparison:
    """Train methods on every seed of a configuration.

    Parameters
    ----------
    config : Config
    names : sequence of str
        Methods, or "all"; local and pooled are always in.
    watch : callable
        Is told what begins, and gives the callbacks that watch it.

    Returns
    -------
    Comparison

    Notes
    -----
    A seed makes the partition, the held-out rows, the first model and all draws, the same for every method. Where
    several settings of a method are given, each is trained on a part of the training rows, and the one that is best
    on the other part (a share of ``data.validation``) is trained on all of them; test rows choose nothing.
    """
    methods: list[str] = []
    runs: dict[str, list[Trained]] = {}
    groups: list[npt.NDArray[np.int64] | None] = []
    for k, seed in enumerate(config.run["seeds"]):
        bench = Bench.of(config, seed)
        groups.append(bench.data.group if bench.data.known else None)
        methods = methods or chosen(bench, names)
        inner = bench.inside()
        for name in methods:
            where = f"seed {k + 1} of {len(config.run['seeds'])}, {name}"
            setting = pick(inner, name, watch, where)
            run = train(bench, name, setting, watch(where))
            runs.setdefault(name, []).append(replace(run, theta=None))
    tried = {name: len(trainer(name).settings(config.given(name))) for name in methods}
    return Comparison(config, runs, groups, {name: n for name, n in tried.items() if n > 1})


def pick(inner: Bench, name: str, watch: Watch = quiet, where: str = "") -> dict[str, Any]:
    """The setting that is best on held-out training rows; the only one where there is one.

    ``inner`` has training rows only (:meth:`Bench.inside`). Clients count alike; a run that diverges is the worst.
    """
    candidates = trainer(name).settings(inner.config.given(name))
    if len(candidates) == 1:
        return candidates[0]
    run = inner.config.run
    rare = replace(inner.config, run=run | ({} if run["patience"] else {"evaluate_every": run["rounds"]}))
    bench = Bench(rare, inner.seed, inner.data)
    return max(_valued(bench, name, candidates, watch, where), key=lambda pair: pair[0])[1]


def _valued(
    bench: Bench, name: str, candidates: list[dict[str, Any]], watch: Watch, where: str
) -> Iterator[tuple[float, dict[str, Any]]]:
    for k, setting in enumerate(candidates):
        done = train(bench, name, setting, watch(f"{where}, setting {k + 1} of {len(candidates)}"))
        value = done.scores.best[done.scores.weight > 0.0]
        good = not done.trouble and len(value) and bool(np.isfinite(value).all())
        yield float(value.mean()) if good else -np.inf, setting
