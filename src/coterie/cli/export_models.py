"""`coterie export`: nets of a saved result as files that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from coterie.cli.declared_options import Force, ModelPath, new_file, own_option, place
from coterie.cli.outputs import check_folder, need_room, ours, wrote
from coterie.cli.terminal import say
from coterie.errors import CoterieError

To = Annotated[Path, new_file("--to", "PATH", "A .onnx or .safetensors file; without --client, a folder.")]
Client = Annotated[str | None, own_option("--client", "NAME", "Whose net; by default those of all clients.")]
Kind = Annotated[Literal["onnx", "safetensors"], own_option("--form", None, "Of the files of all clients.")]
Allow = Annotated[
    list[str] | None,
    own_option("--allow", "CODE", "package.module:name of code of your own that may be imported; more than once."),
]
Code = Annotated[Path, own_option("--code", "FOLDER", "Where that code is imported from first.", parser=place)]


def export(
    model: ModelPath,
    to: To,
    client: Client = None,
    form: Kind = "onnx",
    allow: Allow = None,
    code: Code = Path(),
    force: Force = False,
) -> None:
    """Write the nets of a saved result for other programs: the whole net in ONNX, or its numbers in safetensors.

    Nothing in the folder runs: code of your own, such as the module, is imported only where --allow names it.
    """
    if client is None:
        check_folder(to, "--to")
    else:
        need_room(to, [model], force, ours("export"))
    from coterie.results.saved_results import load
    from coterie.results.training_result import TrainingResult

    home = model.parent if model.name == "training.json" else model
    given = {"allow": allow} if allow else {}
    result = load(home, code, **given)
    if not isinstance(result, TrainingResult):
        raise CoterieError(f"'{model}' has the model of a table, which has no net to export: take coterie predict.")
    if client is not None:
        result.export(client, to)
        wrote("export", to)
        return
    index = result.export_all(to, form)
    say(f"Written to {to}: the nets of {len(index):,} clients, and clients.csv, which says whose each is.")
