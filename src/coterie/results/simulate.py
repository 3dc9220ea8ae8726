"""What a fit would have seen in other samples: outcomes drawn from it, and parametric bootstraps of anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.data.clients import Clients
from coterie.data.labels import label_ids
from coterie.errors import CoterieError, checked_call, checked_calls, plural
from coterie.families import draw_shares, family_named
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats
from coterie.results.inference import need_level
from coterie.results.model import Nodes
from coterie.results.residuals import clients_of, linear_predictor, residual_sd
from coterie.results.table_fit import result_of
from coterie.status_line import steps

Work = Callable[[int], Any]


class Draws:
    """Outcomes drawn from a fit, for its rows."""

    def __init__(self, result: Any, clients: Clients, seed: int, redraw: bool | None) -> None:
        m = result.model
        self.result, self.clients, self.seed = result, clients, whole("seed", seed, 0)
        self.redraw = m.has_variances if redraw is None else redraw
        if self.redraw and not m.has_variances and m.method != "pooled":
            raise CoterieError(f"The method '{m.method}' does not say how clients differ: take redraw=False.")
        nodes = Nodes(m)
        self.levels = [(clients.name, clients.ids, m.D_client), *(
            (level.name, label_ids(level.labels), D[None]) for level, D in zip(nodes.levels, m.D_levels, strict=False)
        )]  # fmt: skip
        self.parents = nodes.parents
        self.sd = residual_sd(result, clients)

    def coefficients(self, step: int) -> Floats:
        """Of every client (m, p): new ones around the root, or those of the fit."""
        m = self.result.model
        if not self.redraw or not m.has_variances:
            return np.asarray(m.client)
        theta: Any = m.root[None]
        for k in range(len(self.levels) - 1, -1, -1):
            name, ids, D = self.levels[k]
            values, vectors = np.linalg.eigh(D)
            root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
            normal = keyed_random.normal(keyed_random.starts(self.seed, f"deviations {name}", ids), step, D.shape[-1])
            each = root if len(D) == 1 else root[m.clusters]
            theta = theta[self.parents[k]] + np.einsum(
                "gij,gj->gi", np.broadcast_to(each, (len(ids), *D.shape[1:])), normal
            )
        return np.asarray(theta)

    def outcomes(self, step: int) -> npt.NDArray[Any]:
        """Of every row (n,), sorted as the clients' rows are."""
        c, family = self.clients, family_named(self.result.model.family)
        rng = keyed_random.generator(self.seed, "outcomes", 0, step)
        eta = linear_predictor(self.result, c, self.coefficients(step))
        return draw_shares(rng, eta, c.weights) if c.trials else family.draw(rng, eta, self.sd)


def simulate(result: Any, n: int, seed: int, redraw: bool | None, table: Any) -> pd.DataFrame:
    """See :meth:`Inference.simulate`."""
    n, clients = whole("n", n, 1), clients_of(result, table)
    draws = Draws(result, clients, seed, redraw)
    index = np.argsort(clients.order)
    values = np.stack([draws.outcomes(step)[index] for step in range(n)], axis=1)
    return pd.DataFrame(values, index=pd.Index(clients.order[index], name="row"), columns=pd.RangeIndex(n, name="draw"))


def whole(name: str, value: Any, least: int) -> int:
    """A whole number from some least one on; a CoterieError for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise CoterieError(f"{name} must be a whole number of {least} at least, not {value!r}.")
    return int(value)


def refit(result: Any, y: npt.NDArray[Any], intervals: bool = False) -> Any:
    """The same fit to other outcomes (n,) of the same rows, sorted as the clients' rows are."""
    fitting = result.fitting
    clients = replace(fitting.clients, y=np.asarray(y, dtype=np.float64))
    problem, _ = replace(fitting, clients=clients).problem()
    fitted, ledger = fitting.fit(result.method, problem, clients, intervals)
    more = {**fitting.facts, "ledger": ledger}
    return result_of(result.method, clients, problem, fitted, fitting.options, fitting.settings, **more)


def again(draws: Draws, intervals: bool, step: int) -> Any:
    """The fit to a drawn sample, or in a text why there is none."""
    try:
        return refit(draws.result, draws.outcomes(step), intervals)
    except CoterieError as why:
        return str(why)


@checked_calls
@dataclass(frozen=True, eq=False, repr=False)
class Bootstrap:
    """A parametric bootstrap.

    Attributes
    ----------
    observed : Series
        The statistics of the fit itself.
    replicates : DataFrame
        A row for each drawn sample, in the order of the draws; NaN where a fit to it failed, or its statistic did.
    failures : list of str
        Why fits failed.
    """

    observed: pd.Series[float]
    replicates: pd.DataFrame
    failures: list[str]

    def interval(self, level: float = 0.95) -> pd.DataFrame:
        """Columns observed, bias, std_error, lower, upper, draws; percentile intervals, that hold so often.

        They are of those ``draws`` in which the statistic is a number.
        """
        tail = 0.5 - need_level(level) / 2.0
        drawn, out = self.replicates, pd.DataFrame({"observed": self.observed})
        out["bias"], out["std_error"] = drawn.mean() - self.observed, drawn.std()
        out["lower"], out["upper"] = drawn.quantile(tail), drawn.quantile(1.0 - tail)
        out["draws"] = drawn.count()
        return out

    def __repr__(self) -> str:
        said = [f"{len(self.failures):,} failed: {self.failures[0]}"] if self.failures else []
        left = self.replicates.isna().sum() - len(self.failures)
        said += [f"{name} is no number in {count:,}, which are left out" for name, count in left[left > 0].items()]
        return f"{'; '.join([plural(len(self.replicates), 'parametric bootstrap sample'), *said])}\n{self.interval()}"


@checked_call
def bootstrap(
    result: Any,
    statistic: Callable[[Any], Any] | None = None,
    n: int = 200,
    seed: int = 0,
    *,
    redraw: bool | None = None,
    intervals: bool = False,
    processes: int = 1,
    progress: bool = False,
) -> Bootstrap:
    """Draw outcomes from a fit, fit them again by the same call, and take a statistic of every fit.

    A sample depends on the seed and its number alone, whatever ``processes`` and ``n`` are.

    Parameters
    ----------
    result : FitResult
        Of a table that is here.
    statistic : callable, optional
        Takes a :class:`FitResult`; returns a number, a sequence, a mapping or a Series. By default the global
        coefficients and the standard deviations of :attr:`FitResult.variance_components`.
    n : int, default 200
    seed : int, default 0
    redraw : bool, optional
        Whether clients and clusters get new coefficients too; by default where the method says how they differ.
    intervals : bool, default False
        Whether the fits carry the uncertainty of their variances, which takes time: for statistics of standard errors.
    processes : int, default 1
        In how many the samples are fitted; the statistic is taken in this one. A script that asks for several must
        start its work under ``if __name__ == "__main__":``.
    progress : bool, default False
        Whether a bar is shown.

    Returns
    -------
    Bootstrap

    Raises
    ------
    CoterieError
        For results without rows, such as those that were loaded, where no fit succeeds, and where a statistic is a
        number in the fit and in less than half of the samples.

    Examples
    --------
    >>> boot = coterie.bootstrap(fit, lambda r: r.global_coefficients["estimate"][1], n=500)  # doctest: +SKIP
    >>> boot.interval(0.9)  # doctest: +SKIP
    """
    if getattr(result, "fitting", None) is None:
        raise CoterieError(
            "A bootstrap fits its samples again, for which the rows must be here: take a result of coterie.fit on a "
            "table, not one that was loaded or whose rows stay at their sites."
        )
    kept = replace(result.fitting, clients=replace(result.fitting.clients, relearn=None))  # which no process could read
    draws = Draws(replace(result, fitting=kept), kept.clients, seed, redraw)
    n = whole("n", n, 2)
    taken = statistic or _estimates
    observed = _numbers(taken(result))
    failures: list[str] = []

    rows = []
    for found in in_order(partial(again, draws, intervals), n, processes, progress):
        failures += [found] if isinstance(found, str) else []
        rows.append(observed * np.nan if isinstance(found, str) else _numbers(taken(found)).reindex(observed.index))
    if len(failures) == n:
        raise CoterieError(f"No fit to a drawn sample succeeded: {failures[0]}")
    replicates = pd.DataFrame(rows).set_axis(pd.RangeIndex(n, name="draw"))
    few = replicates.count()[observed.notna() & (replicates.count() < 0.5 * n)]
    if len(few):
        why = f": {len(failures):,} fits failed ({failures[0]})" if failures else ""
        raise CoterieError(
            f"The statistic {few.index[0]!r} is a number in {few.iloc[0]:,} of {plural(n, 'sample')}{why}, too few for "
            "an interval: take one that every fit has."
        )
    return Bootstrap(observed, replicates, failures)


def in_order(work: Work, n: int, processes: int = 1, progress: bool = False) -> Iterator[Any]:
    """What some work gives for each number below n, in their order; other processes keep a few ahead."""
    processes = min(whole("processes", processes, 1), n)
    shown: Iterable[int] = steps(range(n), n, "Drawn samples")
    if progress:
        from rich.console import Console
        from rich.progress import track

        shown = track(range(n), "Drawn samples", n, console=Console(stderr=True))
    if processes == 1:
        yield from map(work, shown)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _keep, (work,)) as pool:
        ahead: deque[Future[Any]] = deque()
        try:
            for step in shown:
                ahead.extend(pool.submit(_kept_work, k) for k in range(step + len(ahead), min(step + 2 * processes, n)))
                yield ahead.popleft().result()
        except BrokenProcessPool as why:
            raise CoterieError(
                "The processes ended before their work: put what starts them under if __name__ == '__main__', or take "
                "processes=1."
            ) from why
        finally:
            for left in ahead:
                left.cancel()


_kept: list[Work] = []


def _keep(work: Work) -> None:
    """What a process does before its first number."""
    _kept[:] = [work]


def _kept_work(step: int) -> Any:
    return _kept[0](step)


def _estimates(result: Any) -> pd.Series[float]:
    """The global coefficients, and the standard deviations and correlations of the variances."""
    parts = result.global_coefficients.set_index("term")["estimate"]
    frame = result.variance_components
    names = frame[[name for name in ("level", "cluster", "term", "term2") if name in frame]].astype(str)
    named = [("" if row[0] == "dispersion" else "sd ") + " ".join(filter(None, row)) for row in names.to_numpy()]
    sd = frame["sd"].where(frame["level"] != "dispersion", frame["cov"]).set_axis(pd.Index(named))
    both: pd.Series[float] = pd.concat([parts, sd])
    return both


def _numbers(value: Any) -> pd.Series[float]:
    """What a statistic returned, as numbers with names; a CoterieError for what holds none."""
    try:
        made: pd.Series[float] = pd.Series(
            value if isinstance(value, (Mapping, pd.Series)) else np.atleast_1d(value), dtype=np.float64
        )
    except (TypeError, ValueError) as e:
        raise CoterieError(
            "The statistic must return a number, a sequence of numbers, or a mapping or Series from names to numbers."
        ) from e
    if made.index.has_duplicates:
        raise CoterieError("The statistic must return a Series whose names are different.")
    return made


def bootstrapped_ratio(small: Any, large: Any, chisq: float, n: int, seed: int) -> dict[str, Any]:
    """The probability of a likelihood ratio from outcomes drawn from the smaller fit, and fitted by both."""
    if small.fitting is None or large.fitting is None:
        raise CoterieError("A bootstrap fits its samples again: give results of coterie.fit whose rows are here.")
    here, there = (fit.fitting.clients.order for fit in (small, large))
    draws = Draws(small, clients_of(small), seed, None)

    def ratio(step: int) -> float:
        y = draws.outcomes(step).astype(np.float64)
        at = np.empty(int(max(here.max(), there.max())) + 1)
        at[here] = y
        return 2.0 * float(refit(large, at[there]).log_likelihood - refit(small, y).log_likelihood)

    drawn = np.array(list(in_order(ratio, whole("bootstrap", n, 1))))
    drawn = drawn[~np.isnan(drawn)]
    if len(drawn) < 0.5 * n:
        raise CoterieError(f"Only {len(drawn):,} of {n:,} drawn samples have a likelihood ratio: leave bootstrap out.")
    p = (1.0 + float(np.sum(drawn >= chisq - 1e-7))) / (len(drawn) + 1.0)
    left = f", {n - len(drawn):,} left out without one" * (len(drawn) < n)
    return {"p": p, "test": f"parametric bootstrap, {plural(len(drawn), 'sample')}{left}"}
