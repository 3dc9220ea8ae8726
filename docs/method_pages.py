"""A page for each method and "which method for my rows?", from the table of methods, docstrings and code."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from coterie import methods
from coterie.methods.method import Method
from coterie.methods.registry import METHODS

STEP = """`````{{container}} step
````{{container}} said
{said}
````
```python
{code}
```
`````"""
Words = dict[str, dict[str, str]]


def words(name: str) -> Words:
    """What people wrote of methods, or of relations."""
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


NOTES, RELATIONS = words("methods.toml"), words("relations.toml")
UNSAID = dict.fromkeys(("objective", "promises", "loses"), "")  # a test names the methods that have no words yet
RUNS = {"a table": ("table", False), "a net": ("torch", False), "a table at sites": ("table", True)}
RUNS |= {"a net at sites": ("torch", True)}


def pages() -> dict[str, str]:
    """All of them by their names."""
    own = {f"method_{m.name}.md": method_page(m) for m in METHODS.values()}
    rows = [f"| {link(m)} | {m.summary} | {m.paper} |" for m in METHODS.values()]
    tree = ["```{toctree}", ":hidden:", "", *(f"{name} <method_{name}>" for name in METHODS), "```", ""]
    listed = ["# Every method", "", "| name | what it is | source |", "|---|---|---|", *rows, "", *tree]
    return own | {"methods.md": "\n".join(listed), "which.md": "\n".join(decision_page())}


def link(method: Method) -> str:
    return f"[`{method.name}`](method_{method.name}.md)"


def decision_page() -> Iterator[str]:
    """By what is known of clients: methods, when each loses, and what was measured."""
    yield from ("# Which method for my rows?", "")
    yield "You need not choose: `coterie.fit(...)` compares what fits the rows, the model and the relations that you"
    yield "give, and takes the best on held-out rows. Here is what you may want to name, or to add to a comparison."
    yield from ("", "| what you know | start with |", "|---|---|")
    for relation, said in RELATIONS.items():
        known = said["known"]
        first = [link(m) for m in METHODS.values() if m.relation == relation and (m.tried or not m.asked)]
        first = first or [link(m) for m in METHODS.values() if m.relation == relation]
        yield f"| [{known}](#{anchor(known)}) | {', '.join(first[:4])} |"
    yield "| Rows must not leave their sites | any of them, [over a federation](../federations.md) |"
    yield "| Nobody may learn of a row | [`dp-sgd`](method_dp-sgd.md), [sums that hide a row](../privacy.md) |"
    for relation, said in RELATIONS.items():
        of = [m for m in METHODS.values() if m.relation == relation]
        yield from ("", f"## {said['known']}", "", f"**Measured.** {said['measured']}", "")
        yield from ("| method | what it is | for | it loses when |", "|---|---|---|---|")
        for m in of:
            runs = ", ".join(
                model.split()[1] for model, (kind, sites) in RUNS.items() if not sites and not m.why_not(kind)
            )
            yield f"| {link(m)} | {m.summary} | {runs} | {NOTES.get(m.name, UNSAID)['loses']} |"
    yield ""


def anchor(title: str) -> str:
    """The name of a heading."""
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def module_of(m: Method) -> ModuleType:
    """The module that reads like a method's paper."""
    found = (import_module(f"coterie.methods.{info.name}") for info in iter_modules(methods.__path__))
    return next(module for module in found if (module.__doc__ or "").startswith(m.paper))


def method_page(m: Method) -> str:
    """What a method minimises, its steps beside its code, what theory promises, when it loses, where it runs."""
    first, _, about = (inspect.getdoc(module_of(m)) or "").partition("\n")
    note, rows = NOTES.get(m.name, UNSAID), [f"| {model} | {m.why_not(*run) or 'yes'} |" for model, run in RUNS.items()]
    parts = [f"# `{m.name}`: {m.summary}", first, markdown(about), "## What it minimises"]
    parts += [f"$$\n{note['objective']}\n$$", "## The steps, and their code", *steps(m)]
    parts += ["## What theory promises", note["promises"], "## When it loses", note["loses"], "## Where it runs"]
    parts += ["\n".join(["| model | |", "|---|---|", *rows, f"| needs | {m.needs or 'nothing more'} |"])]
    parts += [f"[Its options](../options.md), [its relatives](which.md#{anchor(RELATIONS[m.relation]['known'])})."]
    return "\n\n".join(parts) + "\n"


def steps(m: Method) -> Iterator[str]:
    """The functions and classes of the module that reads like the paper: the step in words, then as code."""
    source = inspect.getsource(module_of(m))
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        at = [*(d.lineno for d in node.decorator_list), node.lineno]
        doc = node.body[0]
        words_at = {*range(doc.lineno, (doc.end_lineno or doc.lineno) + 1)} if ast.get_docstring(node) else set()
        code = [lines[k - 1] for k in range(min(at), (node.end_lineno or node.lineno) + 1) if k not in words_at]
        marks = [ast.unparse(d) for d in node.decorator_list]
        whose = "Each client" if "work" in marks else "The run" if isinstance(node, ast.ClassDef) else "Within"
        said = f"**{whose}: `{node.name}`.** {markdown(ast.get_docstring(node) or '')}"
        yield STEP.format(said=said, code="\n".join(code))


def markdown(text: str) -> str:
    """A docstring as Markdown: roles as names, headings as words."""
    text = re.sub(r":[a-z]+:`~?([^`]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", text)
    text = re.sub(r"^(\w+)\n-{3,}$", r"**\1.**", text, flags=re.MULTILINE)
    return re.sub(r"(?<!`)`(``[^`]+``)`(?!`)", r"\1", text)
