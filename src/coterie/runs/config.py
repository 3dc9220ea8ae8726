"""A configuration: what ``coterie fit`` and ``coterie compare`` are told of a net by a TOML file (``examples/``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie import files
from coterie.errors import RAISED, CoterieError, nearest
from coterie.methods.method import Method
from coterie.methods.networks.similarity import Similarity
from coterie.methods.registry import TRAINED, trained_method
from coterie.options import Declared, Option, declared, need_names
from coterie.runs.config_keys import SECTIONS, matters, need_keys_heeded, section
from coterie.runs.rows_and_models_in_memory import Held, need_named
from coterie.user_code import Permitted, named

TABLES = (*SECTIONS, "network", "method", "methods")
ALL, AUTO = "all", "auto"
COMPARE = "compare"  # in [method]: the methods that a call compares
_DIFFERENCES = 5
_ALWAYS = ("source", "path", "rounds", "seeds")
"""Keys that are written even where they are at their defaults."""


@dataclass(frozen=True)
class Config:
    """A configuration, checked, with every key of its sections (:data:`config_keys.SECTIONS`) at its value."""

    data: dict[str, Any]
    model: dict[str, Any]
    layout: dict[str, Any]
    engine: dict[str, Any]
    run: dict[str, Any]
    method: str = "fedavg"  # the one that is trained; "auto" for the best of several
    privacy: dict[str, Any] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is given of each method's hyper-parameters, by its name, and of those of all methods that have them, by
    "all"; lists are settings to choose among."""
    compare: tuple[str, ...] = ()  # beside local and pooled, where methods are to be compared
    networked: bool = field(default=False, compare=False)  # whether there is a [network]
    folder: Path = Path()  # where files and modules that it names are looked for first
    permitted: Permitted | None = field(default=None, compare=False)
    """Of a configuration that was read from saved models: the code of a user's own that it may name. None: all, since
    the user wrote it."""

    @classmethod
    def of(cls, tables: Mapping[str, Any], folder: Path | None = None) -> Config:
        """Check a mapping of sections; a CoterieError names the first key that is wrong, and the nearest right one."""
        need_names("A configuration", tables, TABLES, "section")
        found = {name: section(name, tables.get(name, {})) for name in SECTIONS}
        for name, kept in found.items():
            need_keys_heeded(name, tables.get(name, {}), kept)
        clip, *size = (found["privacy"][name] for name in ("clip", "noise", "epsilon"))
        if "privacy" in tables and (clip is None or size == [None, None]):
            raise CoterieError("[privacy] needs clip, the bound of what a client (row) adds, and epsilon or noise.")
        method, options = _methods(
            tables.get("method", {}), tables.get("methods", {}), tables.get("network", {}), folder
        )
        if tables.get("data", {}).get("validation") is not None and not (judged(found["run"]) or _choose(options)):
            raise CoterieError(
                "validation of [data] changes nothing where no method chooses among settings, and no run has patience "
                "or keeps the best models: give a hyper-parameter a list of values, or leave validation out."
            )
        tied = bool(tables.get("network"))
        home, several = folder or Path(), methods_to_compare(tables.get("method", {}))
        return cls(
            **found, method=method, options=options, folder=home, compare=several, permitted=None, networked=tied
        )

    @property
    def private(self) -> bool:
        """Whether sums have noise."""
        return self.privacy.get("clip") is not None

    @property
    def loss_is_not_negative(self) -> bool:
        """Whether the loss is one of the package's own, by name, none of which is ever below 0."""
        return self.model["path"] == "softmax" or ":" not in self.model["loss"]

    def given(self, name: str) -> dict[str, Any]:
        """What is given of a method's hyper-parameters, under its name or for all."""
        self.trainer(name)
        return _given(self.options, name)

    def idle(self, name: str) -> dict[str, str]:
        """Keys of [model] and hyper-parameters that are given and that a method has no use for on nets, and why."""
        method, usual = self.trainer(name), section("model", {})
        said = {*self.given(name), *(key for key in usual if key in method.idle and self.model[key] != usual[key])}
        nets = self.model["path"] != "softmax"
        return {key: f", which {why}: leave it out." for key, why in method.idle.items() if nets and key in said}

    def document(self, *methods: str) -> dict[str, Any]:
        """All that changes the numbers of a run of some methods, for a hash and a checkpoint."""
        kept = {
            name: {key: value for key, value in getattr(self, name).items() if matters(name, key)}
            for name in SECTIONS
            if name != "privacy" or self.private
        }
        made = {name: self.trainer(name) for name in methods or (self.method,)}
        chosen = {name: method.merge(method.defaults, self.given(name)) for name, method in made.items()}
        return {**kept, "methods": chosen}

    def fingerprint(self, *methods: str) -> str:
        """Twelve letters that tell one configuration from another."""
        text = json.dumps(self.document(*methods), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def load(self, path: str, what: str) -> Any:
        """What "package.module:name" names; a CoterieError says what cannot be found, or may not be named here."""
        if isinstance(path, Held):
            return path.value
        if self.permitted is not None:
            return self.permitted.get(path, what, self.folder)
        need_named(path, what, "name a function that makes it as package.module:name")
        return named(path, what, self.folder)

    def trainer(self, name: str) -> Method:
        """A method by its name, where it may be named here."""
        if self.permitted is not None and ":" in name:
            self.permitted.get(name, "The method", self.folder)
        return trained_method(name, self.folder)


def read(path: str | Path) -> Config:
    """Read a configuration from a TOML file."""
    return Config.of(document(path), files.local(path).absolute().parent)


def document(path: str | Path) -> dict[str, Any]:
    """The sections of a TOML file, as they are."""
    path = files.local(path)
    tables = files.read_toml(path, "a configuration")
    if not tables:
        raise CoterieError(f"'{path}' is empty: say at least which [data] and which [model] there are.")
    return tables


def _methods(method: Any, methods: Any, network: Any, folder: Path | None) -> tuple[str, dict[str, dict[str, Any]]]:
    """The method to train, and what is given of every method's hyper-parameters; [network] is for all along one."""
    method, methods = _table("[method]", method), _table("[methods]", methods)
    options = {name: _table(f"[methods.{name}]", table) for name, table in methods.items()}
    chosen = Declared("method.name", str, Option()).read(method.get("name", AUTO if COMPARE in method else "fedavg"))
    whose = ALL if chosen == AUTO else chosen
    more = {key: value for key, value in method.items() if key not in ("name", COMPARE)}
    options[whose] = options.get(whose, {}) | more
    for name, tied in TRAINED.items() if (along := _table("[network]", network)) else ():
        if tied.networked:
            options[name] = _along(name, along, options.get(name, {}))
    named = {name: trained_method(name, folder) for name in options if name != ALL}
    known = dict.fromkeys(name for method in (TRAINED | named).values() for name in method.hyper_parameters)
    for key in options.get(ALL, {}):
        if key not in known:
            raise CoterieError(
                f"No method has a hyper-parameter '{key}', as [methods.{ALL}] says.{nearest(key, known)}"
            )
    for name, found in named.items():
        found.check(_given(options, name), options[name])
    return chosen, options


def judged(run: Mapping[str, Any]) -> bool:
    """Whether training rows are held back, to stop a run by, or to keep the best of its models."""
    return bool(run["patience"]) or run["keep"] == "best"


def methods_to_compare(method: Mapping[str, Any]) -> tuple[str, ...]:
    """The methods that [method] has compared; a CoterieError where it names one beside them."""
    if COMPARE not in method:
        return ()
    if method.get("name", AUTO) != AUTO:
        raise CoterieError(f"[method] names one, and compare others: say name = '{AUTO}', or leave compare out.")
    return tuple(Declared("compare of [method]", tuple[str, ...], Option()).read(method[COMPARE]))


def chosen_methods(asked: Sequence[str] | None, configured: Sequence[str]) -> Sequence[str] | None:
    """The methods that a call names, or else those of its configuration."""
    return list(configured) if configured and (asked is None or list(asked) == [AUTO]) else asked


def _choose(options: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a method that is named, or all of them, have several settings."""
    given = {name: _given(options, name) for name in options if name != ALL}
    every = any(isinstance(value, list) for value in options.get(ALL, {}).values())
    return every or any(len(trained_method(name).settings(one)) > 1 for name, one in given.items())


TIES = ("lam", "p", "squared", "edges", "alone", "relearn")
"""Keys of [network] beside those that say who is alike."""


def _along(name: str, network: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of a method along a network, some of which stand in [network]."""
    for key in network:
        if key in given or "network" in given:
            twice = key if key in given else "network"
            raise CoterieError(f"[network] and [methods.{name}] both say {twice}: say it once.")
    need_names("[network]", network, (*declared(Similarity), *TIES), "key")
    alike = {key: value for key, value in network.items() if key not in TIES}
    ties = {key: value for key, value in network.items() if key in TIES}
    return {**given, **ties, **({"network": alike} if alike else {})}


def _table(name: str, given: Any) -> dict[str, Any]:
    return dict(Declared(name, dict[str, Any], Option()).read(given))


def _given(options: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """What is given of a method's hyper-parameters, under its name or for all that have them."""
    method = trained_method(name)
    common = {key: value for key, value in options.get(ALL, {}).items() if key in method.hyper_parameters}
    return method.merge(common, options.get(name, {}))


def called(made: Any, what: str, args: Mapping[str, Any]) -> Any:
    """What a function or class gives for ``args``; a CoterieError where it does not take them, fails, or is none."""
    if hasattr(made, "state_dict") and not isinstance(made, type):
        raise CoterieError(f"{what} is a module already: name a function that makes it, and loads its numbers.")
    if not callable(made):
        raise CoterieError(f"{what} is no function or class that makes one.")
    try:
        return made(**args)
    except CoterieError:
        raise
    except TypeError as e:
        raise CoterieError(f"{what} does not take these args: {e}.") from e
    except RAISED as e:
        raise CoterieError(f"{what} cannot be made: it raises {type(e).__name__}: {e}.") from e


def tables(config: Config) -> dict[str, Any]:
    """A configuration as it would be written: the sections with what is not at its default; texts stand for objects."""
    out: dict[str, Any] = {}
    for name in SECTIONS:
        default = section(name, {})
        kept = {k: v for k, v in getattr(config, name).items() if v is not None}
        out[name] = {k: v for k, v in kept.items() if v != default[k] or k in _ALWAYS}
    whose = ALL if config.method == AUTO else config.method
    several = {COMPARE: list(config.compare)} if config.compare else {}
    out["method"] = {"name": config.method} | several | config.options.get(whose, {})
    out["methods"] = {name: options for name, options in config.options.items() if name != whose and options}
    return {name: table for name, table in out.items() if table}


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Keys in which two documents differ, each with both values: ``"method.eta (0.1 there, 0.2 here)"``."""
    found: list[str] = []
    for key in dict.fromkeys([*before, *now]):
        a, b, name = before.get(key), now.get(key), f"{prefix}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{name}.")
        elif a != b:
            found.append(f"{name} ({a!r} there, {b!r} here)")
    return found[:_DIFFERENCES]
