"""The templates of the report."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

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
    return made
