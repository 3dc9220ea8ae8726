"""The page on methods and options, from their declarations: ``python tests/docs/options_page.py > docs/options.md``."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass

from coterie.deployment.column_types import SchemaColumn
from coterie.deployment.federation_toml import Config
from coterie.deployment.site.site_toml import Disclosure, Member
from coterie.engines.retry_and_quorum import Policy
from coterie.methods.clustered_l2gd.options import Options as Rounds
from coterie.methods.collaboration.options import Options as Collaboration
from coterie.methods.local_training.fit import Rounds as Training
from coterie.methods.local_training.new_client import RULES
from coterie.methods.local_training.rounds import LocalTraining
from coterie.methods.method import Method
from coterie.methods.networks.options import Asked, Run
from coterie.methods.networks.similarity import Similarity
from coterie.methods.registry import METHODS, TRAINED
from coterie.options import Checked, declared
from coterie.results.fit_options import Columns, Options
from coterie.runs.config_keys import SECTIONS

MODELS = {"table": "table", "net": "torch"}
COMMON = (Checked, LocalTraining)
HEAD = """# Methods and options

Made from the table of methods and from the declarations of options, which Python, the command and configurations share:
what an option may be, what it is where it is left out (of methods that train: what a net gets), and what it says. A
value that cannot be is refused in one sentence before any work.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD, methods(), later()]
    parts += [section("Options of `coterie.fit` and `coterie fit`", Columns, Options)]
    parts += [section("Over rounds, for known clusters: `rounds`", Rounds)]
    parts += [section("A main client and its collaborators: `rounds`", Collaboration)]
    parts += [section("A similarity network: `network`", Asked, Similarity), section("A run on it: `rounds`", Run)]
    parts += [section("Methods that train, on a table: `rounds`, beside their own options", Training)]
    parts += ["## All methods that train over rounds\n", *table(declared(LocalTraining).values(), ROUNDS)]
    classes = (cls for method in TRAINED.values() for cls in reversed(method.method_class.__mro__))
    parts += [own(cls) for cls in dict.fromkeys(cls for cls in classes if is_dataclass(cls) and cls not in COMMON)]
    parts += [section(f"Configuration of training: `[{name}]`", cls) for name, cls in SECTIONS.items()]
    parts += [section("`federation.toml`", Config), section("`[policy]`", Policy)]
    parts += [section("`site.toml`", Member), section("`[disclosure]`", Disclosure)]
    parts += [section("`schema.toml`: `[columns.NAME]`", SchemaColumn)]
    return "\n".join(parts)


def methods() -> str:
    """All methods: what each is, what it knows of clients' relations, and on which models it runs, also over sites."""
    where = {f"{title}{over}": (model, bool(over)) for over in ("", " at sites") for title, model in MODELS.items()}
    head = ("name", "what it is", "about", "needs", *where, "paper")
    lines = ["## Methods", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    left: list[str] = []
    for m in METHODS.values():
        reasons = [m.why_not(model, sites) for model, sites in where.values()]
        runs = ["yes" if why is None else "no" for why in reasons]
        lines.append(f"| {' | '.join(map(cell, (f'`{m.name}`', m.summary, m.relation, m.needs, *runs, m.paper)))} |")
        left += [why for why in dict.fromkeys(reasons) if why is not None]
    return "\n".join([*lines, "", "Where the table says no:", "", *(f"- {why}" for why in left), ""])


def later() -> str:
    """What each method that trains makes of a client that comes later."""
    lines = ["## A client that was not there: `adapt`", "", "| what it gets | of the methods |", "|---|---|"]
    for rule, text in RULES.items():
        names = [f"`{m.name}`" for m in TRAINED.values() if getattr(m.method_class, "joins", "") == rule]
        lines.append(f"| {text} | {', '.join(names)} |")
    note = "With `personal` layers a method of the second kind is of the first. [Models](models.md) says more."
    return "\n".join([*lines, "", note, ""])


def section(title: str, *classes: type) -> str:
    """One table."""
    return "\n".join([f"## {title}", "", *table(row for cls in classes for row in declared(cls).values())])


def own(cls: type) -> str:
    """What a class has beside those that it is made from."""
    base = cls.__mro__[1]
    above = declared(base) if is_dataclass(base) else {}
    rows = [row for key, row in declared(cls).items() if key not in above]
    of = [method for method in TRAINED.values() if method.method_class is cls]
    names = ", ".join(f"`{method.name}`" for method in of)
    beside = "" if base is LocalTraining or not above else f"; and those of `{base.__name__}`"
    of = of or [method for method in TRAINED.values() if issubclass(method.method_class, cls)]
    return "\n".join([f"### {names or f'`{cls.__name__}`'}{beside}", "", *table(rows, of)]) if rows else ""


ROUNDS = [method for method in TRAINED.values() if issubclass(method.method_class, LocalTraining)]


def table(rows, of: Sequence[Method] = ()) -> Iterator[str]:
    """Options as lines, with what nets of these methods get where they are left out."""
    yield from ("| option | may be | default | what it says |", "|---|---|---|---|")
    for row in rows:
        found = defaults(row, of)
        yield "| " + " | ".join(cell(v) for v in (f"`{row.name}`", row.allowed, found, row.option.text)) + " |"
    yield ""


def defaults(row, of: Sequence[Method]) -> str:
    """What most of the methods that take an option get, and which others get what."""
    taking = [method for method in of if row.name in method.hyper_parameters]
    each = {method.name: plain(method.defaults.get(row.name, row.default)) for method in taking}
    usual = Counter(each.values()).most_common(1)[0][0] if each else plain(row.default)
    others = {value: [f"`{name}`" for name in each if each[name] == value] for value in each.values() if value != usual}
    return "; ".join([quoted(usual), *(f"{quoted(value)} for {', '.join(names)}" for value, names in others.items())])


def quoted(value: str) -> str:
    return value if value == "needed" else f"`{value}`"


def plain(value) -> str:
    """A default as a user would write it."""
    if value is inspect.Parameter.empty:
        return "needed"
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value) if isinstance(value, (int, float, tuple, dict, type(None))) else type(value).__name__


def cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
