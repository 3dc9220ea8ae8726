"""Groups judged: how they agree with known ones, how well their models do, how sure a client's group is, new clients.

A client's group is the one with the least loss on its rows. The margin to the next best one is a mean of paired
differences over rows, so its standard error is known. The models are taken as they are: what is told is whether other
rows of the same client would choose the same group among those tried, not whether there are groups at all, nor whether
another partition would be better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, work
from coterie.lazy_modules import special
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.groups.find import Groups, mean_loss, numbered, weighed_loss
from coterie.methods.local_training.client_work import finite, train
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.mean_loss import decode_loss, encode_loss, value
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option, checked


def correctly_grouped(labels: Ints, known: Ints) -> int:
    """How many clients (m,) are in the right group, groups being matched as well as can be; -1 is never right."""
    from scipy.optimize import linear_sum_assignment

    a, b = np.asarray(labels), np.unique(known, return_inverse=True)[1]
    table = np.zeros((int(a.max(initial=-1)) + 1, int(b.max(initial=-1)) + 1), dtype=np.int64)
    np.add.at(table, (a[a >= 0], b[a >= 0]), 1)
    return int(table[linear_sum_assignment(-table)].sum())


@work
def model_loss(site: Site, theta: Floats, held: bool) -> dict[str, Floats]:
    """The loss of each client's model theta (m, d) on the rows kept back or those to train on, times their weight."""
    if held and not hasattr(site.objective, "held"):
        raise CoterieError("No rows were kept back to judge by: make the objective with objectives.holdout.hold_out.")
    objective = site.objective.held if held else site.objective
    return weighed_loss(site, objective, value(objective, theta))


def held_loss(fed: Federation, theta: Floats, to: Ints | None = None, held: bool = True) -> float:
    """Mean loss over the rows that clients ``to`` (by default all) keep back, at their models theta (m, d)."""
    to = np.arange(len(fed.clients)) if to is None else to
    return mean_loss(fed.total(model_loss, to=to, theta=PerRow(theta[to]), held=held))


def by_held_out(fed: Federation, partitions: Mapping[int, Ints], *, rounds: int, **training: Any) -> Groups:
    """The partition, labels (m,) by number of groups, whose models lose least on rows that clients keep back.

    The federation's objective keeps rows back (``objectives.holdout.hold_out``; a CoterieError where it does not). A
    model for each group is trained by FedAvg within it, in so many ``rounds`` with ``training`` options of
    ``GroupSGD``; one model for all is tried too. Clients in no group (-1) train in group 0, and are left out of the
    losses. Of the partitions with the least loss it is the one of fewest groups; ``score`` has all losses.
    """
    m = len(fed.clients)
    every, score = {1: np.zeros(m, dtype=np.int64), **partitions}, {}
    for k, labels in sorted(every.items()):
        group = numbered(np.maximum(labels, 0))
        method = GroupSGD(**{"own": "averaged", "weigh": "rows", **training, "group": group})
        state = list(method.run(fed, [rounds]))[-1]
        good = state["status"] == "running"
        theta = np.asarray(method.models(fed, state))
        score[k] = held_loss(fed, theta, np.flatnonzero(labels >= 0)) if good else np.inf
    best = min(score, key=lambda k: (score[k], k))
    return Groups(numbered(every[best]), score)


@dataclass(frozen=True)
class Assignment:
    """Every client's best group among those tried."""

    group: Ints  # (m,) with the least mean loss; -1 for clients that did not answer, or have no rows to judge by
    loss: Floats  # (m, k) mean loss of a client's rows under each group's model
    margin: Floats  # (m,) by how much the next best group is worse
    se: Floats  # (m,) the standard error of that over the client's rows (NaN for one)
    # (m,) that the group is the best of the k, at least: ``1 - sum_j P(j is better)``, each P by Student's t of the
    # paired differences over rows under a flat prior. Exact for two groups. Where that says less than 1 / k, as for a
    # client with one row, 1 / k stands for "nobody knows", which is no bound.
    probability: Floats


def row_losses(objective: Any, w: Floats) -> tuple[Floats, Ints]:
    """Losses (k, rows) of every row under the models w (k, d), and the client of each row."""
    if not hasattr(objective, "row_losses"):
        raise CoterieError(f"{type(objective).__name__} tells no losses of single rows: how sure cannot be said.")
    losses = [objective.row_losses(np.tile(model, (len(objective), 1))) for model in w]
    return np.array(losses).reshape(len(w), -1), np.repeat(np.arange(len(objective)), objective.counts)


@work
def judge(site: Site, w: Floats, held: bool) -> dict[str, Any]:
    """Mean losses (m, k), the best group (-1: not known), how sure that is (-1: no error), on rows held or at hand."""
    m, k, d = len(site), len(w), site.objective.dim
    if w.shape[1] != d:
        raise CoterieError(f"A group's model must be {d} numbers, as many as clients' models, not {w.shape[1]}.")
    losses, owner = row_losses(site.objective.held if held else site.objective, w)
    n = np.bincount(owner, minlength=m).astype(np.float64)
    rows = np.maximum(n, 1.0)
    mean = np.stack([np.bincount(owner, one, m) for one in losses], axis=1).reshape(m, k) / rows[:, None]
    mean = np.where(np.isfinite(mean), mean, np.inf)
    best = np.argmin(mean, axis=1)
    known = (n > 0) & np.isfinite(mean.min(axis=1, initial=np.inf))
    with np.errstate(invalid="ignore"):
        worse = losses - losses[best[owner], np.arange(len(owner))]
        gap = mean - mean[np.arange(m), best][:, None]
        square = [np.bincount(owner, (worse[j] - gap[owner, j]) ** 2, m) for j in range(k)]
        se = np.sqrt(np.stack(square, axis=1).reshape(m, k) / rows[:, None] / np.maximum(n - 1.0, 1.0)[:, None])
    se[n < 2] = np.nan
    gap[np.arange(m), best] = np.inf
    second = np.argmin(gap, axis=1)
    runner_up = np.arange(m), second
    return {
        "loss": encode_loss(mean),
        "group": np.where(known, best, -1),
        "margin": encode_loss(gap[runner_up]),
        "se": np.where(np.isfinite(se[runner_up]), se[runner_up], -1.0),
        "probability": np.where(known, probability(gap, se, n), 1.0 / k),
    }


def probability(gap: Floats, se: Floats, n: Floats) -> Floats:
    """A lower bound (m,) of the probability that the best group is best, by Bonferroni's inequality, or 1 / k.

    ``gap``, ``se`` (m, k): mean difference to the best group, infinite for itself, and its standard error; n (m,) rows.
    """
    k = gap.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(gap > 0.0, gap / se, 0.0)  # equal losses are worth a coin
        better = special.stdtr(np.maximum(n - 1.0, 1.0)[:, None], -t)
    better = np.where(np.isposinf(gap), 0.0, np.where(np.isnan(better), 0.5, better))
    return np.asarray(np.maximum(1.0 - better.sum(axis=1), 1.0 / k))


def judge_groups(fed: Federation, w: Floats, held: bool = True) -> Assignment:
    """Let every client judge the groups' models w (k, d) on rows that it keeps back (``objectives.holdout.hold_out``).

    Where not ``held`` it judges by the rows at hand, which is right for clients that no model was trained on; others'
    own group looks too good.
    """
    w = np.atleast_2d(np.asarray(w, dtype=np.float64))
    m, k = len(fed.clients), len(w)
    replies = fed.ask(judge, w=w, held=held)
    nothing = (np.full(m, -1), np.full((m, k), np.nan), np.full(m, np.nan), np.full(m, np.nan), np.full(m, 1.0 / k))
    out: dict[str, Any] = dict(zip(("group", "loss", "margin", "se", "probability"), nothing, strict=True))
    for name in out if replies else ():
        out[name][replies.to[replies.rows]] = replies[name]
    unknown = out["group"] < 0
    out["loss"], out["margin"] = decode_loss(out["loss"]), decode_loss(out["margin"])
    out["loss"][unknown] = np.nan
    out["margin"][unknown | (k == 1)] = np.nan
    out["se"][unknown | (k == 1) | (out["se"] < 0.0)] = np.nan
    return Assignment(**out)


@dataclass(frozen=True)
class Adapted:
    """Models of new clients."""

    models: Floats  # (m, d) the group's where steps diverge or there are no rows; NaN for those that do not answer
    group: Ints  # (m,) chosen by loss on a client's rows; 0 where it has none, -1 where it does not answer
    assignment: Assignment  # losses under every group's model, margins, and the probability that the group is the best


@work
def adaptation_steps(
    site: Site, w: Floats, eta: float, steps: int, B: int, personal: list[str], pull: float, done: int = 0
) -> dict[str, Any]:
    """Some steps from w (m, d) on a client's own rows, of the personal parameters alone, pulled back to w."""
    on = parameter_mask(site.objective, personal).astype(np.float64) if personal else None
    tied: dict[str, Any] = {"anchor": w, "pull": pull} if pull else {}
    theta = train(site, w, eta, steps, done, B, "adaptation rows", on=on, **tied)
    return {"theta": np.where(finite(theta)[:, None], theta, w)}


@checked
def adapt(
    fed: Federation,
    w: Floats,
    *,
    eta: Annotated[float, Option(low=0.0)] = 0.1,
    steps: Annotated[int, Option(low=0)] = 0,
    B: Annotated[int, Option(low=0)] = 0,
    personal: Annotated[tuple[str, ...], Option()] = (),
    pull: Annotated[float, Option(low=0.0)] = 0.0,
) -> Adapted:
    """Models for new clients, those of ``fed``, out of a fitted run; nothing that is shared changes.

    ``w`` is a model for each group (k, d), as in ``state["w"]`` of IFCA and CFL, or one for all (d,). After the group
    is chosen come so many local ``steps``, of ``eta`` and B rows (0: all), of the ``personal`` parameters, names or
    patterns such as ``head*``, by default of all; the loss of steps has ``pull / 2`` times the squared distance from
    the group's model beside it. A CoterieError for a pattern that matches nothing.
    """
    w = np.atleast_2d(np.asarray(w))
    judged = judge_groups(fed, w, held=False)
    chosen = w[np.maximum(judged.group, 0)]
    message: dict[str, Any] = {"eta": float(eta), "steps": steps, "B": B, "pull": float(pull)}
    replies = fed.ask(adaptation_steps, w=PerRow(chosen), personal=list(personal), **message)
    models, group = np.full(chosen.shape, np.nan, dtype=chosen.dtype), np.full(len(chosen), -1, dtype=np.int64)
    answered = replies.to[replies.rows]
    if replies:
        models[answered], group[answered] = replies["theta"], np.maximum(judged.group[answered], 0)
    return Adapted(models, group, judged)
