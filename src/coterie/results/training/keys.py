"""The keys of a configuration: what each holds, its default, and whether it changes the numbers of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.errors import CoterieError, nearest
from coterie.methods.checks import need


@dataclass(frozen=True)
class Key:
    """What a key may hold.

    Attributes
    ----------
    kind : {"text", "whole", "number", "flag", "table", "texts", "numbers", "seeds"}
    default : Any
    low, high : float
        Of a number.
    above : bool, default False
        Whether a number must be larger than `low`.
    choices : tuple of str
        Of a text; any where there are none.
    matters : bool, default True
        Whether another value can give other numbers; only such keys enter the hash.
    """

    kind: str
    default: Any = None
    low: float = 0.0
    high: float = float("inf")
    above: bool = False
    choices: tuple[str, ...] = ()
    matters: bool = True

    def read(self, name: str, value: Any) -> Any:
        """The value, checked; a CoterieError says in one sentence what it must be."""
        if value is None:
            return None
        if self.kind in ("whole", "number"):
            need(name, value, self.low, self.high, self.above, whole=self.kind == "whole")
            return value
        if self.kind in ("texts", "numbers"):
            return self._several(name, value)
        if self.kind == "seeds":
            return seeds(name, value)
        kind, what = _KINDS[self.kind]
        if not isinstance(value, kind):
            raise CoterieError(f"{name} must be {what}, not {value!r}.")
        if self.choices and value not in self.choices:
            raise CoterieError(f"{name} must be one of {', '.join(self.choices)}.{nearest(value, self.choices)}")
        return value

    def _several(self, name: str, value: Any) -> list[Any]:
        values = list(value) if isinstance(value, list | tuple) else [value]
        one, what = (str, "texts") if self.kind == "texts" else ((int, float), "numbers")
        if not all(isinstance(v, one) and not isinstance(v, bool) for v in values):
            raise CoterieError(f"{name} must be a list of {what}, not {value!r}.")
        return values


_KINDS: dict[str, tuple[type, str]] = {
    "text": (str, "a text"),
    "flag": (bool, "true or false"),
    "table": (dict, "a table of keys and values"),
}

PARTITIONS = ("iid", "dirichlet", "shards", "by_column", "rotated", "given")
SECTIONS: dict[str, dict[str, Key]] = {
    "data": {
        "source": Key("text", "digits"),
        "args": Key("table", {}),
        "rows": Key("whole", 0),
        "partition": Key("text", "iid", choices=PARTITIONS),
        "clients": Key("whole", 20, low=1),
        "alpha": Key("number", 0.5, above=True),
        "least": Key("whole", 2, low=2),
        "shards": Key("whole", 2, low=1),
        "column": Key("text"),
        "angles": Key("numbers", [0, 90, 180, 270]),
        "test": Key("number", 0.5, above=True, high=0.95),
        "validation": Key("number", 0.25, above=True, high=0.95),
        "seed": Key("whole"),
    },
    "model": {
        "path": Key("text", "softmax"),
        "args": Key("table", {}),
        "loss": Key("text", "cross_entropy"),
        "score": Key("text"),
        "greater_is_better": Key("flag"),
        "dtype": Key("text", "float32", choices=("float32", "float64", "bfloat16")),
        "device": Key("text", "cpu"),
        "buffers": Key("text", "personal", choices=("personal", "averaged", "refused")),
        "clip": Key("number", above=True),
        "momentum": Key("number", 0.0, high=1.0),
        "ridge": Key("number", 0.0),
    },
    "layout": {"shared": Key("texts"), "personal": Key("texts")},
    "engine": {
        "kind": Key("text", "inprocess", choices=("inprocess",)),
        "seed": Key("whole"),
        "threads": Key("whole", low=1, matters=False),
    },
    "privacy": {
        "clip": Key("number", above=True),
        "noise": Key("number"),
        "epsilon": Key("number", above=True),
        "delta": Key("number", 1e-5, above=True, high=0.5),
        "unit": Key("text", "client", choices=("client", "row")),
        "quorum": Key("number", 1.0, above=True, high=1.0),
        "sampling": Key("number", 1.0, above=True, high=1.0),
        "hide": Key("text", "all", choices=("all", "site")),
        "seed": Key("whole"),
    },
    "run": {
        "rounds": Key("whole", 50, low=1),
        "evaluate_every": Key("whole", 1, low=1),
        "seeds": Key("seeds", [0]),
        "strict": Key("flag", False),
        "patience": Key("whole", 0),
        "checkpoint": Key("text", matters=False),
        "checkpoint_every": Key("whole", 10, low=1, matters=False),
        "callbacks": Key("texts", [], matters=False),
        "tensorboard": Key("text", matters=False),
        "mlflow": Key("text", matters=False),
    },
}


def seeds(name: str, value: Any) -> list[int]:
    """Seeds: a list of them, or how many there are to be from 0."""
    if isinstance(value, list | tuple):
        for one in value:
            need(name, one, 0, whole=True)
        if not value or len(set(value)) < len(value):
            raise CoterieError(f"{name} must be different seeds, one at least.")
        return list(value)
    need(name, value, 1, whole=True)
    return list(range(value))


def section(name: str, given: Any) -> dict[str, Any]:
    """All keys of a section with their values, those that are not given at their defaults."""
    if not isinstance(given, Mapping):
        raise CoterieError(f"[{name}] must be a table of keys and values, not {given!r}.")
    keys = SECTIONS[name]
    for key in given:
        if key not in keys:
            hint = nearest(key, keys) or f" It has {', '.join(keys)}."
            raise CoterieError(f"[{name}] has no key '{key}'.{hint}")
    return {key: kind.read(f"{name}.{key}", given.get(key, kind.default)) for key, kind in keys.items()}
