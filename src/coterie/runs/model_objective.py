"""The model that a configuration names: Softmax, one of the package's nets, or a user's own torch module.

Its layers, its size, and clients' rows as its objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from coterie.data.net_inputs import is_plain
from coterie.data.partition import ClientRows
from coterie.errors import CoterieError, listed, nearest
from coterie.federation import Array
from coterie.methods.local_training.rounds import LAYERS
from coterie.methods.method import Method
from coterie.numerics.arrays import Ints
from coterie.objectives.mixed import kinds
from coterie.objectives.parameters import NORMALISATION, layer_sizes, parameter_mask
from coterie.objectives.softmax import Softmax
from coterie.options import declared
from coterie.runs.config import Config, called
from coterie.runs.config_keys import section
from coterie.runs.rows_and_models_in_memory import MARK

_PACKAGED = ("coterie.objectives.deep.losses", "coterie.objectives.deep.nets")
"""Modules whose functions a configuration may also name by their import paths, as it would name its user's own."""
NETS = ("mlp", "cnn", "unet", "nodule_detector")
"""The package's own nets, in ``objectives/deep/nets.py``."""
_MOST = 100_000_000
"""Most numbers of a client's softmax model."""
_BOUND = 10_000_000
"""Most numbers of a model of the package that others name at a site."""
_ARGS = 100
"""Most arguments of a saved model, and entries of one of them."""
_SOFTMAX = ("path", "ridge", "metrics", "positive", "greater_is_better", "target", "inputs")
"""Keys of [model] that softmax heeds; greater_is_better is of a score of one's own."""
_STEPS = ("clip", "momentum", "optimizer", "optimizer_args", "batches", "at_once")
SCORED = ("cross_entropy", "bce")
"""Losses whose outcomes are classes, so that there is an accuracy."""


def objective_of(
    config: Config,
    rows: ClientRows,
    classes: int,
    held: bool = False,
    targets: bool = True,
    labels: Sequence[str] | None = None,
    base: Any = None,
    longest: Any = None,
) -> Any:
    """The clients' rows as an objective; without its ridge where they are held out.

    Without ``targets`` it only predicts: what ``rows.y`` holds then means nothing. ``labels`` are what clients are
    called where something is wrong: a model that cannot be imported, a missing torch, or what the objective refuses.
    ``base`` are tensors of what does not train, by default those of the module; ``longest`` the lengths to which rows
    of several lengths are padded without a mask.
    """
    model = config.model
    ridge = 0.0 if held else model["ridge"]
    if model["path"] == "softmax":
        if not classes:
            raise CoterieError("The model softmax needs classes: whole numbers from 0 as y.")
        if idle := [
            key for key, default in section("model", {}).items() if key not in _SOFTMAX and model[key] != default
        ]:
            raise CoterieError(
                f"The model softmax has no use for {listed(idle)} of [model], which a torch model has: take one, such "
                "as mlp, or leave that out."
            )
        if not is_plain(rows.X):
            raise CoterieError(
                "The model softmax takes one array of numbers, and X has several, or series: take a net."
            )
        flat = np.asarray(rows.X, dtype=np.float64).reshape(len(rows.X), -1)
        X = np.concatenate([np.ones((len(flat), 1)), flat], axis=1)
        if X.shape[1] * classes > _MOST:
            raise CoterieError(
                f"The model softmax would have {X.shape[1] * classes:,} numbers, as y goes up to {classes - 1:,}: code "
                "classes as 0, 1, ... without gaps."
            )
        finite = np.nan_to_num(X, posinf=0.0, neginf=0.0)
        made = Softmax.of(finite, rows.y, rows.starts, rows.stops, classes, rows.weights, ridge)
        return replace(made, X=X)  # a client with rows that are not finite is left out and named when it trains
    made = network(config)
    deep, _ = _deep()
    options = {key: model[key] for key in ("dtype", "device", "buffers", "batched", *_STEPS)}
    loss, score = model["loss"], model["score"]
    options |= {
        "weights": rows.weights,
        "ridge": ridge,
        "loss": _found(config, loss, "The loss") if ":" in loss else loss,
    }
    options["score"] = None if score is None else _found(config, score, "The score")
    y = rows.y if targets else None
    found = deep.Deep.of(made, rows.X, y, rows.starts, rows.stops, labels=labels, base=base, longest=longest, **options)
    if model["buffers"] == "averaged" and not found.architecture.buffers:
        raise CoterieError("buffers = 'averaged' changes nothing, as the model has no statistics: leave buffers out.")
    return found


def with_head(config: Config, group: str) -> Config:
    """The configuration of a group's own net."""
    model = config.model
    return replace(config, model=model | {"args": model["args"] | model["heads"].get(group, {}), "heads": {}})


def network(config: Config) -> Any:
    """The torch module that was given, or a function without arguments that makes it."""
    path, args = config.model["path"], config.model["args"]
    if ":" in path:
        made = _found(config, path, "The model")
        if path.startswith(MARK) and hasattr(made, "state_dict") and not isinstance(made, type):
            if args:
                raise CoterieError("The model is a module already, and takes no args: give what makes it.")
            return made
    elif path in NETS:
        made = getattr(_deep()[1], path)
    else:
        hint = nearest(path, ("softmax", *NETS)) or f" There are softmax, {', '.join(NETS)}, and package.module:name."
        raise CoterieError(f"There is no model called '{path}'.{hint}")
    return partial(called, made, f"The model '{path}'", args)


def linear(theta: Any, classes: int) -> Any:
    """The torch module of a softmax model with the numbers theta (d,)."""
    _deep()
    from coterie.objectives.deep import export

    return export.linear(theta, classes)


def own(path: str) -> bool:
    """Whether a name is the import path of code that is not coterie's."""
    return ":" in path and path.partition(":")[0] not in _PACKAGED


def need_size(config: Config, d: int, softmax: int) -> None:
    """Raise unless a saved model of the package has the d numbers that were read; nothing of its size is made for that.

    ``softmax`` are those that a model of this name would have. The args of the configuration may be from anywhere.
    """
    path = config.model["path"]
    if own(path):
        return
    size = softmax if path == "softmax" else _size(config, d)
    if size is None:
        raise CoterieError(f"The model '{path}' is not of the size of the numbers that were saved: train it again.")
    if size != d:
        raise CoterieError(f"The model '{path}' has {size:,} numbers, and {d:,} were saved: train it again.")


def need_bounded(config: Config, softmax: int) -> None:
    """Raise for a model of the package of more than ten million numbers, or with too many args, before it is made.

    ``softmax`` are those that a model of this name would have.
    """
    path = config.model["path"]
    if own(path):
        return
    size = softmax if path == "softmax" else _size(config, _BOUND)
    if size is None or size > _BOUND:
        raise CoterieError(f"The model '{path}' would have more than {_BOUND:,} numbers, or too many args: take less.")


def _size(config: Config, most: int) -> int | None:
    """The numbers of a net of the package; None where its args are beyond what ``most`` numbers can need."""
    if not _small(config.model["args"], most):
        return None
    make = network(config)
    from coterie.objectives.deep import architecture

    return architecture.size(make)


def _small(args: Any, d: int) -> bool:
    """Whether no size among the args of a model, nor their number, is beyond what d parameters can need."""
    if isinstance(args, dict | list | tuple):
        parts = list(args.values() if isinstance(args, dict) else args)
        return len(parts) <= _ARGS and all(_small(part, d) for part in parts)
    return args is None or isinstance(args, bool | str) or (isinstance(args, int) and abs(args) <= d)


def _found(config: Config, path: str, what: str) -> Any:
    """A function or class that a configuration names by its import path."""
    module, _, name = path.partition(":")
    if module not in _PACKAGED:
        return config.load(path, what)
    _deep()
    made = vars(import_module(module)).get(name)
    if getattr(made, "__module__", None) != module:
        raise CoterieError(f"{what} '{path}': {module} has no '{name}'.")
    return made


def _deep() -> tuple[Any, Any]:
    """The package of deep objectives and its nets, imported only here and only when a model needs them."""
    try:
        from coterie.objectives import deep
        from coterie.objectives.deep import nets
    except ModuleNotFoundError as e:
        raise CoterieError("This model needs PyTorch: pip install 'coterie[torch]'.") from e
    return deep, nets


def layers(config: Config, objective: Any) -> dict[str, tuple[str, ...]]:
    """The layers that are "shared" and those that are "personal", as patterns; what one does not say, the other does.

    A CoterieError for a pattern that matches nothing, and layers that are both or neither.
    """
    shared, personal = config.layout["shared"], config.layout["personal"]
    known = _known(objective)
    if shared is None and personal is None:
        return {}
    _need_match((*(shared or ()), *(personal or ())), known, "[layout]")
    one, other = (matching(patterns or [], known) for patterns in (shared, personal))
    if both := [name for name in known if name in one and name in other]:
        raise CoterieError(f"Layer '{both[0]}' is shared and personal: name it in one of both.")
    kept = set(getattr(objective, "kept", ()))  # statistics stay at home, whatever is said of others
    left = [name for name in known if name not in one and name not in other and name not in kept]
    if left and shared is not None and personal is not None:
        raise CoterieError(
            f"[layout] says nothing of '{left[0]}': leave out shared or personal, which then has the rest."
        )
    rest = tuple(left)
    return {
        "shared": rest if shared is None else tuple(shared),
        "personal": rest if personal is None else tuple(personal),
    }


def of_layout(method: Method, config: Config, objective: Any) -> dict[str, tuple[str, ...]]:
    """Options of a method that [layout] says: the layers that it splits, and a net's head that has another name.

    Where no layer is called as the default of ``head`` and ``bias`` says, the personal layers are the head.
    """
    parts = layers(config, objective) if method.layout or "head" in method.hyper_parameters else {}
    out = {name: found for name, found in parts.items() if name == method.layout}
    if parts and not method.user_defined and all(hasattr(part, "features") for _, part in kinds(objective)):
        known = _known(objective)
        head = [name for name in known if name in matching(parts.get("personal", ()), known)]
        own = {"head": tuple(head), "bias": tuple(name for name in head if name.endswith("bias"))}
        for option in own.keys() & method.hyper_parameters.keys():
            if own[option] and not matching(getattr(method.method_class, option), known):
                out[option] = own[option]
    return out


def need_layers(name: str, method: Any, objective: Any) -> None:
    """A CoterieError for a pattern of a method that matches no layer, and ``untied`` layers that it shares."""
    known = _known(objective)
    for option in layer_options(type(method)):
        patterns = getattr(method, option)
        if NORMALISATION in patterns:
            parameter_mask(objective, (NORMALISATION,))
        _need_match([one for one in patterns if one != NORMALISATION], known, f"{option} of the method {name}")
    personal = matching(getattr(method, "personal", ()), known)
    if shared := [layer for layer in matching(getattr(method, "untied", ()), known) if layer not in personal]:
        raise CoterieError(f"untied names the layer '{min(shared)}', which is shared: name layers of personal.")


def layer_options(method_class: type) -> list[str]:
    """The options of a method that are patterns of layers."""
    return [name for name, one in declared(method_class).items() if one.option.what == LAYERS]


def _known(objective: Any) -> list[str]:
    return list(dict.fromkeys(name for _, part in kinds(objective) for name in layer_sizes(part)))


def _need_match(patterns: Iterable[str], known: Sequence[str], whose: str) -> None:
    for pattern in patterns:
        if not matching([pattern], known):
            hint = nearest(pattern, known) or f" There are {listed(known, 12)}."
            raise CoterieError(f"'{pattern}', as {whose} says, matches no layer of the model that trains.{hint}")


def matching(patterns: Sequence[str], known: Iterable[str]) -> set[str]:
    """Names that some pattern matches."""
    return {name for name in known for pattern in patterns if fnmatchcase(name, pattern)}


def outcome_classes(config: Config, y: Array) -> Ints | None:
    """Outcomes as classes from 0 (n, ...): those of every row, pixel or label; None where they are none."""
    model = config.model
    if model["score"] is not None or not (model["path"] == "softmax" or model["loss"] in SCORED):
        return None
    if model["path"] != "softmax" and model["loss"] == "bce":
        return np.asarray(y > 0.5).astype(np.int64)
    return np.asarray(np.maximum(np.nan_to_num(y), 0), dtype=np.int64)
