"""Arguments and options of commands: those of several, those that are declared elsewhere, and what their texts say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from typer import Argument, BadParameter, Context, Option

from coterie import files, options
from coterie.errors import CoterieError
from coterie.methods.registry import METHODS
from coterie.options import Declared, declared
from coterie.results.fit_options import Columns, Options

if TYPE_CHECKING:
    from coterie.results.fit_result import FitResult
    from coterie.results.training_result import TrainingResult

    Place = Path
else:
    Place = object  # of a Path typer would make one again, also of a URL

_METAVAR = {int: "N", float: "NUMBER", tuple: "TEXT", dict: "NAME=VALUE"}
_BOTH = {"reml": "--reml/--ml"}
Parameters = dict[str, inspect.Parameter]


def load_model(path: Path) -> FitResult | TrainingResult:
    """The result in a folder; the ``model.json`` or ``training.json`` in it will do as well."""
    from coterie.results.saved_results import load

    return load(path.parent if path.name in ("model.json", "training.json") else path)


def here(text: str | Path) -> Path:
    """A file or folder of this machine, as it was typed."""
    return place(text, files.local)


def place(text: str | Path, taken: Callable[[str | Path], Path] = files.place) -> Path:
    """A file or folder, as it was typed; an empty one is a slip, not the folder where the command runs."""
    if not str(text).strip():
        raise BadParameter("it is empty; name a file or folder.")
    try:
        return taken(text)
    except CoterieError as problem:
        raise BadParameter(str(problem)) from problem


def own_option(name: str, metavar: str | None, text: str, group: str | None = None, **more: Any) -> Any:
    """An option of commands alone, which stands for no declared one."""
    return Option(name, metavar=metavar, help=text, rich_help_panel=group, **more)


def complete_method(incomplete: str) -> list[str]:
    """Names of methods that begin so, for a shell that completes them."""
    return [name for name in METHODS if name.startswith(incomplete)]


def new_file(name: str, metavar: str, text: str, group: str | None = None) -> Any:
    """One that names a file or folder to write."""
    return own_option(name, metavar, text, group, parser=place)


TABLES = "CSV, TSV (also .gz), Parquet, Feather or NPZ"
TablePath = Annotated[Place, Argument(parser=place, metavar="TABLE", help=f"{TABLES}.")]
ModelPath = Annotated[Place, Argument(parser=place, metavar="MODEL", help="The folder that 'coterie fit --out' wrote.")]
Force = Annotated[bool, Option("--force", help="Replace files that coterie did not write.")]
Json = Annotated[
    bool,
    Option("--json", help="Print what was found as one JSON document; what is said goes to the error stream."),
]
NaValue = Annotated[
    list[str] | None,
    own_option(
        "--na-value",
        "TEXT",
        "Text of a CSV that means a missing value, besides empty cells; several are allowed. By default NA, null, "
        "nan, None and the like; '' alone takes only empty cells as missing. In columns of clients and clusters any "
        "text is a label.",
        "The table",
    ),
]


def flag(one: Declared) -> inspect.Parameter:
    """A declared option as a parameter of a command: its type, help and default.

    Values of a list are given one by one, those of a table as NAME=VALUE, what may be of several kinds as text, and
    texts are checked where the option is declared.
    """
    text, names = one.option.text, one.names
    if not all(name in text for name in names):
        text = f"{text.rstrip('.')}: {one.allowed}."
    kinds = [kind for kind in get_args(one.kind) or (one.kind,) if kind is not type(None)]
    kind = get_origin(one.kind) if get_origin(one.kind) in (tuple, dict) else kinds[0]
    several = (get_origin(kind) or kind) in (tuple, dict)
    typed: Any = list[str] if several else kind if len(kinds) == 1 and kind in (int, float, bool) else str
    default = one.default
    if default is None or (several and default is not inspect.Parameter.empty):
        typed, default = typed | None, None
    completion: Any = {"autocompletion": complete_method} if one.name == "method" else {}
    option: Any = Option(
        _BOTH.get(one.name, f"--{one.name.replace('_', '-')}"),
        metavar=None if kind is bool else one.option.metavar or _METAVAR.get(get_origin(kind) or kind, "NAME"),
        help=text,
        rich_help_panel=one.option.group or None,
        **completion,
    )
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[typed, option]
    )


def optional(one: Declared, more: str) -> inspect.Parameter:
    """An option that is not always needed: what its help says more."""
    return flag(
        replace(one, kind=one.kind | None, default=None, option=replace(one.option, text=one.option.text + more))
    )


def flags(cls: type, *names: str) -> Parameters:
    """Those of a class, all of them where none is named."""
    return {name: flag(one) for name, one in declared(cls).items() if name in names or not names}


NEEDED = ("formula", "client")
COLUMNS: Parameters = flags(Columns)
COLUMNS |= {name: optional(declared(Columns)[name], " A table needs it.") for name in NEEDED}
"""What columns mean; only of a table :func:`need_columns` asks for those that are ``NEEDED``."""
FIT: Parameters = COLUMNS | flags(Options)
"""Of ``coterie fit``: the arguments of :func:`coterie.fit` by their names."""


_WHERE = "Where clients are: inprocess, loopback or ray; and more of it, such as sites=4; several are allowed."
ENGINE = flag(Declared("engine", tuple[str, ...] | None, options.Option(_WHERE, metavar="NAME"), None))
"""Of commands that hold the rows."""


def takes(parameters: Parameters) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that has parameters beside its own; it finds their values in ``context.params``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(command, eval_str=True).parameters)

        @wraps(command)
        def run(**given: Any) -> None:
            command(**{name: value for name, value in given.items() if name in own})

        first = [p.replace(kind=p.KEYWORD_ONLY) for p in own.values() if p.default is p.empty]
        later = [p.replace(kind=p.KEYWORD_ONLY) for p in own.values() if p.default is not p.empty]
        run.__signature__ = inspect.Signature([*first, *parameters.values(), *later])  # type: ignore[attr-defined]
        return run

    return decorate


def numbers(option: str, text: str | None) -> float | list[float] | dict[str, float] | None:
    """A number; a list of them (a grid) where there are commas; or one for each level, as ``LEVEL=NUMBER``."""
    if text is None:
        return None
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        values = [float(number) for _, _, number in parts]
    except ValueError as e:
        raise CoterieError(f"{option} takes a number, or several with commas between them, not '{text}'.") from e
    named = {name.strip(): v for (name, _, _), v in zip(parts, values, strict=True)}
    if any(sign for _, sign, _ in parts):
        if len(named) < len(parts) or "" in named:
            raise CoterieError(
                f"{option} takes LEVEL=NUMBER once for each level, with commas between them, not '{text}'."
            )
        return named
    return values if len(values) > 1 else values[0]


def given(context: Context) -> set[str]:
    """Names of the parameters that were typed."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def need_columns(context: Context) -> None:
    """Raise for an option that a table needs and that is not given."""
    for name in NEEDED:
        if context.params[name] is None:
            raise CoterieError(f"Missing option '--{name}'. See '{context.command_path} --help'.")


def arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of :func:`coterie.fit` that a command's options say."""
    found = {name: value for name, value in params.items() if name in FIT}
    found |= {name: tuple(found.get(name) or ()) for name in ("cluster", "shared")}
    found |= {name: numbers(f"--{name}", found.get(name)) for name in ("gamma", "lam", "alpha")}
    texts = params.get("rounds") or []
    count = len(texts) == 1 and texts[0].isdecimal()
    found["rounds"] = int(texts[0]) if count else assignments("--rounds", texts)
    if (budget := params.get("bytes_per_update")) is not None:
        if found["method"] != "similarity-network":
            raise CoterieError(
                "--bytes-per-update is an option of similarity-network: add --method similarity-network."
            )
        if count:
            found["rounds"] = {"steps": found["rounds"]}
        if "bytes_per_update" in found["rounds"]:
            raise CoterieError("--bytes-per-update and --rounds bytes_per_update are one option: give one of them.")
        found["rounds"]["bytes_per_update"] = budget
    engine = assignments("--engine", [one if "=" in one else f"kind={one}" for one in params.get("engine") or []])
    return found | {"network": described(found.get("network"))} | ({"engine": engine} if engine else {})


def described(texts: list[str] | None) -> dict[str, Any] | None:
    """What --network says, with the table of edges read."""
    if not texts:
        return None
    network = assignments("--network", texts, names=("covariates",))
    if "edges" in network:
        from coterie.data.table_files import read_table

        file = place(network["edges"])
        network["edges"] = read_table(file, list(read_table(file).columns[:2]))
    return network


def na_values(texts: list[str] | None) -> list[str] | None:
    """What --na-value says to :func:`coterie.read_table`; None where nothing was said."""
    return [text for text in texts if text] if texts else None


def assignments(option: str, texts: list[str] | None, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """What ``NAME=VALUE`` says: numbers, lists of them where there are commas, True and False, or text.

    Values of ``names`` stay text, as names of columns; ``edges`` names a file, and is left as it is.
    """
    out: dict[str, Any] = {}
    for text in texts or []:
        name, sign, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name or not value.strip():
            example = "k=5" if option == "--network" else "steps=20000"
            raise CoterieError(f"{option} takes NAME=VALUE, such as {example}, not '{text}'.")
        if name in out:
            raise CoterieError(f"{option} gives {name} twice.")
        if name == "edges":
            out[name] = value.strip()
            continue
        parts = [part.strip() for part in value.split(",")]
        if "" in parts:
            raise CoterieError(f"{option} has an empty value between commas in '{text}'.")
        read = parts if name in names else [_value(part) for part in parts]
        out[name] = read if len(read) > 1 else read[0]
    return out


def _value(text: str) -> Any:
    """A number (whole ones as such, 1e4 too), a truth value or text."""
    try:
        number = float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
    return int(number) if number.is_integer() else number
