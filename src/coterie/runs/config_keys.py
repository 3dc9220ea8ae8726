"""The keys of a configuration: what each holds, its default, and whether it changes the numbers of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from coterie.errors import CoterieError, checked_call
from coterie.objectives.torch_names import HALF, StepOptions
from coterie.options import Option, declared, of, shown, unheeded
from coterie.runs.metrics import chosen_names, names
from coterie.runs.rows_and_models_in_memory import code

MOST = 10_000
"""Seeds at most."""
_CODE = "a name, a function, or a module"
_SHARES, _CLASSES = ("dirichlet", "extended-dirichlet", "quantity"), ("pathological", "extended-dirichlet")
DEALT = ("iid", *_SHARES, "pathological", "shards", "feature-noise", "rotated")
"""Partitions that say whose a row is, whatever is known of it."""
_DIRICHLET, _NAMED = ("partition", _SHARES), ("partition", ("by_column", "given", "auto"))
_WIRED = ("kind", ("loopback", "ray"))
Seed = Annotated[int | None, Option("By default that of the run.", low=0)]


def seeds(value: int | tuple[int, ...]) -> tuple[int, ...]:
    """Seeds: a list of them, or how many there are to be from 0."""
    found = value if isinstance(value, tuple) else tuple(range(min(value, MOST + 1)))
    if len(found) > MOST or not found or len(set(found)) < len(found):
        raise ValueError("none, or twice the same")
    return found


def text(value: Any) -> str:
    """A text, or what is held under one; a ValueError for anything else."""
    if isinstance(value, str):
        return value
    raise ValueError("no text")


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, or None."""
    return lambda value: None if value is None else read(value)


@dataclass(frozen=True)
class Data:
    """``[data]``: the rows, and which of them a client has."""

    argument: ClassVar[str] = "partition"
    source: Annotated[
        Any, Option("digits, fashion-mnist, a file or folder, or package.module:function.", what="text", read=text)
    ] = "digits"
    args: Annotated[dict[str, Any], Option("Arguments of the function, or of the reader.")] = field(
        default_factory=dict
    )
    collate: Annotated[
        str | None,
        Option("Of Datasets that the function gives by client: package.module:function of a list of items."),
    ] = None
    rows: Annotated[int, Option("Rows that are taken; 0 takes all.", low=0)] = 0
    partition: Annotated[
        Literal["auto", "iid", "dirichlet", "extended-dirichlet", "quantity", "pathological", "shards"]
        | Literal["feature-noise", "rotated", "by_column", "given"],
        Option("How rows are dealt to clients: auto is given where rows have clients, else iid.", argument="partition"),
    ] = "auto"
    clients: Annotated[int, Option("How many there are.", low=1, beside=("partition", ("auto", *DEALT)))] = 20
    alpha: Annotated[
        float, Option("Of Dirichlet shares: a small one makes clients unlike.", above=0.0, beside=_DIRICHLET)
    ] = 0.5
    least: Annotated[int, Option("Of Dirichlet shares: rows of a client, at least.", low=2, beside=_DIRICHLET)] = 2
    shards: Annotated[int, Option("Of shards: how many a client has.", low=1, beside=("partition", ("shards",)))] = 2
    each: Annotated[
        int,
        Option("Of pathological and extended-dirichlet: a client's classes.", low=1, beside=("partition", _CLASSES)),
    ] = 2
    sigma: Annotated[
        float,
        Option(
            "Of feature-noise: the variance of the last client's.", above=0.0, beside=("partition", ("feature-noise",))
        ),
    ] = 0.1
    column: Annotated[str | None, Option("Of by_column: the array that names clients.", beside=_NAMED)] = None
    weights: Annotated[str | None, Option("The array of row weights, relative to their mean.", argument="weights")] = (
        None
    )
    group: Annotated[str, Option("The array that names known groups, where there is one.")] = "group"
    angles: Annotated[
        tuple[int | float, ...],
        Option("Of rotated: degrees, one for each group.", beside=("partition", ("rotated",))),
    ] = (0, 90, 180, 270)
    test: Annotated[
        float,
        Option(
            "Share of each client's rows that no training sees; 0 for none, and no scores.",
            low=0.0,
            high=0.95,
            argument="test_fraction",
            beside=("given_split", (None,)),
        ),
    ] = 0.5
    given_split: Annotated[
        str | None,
        Option(
            "The array that says train, validation or test of every row; by default 'split', where there is one.",
            argument="given_split",
        ),
    ] = None
    order_by: Annotated[
        str | None, Option("The array by which each client's latest rows are held out.", argument="order_by")
    ] = None
    split_by: Annotated[
        str | None, Option("The array whose equal rows (a person's) stay on one side.", argument="split_by")
    ] = None
    validation: Annotated[float, Option("Share of the others that chooses among settings.", above=0.0, high=0.95)] = (
        0.25
    )
    seed: Seed = None


@dataclass(frozen=True)
class Torch(StepOptions):
    """A net as every client's model, and its loss: the second argument of :func:`coterie.fit`, or ``[model]``.

    ``path`` is the net: a module, what makes one, or a name. ``loss`` and ``score`` are functions
    ``(outputs, targets) -> (rows,)``, or names.
    """

    argument: ClassVar[str] = "coterie.Torch"
    path: Annotated[
        Any, Option("softmax, a net of the package, or package.module:function.", what=_CODE, read=code)
    ] = "softmax"
    loss: Annotated[Any, Option("A name, or package.module:function.", what=_CODE, read=code)] = "cross_entropy"
    args: Annotated[dict[str, Any], Option("Arguments of the function.")] = field(default_factory=dict)
    heads: Annotated[
        dict[str, dict[str, Any]], Option("Arguments of known groups whose nets have other shapes, by group.")
    ] = field(default_factory=dict)
    target: Annotated[str | None, Option("Of rows that are a table: the column of outcomes.")] = None
    inputs: Annotated[
        tuple[str, ...] | None,
        Option("Of such rows: the columns of X; by default all other numbers.", beside=("target", ())),
    ] = None
    score: Annotated[Any, Option("What is compared: package.module:function.", what=_CODE, read=optional(code))] = None
    greater_is_better: Annotated[bool | None, Option("Of a score of one's own.", beside=("score", ()))] = None
    metrics: Annotated[
        tuple[str, ...],
        Option(
            "What held-out rows are measured by; the first judges. Of one of several targets as auc:ill.",
            what=f"a list of {', '.join(names())}",
            read=chosen_names,
        ),
    ] = ()
    positive: Annotated[
        str | int | None,
        Option("Of the metric f1: the positive class of two, by default the larger.", beside=("metrics", ())),
    ] = None
    dtype: Annotated[Literal["float32", "float64", "bfloat16"], Option("Of the parameters.", remedy=HALF)] = "float32"
    device: Annotated[str, Option("Where it is trained: cpu, cuda, cuda:1.")] = "cpu"
    buffers: Annotated[Literal["personal", "averaged", "refused"], Option("What happens to statistics.")] = "personal"
    batched: Annotated[
        bool | None, Option("Whether clients run as one batch; by default a small net without convolutions does.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metrics and self.score is not None:
            raise CoterieError("score and metrics of [model] both say what is compared: leave one of them out.")


Torch.__init__ = checked_call(Torch.__init__, "Torch")  # type: ignore[method-assign]


@dataclass(frozen=True)
class Layout:
    """``[layout]``: which layers are shared, for methods that split a model."""

    argument: ClassVar[str] = "shared or personal"
    shared: Annotated[tuple[str, ...] | None, Option("Names or patterns, such as body*.", argument="shared")] = None
    personal: Annotated[tuple[str, ...] | None, Option("Names or patterns, such as head*.", argument="personal")] = None


@dataclass(frozen=True)
class Engine:
    """``[engine]``: where clients are."""

    argument: ClassVar[str] = "engine"
    kind: Annotated[
        Literal["inprocess", "loopback", "ray"],
        Option(
            "In this process, as they are, as sites behind a wire, whose bytes are counted, or as Ray actors.",
            argument="engine",
        ),
    ] = "inprocess"
    sites: Annotated[int, Option("Of loopback and ray: how many share the clients.", low=1, beside=_WIRED)] = 2
    address: Annotated[
        str | None, Option("Of ray: a cluster; by default one here.", matters=False, beside=("kind", ("ray",)))
    ] = None
    seed: Seed = None
    threads: Annotated[int | None, Option("Threads of a step.", low=1, matters=False)] = None


@dataclass(frozen=True)
class Privacy:
    """``[privacy]``: noise on sums."""

    argument: ClassVar[str] = "privacy"
    clip: Annotated[float | None, Option("The bound of what a client (row) adds.", above=0.0)] = None
    noise: Annotated[float | None, Option("Standard deviation, relative to clip.", low=0.0)] = None
    epsilon: Annotated[float | None, Option("What all rounds may spend, instead of noise.", above=0.0)] = None
    delta: Annotated[float, Option("Of (epsilon, delta).", above=0.0, high=0.5)] = 1e-5
    unit: Annotated[Literal["client", "row"], Option("Whom it hides.")] = "client"
    quorum: Annotated[float, Option("Share of clients that must answer.", above=0.0, high=1.0)] = 1.0
    sampling: Annotated[float, Option("Share of clients (rows) in a round.", above=0.0, high=1.0)] = 1.0
    hide: Annotated[Literal["all", "site"], Option("Who adds noise.")] = "all"
    seed: Seed = None


@dataclass(frozen=True)
class Run:
    """``[run]``: how long, and what is kept."""

    argument: ClassVar[str] = "rounds"
    rounds: Annotated[int, Option("Of each method.", low=1, argument="rounds")] = 50
    evaluate_every: Annotated[int, Option("Rounds between two looks at held-out rows.", low=1)] = 1
    seeds: Annotated[
        int | tuple[int, ...],
        Option(
            "A list, or how many from 0.", low=0, what="different seeds, or how many from 0, up to 10,000", read=seeds
        ),
    ] = (0,)
    strict: Annotated[bool, Option("Stop at the first client whose data or steps are broken.")] = False
    patience: Annotated[
        int, Option("Rounds without an improvement on validation rows that end a run; 0 for none.", low=0)
    ] = 0
    keep: Annotated[
        Literal["last", "best"], Option("Models of the last round, or, as with patience, of the best on such rows.")
    ] = "last"
    checkpoint: Annotated[str | None, Option("Folder of checkpoints.", matters=False)] = None
    checkpoint_every: Annotated[int, Option("Rounds between two checkpoints.", low=1, matters=False)] = 10
    callbacks: Annotated[tuple[str, ...], Option("package.module:function, called at each look.", matters=False)] = ()
    tensorboard: Annotated[str | None, Option("Folder of TensorBoard's logs.", matters=False)] = None
    mlflow: Annotated[str | None, Option("Place of MLflow's records.", matters=False)] = None


SECTIONS: dict[str, Any] = {
    **{"data": Data, "model": Torch, "layout": Layout},
    **{"engine": Engine, "privacy": Privacy, "run": Run},
}
"""By name; ``argument`` is what a call of :func:`coterie.fit` gives instead of a whole section."""


def section(name: str, given: Any) -> dict[str, Any]:
    """All keys of a section with their values, those that are not given at their defaults."""
    kept = vars(of(SECTIONS[name], given, f"[{name}]", noun="key"))
    return {key: list(value) if isinstance(value, tuple) else value for key, value in kept.items()}


def engine_of(given: Any) -> dict[str, Any]:
    """The keys of an engine that is given by its name, or by some of them."""
    if not isinstance(given, (str, Mapping)):
        raise CoterieError(f"engine must be a name or a mapping, such as {{'kind': 'loopback'}}, not {shown(given)}.")
    said = {} if given == "auto" else {"kind": given} if isinstance(given, str) else given
    kept = section("engine", said)
    need_keys_heeded("engine", said, kept)
    return kept


def need_keys_heeded(name: str, given: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """Raise for a key of a section that is given and changes nothing beside the others."""
    said = [key for key, value in given.items() if value is not None]
    for key, why in unheeded(SECTIONS[name], said, kept).items():
        raise CoterieError(f"{key} of [{name}] changes nothing{why}")


def matters(name: str, key: str) -> bool:
    """Whether another value of a key can give other numbers."""
    return declared(SECTIONS[name])[key].option.matters
