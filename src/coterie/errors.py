"""Errors whose text a user can act on: what is wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONGEST = 2000  # most characters of a message
RAISED = (Exception, SystemExit)
"""What code of a caller's own may raise: ``exit()`` in it is a mistake of that code and no wish of the person's."""
_COMPARED = 200  # characters of names that are looked at for resemblance, which takes the square of that


class CoterieError(ValueError):
    """Something in the input or the settings that the user can put right.

    The message is one clear sentence that names the column, the client or the row; one that repeats a text of any
    length is shortened in the middle. The command line prints it alone and leaves with exit code 2.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message), LONGEST))


class NotIdentified(CoterieError):
    """The table cannot tell the wanted numbers apart, however long a method runs."""


class NotAll(CoterieError):
    """Clients did not answer, and what was asked leaves nobody out without a word."""


class NoRows(CoterieError):
    """A table has no row that can be used; a site without rows takes no part in a run, which goes on."""


class NoSuchName(CoterieError, KeyError):
    """Replies without a name that was to be in them: those of a slip in a method, or of a site that is broken."""

    __str__ = Exception.__str__


@contextmanager
def fitting(what: str, remedy: str) -> Iterator[None]:
    """Around what is done with something that was read: where its parts do not fit together, one sentence says so.

    Files and messages come from anywhere, and checks of every part before use would be all of the code twice. ``what``
    was read, "The model in 'x'", and the ``remedy``, "Save it again.", are parts of the CoterieError that whatever is
    raised inside becomes, but what the operating system refuses.
    """
    try:
        yield
    except (CoterieError, OSError):
        raise
    except Exception as problem:  # a fault in what was read can come out anywhere, as anything
        raise CoterieError(f"{what} cannot be used: parts of it do not fit together. {remedy}") from problem


@contextmanager
def or_say(what: str) -> Iterator[None]:
    """Around what the operating system may refuse, where ``what`` could not be done then, and why, is one sentence."""
    try:
        yield
    except OSError as problem:
        raise CoterieError(f"{what}: {problem.strerror or problem}.") from problem


def nearest(name: object, names: Iterable[object], limit: int = 3) -> str:
    """Of what there is, what may have been meant, as the end of a message: " Did you mean 'school'?" or ""."""
    known = [n for n in dict.fromkeys(str(n) for n in names) if len(n) <= _COMPARED]
    if len(str(name)) > _COMPARED:
        return ""
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


def joined(parts: list[str]) -> str:
    """``"a, b and c"``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def plural(n: int, noun: str) -> str:
    """So many in words: "1 row", "7,185 rows"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def shortened(text: str, limit: int = 300) -> str:
    """A text of at most ``limit`` characters: of a longer one the beginning and the end, and how much is left out."""
    if len(text) <= limit:
        return text
    left_out = f" ... ({len(text) - limit:,} characters) ... "
    keep = max(limit - len(left_out), 2)
    return f"{text[: keep - keep // 3]}{left_out}{text[len(text) - keep // 3 :]}"


_signature = cache(inspect.signature)


def bound(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str = ""
) -> inspect.BoundArguments:
    """The arguments of a call; a CoterieError says what is lacking, not known, or too much, and the remedy."""
    signature, name = _signature(function), name or function.__name__
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as problem:
        takes = {n: p for n, p in signature.parameters.items() if n != "self"}
        known = [n for n, p in takes.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        needed = [n for n in known if takes[n].default is inspect.Parameter.empty]
        for other in kwargs:
            if other not in known and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
                hint = nearest(other, known) or (f" There are {', '.join(known)}." if known else " Leave it out.")
                raise CoterieError(f"{name}() has no argument {other!r}.{hint}") from None
        places = len(args) - ("self" in signature.parameters)
        if lost := [n for n in needed[places:] if n not in kwargs]:
            raise CoterieError(f"{name}() needs {joined(lost)}: call {name}({', '.join(needed)}).") from None
        said = f"call {name}({', '.join(needed)}), and give all else by name"
        raise CoterieError(f"{name}() is called with {problem}: {said}.") from None


def checked_call(function: Callable[P, T], name: str = "") -> Callable[P, T]:
    """A function, called by a ``name``, that says in words which arguments do not fit it."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        bound(function, args, kwargs, name)
        return function(*args, **kwargs)

    return called


def checked_calls(cls: type[T]) -> type[T]:
    """A class whose public methods are such functions."""
    for name, value in list(vars(cls).items()):
        if inspect.isfunction(value) and not name.startswith("_"):
            setattr(cls, name, checked_call(value))
    return cls
