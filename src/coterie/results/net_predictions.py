"""What nets of clients say of rows; and a model for a client that was not in a training, from its own rows."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.data.array_input import finite_rows
from coterie.data.columns import at_rows
from coterie.data.labels import find_labels
from coterie.engines.local_engines import InProcess
from coterie.errors import CoterieError, fitting, listed, nearest
from coterie.methods.groups.evaluation import Adapted, adapt, judge_groups
from coterie.methods.local_training.new_client import join, join_among
from coterie.methods.method import Method
from coterie.methods.registry import trained_method
from coterie.objectives.client_models import AT_ONCE, finite, is_one, mean
from coterie.objectives.mean_loss import sizes
from coterie.objectives.parameters import parameter_mask
from coterie.objectives.wide_models import WideModels
from coterie.objectives.wide_models import means as mean_outcomes
from coterie.options import Declared, Option, need_names
from coterie.runs.model_objective import layers, of_layout

if TYPE_CHECKING:
    from coterie.results.training_result import TrainingResult


DAMAGED = "They are damaged: train them again."
"""The remedy where what was read of trained models cannot be used."""


def outputs(result: TrainingResult, X: npt.ArrayLike, client: Any) -> npt.NDArray[Any]:
    """Outputs (n, ...) of a client's model, or of the model of each row's client, by labels (n,)."""
    rows = result.rows_like_these(X, "predict")
    if client is None:
        raise CoterieError("client says whose rows X are: give a label, or one for each row.")
    if isinstance(client, str) or np.ndim(client) == 0:
        client = np.full(len(rows), str(client), dtype=object) if len(rows) else [client]
    elif np.ndim(client) != 1 or len(client) != len(rows):
        raise CoterieError(
            f"client must be a label, or one for each of the {len(rows):,} rows, not {np.size(client):,} labels."
        )
    labels = np.array([str(label) for label in client] or [result.labels[0]], dtype=object)
    names, code = np.unique(labels, return_inverse=True)
    places = result.places(names)
    some = rows if len(rows) else result.blank(rows.dtype)  # the answer's shape is the model's to say
    found: npt.NDArray[Any] = np.empty(0)
    kinds = np.array(result.heads)[places] if result.heads else np.zeros(len(places))
    for kind in dict.fromkeys(kinds):
        here = np.flatnonzero(kinds == kind)
        at = np.flatnonzero(np.isin(code, here))
        at = at[np.argsort(code[at], kind="stable")]
        part = _of_some(result, some[at], places[here], np.bincount(code[at])[here])
        if not len(found):
            found = np.empty((len(some), *part.shape[1:]), part.dtype)
        if part.shape[1:] != found.shape[1:]:
            raise CoterieError("These clients' nets have outputs of other shapes: predict for one of them at a time.")
        found[at] = part
    if (bad := np.isnan(found).any(axis=tuple(range(1, found.ndim)))).any():
        first = labels[bad][0]
        where = at_rows(bad & (labels == first))
        raise CoterieError(f"The model of client '{first}' gives no number in {where}: leave them out.")
    return found[: len(rows)]


def _of_some(
    result: TrainingResult, rows: npt.NDArray[Any], places: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Outputs of the clients at ``places`` for rows, so many of each, client after client; their nets are alike."""
    theta, first = result.theta, int(places[0])
    d = int(result.sizes[first]) if result.heads else theta.shape[1]
    one = len(theta) == 1 or is_one(theta)
    step = len(places) if one else max(AT_ONCE // d, 1)
    with fitting("What was read of these trained models", DAMAGED):
        objective, parts = result.objective(rows, of=result.labels[first], counts=counts), []
        for at in range(0, len(places), step):
            here = objective.take(slice(at, at + step))
            models = theta[:1] if one else theta[places[at : at + step]]
            parts.append(np.asarray(here.outputs(np.broadcast_to(models[:, :d], (len(here), d)))))
    return np.concatenate(parts)


def probabilities(loss: str, outputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What outputs say of classes under a packaged loss: "cross_entropy" or "bce"."""
    if loss not in ("cross_entropy", "bce"):
        raise CoterieError(f"The loss {loss} has no classes that there could be probabilities of: take predict().")
    return mean_outcomes(np.asarray(outputs, dtype=np.float64), loss)


ROUNDS = 20
_STEPS = [name for name in inspect.signature(adapt).parameters if name not in ("fed", "w")]
_NAMES = ("by", "rounds", "neighbours", *_STEPS)


def adapted(
    result: TrainingResult, X: npt.ArrayLike, y: npt.ArrayLike, group: str | None, given: Mapping[str, Any]
) -> Adapted:
    """See ``adapt`` of a :class:`~coterie.results.training_result.TrainingResult`."""
    rows, options = result.rows_like_these(X, "adapt to"), dict(given)
    if not len(rows):
        raise CoterieError("A new client needs one row at least to adapt a model to.")
    need_names("adapt()", options, _NAMES)
    if (group is not None or result.heads) and group not in result.heads:
        known = f"losses of nets of other shapes do not compare: say one of {listed(dict.fromkeys(result.heads))}"
        raise CoterieError(f"group of adapt() is {group!r}, and {known if result.heads else 'all nets are alike'}.")
    of = result.labels[result.heads.index(group)] if group is not None else None
    read = result.objective(rows, _outcomes(result, y), of)
    here = read.of if isinstance(read, WideModels) else read
    if "personal" not in options and any(result.configuration.layout.values()):
        options["personal"] = layers(result.configuration, here)["personal"]
    with fitting("What was read of these trained models", DAMAGED):
        groups, means = mean_models(result, group)
    fed = InProcess(here)
    if here is not read and options.get("by") == "mean":
        raise CoterieError(f"Models of {result.method} are more than a net, and have no mean: leave by out.")
    rule, method = _rule(result, here, options.pop("by", "method"))
    rounds = Declared("rounds", int, Option(low=0)).read(options.pop("rounds", ROUNDS))
    if rule in ("steps", "groups") and "rounds" in given:
        raise CoterieError(f"rounds of adapt() changes nothing for {result.method}, whose rule has none: say steps.")
    if rule in ("rounds", "steps"):
        still = parameter_mask(here, getattr(here, "kept", ()))  # statistics, which no server has
        groups, others = np.arange(len(result.shared)), means.mean(axis=0)
        means = np.where(still, others[: len(still)], result.shared).astype(result.shared.dtype)
    if rule == "rounds":
        if not (several := getattr(method, "several", False)):  # of groups' shared models the one that suits its rows
            groups = np.maximum(judge_groups(fed, means, held=False).group[:1], 0)
        means, groups = join(fed, method, means if several else means[groups[0]], rounds, others), groups[:1]
        if not np.isfinite(means).all():
            raise CoterieError(f"The rounds of {result.method} diverge on these rows: train with a smaller eta.")
    usual: dict[str, Any] = {}
    if "neighbours" in options and rule != "tied":
        raise CoterieError(f"neighbours of adapt() changes nothing for {result.method}: leave it out.")
    if rule in ("among", "tied", "pulled"):
        means, pull = _beside_others(result, method, rule, here, options.pop("neighbours", None), rounds)
        groups = np.arange(len(means))
        if rule == "pulled":
            groups = np.unique(_known_groups(result)[_there(result)])
            groups = groups[np.maximum(judge_groups(fed, means[groups], held=False).group[:1], 0)]
            means, usual = means[groups], {"steps": rounds * method.tau, "eta": _rate(method, 0), "B": method.B}
            usual |= {"pull": float(pull[groups[0]]), "personal": method.personal}
    if rule == "steps":  # those that clients took at the end of the training
        usual = {"steps": getattr(method, "finetune", 0), "pull": method.mu if method.bends == "mu" else 0.0}
        usual |= {"eta": _rate(method, result.run.kept or result.run.rounds), "B": method.B}
    if read is not here:  # a memory is as long as a client has rows
        read = replace(read, dim=means.shape[1])
    found = adapt(InProcess(read), means, **usual | options)
    if (usual | options).get("steps") and np.array_equal(found.models[0], means[found.group[0]]):
        warnings.warn("The steps on these rows diverge or move nothing: the model is its group's.", stacklevel=4)
    return replace(found, group=np.where(found.group < 0, -1, groups[found.group]))


def read_by_method(result: TrainingResult, objective: Any) -> Any:
    """Rows as the models of the result answer for them: each is more than a net where its method reads them so."""
    if ":" in result.method or not hasattr((row := trained_method(result.method)).method_class, "reads"):
        return objective
    return row.make(result.run.seed, **_options(result, row, objective)).reads(objective, result.theta.shape[1])


def _rule(result: TrainingResult, here: Any, by: str) -> tuple[str, Any]:
    """What is done with a client that comes later, and the method that does it."""
    if by not in ("method", "mean"):
        raise CoterieError(f"by of adapt() must be method or mean, not {by!r:.40}.")
    if by == "mean" or ":" in result.method:
        return "groups", None
    row = trained_method(result.method)
    rule = getattr(row.method_class, "joins", "")
    if not rule:
        raise CoterieError(
            f"{result.method} has no rule for a client that was not there, as its models hang on what others answer in "
            "training: say by='mean' to begin at the mean of all models, or train with the client."
        )
    if rule == "groups" or (rule in ("rounds", "steps") and result.shared is None):
        return "groups", None
    own = {"group_labels": result.groups} if hasattr(row.method_class, "group_labels") else {}
    method = row.make(result.run.seed, **_options(result, row, here), **own)
    if rule == "pulled" and getattr(method, "untied", ()):
        raise CoterieError("Layers that are untied have no pull, which adapt() has one of: say by='mean'.")
    return "rounds" if method.personal and rule == "steps" else rule, method


def _options(result: TrainingResult, row: Method, objective: Any) -> dict[str, Any]:
    """The hyper-parameters of the training, and what its layout says."""
    own = {name: value for name, value in result.run.setting.items() if name in row.hyper_parameters}
    return of_layout(row, result.configuration, objective) | own


def _rate(method: Any, t: int) -> float:
    return float(method.rate(t) if hasattr(method, "rate") else method.eta)


def _there(result: TrainingResult) -> npt.NDArray[np.int64]:
    """Clients with a model of use."""
    return np.flatnonzero(finite(result.theta) & ~np.isin(result.labels, [*result.run.quarantined, *result.run.failed]))


def _known_groups(result: TrainingResult) -> npt.NDArray[np.int64]:
    """The group of every client, from 0; all in one where none are known."""
    group = result.clients["group"] if result.groups else np.ones(len(result.labels))
    return np.asarray(group, dtype=np.int64) - 1


def _beside_others(
    result: TrainingResult, method: Any, rule: str, here: Any, neighbours: Any, rounds: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Models (k, d) to begin at, or to end at, made of others' models as they are; of "pulled" also how strongly."""
    there = _there(result)
    counted = result.clients["weight" if "weight" in result.clients else "rows"]
    theta, rows = result.theta[there], counted.to_numpy(dtype=np.float64)[there]
    if rule == "among":
        cores = result.shared[there] if method.mixes else theta
        fed = InProcess(here.take(np.zeros(len(cores) + 1, dtype=np.int64)))  # the last takes part, and no other
        return join_among(fed, method, cores, rows, rounds), np.zeros(0)
    if rule == "pulled":
        anchors, pull = method.anchors(theta, rows, _known_groups(result)[there], parameter_mask(here, method.personal))
        return anchors.astype(theta.dtype), pull
    names = [str(name) for name in np.array(result.labels, dtype=object)[there]]
    for name in neighbours or ():
        if str(name) not in names:
            raise CoterieError(f"neighbours names client '{name}', which has no model here.{nearest(name, names)}")
    near = theta[[names.index(str(name)) for name in neighbours]] if neighbours else theta.mean(axis=0)[None]
    ties = 1.0 if neighbours else method.degree(len(there))  # the mean stands for so many
    size = float(sizes(here)[0])
    weight = ties * method.lam * (rows.sum() + size) / (size * (len(rows) + 1))  # of its mean loss, not of all
    return method.beside(InProcess(here), near, weight, rounds), np.zeros(0)


def mean_models(result: TrainingResult, head: str | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Groups (k,) and the mean model (k, d) of each, of clients whose models are sound and were not left out."""
    theta, out = result.theta, {*result.run.quarantined, *result.run.failed}
    good = finite(theta)
    label = np.zeros(len(theta), dtype=np.int64)
    if len(theta) == len(result.labels):
        good &= ~np.isin(result.labels, list(out))
        label = label if result.group is None else np.asarray(result.group)
    if head is not None:
        good &= np.array(result.heads) == head
        theta = theta[:, : result.sizes[result.heads.index(head)]]
    groups = np.unique(label[good])
    if not len(groups):
        raise CoterieError("Every client was left out of the training: there is no model to adapt. Train again.")
    return groups, np.stack([mean(theta, good & (label == g)) for g in groups])


def _outcomes(result: TrainingResult, y: npt.ArrayLike) -> npt.NDArray[Any]:
    """Outcomes to adapt to, texts as the classes that they name."""
    if not result.class_names:
        return finite_rows(y, "Outcomes to adapt to")
    codes = find_labels(np.asarray(result.class_names), y)
    if (codes < 0).any():
        raise CoterieError(
            f"'{np.asarray(y)[codes < 0][0]}' is no class of the models, which are {listed(result.class_names)}."
        )
    return codes
