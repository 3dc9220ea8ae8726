"""Should this client collaborate, and with whom? What theory predicts, beside what held-out rows say; in words, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie import files
from coterie.data.clients import Clients
from coterie.data.formula import check_syntax
from coterie.data.identifiability import collinear
from coterie.data.labels import find_labels, resembling
from coterie.data.prepare_table import check_choices, prepare
from coterie.data.table import as_names, to_pandas
from coterie.data.table_files import read_table
from coterie.engines.inprocess import InProcess
from coterie.errors import CoterieError, listed, nearest
from coterie.evidence.intervals import bootstrap, over_splits
from coterie.evidence.splits import Splits
from coterie.evidence.table_comparison import FEW, all_splits, each_split
from coterie.families import family_named
from coterie.methods.collaboration.choose_collaborators import Choice, choose
from coterie.methods.collaboration.gradient_metric import around_pooled
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.collaboration.options import Options
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.numerics import keyed_random
from coterie.options import declared
from coterie.relations.clusters import ClusterTree
from coterie.results.fit_options import Options as FitOptions
from coterie.runs.config_keys import Torch
from coterie.runs.run_table_method import STARTING, block_size, objective, run, run_alone

WORTH = 1.1
"""A predicted speed-up from which collaboration is advised: below, it saves less than one row of ten."""
OWN_ROWS = 4
"""Training rows for each column from which "alone" is the model that theory speaks of."""


@dataclass(frozen=True)
class Advice:
    """With whom every client should collaborate.

    Attributes
    ----------
    clients : DataFrame
        A row for each client, by its label. ``rows``; ``collaborators``, how many; ``alpha``, how much they count;
        ``speedup``, predicted: as if it had so many times its rows; ``predicted_gain``, of the mean held-out loss, for
        the rows it is trained on in a split; ``test_rows`` of all splits; ``loss_alone``, ``loss_together``,
        ``loss_pooled``, mean held-out losses (NaN without test rows; alone and together under the same prior); ``gain``
        of together over alone, with a 95% interval ``gain_low`` to ``gain_high`` over the splits (NaN where there are
        fewer than 3).
    weights : DataFrame
        A row for each pair: ``client``, ``collaborator``, ``tau`` (adding up to 1 for a client) and ``weight``,
        ``alpha * tau``; by client, heaviest first.
    evidence : DataFrame
        A row for each of local, pooled and together: see ``FitResult.comparison``. Empty without splits.
    loss : str
        Name of the loss.
    settings : dict
    """

    clients: pd.DataFrame
    weights: pd.DataFrame
    evidence: pd.DataFrame
    loss: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        """What was found, in words; without splits, what is predicted only."""
        found = list(_who(self))
        if "gain" in self.clients:
            found += [*_measured(self), *_agreement(self), *_harm(self)]
        if (held := self.settings.get("prior", 0.0)) > 0.0:
            found.append(
                f"A prior worth {held:.2g} rows pulls every model to the pooled one, alone as together, so that "
                "separated outcomes stay finite: with prior none nothing does."
            )
        return found + list(self.settings.get("notes", []))

    def of(self, client: Any) -> pd.DataFrame:
        """The collaborators of one client: ``collaborator``, ``tau``, ``weight``; a CoterieError for an unknown one."""
        labels = self.clients.index
        at = client_position(labels, str(labels.name), client)
        mine: pd.DataFrame = self.weights[self.weights["client"] == labels[at]]
        return mine.drop(columns="client").reset_index(drop=True)


def client_position(labels: Any, name: str, client: Any) -> int:
    """Where a client's label is among those of column ``name``; a CoterieError for an unknown one."""
    labels = np.asarray(labels)
    at = int(find_labels(labels, np.array([client], dtype=object))[0])
    if at < 0:
        pairs = resembling(np.array([client], dtype=object), labels)
        hint = f" Did you mean {pairs[0][1]!r}?" if pairs else nearest(str(client), [str(x) for x in labels])
        raise CoterieError(f"There is no {name} '{client}' in the table.{hint}")
    return at


def _who(advice: Advice) -> Iterator[str]:
    frame = advice.clients
    speedup = frame["speedup"].to_numpy()
    n, worth = len(frame), int(np.sum(speedup >= WORTH))
    name = frame.index.name
    if worth == 0:
        yield (
            f"No client ({name}) should count on collaborators: the largest predicted speed-up is {speedup.max():.2f}, "
            "and others differ too much for what their rows would add."
        )
        return
    low, middle, high = np.quantile(speedup, [0.1, 0.5, 0.9])
    text = f"{worth:,} of {n:,} clients ({name}) should collaborate: "
    text += f"predicted to learn as if each had at least {WORTH:g} times its rows"
    if n >= FEW:
        text += (
            f". The median of all is {middle:.2f} times, the middle four fifths lie between {low:.2f} and {high:.2f}"
        )
    else:
        shown = zip(frame.index, speedup, strict=True)
        text += f" ({listed((f'{label} {value:.2f} times' for label, value in shown if value >= WORTH), FEW)})"
    yield f"{text}."
    if worth < n:
        rest = frame.index[speedup < WORTH]
        yield f"Next to nothing is promised to {listed(rest)}; what weight others have there is a hedge."


def _measured(advice: Advice) -> Iterator[str]:
    frame, table, seed = advice.clients, advice.evidence, advice.settings["seed"]
    gain = frame["gain"].dropna().to_numpy()
    mean = {str(n): float(v) for n, v in table["loss_rows"].items()}
    losses = {name: f"{value:.4g}" for name, value in mean.items()}
    yield (
        f"On held-out rows the mean {advice.loss} is {losses['local']} for clients alone, {losses['together']} with "
        f"their collaborators, and {losses['pooled']} for one pooled model."
    )
    if mean["pooled"] < min(mean["together"], mean["local"]):
        yield "One pooled model does better over rows than the collaborators: take it, or one that ties all clients."
    if mean["local"] < mean["together"]:
        yield "Clients alone do better over rows than with collaborators: what is predicted is not borne out here."
    low, high = bootstrap(gain, keyed_random.generator(seed, "bootstrap", 0, 0))
    interval = f" (95% interval {low:.3g} to {high:.3g})" if len(gain) >= FEW else ""
    yield (
        f"A client gains {gain.mean():.3g} in the mean{interval} and {np.median(gain):.3g} in the median over being "
        f"alone; {np.mean(gain > 0.0):.0%} gain."
    )


def _agreement(advice: Advice) -> Iterator[str]:
    """Prediction against measurement, where the model alone is one; and what theory does not know of the others."""
    frame, settings, tested = advice.clients, advice.settings, advice.clients["gain"].notna()
    enough = frame["rows"] * (1.0 - settings["test_fraction"]) >= OWN_ROWS * settings["columns"]
    sound, left = frame[tested & enough], frame[tested & ~enough]
    if len(sound):
        yield from _compared(sound, len(sound) < int(tested.sum()), settings["seed"])
    if len(left):
        yield (
            f"For {_count(len(left))} with fewer than {OWN_ROWS} training rows to each of {advice.settings['columns']} "
            "columns theory does not hold, as a model alone may be off by any amount: predicted was a gain of "
            f"{left['predicted_gain'].median():.3g} in the median, measured {left['gain'].median():.3g}."
        )


def _compared(frame: pd.DataFrame, some: bool, seed: int) -> Iterator[str]:
    predicted, gain = frame["predicted_gain"].to_numpy(), frame["gain"].to_numpy()
    whose = f"For {_count(len(frame))} with rows enough for a model of their own" if some else "In the mean"
    text = f"{whose}, theory predicted a gain of {predicted.mean():.3g} and {gain.mean():.3g} was measured"
    if len(frame) >= FEW:
        low, high = bootstrap(gain, keyed_random.generator(seed, "bootstrap", 0, 0))
        verdict = "they agree" if low <= predicted.mean() <= high else "they differ by more than chance"
        if not low <= predicted.mean() <= high:
            verdict += f": theory promised too {'much' if predicted.mean() > high else 'little'}"
        r = np.corrcoef(predicted, gain)[0, 1] if predicted.std() > 0.0 and gain.std() > 0.0 else np.nan
        together = f" Client by client they correlate by {r:.2f}." if np.isfinite(r) else ""
        yield f"{text} (95% interval {low:.3g} to {high:.3g}): {verdict}.{together}"
    else:
        yield f"{text}; {_count(len(frame))} {'are' if len(frame) > 1 else 'is'} too few to say whether that is chance."
    inside = (frame["gain_low"] <= predicted) & (predicted <= frame["gain_high"])
    known = frame["gain_low"].notna()
    if known.any():
        share = inside[known].mean()
        yield f"The prediction lies in the 95% interval of a client's own measured gain for {share:.0%} of them."


def _harm(advice: Advice) -> Iterator[str]:
    frame = advice.clients
    worse = frame[frame["gain"] < 0.0].sort_values("gain")
    if not len(worse):
        yield "No client did worse with its collaborators than alone."
        return
    sure = frame[frame["gain_high"] < 0.0].sort_values("gain")
    known = int(frame["gain_high"].notna().sum())
    text = f"{_count(len(worse))} did worse with collaborators than alone"
    if len(sure):
        text += f", {len(sure):,} beyond what splits vary ({listed(sure.index)}); of {known:,} intervals about "
        yield f"{text}{0.025 * known:.0f} would be by chance."
    elif known:
        yield f"{text} ({listed(worse.index)}), but not beyond what splits vary."
    else:
        yield f"{text} ({listed(worse.index)}); three splits or more would say whether that is chance."


def _count(n: int) -> str:
    return f"{n:,} client{'s' * (n != 1)}"


def _read(rows: Any, labels: Sequence[str]) -> Any:
    """A table as it is, or from its file; a CoterieError for a federation's folder."""
    if not isinstance(rows, (str, Path)):
        return rows
    if files.local(rows).is_dir():
        raise CoterieError(
            f"'{rows}' is a folder, and advice is tried on held-out rows in one place: over a federation's sites "
            "coterie.fit(..., method='weighted-averaging') chooses collaborators."
        )
    return read_table(rows, labels)


def check_call(
    formula: str, cluster: Any, family: str, prior: Any, collaborators: int, within: str, missing: str, **how: Any
) -> tuple[Options, dict[str, Any]]:
    """What advice takes and how rows are held out; a CoterieError for what it refuses without reading a table."""
    asked = Options(prior=prior, collaborators=collaborators, within=within)  # type: ignore[arg-type]
    held_out = {name: declared(FitOptions)[name].read(value) for name, value in how.items()}
    if held_out["splits"] == 0 and held_out["test_fraction"] != declared(FitOptions)["test_fraction"].default:
        raise CoterieError("test_fraction changes nothing where splits is 0: ask for a split, or leave it out.")
    if within == "cluster" and not cluster:
        raise CoterieError("Collaborators within a cluster need clusters: name a cluster column (--cluster).")
    check_choices(family, missing)
    check_syntax(formula)
    return asked, held_out


def advise(
    df: Any,
    formula: str,
    client: str,
    cluster: str | Sequence[str] | None = (),
    *,
    family: str = "gaussian",
    collaborators: int = 10,
    within: str = "all",
    prior: Any = "auto",
    splits: int = 5,
    test_fraction: float = 0.25,
    seed: int = 0,
    offset: str | None = None,
    weights: str | None = None,
    missing: str = "error",
) -> Advice:
    """Say with whom every client should collaborate, what it is predicted to gain, and what held-out rows say of that.

    A client collaborates by weighted gradient averaging: its model minimises
    ``(1 - alpha) f_0 + alpha sum_k tau_k f_k``, f_k being mean losses. Weights are chosen by theory from gradients
    (:func:`coterie.methods.collaboration.choose_collaborators.choose`), in every split from its training rows only.

    Parameters
    ----------
    df : DataFrame or path
        pandas or polars, or the file of a table; one row for each observation.
    formula : str
        ``outcome ~ columns``, as in R. All coefficients are a client's own.
    client : str
        The column that says whose row it is.
    cluster : str or sequence of str, optional
        Columns of known clusters, fine to coarse: clients are then expected to resemble those of their finest cluster.
    family : str, default "gaussian"
        A name of ``families.FAMILIES``.
    collaborators : int, default 10
        Collaborators of a client at most.
    within : {"all", "cluster"}, default "all"
        Where collaborators are looked for.
    prior : "auto", "none" or number, default "auto"
        How many rows of mean curvature pull every model to the pooled one, those of clients alone as those with
        collaborators, so that gains are not the prior's. auto takes none for a Gaussian outcome and one row at most for
        classes and counts, so that separated outcomes stay finite.
    splits : int, default 5
        Repeated splits inside each client for what is measured; 0 measures nothing.
    test_fraction : float, default 0.25
    seed : int, default 0
        Of the splits.
    offset, weights : str, optional
        Columns added to the linear predictor, and of row weights.
    missing : {"error", "drop"}, default "error"

    Returns
    -------
    Advice

    Raises
    ------
    CoterieError
        One sentence for whatever is wrong with the table or the options.

    Examples
    --------
    >>> advice = coterie.advise(df, "mAch ~ cses", client="school")  # doctest: +SKIP
    >>> advice.clients.sort_values("speedup")  # doctest: +SKIP
    """
    if isinstance(formula, Torch):
        raise CoterieError(
            "Advice predicts gains by curvatures at the one optimum of a convex loss, and a net has none: compare, "
            "by coterie.compare(rows, Torch(...), client, methods=['weighted-averaging', 'bias-correction'])."
        )
    levels = as_names("cluster", cluster)
    how = {"splits": splits, "test_fraction": test_fraction, "seed": seed}
    asked, held_out = check_call(formula, levels, family, prior, collaborators, within, missing, **how)
    df = _read(df, (client, *levels))
    clients, _ = prepare(to_pandas(df), formula, client, levels, family, offset, weights, missing)  # type: ignore[arg-type]
    if (trouble := collinear(clients, sums=True)) is not None:
        raise CoterieError(trouble)
    problem = GroupedProblem(ClusterTree.of(clients), family_named(family), np.arange(clients.X.shape[1]), None)
    together = Together(problem, asked)
    STARTING.get()()
    choice, _, held = together.fit(clients)
    frame, evidence = _clients(clients, choice), pd.DataFrame()
    if splits:
        measured, evidence = _on_holdout(clients, together, Splits(*held_out.values()))
        frame = frame.assign(**measured)
    settings: dict[str, Any] = {"formula": formula, "client": client, "cluster": list(levels), "family": family}
    settings |= {"collaborators": asked.collaborators, "within": within, **held_out}
    settings |= {"offset": offset, "weights": weights, "missing": missing}
    settings |= {"columns": clients.X.shape[1], "prior": held, **choice.about, "notes": list(clients.notes)}
    return Advice(frame, _pairs(clients, choice), evidence, problem.family.loss, settings)


@dataclass(frozen=True)
class Together:
    """Fits clients with the collaborators that their own rows choose."""

    problem: GroupedProblem
    options: Options

    def fit(self, clients: Clients) -> tuple[Choice, Estimates, float]:
        """Who collaborates, the models, and the rows of the prior that holds them at the pooled model."""
        c, family, asked = clients, self.problem.family, self.options
        fed = InProcess(objective(c, family), c.clusters if c.levels else None, ids=c.ids, block=block_size(c))
        everyone, metric = around_pooled(fed, self.problem)
        choice = choose(fed, metric, count=asked.collaborators, same_cluster=asked.within == "cluster")
        held = asked.with_prior(metric)
        theta = optimum(fed, choice.pairs, choice.alpha, held).theta
        return choice, replace(everyone, client=theta), held.prior

    def alone(self, clients: Clients) -> Estimates:
        """Models of clients' own rows under the same prior."""
        if not self.problem.family.needs_prior and self.options.prior in ("auto", "none"):
            return run("local", clients, self.problem, {})[0]
        return run_alone("weighted-averaging", clients, self.problem, {"rounds": {"prior": self.options.prior}})


def _on_holdout(clients: Clients, together: Together, splits: Splits) -> tuple[dict[str, Any], pd.DataFrame]:
    """What held-out rows say of clients alone, pooled and together: columns for each client, and the comparison.

    Each is fitted on the training rows of every split. A CoterieError without test rows.
    """
    problem, predicted = together.problem, np.zeros(len(clients))

    def fit(train: Clients) -> Estimates:
        choice, fitted, _ = together.fit(train)
        predicted[:] += problem.family.loss_factor * choice.gain / splits.count
        return fitted

    fits = {"local": together.alone, "pooled": lambda train: run("pooled", train, problem, {})[0], "together": fit}
    parts = list(each_split(clients, problem.family, fits, splits))
    whole = all_splits(parts)
    if not whole.weight.sum() > 0.0:
        raise CoterieError("No client has a row to spare for a test: ask for predictions only (splits 0).")
    columns: dict[str, Any] = {"predicted_gain": predicted, "test_rows": whole.rows.astype(np.int64)}
    columns |= {"loss_alone": whole.mean("local"), "loss_together": whole.mean("together")}
    columns |= {"loss_pooled": whole.mean("pooled"), "gain": columns["loss_alone"] - columns["loss_together"]}
    gains = np.array([part.mean("local") - part.mean("together") for part in parts])
    low, high = over_splits(gains, splits.fraction / (1.0 - splits.fraction))
    return columns | {"gain_low": low, "gain_high": high}, whole.table


def _clients(clients: Clients, choice: Choice) -> pd.DataFrame:
    """A row for each client: who it is, and what is predicted for it."""
    frame: dict[str, Any] = {}
    if clients.levels:
        frame["cluster"] = np.asarray(clients.levels[0].labels)[clients.clusters]
    frame |= {"rows": clients.counts, "collaborators": np.diff(choice.pairs.starts), "alpha": choice.alpha}
    return pd.DataFrame(frame | {"speedup": choice.speedup}, index=pd.Index(clients.labels, name=clients.name))


def _pairs(clients: Clients, choice: Choice) -> pd.DataFrame:
    """A row for each pair, by client, heaviest first."""
    pairs = choice.pairs
    order = np.lexsort((-pairs.tau, pairs.pair_main))
    labels, of, tau = np.asarray(clients.labels), pairs.pair_main[order], pairs.tau[order]
    columns = {"client": labels[pairs.main[of]], "collaborator": labels[pairs.pair_client[order]], "tau": tau}
    return pd.DataFrame(columns | {"weight": choice.alpha[of] * tau})
