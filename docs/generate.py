"""Pages that are made when the documentation is built, from the package itself; none of them is kept as text."""

from __future__ import annotations

import inspect
import json
import re
from importlib import import_module
from pathlib import Path

import coterie
from docs import method_pages

CLASS = """
   :members:
   :inherited-members: BaseEstimator, RegressorMixin, ClassifierMixin, ValueError
"""
PAGE = """# `{name}`

```{{eval-rst}}
.. currentmodule:: coterie

{directive}```
"""
HERE = Path(__file__).parent
TUTORIALS = ("tutorial_table", "tutorial_federation", "tutorial_method", "tutorial_texts")
BLOCK = re.compile(r"(?:<!-- (?P<comment>[^\n]*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)\n?```\n", re.DOTALL)
LINK = re.compile(r"\[([^]]*)\]\((?!https?:)[^)]*\)")
GROUPS = {
    "Fitting and comparing": ("fit", "compare", "advise", "compare_fits", "bootstrap"),
    "Models": ("Torch", "HierarchicalRegressor", "HierarchicalClassifier"),
    "Results": ("FitResult", "TrainingResult", "Advice", "load"),
    "Tables": ("read_table", "stack_tasks"),
    "Errors and version": ("CoterieError", "__version__"),
}


def write(folder: Path) -> None:
    """All pages; those that did not change keep their time, so that Sphinx does not read them again."""
    folder.mkdir(exist_ok=True)
    made = pages()
    for old in set(folder.glob("*.*")) - {folder / name for name in made}:
        old.unlink()
    for name, text in made.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """All pages by their names."""
    return reference() | method_pages.pages() | {f"{name}.ipynb": notebook(name) for name in TUTORIALS}


def notebook(name: str) -> str:
    """A tutorial as a notebook: its Python, its commands and the files that it writes are cells, all else is text."""
    text, cells, at = (HERE / f"{name}.md").read_text(encoding="utf-8"), list[dict[str, object]](), 0

    def add(kind: str, source: str) -> None:
        if source.strip():
            code = {"execution_count": None, "outputs": []} if kind == "code" else {}
            lines = source.strip("\n").splitlines(keepends=True)
            cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines, **code})

    for block in BLOCK.finditer(text):
        comment, language, code = block["comment"] or "", block["language"], block["code"]
        if language not in ("python", "console") and not comment.startswith("file:"):
            continue
        add("markdown", LINK.sub(r"\1", text[at : block.start()]))
        if comment.startswith("file:"):
            code = f"%%writefile {comment.partition(':')[2].strip()}\n{code}"
        elif language == "console":
            code = re.sub(r"^\$ ", "!", code, flags=re.MULTILINE)
        add("code", code)
        at = block.end()
    add("markdown", LINK.sub(r"\1", text[at:]))
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def public_name(path: str) -> str | None:
    """The name under which users know what lies at ``module.Class.attribute``; None where nothing lies there."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = home = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            fields = getattr(found, "__dataclass_fields__", {})
            found = inspect.getattr_static(found, part, None) or getattr(found, part, None) or fields.get(part)
            if found is None:
                return None
        public = [name for name in coterie.__all__ if cut < len(parts) and parts[cut] == name]
        inherits = [
            name
            for name in ("FitResult", "TrainingResult")
            if cut < len(parts) and getattr(home, parts[cut], None) in getattr(coterie, name).__mro__[:-1]
        ]
        return ".".join(["coterie", *(public or inherits)[:1], *parts[cut + 1 :]]) if public or inherits else path
    return None


def reference() -> dict[str, str]:
    """A page for each public name, and one that lists them."""
    index = ["# Python", "", "What `coterie` has, by what it is for.", ""]
    pages = {}
    for title, names in GROUPS.items():
        index += [f"## {title}", "", "| | |", "|---|---|"]
        for name in names:
            thing = getattr(coterie, name)
            first = (inspect.getdoc(thing) or "").partition("\n")[0] if name != "__version__" else "The version."
            index.append(f"| [`{name}`](api_{name}.md) | {plain(first)} |")
            pages[f"api_{name}.md"] = PAGE.format(name=name, directive=directive(name))
        index.append("")
    tree = "\n".join(f"api_{name}" for names in GROUPS.values() for name in names)
    return pages | {"api.md": "\n".join([*index, "```{toctree}", ":hidden:", "", tree, "```", ""])}


def directive(name: str) -> str:
    """How autodoc is asked about a public name."""
    thing = getattr(coterie, name)
    if inspect.isclass(thing):
        return f".. autoclass:: coterie.{name}{CLASS}"
    return f".. autofunction:: coterie.{name}\n" if callable(thing) else f".. autodata:: coterie.{name}\n"


def plain(text: str) -> str:
    """A line of a docstring as one of Markdown."""
    return text.replace("``", "`").replace("|", "\\|")
