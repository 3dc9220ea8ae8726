"""What every page has: templates that escape what is put into them, and a file written whole or not at all."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from importlib import resources
from typing import TYPE_CHECKING, Any

from coterie import files
from coterie.errors import or_say
from coterie.report import words

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def environment() -> Environment:
    """The templates, with everything that is put into them escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("coterie.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"sentence": words.sentence, "value": words.plain_text}
    script = resources.files("coterie.report").joinpath("templates/point.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made.globals |= {"script": script, "script_hash": f"sha256-{digest}"}  # no other script runs, whatever is put in
    return made


def page(template: str, **values: Any) -> str:
    """A page of a template."""
    return environment().get_template(template).render(values)


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page; a file that exists is replaced at once. A CoterieError where it cannot be written."""
    with or_say(f"The report cannot be written to '{path}'"):
        files.write(files.place(path), [page.encode()])
