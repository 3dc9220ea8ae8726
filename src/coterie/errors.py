"""Errors whose text a user can act on: what is wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoterieError(ValueError):
    """Something in the input or the settings that the user can put right.

    The message is one clear sentence that names the column, the client or the row. The command line prints it alone
    and leaves with exit code 2.
    """


class NotIdentified(CoterieError):
    """The table cannot tell the wanted numbers apart, however long a method runs."""


class NoRows(CoterieError):
    """A table has no row that can be used; a site without rows takes no part in a run, which goes on."""


def nearest(name: object, names: Iterable[object], limit: int = 3) -> str:
    """Names that may have been meant, as the end of a message.

    Parameters
    ----------
    name : object
        What the user wrote.
    names : iterable
        What there is.
    limit : int, default 3
        Names shown at most.

    Returns
    -------
    str
        ``" Did you mean 'school'?"`` with a leading space; ``""`` when nothing resembles `name`.
    """
    known = list(dict.fromkeys(str(n) for n in names))
    lower: dict[str, str] = {}
    for n in known:
        lower.setdefault(n.lower(), n)
    found = difflib.get_close_matches(str(name).lower(), list(lower), n=limit, cutoff=0.6)
    if not found:
        return ""
    quoted = [repr(lower[f]) for f in found]
    return f" Did you mean {' or '.join([', '.join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)}?"


def listed(items: Iterable[object], limit: int = 5) -> str:
    """The first few items in words: ``"3, 8, 9 and 12 more"``."""
    values = list(items)
    text = ", ".join(str(v) for v in values[:limit])
    rest = len(values) - limit
    return f"{text} and {rest:,} more" if rest > 0 else text
