"""Exact sums need every client: whoever is missing is counted aloud, never left out without a word."""

from __future__ import annotations

from typing import TypeVar

from coterie.errors import CoterieError
from coterie.federation import Replies

R = TypeVar("R", bound=Replies)


def require_all_replies(replies: R) -> R:
    """The replies; a CoterieError if a client did not answer."""
    missing = len(replies.missing)
    if missing:
        asked = missing + len(replies.rows)
        raise CoterieError(
            f"{missing:,} of {asked:,} clients did not answer, and this needs them all: ask again, or leave "
            "them out of the federation."
        )
    return replies
