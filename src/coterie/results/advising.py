"""Should this client collaborate, and with whom? What theory predicts, beside what held-out rows say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.identifiability import collinear
from coterie.data.prepare_table import prepare
from coterie.data.table import as_names, to_pandas
from coterie.engines.inprocess import InProcess
from coterie.errors import CoterieError
from coterie.evidence.compare_fits import each_split
from coterie.evidence.comparison import TableComparison
from coterie.evidence.intervals import over_splits
from coterie.evidence.splits import Splits
from coterie.families import family_named
from coterie.methods.collaboration.choose import Choice, choose
from coterie.methods.collaboration.metric import around_pooled
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.collaboration.options import Options
from coterie.methods.estimates import Estimates, GroupedProblem
from coterie.numerics.arrays import Floats
from coterie.options import declared
from coterie.relations.clusters import ClusterTree
from coterie.results.advice import Advice
from coterie.results.options import Options as FitOptions
from coterie.runs.table_methods import STARTING, block_size, objective, run, run_alone

if TYPE_CHECKING:
    import pandas as pd


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
    (:func:`coterie.methods.collaboration.choose.choose`), in every split from its training rows only.

    Parameters
    ----------
    df : DataFrame
        pandas or polars; one row for each observation.
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
    asked = Options(prior=prior, collaborators=collaborators, within=within)  # type: ignore[arg-type]
    held_out: dict[str, Any] = {"splits": splits, "test_fraction": test_fraction, "seed": seed}
    held_out = {name: declared(FitOptions)[name].read(value) for name, value in held_out.items()}
    levels = as_names("cluster", cluster)
    clients, _ = prepare(to_pandas(df), formula, client, levels, family, offset, weights, missing)  # type: ignore[arg-type]
    if (trouble := collinear(clients, sums=True)) is not None:
        raise CoterieError(trouble)
    if within == "cluster" and not clients.levels:
        raise CoterieError("Collaborators within a cluster need clusters: name a cluster column (--cluster).")
    problem = GroupedProblem(ClusterTree.of(clients), family_named(family), np.arange(clients.X.shape[1]), None)
    together = Together(problem, asked.collaborators, within == "cluster", asked)
    STARTING.get()()
    choice, _, held = together.choice(clients)
    found = Measured.of(clients, together, Splits(*held_out.values()))
    settings: dict[str, Any] = {"formula": formula, "client": client, "cluster": list(levels), "family": family}
    settings |= {"collaborators": asked.collaborators, "within": within, **held_out}
    settings |= {"offset": offset, "weights": weights, "missing": missing}
    settings |= {"columns": clients.X.shape[1], "prior": held, **choice.about, "notes": list(clients.notes)}
    evidence = found.table()
    return Advice(_frame(clients, choice, found), _pairs(clients, choice), evidence, problem.family.loss, settings)


@dataclass(frozen=True)
class Together:
    """Fits clients with the collaborators that their own rows choose."""

    problem: GroupedProblem
    count: int
    same_cluster: bool
    options: Options

    def choice(self, clients: Clients) -> tuple[Choice, Estimates, float]:
        """Who collaborates, the models, and the rows of the prior that holds them at the pooled model."""
        c, family = clients, self.problem.family
        fed = InProcess(objective(c, family), c.clusters if c.levels else None, ids=c.ids, block=block_size(c))
        everyone, metric = around_pooled(fed, self.problem)
        choice = choose(fed, metric, count=self.count, same_cluster=self.same_cluster)
        held = self.options.with_prior(metric)
        theta = optimum(fed, choice.pairs, choice.alpha, held).theta
        return choice, replace(everyone, client=theta), held.prior

    def alone(self, clients: Clients) -> Estimates:
        """Models of clients' own rows under the same prior."""
        if not self.problem.family.needs_prior and self.options.prior in ("auto", "none"):
            return run("local", clients, self.problem, {})[0]
        return run_alone("weighted-averaging", clients, self.problem, {"rounds": {"prior": self.options.prior}})


@dataclass(frozen=True)
class Measured:
    """What held-out rows say, split by split.

    Attributes
    ----------
    parts : list of TableComparison
    predicted : (m,)
        Mean predicted gain of the held-out loss, over splits.
    ratio : float
        Test rows to training rows.
    """

    parts: list[TableComparison]
    predicted: Floats
    ratio: float

    @classmethod
    def of(cls, clients: Clients, together: Together, splits: Splits) -> Measured:
        """Fit alone, pooled and together on the training rows of every split; a CoterieError without test rows."""
        family, predicted = together.problem.family, np.zeros(len(clients))

        def fit(train: Clients) -> Estimates:
            choice, fitted, _ = together.choice(train)
            predicted[:] += family.loss_factor * choice.gain / splits.count
            return fitted

        fits = {"local": together.alone, "pooled": lambda train: run("pooled", train, together.problem, {})[0]}
        parts = list(each_split(clients, family, fits | {"together": fit}, splits))
        if parts and not sum(p.weight.sum() for p in parts) > 0.0:
            raise CoterieError("No client has a row to spare for a test: ask for predictions only (splits 0).")
        return cls(parts, predicted, splits.fraction / (1.0 - splits.fraction))

    def whole(self) -> TableComparison | None:
        """All splits together."""
        return reduce(add, self.parts) if self.parts else None

    def table(self) -> pd.DataFrame:
        """The comparison of the three."""
        import pandas as pd

        whole = self.whole()
        table: pd.DataFrame = pd.DataFrame() if whole is None else whole.table
        return table

    def interval(self) -> tuple[Floats, Floats]:
        """95% intervals (m,) of clients' gains over splits."""
        gains = [part.mean("local") - part.mean("together") for part in self.parts]
        return over_splits(np.array(gains).reshape(-1, len(self.predicted)), self.ratio)


def _frame(clients: Clients, choice: Choice, found: Measured) -> pd.DataFrame:
    """A row for each client."""
    import pandas as pd

    frame: dict[str, Any] = {}
    if clients.levels:
        frame["cluster"] = np.asarray(clients.levels[0].labels)[clients.clusters]
    frame |= {"rows": clients.counts, "collaborators": np.diff(choice.pairs.starts), "alpha": choice.alpha}
    frame["speedup"] = choice.speedup
    whole = found.whole()
    if whole is not None:
        frame |= {"predicted_gain": found.predicted, "test_rows": whole.rows.astype(np.int64)}
        frame |= {f"loss_{n}": whole.mean(m) for n, m in (("alone", "local"), ("together",) * 2, ("pooled",) * 2)}
        frame["gain"] = frame["loss_alone"] - frame["loss_together"]
        frame["gain_low"], frame["gain_high"] = found.interval()
    return pd.DataFrame(frame, index=pd.Index(clients.labels, name=clients.name))


def _pairs(clients: Clients, choice: Choice) -> pd.DataFrame:
    """A row for each pair, by client, heaviest first."""
    import pandas as pd

    pairs = choice.pairs
    order = np.lexsort((-pairs.tau, pairs.pair_main))
    labels, of, tau = np.asarray(clients.labels), pairs.pair_main[order], pairs.tau[order]
    columns = {"client": labels[pairs.main[of]], "collaborator": labels[pairs.pair_client[order]], "tau": tau}
    return pd.DataFrame(columns | {"weight": choice.alpha[of] * tau})
