"""Section VII's hospitals, simulated: what is compared, through the package's front, on sites in hidden groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.api import fit
from coterie.evidence.training_comparison import TrainingComparison
from coterie.federation import Array
from coterie.report.tables import Table
from coterie.results.training_result import TrainingResult
from coterie.runs.training import Trained
from papers.outcome import Outcome, Settings
from papers.paper_003.study import one_thread_each
from papers.pictures import BLUE, GREEN, GREY, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, GROUPS, EACH = 5, 3, 4
HELD_OUT = 20
"""Images of a site; what an experiment draws beyond them is trained on."""
STEPS = 5
"""Full-gradient steps of a round, in all methods."""
OURS = "network of data, all layers"
SENT = f"{OURS}, tv:2"
HEADS = "network of data, heads"
FREE = "network of data, free heads"
WARMED = "network of FedPer's heads, heads"
OWN = (OURS, SENT, HEADS)
"""Those whose gains are told."""
WARM = 3
"""FedPer has one round in so many before the network of its heads."""
UNSEEN = 10
"""The first seed of a comparison: no choice has seen what these draw."""
_NEAR: dict[str, Any] = {"k": EACH - 1, "mutual": True, "connected": False}
DATA: dict[str, Any] = {"space": "data", **_NEAR}
FEATURE: dict[str, Any] = {"space": "feature", "response": True, **_NEAR}
MODEL: dict[str, Any] = {"space": "model", **_NEAR}


@dataclass(frozen=True)
class Sites:
    """Images X (n, 1, side, side) and outcomes y (n, ...) of all sites, whose they are, and what is hidden."""

    X: Array
    y: Array
    client: Array
    group: dict[str, int]

    @classmethod
    def of(cls, X: Array, y: Array, seed: int) -> Sites:
        """Of as many images at each site, one site after another; sites of two seeds are not the same ones."""
        names = np.array([f"{seed}.{'ABC'[i // EACH]}{i % EACH + 1}" for i in range(GROUPS * EACH)])
        client = np.repeat(names, len(X) // len(names))
        return cls(X, y, client, {str(name): i // EACH for i, name in enumerate(names)})

    @property
    def each(self) -> int:
        """Images of a site."""
        return len(self.X) // len(self.group)

    @property
    def test_fraction(self) -> float:
        """Share of them that is held out."""
        return HELD_OUT / self.each


CHOICE = (
    "Every method's step size and penalty are the best of seven settings on sites of another seed (003/steps); "
    "networks of other spaces, with tv:2 and with free heads take what was chosen for that of data, the network of "
    "FedPer's heads what was chosen for that of heads."
)
Setting = Mapping[str, float]


@dataclass(frozen=True)
class Trial:
    """One row of a comparison: a method, its hyper-parameters, and relations of clients that it is told."""

    method: str
    steps: Mapping[str, Any] = field(default_factory=dict)
    relations: Mapping[str, Any] = field(default_factory=dict)
    told: bool = False

    @property
    def pulls(self) -> bool:
        """Whether there is a penalty to choose beside the step size."""
        return self.method in ("ditto", "similarity-network")

    def at(self, setting: Setting) -> Trial:
        """The same with a step size, and a penalty where it has one."""
        return replace(self, steps={**self.steps, **setting})

    def fit(self, sites: Sites, net: Any, rounds: int, seed: int, engine: str = "auto") -> TrainingResult:
        """The models and their evidence."""
        local = "tau" if self.method == "similarity-network" else "E"
        steps = {"rounds": rounds, "evaluate_every": rounds, "B": 0, local: STEPS, **self.steps}
        relations = dict(self.relations) | ({"group": sites.group} if self.told else {})
        rows = sites.X, sites.y, sites.client
        how = {"rounds": steps, "seed": seed, "test_fraction": sites.test_fraction, "engine": engine, **relations}
        result: TrainingResult = fit(rows, net, method=self.method, **how)
        return result


@dataclass(frozen=True)
class Warmed(Trial):
    """FedPer's first rounds, whose heads say who is alike; then a network of heads, from the mean of its models."""

    own: Sequence[str] = ()

    def fit(self, sites: Sites, net: Any, rounds: int, seed: int, engine: str = "auto") -> TrainingResult:
        """The models after all rounds, and the bytes of both parts."""
        first = Trial("fedper", {"eta": self.steps["eta"]}, {"personal": self.own})
        warm = first.fit(sites, net, rounds // WARM, seed, engine)
        at = warm.objective(np.zeros((1, *warm.shape), np.float32), of=warm.labels[0])
        module = at.module(warm.theta.mean(axis=0)).train()
        mine = [np.full(n, any(fnmatchcase(name, of) for of in self.own)) for name, n in at.names.items()]
        how = {"network": MODEL | {"models": warm.theta[:, np.concatenate(mine)]}, "personal": self.own}
        rest = Trial(self.method, self.steps, how)
        found = rest.fit(sites, replace(net, path=module, args={}), rounds - rounds // WARM, seed, engine)
        for key, sent in warm.run.ledger.items():
            found.run.ledger[key] = found.run.ledger.get(key, 0.0) + sent
        return found


def trials(own: Sequence[str], body: Sequence[str]) -> dict[str, Trial]:
    """All of a comparison, by name, without step sizes; ``own`` layers are personal, those of the ``body`` shared."""

    def tied(network: Mapping[str, Any], **how: Any) -> Trial:
        return Trial("similarity-network", how, {"network": network})

    return {
        "local": Trial("local"),
        "pooled": Trial("pooled"),
        "FedAvg": Trial("fedavg"),
        "FedPer": Trial("fedper", {}, {"personal": own}),
        "Ditto": Trial("ditto", {"s": STEPS}),
        "told the groups: all layers": Trial("group-models", told=True),
        "told the groups: heads": Trial("group-sgd", {}, {"shared": body}, True),
        OURS: tied(DATA),
        "network of features, all layers": tied(FEATURE),
        "network of models, all layers": tied(MODEL, alone=STEPS, relearn=6),
        SENT: tied(DATA, up="tv:2"),
        HEADS: Trial("similarity-network", {}, {"network": DATA, "personal": own}),
        FREE: tied(DATA, untied=own),
        WARMED: Warmed("similarity-network", own=own),
    }


COPIES = {
    **dict.fromkeys(("network of features, all layers", "network of models, all layers", SENT, FREE), OURS),
    WARMED: HEADS,
}
"""Those that take what was chosen for another."""


def settled(some: Mapping[str, Trial], chosen: Mapping[str, Setting]) -> dict[str, Trial]:
    """Trials with what was chosen for each."""
    return {name: trial.at(chosen[COPIES.get(name, name)]) for name, trial in some.items()}


Judge = Callable[[TrainingResult, Sites, int], Trained]


def evidence(result: TrainingResult, sites: Sites, seed: int) -> Trained:
    """The run as the front judged it."""
    return result.run


def compared(
    draw: Callable[[int], Sites],
    net: Any,
    some: Mapping[str, Trial],
    rounds: int,
    seeds: Sequence[int],
    tell: Callable[[str], None],
    judge: Judge = evidence,
) -> TrainingComparison:
    """Every trial with every seed, whose sites, images, held-out rows and first models are its own."""
    runs: dict[str, list[Trained]] = {name: [] for name in some}
    for seed in seeds:
        sites = draw(seed)
        for name, trial in some.items():
            tell(f"seed {seed}, {name}")
            result = trial.fit(sites, net, rounds, seed)
            runs[name].append(judge(result, sites, seed))
    return replace(result.evidence, runs=runs, groups=[None] * len(seeds), drawn_anew=True)


def table(title: str, found: TrainingComparison, score: str) -> Table:
    """Scores of held-out images, what ours gain over each, and the megabytes that were sent."""
    rows, shown = [], [ours for ours in OWN if ours in found.runs]
    for name, runs in found.runs.items():
        gains = ["–" if name == ours else triple(found.interval(ours, name)) for ours in shown]
        sent = np.mean([[r.ledger["bytes_up"], r.ledger["bytes_down"]] for r in runs], axis=0) / 1e6
        moved = "–" if name in ("local", "pooled") else f"{sent[0]:.2f}, {sent[1]:.2f}"
        rows.append((name, triple(found.interval(name)), *gains, f"{found.interval(name, what='loss')[0]:.3f}", moved))
    columns = ("method", f"{score} (95%)", *(f"gain of the {ours} (95%)" for ours in shown), "loss", "MB up, down")
    return Table(title, columns, tuple(rows), texts=1)


def triple(of: Sequence[float]) -> str:
    """A mean and its interval."""
    return f"{of[0]:.3f} ({of[1]:.3f} to {of[2]:.3f})" if np.isfinite(of[1]) else f"{of[0]:.3f}"


def numbers(found: TrainingComparison) -> dict[str, Any]:
    """Everything behind the table."""
    return {
        name: {
            "score": [run.scores.judged(found.rule) for run in runs],
            "sites": [run.labels for run in runs],
            "loss": [run.scores.loss for run in runs],
            "interval": list(found.interval(name)),
            "gains": {ours: list(found.interval(ours, name)) for ours in OWN if ours in found.runs and ours != name},
            "setting": {k: str(v) for k, v in runs[0].setting.items()},
            "bytes_up": [run.ledger["bytes_up"] for run in runs],
            "bytes_down": [run.ledger["bytes_down"] for run in runs],
        }
        for name, runs in found.runs.items()
    }


def sent(sites: Sites, net: Any, some: Mapping[str, Trial], rounds: int, seed: int) -> dict[str, Any]:
    """Bytes that a site sends and receives in a round, envelopes counted: of messages over loop-back."""
    ours = {name: some[name].fit(sites, net, rounds, seed, "loopback").ledger for name in (OURS, SENT)}
    each = rounds * GROUPS * EACH
    return {name: {key: ledger[key] / each for key in ("bytes_up", "bytes_down")} for name, ledger in ours.items()}


def sent_table(link: Mapping[str, Mapping[str, float]]) -> Table:
    """The same to read."""
    rows = []
    for name, each in link.items():
        ratio = link[OURS]["bytes_up"] / each["bytes_up"]
        rows.append((name, f"{each['bytes_up']:,.0f}", f"{each['bytes_down']:,.0f}", f"1/{ratio:.1f}"))
    columns = ("method", "up", "down", "up, relative")
    return Table("Bytes of a site in a round, envelopes counted", columns, tuple(rows), texts=1)


def outcome(
    of: str,
    score: str,
    draw: Callable[[int], Sites],
    net: Any,
    some: Mapping[str, Trial],
    rounds: int,
    settings: Settings,
    notes: Sequence[str],
    judge: Judge = evidence,
) -> Outcome:
    """All of an experiment."""
    rounds = 2 if settings.quick else rounds
    seeds = [UNSEEN + seed for seed in settings.runs(SEEDS, 1)]
    first = draw(seeds[0])
    with one_thread_each():  # sums in another order lead elsewhere after a few rounds
        found = compared(draw, net, some, rounds, seeds, settings.tell, judge)
        settings.tell("messages")
        link = sent(first, net, some, rounds, seeds[0])
    images = {"sites": len(first.group), "training images": first.each - HELD_OUT}
    chosen = {"seeds": seeds, "rounds": rounds, "steps": STEPS, **images}
    return drawn_up(of, score, found, link, chosen, notes)


def drawn_up(
    of: str,
    score: str,
    found: TrainingComparison,
    link: Mapping[str, Mapping[str, float]],
    chosen: Mapping[str, Any],
    notes: Sequence[str],
) -> Outcome:
    """Tables, figure and numbers of runs."""
    title = f"{of}: {score} of held-out images, {chosen['sites']} sites, {len(chosen['seeds'])} seeds"
    tables = (table(title, found, score), sent_table(link))
    every = numbers(found) | {"link": dict(link)}
    return Outcome(tables, partial(picture, found, of, score), chosen, every, tuple(notes))


def picture(found: TrainingComparison, of: str, score: str) -> Figure:
    """Every method's score with its interval, and the seeds as dots."""
    figure, (ax,) = panels(1, width=6.4, height=4.2)
    for at, name in enumerate(found.runs):
        mean, low, high = found.interval(name)
        colour = BLUE if name.startswith("network") else GREEN if name.startswith("told") else GREY
        values = [float(np.mean(seed)) for seed in found.clients(name)]
        ax.plot(values, np.full(len(values), -at), ".", ms=3, color=colour, alpha=0.5)
        ax.errorbar(mean, -at, xerr=None if np.isnan(low) else (high - low) / 2.0, fmt="o", color=colour, capsize=2)
    ax.set_yticks(-np.arange(len(found.runs)), list(found.runs))
    ax.set_xlabel(f"{score} of held-out images")
    ax.set_title(of)
    return figure
