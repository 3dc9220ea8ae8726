"""What ``runs/<id>/run.toml`` says: a method by name, a program of its owner's, or a check; and so of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from coterie import files
from coterie.data.table import as_name
from coterie.deployment import toml_files
from coterie.deployment.federation_toml import RUN, Config
from coterie.deployment.schema import Schema
from coterie.errors import CoterieError, listed, nearest
from coterie.evidence.comparison import BASELINES
from coterie.families import DEFAULT
from coterie.methods.groups.evaluation import held_loss
from coterie.methods.method import TRAINED_ON_ROWS, Method
from coterie.methods.registry import FITTED, METHODS
from coterie.options import Option, check, declared, shown
from coterie.results.fit_options import Columns, Options
from coterie.runs.config import AUTO, chosen_methods
from coterie.runs.rows_and_models_in_memory import MARK
from coterie.user_code import marks_work

CHECK, COMPARE, ADVISE = "check", "compare", "advise"
NETS = "nets"  # trained and compared as the sections of a configuration say, which are its options
_TASK = (*(name for name in declared(Columns) if name != "formula"), "family")
_OPTIONS = [name for name in declared(Options) if name not in (*_TASK, "method", "seed")]


def _known(name: str) -> str:
    if name in (*METHODS, CHECK, COMPARE, ADVISE, NETS) or ":" in name:
        return name
    known = nearest(name, METHODS) or f" There are {', '.join(METHODS)}, or module:function."
    raise CoterieError(f"There is no method {name!r}.{known}")


@dataclass(frozen=True)
class RunConfig:
    """What ``run.toml`` says."""

    program: Annotated[str, Option("A method by name, compare, advise, module:function, or check.", read=_known)]
    task: Annotated[dict[str, Any], Option("A factory and its options, or what a table's task takes.")] = field(
        default_factory=dict
    )
    options: Annotated[dict[str, Any], Option("Of the program.")] = field(default_factory=dict)
    seed: Annotated[int | None, Option("By default the federation's.", low=0)] = None

    def __post_init__(self) -> None:
        check(self)
        if self.program == NETS and (odd := [name for name, one in self.options.items() if not isinstance(one, dict)]):
            raise CoterieError(f"Options of nets are tables of their configuration: make [options.{odd[0]}] one.")
        made, method = "factory" in self.task, METHODS.get(self.program)
        if method is None and self.program not in (COMPARE, ADVISE, NETS):
            return
        if method and (why := method.why_not("torch" if made else "table", sites=True)) is not None:
            raise CoterieError(why)
        if not made and "formula" not in self.task:
            raise CoterieError(f"'{self.program}' needs a formula in [task] (--formula).")

    @property
    def fits(self) -> bool:
        """Whether it is a method of ``coterie fit`` on tables, a comparison of several, or advice."""
        return self.program in (*FITTED, COMPARE, ADVISE) and "factory" not in self.task

    @property
    def method(self) -> str:
        """The method whose options it takes: its own, or that of advice."""
        return "weighted-averaging" if self.program == ADVISE else self.program

    @classmethod
    def read(cls, path: Path) -> RunConfig:
        """From ``run.toml``; a CoterieError says what is wrong with it."""
        return toml_files.into(cls, path, "the program of a run")

    def seeded(self, config: Config) -> int:
        """Its seed, or the federation's."""
        return config.seed if self.seed is None else self.seed

    def drawn(self, config: Config) -> int:
        """The seed by which sites draw rows: that of the rounds, where they have one of their own."""
        rounds = self.options.get("rounds") if self.fits else None
        return int(rounds["seed"]) if isinstance(rounds, dict) and "seed" in rounds else self.seeded(config)

    def asked(self, schema: Schema | None) -> dict[str, Any]:
        """The task as it is sent to the sites."""
        if "factory" in self.task:
            options = self.task.get("options", {})
            return {"kind": "factory", "name": self.task["factory"], "options": options}
        # a method over rounds begins with works of others: a site that refuses its own is to say so before
        method = FITTED.get(self.program) if self.fits else None
        task = {k: v for k, v in self.task.items() if k != "cluster" or method is None or not method.flat}
        own: dict[str, Any] = {"works": _works(method)} if method and method.rounds else {}
        if self.program == NETS and schema is not None:
            own = self._net(schema)
        return {"kind": "table", **task, "schema": None if schema is None else schema.plain(), **own}

    def _net(self, schema: Schema) -> dict[str, Any]:
        """What sites are told of a net on their tables: the net and its classes, and the works that it needs."""
        model = self.options.get("model", {})
        target, classes = str(model.get("target")), model.get("loss", "cross_entropy") == "cross_entropy"
        if (column := schema.columns.get(target)) is None:
            raise CoterieError(f"The schema has no column '{target}'.{nearest(target, schema.columns)}")
        K = len(column.levels) or int(column.high or -1) + 1
        if K < 2 and model.get("path", "softmax") == "softmax":  # a net says so itself
            raise CoterieError(
                f"How many classes '{target}' has, sites must agree on: write its levels into the schema, or low = 0 "
                "and high, the largest."
            )
        if len(column.levels) > 2 and not classes:
            raise CoterieError(f"'{target}' is text of {K} classes, of which only cross_entropy is a loss: take it.")
        works = ["coterie.methods.local_training.", "coterie.deployment.site.nets:"]
        return {"works": works, "net": {"model": model, "classes": max(K, 2) * classes}}


def _works(method: Method) -> list[str]:
    """How the works begin that a method over rounds needs: those of its room, and those of its class of rounds."""
    found = [f"coterie.methods.{method.rounds.partition('.')[0]}."]
    if method.fits == TRAINED_ON_ROWS:
        mine = filter(marks_work, (made.__module__ for made in method.method_class.__mro__))  # none of FedAMP
        found += [f"{module}:" for module in (*islice(mine, 1), held_loss.__module__)]
    return found


def program_of_call(
    formula: str | None, given: Mapping[str, Any], objective: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What ``run.toml`` says, of those arguments of :func:`coterie.fit` that are given.

    ``objective`` stands for a table: the ``factory`` that makes a site's, and its ``options``. A method is "auto", a
    name, or module:function. A CoterieError names what is missing, and what sites do not take.
    """
    method, rounds = given.get("method", "auto"), given.get("rounds")
    if not isinstance(method, str):
        raise CoterieError(f"method must be the name of one, or module:function, not {shown(method)}.")
    several: dict[str, Any] = {"methods": list(given["methods"])} if "methods" in given else {}
    if several and isinstance(rounds, int) and given.get("main") is None:
        several["rounds"], rounds = rounds, None
    if rounds is not None and not isinstance(rounds, Mapping):
        rounds = {FITTED[method].length if method in FITTED else "rounds": rounds}
    rounds = files.plain(dict(rounds or {}) | ({} if given.get("main") is None else {"main": given["main"]}))
    options = {name: files.plain(given[name]) for name in _OPTIONS if name in given and name != "rounds"}
    task: dict[str, Any] = {name: given[name] for name in _TASK if name in given}
    task |= {name: as_name(name, task[name]) for name in ("client", "offset", "weights") if task.get(name) is not None}
    if objective is not None:
        if formula is not None or task:
            raise CoterieError(
                "--objective stands for a table: leave out --formula, --family and the names of columns."
            )
        if method == "auto":
            raise CoterieError("Which method trains the objective? Name one with --method, such as fedavg.")
        task = dict(objective)
    elif formula is None:
        raise CoterieError("Say what is modelled: add --formula 'outcome ~ columns', or --objective module:function.")
    else:
        task = {"formula": formula, "family": DEFAULT, "missing": "error"} | task
    if several:
        method, options = COMPARE, options | several
    if method == "auto":
        method = "given-strengths" if "gamma" in given else "hierarchical"
    if objective is not None or ":" in method:
        if options:
            raise CoterieError(
                f"{listed(options)} {'is' if len(options) == 1 else 'are'} for methods on a formula, not for "
                f"'{method}': "
                "give its options by rounds (--rounds NAME=VALUE)."
            )
        options = rounds
    elif rounds:
        options["rounds"] = rounds
    seed = {"seed": given["seed"]} if "seed" in given else {}
    return {"program": method, **seed, "task": task, "options": options}


def program_of_nets(sections: Mapping[str, Any], methods: Sequence[str] | None = None) -> dict[str, Any]:
    """What ``run.toml`` says of nets, by the sections of their configuration, and of ``methods`` that are compared.

    Where ``[model]`` has a ``target``, the rows of a client are those of its site's table; else ``path`` is what makes
    a site's objective, called with ``args``.
    """
    sections = dict(files.plain(sections))
    own = dict(sections.get("method", {}))
    if methods := chosen_methods(methods, own.pop(COMPARE, ())):
        if (name := own.pop("name", AUTO)) != AUTO:  # whose options these are
            sections["methods"] = {name: own} | sections.get("methods", {})
            own = {}
        sections["method"] = own | {"name": AUTO, COMPARE: list(methods)}
    model, data = (dict(sections.get(name, {})) for name in ("model", "data"))
    path = str(model.get("path", "softmax"))
    if target := model.get("target"):
        terms = [name if "(" in name else f"`{name}`" for name in model.get("inputs", ())]  # such as scale(age), too
        inputs = " + ".join(terms) or "."
        task: dict[str, Any] = {"formula": f"`{target}` ~ {inputs}", "client": data.get("column"), "classes": True}
        task |= {"weights": data["weights"]} if data.get("weights") else {}
        task |= {"cluster": [data["group"]]} if "group" in data else {}
        return {"program": NETS, "task": task, "options": sections}
    if path.startswith(MARK) or ":" not in path:
        raise CoterieError(
            "Sites run no code that comes in a call. Of rows that are a table name its outcome (target) and a net of "
            "the package, or 'module:function' that their owners allow; else a function, by its import path, that "
            "makes a site's objective."
        )
    task = {"factory": path, "options": model.get("args", {})}
    return {"program": NETS, "task": task, "options": sections}


def comparing(methods: Sequence[str]) -> dict[str, Any]:
    """Arguments of a call that compares: one split, and the methods beside `local` and `pooled`, always in."""
    found = [name for name in dict.fromkeys(methods) if name not in BASELINES]
    if len(found) > 1 or "all" in found:
        return {"splits": 1, "methods": found}
    return {"splits": 1, "method": next(iter([*found, *methods]), "auto")}


def advice_asked(formula: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What ``run.toml`` says of advice, of the arguments of :func:`coterie.advise`; by default one split is made."""
    rounds = {name: given[name] for name in ("collaborators", "within", "prior") if given.get(name) is not None}
    kept = {name: value for name, value in given.items() if name not in rounds and value not in (None, (), [])}
    return program_of_call(formula, {"splits": 1} | kept | {"method": ADVISE, "rounds": rounds})


def digest(folder: Path, run_id: str) -> str:
    """Of the ``run.toml`` that a command has written, so that an engine's process runs no other; "" of none."""
    path = folder / "runs" / run_id / RUN
    return blake2b(files.content(path), digest_size=16).hexdigest() if path.exists() else ""
