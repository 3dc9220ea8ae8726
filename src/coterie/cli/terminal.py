"""How commands speak to a terminal, a file or a pipe."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from copy import copy
from math import isfinite
from typing import Any, TextIO, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from coterie.errors import CoterieError

F = TypeVar("F", bound=Callable[..., Any])
_COLUMNS = 80  # of a terminal that has room for help in columns
_FALLBACK = (100, 24)  # columns and lines where there is no terminal


DOCUMENT: dict[str, Any] = {}
"""What a command found, which is all that it prints where ``--json`` is given."""


def found(**values: Any) -> None:
    """Put what a command found into its document."""
    DOCUMENT.update(values)


def plain(value: Any) -> Any:
    """A value as JSON has it: a frame is a list of its rows and their names, a number that is not finite is null."""
    if hasattr(value, "to_dict"):
        value = (value if value.index.name is None else value.reset_index()).to_dict("records")
    elif hasattr(value, "tolist"):  # of numpy
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


class Command(TyperCommand):
    """A command that refuses an option of one value that is given twice, where typer would take the last.

    Where it has ``--json`` and that is given, its output is one document, and what it says goes to the error stream.
    """

    def invoke(self, ctx: Any) -> Any:
        """As typer's; what was found before an error is printed, too."""
        DOCUMENT.clear()
        if not ctx.params.get("as_json"):
            return super().invoke(ctx)
        try:
            with redirect_stdout(sys.stderr):
                out = super().invoke(ctx)
        except (CoterieError, typer.Exit):
            self.document()
            raise
        self.document()
        return out

    def document(self) -> None:
        """Print what was found."""
        if DOCUMENT:
            print(json.dumps(plain(DOCUMENT), indent=1, ensure_ascii=False), flush=True)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As typer's; on a narrow terminal, where its columns would cut names, without columns."""
        if width() >= _COLUMNS:
            super().format_help(ctx, formatter)
            return
        super(TyperCommand, self).format_help(ctx, formatter)
        formatter.buffer = [part.replace("\\[", "[") for part in formatter.buffer]  # escaped for columns

    def make_parser(self, ctx: Any) -> Any:
        """As typer's, but for options that are given twice."""
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def once(args: list[str]) -> Any:
            read = parse(args)
            options = [one for one in read[2] if isinstance(one, TyperOption) and not one.multiple]
            given = Counter(max(one.opts, key=len) for one in options if not one.is_flag or one.secondary_opts)
            for name, times in given.items():
                if times > 1:
                    raise CoterieError(f"{name} is given {times} times: give it once.")
            return read

        parser.parse_args = once
        return parser


class Commands(typer.Typer):
    """The commands of a group."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """As typer's."""
        return super().command(name, cls=Command, **options)

    def meant(self, arguments: Sequence[str]) -> Commands:
        """The same, where commands that are not among the arguments have no options, whose reading takes long."""
        if self.registered_callback is None:  # no group, but its one command
            return self
        some = copy(self)
        some.registered_commands = [copy(info) for info in self.registered_commands]
        for info in some.registered_commands:
            if info.callback is not None and (info.name or info.callback.__name__) not in arguments:
                info.callback = _without_options(info.callback)
        some.registered_groups = [copy(info) for info in self.registered_groups]
        for group in some.registered_groups:
            if isinstance(group.typer_instance, Commands):
                group.typer_instance = group.typer_instance.meant(arguments)
        return some


def _without_options(command: Callable[..., Any]) -> Callable[[], None]:
    def listed() -> None:
        pass

    listed.__name__, listed.__doc__ = command.__name__, command.__doc__
    return listed


class Group(Commands):
    """Commands of one group, which says ``what`` it is for where none of them is named."""

    def __init__(self, what: str) -> None:
        super().__init__(no_args_is_help=False, rich_markup_mode="rich")

        @self.callback(invoke_without_command=True, help=what)
        def start(context: typer.Context) -> None:
            if context.invoked_subcommand is None:
                typer.echo(context.get_help())


def complain(message: str, code: int) -> int:
    """Say what is wrong in a sentence on the error stream; the exit code comes back."""
    with suppress(OSError):  # whoever read the output may be gone, and still has to know
        sys.stdout.flush()
    _print(f"Error: {message}", sys.stderr, "")
    return code


def width() -> int:
    """Characters in a line of the output."""
    return max(shutil.get_terminal_size(_FALLBACK).columns, 40)


def say(text: str, error: bool = False, indent: str = "") -> None:
    """Print a sentence, wrapped between words where a person reads it, else as one line.

    `indent` goes before each line but the first. What was printed before is flushed before anything is said on the
    error stream, so that the two keep their order and a reader who went away is noticed.
    """
    if error:
        sys.stdout.flush()
    _print(text, sys.stderr if error else sys.stdout, indent)


def _print(text: str, stream: TextIO, indent: str) -> None:
    line = " ".join(part.strip() for part in text.replace("\t", " ").splitlines())
    # labels of a table may hold characters that steer a terminal
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    if stream.isatty():
        line = textwrap.fill(line, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    print(line, file=stream, flush=True)
