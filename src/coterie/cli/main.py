"""The command `coterie`: its parts, and how it ends."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from typer.main import get_command

from coterie import __version__
from coterie.cli import advise, doctor, federation, fit_and_compare, list_methods_and_data, use_saved_results
from coterie.cli.outputs import OUTPUTS, interrupted
from coterie.cli.terminal import Commands, complain
from coterie.errors import CoterieError

_SETTINGS = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}

app = Commands(name="coterie", rich_markup_mode="rich", context_settings=_SETTINGS)
COMMANDS: dict[Callable[..., None], str] = {
    fit_and_compare.fit: 'students.csv --formula "mAch ~ cses" --client school --cluster sector --out model',
    use_saved_results.predict: "model new_students.csv --interval 0.9 --out predictions.csv",
    fit_and_compare.compare: 'students.csv --formula "mAch ~ cses" --client school --cluster sector',
    advise.advise: 'students.csv --formula "mAch ~ cses" --client school --cluster sector',
    use_saved_results.report: "model --out report.html",
    use_saved_results.export: "trained --client 5 --to model.onnx",
    list_methods_and_data.methods: "--model torch",
    doctor.doctor: "",
}
for command, example in COMMANDS.items():
    app.command(epilog=f"Example: coterie {command.__name__} {example}".rstrip())(command)
app.add_typer(federation.app, name="federation")
app.add_typer(list_methods_and_data.app, name="data")

USAGE, UNKNOWN, INTERRUPTED, CLOSED = 2, 1, 130, 141


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="COTERIE_DEBUG", help="Show where an unexpected error came from.")
    ] = False,
) -> None:
    """A model for each client of a federation, informed by how the clients are related."""
    context.obj = debug
    if version:
        typer.echo(f"coterie {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None, commands: Commands = app, name: str = "coterie") -> None:
    """Run the command of this process, or of other arguments, and leave with its exit code.

    It is 0; 1 for an error nobody foresaw, and where `coterie doctor` finds one; 2 for wrong input, said in one line;
    130 when interrupted; 141 when the reader of the output went away.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a label that the terminal cannot show is no reason to stop
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        sys.exit(_run(given, commands, name))


def _run(arguments: list[str], commands: Commands, name: str) -> int:
    OUTPUTS.clear()
    completed = " ".join(os.environ.get(key, "") for key in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"))  # a shell's
    try:
        code = get_command(commands.meant([*arguments, *completed.split()]))(
            arguments, prog_name=name, standalone_mode=False
        )
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer's own answer to an interrupt
            return _stopped(arguments)
    except (KeyboardInterrupt, typer.Abort):
        return _stopped(arguments)
    except SystemExit as stop:  # typer's own answer to a shell that asks how words end, and (1) to a closed pipe
        return CLOSED if stop.code == 1 else int(stop.code or 0)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        return CLOSED
    except CoterieError as e:
        return complain(str(e), USAGE)
    except OSError as e:
        return complain(f"{e.strerror or e}{f': {e.filename!r}' if e.filename else ''}.", USAGE)
    except MemoryError:
        return complain("There is not enough memory for this table.", UNKNOWN)
    except Exception as e:
        if _interrupted(e):
            return _stopped(arguments)
        if hasattr(e, "format_message"):  # typer's own: a wrong option
            return complain(_usage(e), USAGE)
        return _unexpected(e, arguments)
    return code if isinstance(code, int) else 0


def _stopped(arguments: list[str]) -> int:
    """Say what was kept."""
    if "federation" not in arguments[:2]:  # which says for itself how runs go on
        interrupted()
    return INTERRUPTED


def _interrupted(error: BaseException | None) -> bool:
    """Whether an interrupt is what led to an error: compiled code turns it into an error of its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _usage(error: Exception) -> str:
    text = str(error.format_message()).strip()  # type: ignore[attr-defined]
    number = re.match(r"Invalid value for '(--[a-z-]+)': .*valid (integer|number|float)", text)
    if number:
        text = f"{number[1]} takes a {'whole ' if number[2] == 'integer' else ''}number."
    text = re.sub(r"(Did you mean [^?]*\?) \(?Did you mean .*", r"\1", text)  # typer and click say it, each for itself
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "coterie"
    return f"{text}{'' if text.endswith(('.', '?', ')')) else '.'} See '{command} --help'."


def _unexpected(error: Exception, arguments: list[str]) -> int:
    if "--debug" in arguments[:1] or os.environ.get("COTERIE_DEBUG"):
        traceback.print_exception(error)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return complain(
        f"coterie met an error it does not know ({what}). Please report it with what "
        f"'coterie --debug {' '.join(arguments[:1])} ...' prints.",
        UNKNOWN,
    )
