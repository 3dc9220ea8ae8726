"""The page about the command, made from its own help: ``python tests/docs/cli_page.py > docs/cli.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from typer.main import get_command

from coterie.cli.main import app

HEAD = """# The command `coterie`

Made from `coterie --help` and the help of its commands. Errors in the input are said in one line, with exit code 2, and
nothing is written then. `coterie --debug ...` shows where an unexpected error came from; `coterie --version` says which
version it is.

| Exit code | |
|---|---|
| 0 | What was asked for is done. |
| 1 | An error nobody foresaw, memory that ran out, or a check of `coterie doctor` that fails. |
| 2 | Something in the input or the call that the sentence says how to put right. |
| 130 | Interrupted (Ctrl-C); a line says what was written. |
| 141 | Whatever read the output went away, as `head` does. |

With `--json` the output is one JSON document, in which a number that is not finite is null; all that is said goes to
the error stream. A document stands before the error where something was found. `coterie --install-completion` lets the
shell complete commands, options and the names of methods and tables; a new shell knows them.

A file that is there is replaced only if the same command wrote it and nobody changed it since, or with `--force`; never
an input of the command. Digests of what commands write are kept in `~/.local/state/coterie` (`$XDG_STATE_HOME`).
"""
OTHER = "Other options"
NO_RUN = "<!-- no-run: make federation-demo runs these commands over real servers -->"
EXPORTED = "<!-- no-run: models.md runs it on a folder of nets -->"
EXAMPLES = {"coterie data list": "", "coterie data show": "heart", "coterie data fetch": "heart"}


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([HEAD, *(section(name, command) for name, command in commands("coterie", get_command(app)))])


def commands(name: str, command: object) -> Iterator[tuple[str, object]]:
    """All commands that do something, by what is typed."""
    for part, inner in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {part}", inner)
    if not hasattr(command, "commands"):
        yield name, command


def section(name: str, command) -> str:
    """One command: what it does, an example, and a table for each group of its arguments and options."""
    example = (command.epilog or "").removeprefix("Example: ") or f"{name} {EXAMPLES[name]}".rstrip()
    mark = [NO_RUN] if name.startswith("coterie federation") else [EXPORTED] if name == "coterie export" else []
    lines = [f"## `{name}`", "", *command.help.splitlines(), "", *mark, "```console", f"$ {example}", "```", ""]
    groups: dict[str, list[str]] = {}
    for parameter in command.params:
        if "--help" not in parameter.opts:
            groups.setdefault(heading(parameter), []).append(row(parameter))
    for title in sorted(groups, key=lambda title: title == OTHER):
        lines += [f"| {title} | |", "|---|---|", *groups[title], ""]
    return "\n".join(lines)


def heading(parameter) -> str:
    if parameter.param_type_name == "argument":
        return "Argument"
    return parameter.rich_help_panel or OTHER


def row(parameter) -> str:
    text = re.sub(r"(?<!\S)--[a-z-]+", r"`\g<0>`", parameter.help)
    if parameter.param_type_name == "argument":
        return f"| `{parameter.metavar}` | {text} |"
    names = "`, `".join([*parameter.opts, *parameter.secondary_opts])
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    if parameter.required:
        text += " Required."
    elif parameter.is_flag:
        text += f" Default: `{parameter.opts[0]}`." if parameter.secondary_opts else ""
    elif parameter.default is not None:
        text += f" Default: `{parameter.default}`."
    return f"| `{names}{value}` | {text} |"


if __name__ == "__main__":
    print(page(), end="")
