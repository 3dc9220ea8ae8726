"""Messages are pinned by what they must name: a column, an option, a value, a remedy. Their English is free."""

import re


def names(parts: str) -> str:
    """A pattern for ``match``: every part between spaces is in the message, whole, in any order and case."""
    return "(?is)^" + "".join(rf"(?=.*(?<!\w){re.escape(part)}(?!\w))" for part in parts.split())
