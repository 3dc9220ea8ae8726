"""Step sizes and penalties of section VII's hospitals: every method's by the same budget, on a seed of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import CoterieError
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_003 import nodules, segmentation
from papers.paper_003.hospitals import COPIES, Judge, Setting, Sites, Trial, evidence, trials
from papers.paper_003.study import one_thread_each
from papers.pictures import BLUE, GREY, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 100
"""Its sites, images and first models are those of no comparison."""
STEPS = (0.25, 0.5, 1.0, 2.0)
BETWEEN = (0.125, 0.35, 0.7)
PULLS = (0.03, 0.1, 0.3, 1.0)
FIRST = 0.1
"""The penalty with which step sizes are looked at."""
STUDIES: Mapping[str, tuple[Any, Judge]] = {
    "segmentation": (segmentation, evidence),
    "nodules": (nodules, nodules.precision),
}


def run(settings: Settings) -> Outcome:
    """What is best for each method, in both studies."""
    found: dict[str, dict[str, Tried]] = {}
    with one_thread_each():
        for study, (of, judge) in STUDIES.items():
            sites, found[study] = of.sites(SEED), {}
            for name, trial in trials(of.OWN, of.BODY).items():
                if name in COPIES or (settings.quick and name != "pooled"):
                    continue
                rounds = 1 if settings.quick else of.ROUNDS
                tell = partial(_tell, settings, f"{study}, {name}")
                found[study][name] = choose(trial, sites, of.NET, rounds, judge, SEED, tell)
    tables = tuple(table(study, tried) for study, tried in found.items())
    every = {study: {name: vars(one) for name, one in tried.items()} for study, tried in found.items()}
    return Outcome(tables, partial(picture, found), {"seed": SEED}, every)


def _tell(settings: Settings, where: str, now: str) -> None:
    settings.tell(f"{where}: {now}")


@dataclass
class Tried:
    """Settings of one method, in the order in which they were tried, and the score of each."""

    settings: list[Setting] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    @property
    def best(self) -> Setting:
        """The first with the highest score."""
        return self.settings[int(np.argmax(self.scores))]


def proposals(trial: Trial, tried: Tried) -> Iterator[Setting]:
    """Seven settings: four step sizes, then the other penalties at the best of them, or else three more step sizes."""
    pull = {"lam": FIRST} if trial.pulls else {}
    for eta in STEPS:
        yield {"eta": eta, **pull}
    if trial.pulls:
        eta = tried.best["eta"]
        yield from ({"eta": eta, "lam": lam} for lam in PULLS if lam != FIRST)
    else:
        yield from ({"eta": eta} for eta in BETWEEN)


def choose(
    trial: Trial, sites: Sites, net: Any, rounds: int, judge: Judge, seed: int, tell: Callable[[str], None]
) -> Tried:
    """All proposals and their mean scores over sites; a run that diverged has none."""
    tried = Tried()
    for setting in proposals(trial, tried):
        tell(words(setting))
        tried.settings.append(setting)
        tried.scores.append(score(trial.at(setting), sites, net, rounds, judge, seed))
    return tried


def score(trial: Trial, sites: Sites, net: Any, rounds: int, judge: Judge, seed: int) -> float:
    """The mean over sites, on images that training does not see; minus infinity where models are not finite."""
    try:
        run = judge(trial.fit(sites, net, rounds, seed), sites, seed)
    except CoterieError:
        return float("-inf")
    value = float(np.mean(run.scores.judged(run.scores.rule)))
    return value if np.isfinite(value) and not run.trouble else float("-inf")


def words(setting: Setting) -> str:
    """A setting to read."""
    return ", ".join(f"{key} {value:g}" for key, value in setting.items())


def table(study: str, tried: Mapping[str, Tried]) -> Table:
    """Scores of all settings, and what was chosen."""
    rows = []
    for name, one in tried.items():
        each = "; ".join(
            f"{words(setting)}: {score:.3f}" for setting, score in zip(one.settings, one.scores, strict=True)
        )
        rows.append((name, words(one.best), f"{max(one.scores):.3f}", each))
    return Table(f"{study}: settings on seed {SEED}", ("method", "chosen", "score", "all"), tuple(rows), texts=2)


def picture(found: Mapping[str, Mapping[str, Tried]]) -> Figure:
    """The scores of each method's settings, the best in blue."""
    figure, axes = panels(len(found), width=9.6, height=4.2)
    for ax, (study, tried) in zip(axes, found.items(), strict=True):
        for at, one in enumerate(tried.values()):
            scores = np.array(one.scores)
            scores = scores[np.isfinite(scores)]
            ax.plot(scores, np.full(len(scores), -at), ".", color=GREY)
            ax.plot(scores.max(initial=0.0), -at, "o", color=BLUE)
        ax.set_yticks(-np.arange(len(tried)), list(tried))
        ax.set_xlabel("score of images that training does not see")
        ax.set_title(study)
    return figure
