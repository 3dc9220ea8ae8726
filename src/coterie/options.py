"""Options, declared once: type, range, default and a line of text, from which checks, help and tables of docs come.

An option is an annotated field of a dataclass, or an annotated parameter of a function:

```python
@dataclass(frozen=True, kw_only=True)
class Ditto(LocalTraining):
    lam: Annotated[float, Option("Pull of own models to the shared one.", low=0.0)]
    alpha: Annotated[float | Literal["auto"], Option("Weight of the others.", low=0.0, high=1.0)] = "auto"

    def __post_init__(self) -> None:
        check(self)  # each option by itself; what one says of another follows
```

``check(self)`` in ``__post_init__``, as :class:`Checked` has it, refuses what was not declared, and keeps values in
their declared form: NumPy's numbers as Python's, lists as tuples, tables as the classes declared for them. Nothing is
coerced: "3" is no number, 3.0 no whole number, True no number, NaN and infinity (but ``infinite=True``) and 2**63 are
refused. ``of(Ditto, mapping, what="[policy]")`` makes an instance of a user's mapping: it also refuses names that are
not known and says which are needed. ``call`` does the same for a function, and ``checked`` decorates one.
What no range or list says is said by ``read``, which returns the value or raises a ValueError, and ``what``, its words.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields, is_dataclass
from functools import cache, wraps
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from coterie.errors import CoterieError, bound, nearest, shortened

LARGE = 2**63  # whole numbers are smaller: what int64 holds, and keys of random numbers
_SHOWN = 120  # characters of a value in a sentence
_PLAIN = (str, bytes, int, float, complex, list, tuple, dict, set, type(None))
T = TypeVar("T")
Schedule = Any | Callable[[int], Any]
"""The kind of an option that is a number, a number for each, or a function of the step that gives such."""


@dataclass(frozen=True, eq=False)
class Option:
    """What is said of an option beside its type and its default."""

    text: str = ""  # one line for help and documentation
    _: KW_ONLY
    low: float | None = None  # range of a number: ends that are included (low, high) or not (above, below)
    above: float | None = None
    high: float | None = None
    below: float | None = None
    infinite: bool = False  # whether infinity is a value, too
    each: str = ""  # of what there may be a number each: "client", "cluster"
    choices: Collection[str] | Callable[[], Collection[str]] | None = None  # names in a table, where no Literal is
    what: str = ""  # what it must be, in words, where type, range and choices do not say it
    read: Callable[[Any], Any] | None = None  # takes a value of the declared type, and returns what is kept
    remedy: str = ""  # a sentence after each refusal
    matters: bool = True  # whether another value can give other numbers
    beside: tuple[str, tuple[Any, ...]] | None = None  # what it needs: an option, its values; (): set; (None,): unset
    group: str = ""  # the heading of a command's help that it stands under
    metavar: str = ""  # what a command's help calls its value
    argument: str = ""  # of a configuration's key: the argument of a call that it stands for, in words of the caller

    @property
    def names(self) -> list[str]:
        """The choices."""
        found = self.choices() if callable(self.choices) else self.choices
        return [str(name) for name in found or ()]

    @property
    def ends(self) -> tuple[float | None, ...]:
        """Of its range: low, above, high, below."""
        return self.low, self.above, self.high, self.below

    def range(self, unit: str) -> str:
        """The range in words: a number above 0 and up to 1."""
        low, above, high, below = ("" if v is None else f"{v:,.0f}" if v % 1 == 0 else f"{v:g}" for v in self.ends)
        high = high or ("inf" if low and self.infinite else "")
        if low and high:
            return f"{unit} from {low} to {high}"
        if above and below:
            return f"{unit} between {above} and {below}"
        start = f"above {above}" if above else f"from {low}" if low else ""
        end = f"up to {high}" if high else f"below {below}" if below else ""
        span = f"{unit} {' and '.join(filter(None, (start, end)))}".rstrip()
        return f"{span} or inf" if self.infinite else span


@dataclass(frozen=True, eq=False)
class Declared:
    """One option of a class or a function; the default is ``inspect.Parameter.empty`` where it is needed."""

    name: str
    kind: Any
    option: Option
    default: Any = inspect.Parameter.empty

    @property
    def allowed(self) -> str:
        """What it must be, in words: "auto or a number from 0 to 1"."""
        return self.option.what or _words(self.kind, self.option)

    @property
    def names(self) -> list[str]:
        """The texts that it may be, where they are listed."""
        return [*_literals(self.kind), *self.option.names]

    def read(self, value: Any, what: str = "") -> Any:
        """The value as it is kept; a CoterieError says what it must be. ``what`` is that of :func:`of`."""
        if isinstance(value, Mapping) and (tables := _tables(self.kind, value, self.name, what)) is not None:
            return tables
        if self.option.each:
            given = (callable(value) and _is_union(self.kind)) or _inside(value, self.option)
            if given or value is self.default is None:
                return value
            raise CoterieError(self.refusal(value, what))
        try:
            usual = type(value) is type(self.default) and value == self.default  # pydantic takes 0.1 s to load
            found = value if usual else _adapter(self.kind, self.option).validate_python(value)
            return found if self.option.read is None else self.option.read(found)
        except CoterieError:
            raise
        except (ValueError, TypeError, OverflowError, KeyError) as problem:
            raise CoterieError(self.refusal(value, what)) from problem

    def at(self, value: Any, t: int, n: int) -> Any:
        """What an option of n ``each`` says at step t: its number or (n,) numbers, or those that its function gives."""
        import numpy as np

        given = np.asarray(self.read(value(t), f"step {t}") if callable(value) else value, dtype=np.float64)
        if given.shape in ((), (1,), (n,)):
            return given
        raise CoterieError(
            f"{self.name} must be one number, or {n}: one for each {self.option.each}, not {given.size}."
        )

    def refusal(self, value: Any, what: str = "") -> str:
        """The sentence for a value that cannot be."""
        subject = f"{self.name} of {what[0].lower()}{what[1:]}" if what else self.name
        huge = isinstance(value, int) and abs(value) >= LARGE and self.option.high is self.option.below is None
        hint = nearest(value, self.names) if isinstance(value, str) and value not in self.names else ""
        text = f"{subject} must be {self.allowed}{', below 2**63' * (huge and 'number' in self.allowed)}, not"
        text = f"There is no {subject}" if hint and len(self.names) > 12 else text  # a list would hide the one meant
        return f"{text} {shown(value)}.{hint} {self.option.remedy}".rstrip()


def _declared(of: Any) -> dict[str, Declared]:
    """The options of a dataclass or of a function, by name, in their order."""
    if not (isinstance(of, type) and is_dataclass(of)):
        made: Any = vars(of)["__init__"] if isinstance(of, type) else of
        hints, parameters = inspect.get_annotations(made, eval_str=True), inspect.signature(of).parameters
        found = {name: _split(hints.get(name)) for name in parameters}
        return {name: Declared(name, *split, parameters[name].default) for name, split in found.items() if split}
    out: dict[str, Declared] = {}
    above = [annotated(cls) for cls in of.__mro__]
    for f in sorted((f for f in fields(of) if f.init), key=lambda f: f.kw_only is True):  # as in the signature
        if split := next(filter(None, (_split(hints.get(f.name)) for hints in above)), None):
            default = f.default if f.default_factory is MISSING else f.default_factory()
            out[f.name] = Declared(f.name, *split, *(() if default is MISSING else (default,)))
    return out


declared: Callable[[Any], dict[str, Declared]] = cache(_declared)


def check(options: Any) -> None:
    """Check every option of a dataclass's instance, and keep values in their declared form."""
    for name, one in declared(type(options)).items():
        value = getattr(options, name)
        if (found := one.read(value)) is not value:
            object.__setattr__(options, name, found)


class Checked:
    """The base of dataclasses whose options are checked when they are made, each by itself."""

    def __post_init__(self) -> None:
        check(self)


def of(cls: type[T], given: Any, what: str, *, hidden: Collection[str] = (), noun: str = "option") -> T:
    """An instance of a dataclass with declared options from a user's mapping, without the ``hidden`` fields.

    ``what`` says whose they are, as a sentence begins ("[policy]", "The method ditto"), and ``noun`` what each is.
    A CoterieError for what is no mapping, an unknown name, a value that cannot be, and one that is needed.
    """
    names = [f.name for f in fields(cls) if f.init and f.name not in hidden]  # type: ignore[arg-type]
    return cls(**_read(cls, given, what, names, noun))


def call(function: Callable[..., T], given: Any, what: str, *fixed: Any, noun: str = "option", **more: Any) -> T:
    """What a function gives for a user's mapping of its keyword arguments, beside those that are fixed."""
    names = [name for name in inspect.signature(function).parameters if name not in more][len(fixed) :]
    return function(*fixed, **_read(function, given, what, names, noun), **more)


def checked(function: Callable[..., T]) -> Callable[..., T]:
    """A function that checks its annotated arguments before it does anything."""

    @wraps(function)
    def checks(*args: Any, **kwargs: Any) -> T:
        given = bound(function, args, kwargs)
        for name, one in declared(function).items():
            if name in given.arguments:
                given.arguments[name] = one.read(given.arguments[name])
        return function(*given.args, **given.kwargs)

    return checks


def need_names(what: str, given: Any, names: Collection[str], noun: str = "option") -> None:
    """Raise for what is no mapping, and for a name in it that is not known."""
    if not isinstance(given, Mapping):
        raise CoterieError(f"{what} must be {_TABLE}, not {shown(given)}.")
    for name in given:
        if name not in names:
            hint = nearest(name, names) or f" There are {', '.join(names)}."
            raise CoterieError(f"{what} has no {noun} {name!r}.{hint}")


def unheeded(of: Any, given: Collection[str], setting: Mapping[str, Any]) -> dict[str, str]:
    """Options that are given and change nothing ``beside`` the others of a setting, with the reason and the remedy."""
    known, out = declared(of), {}
    for name, (other, values) in ((n, d.option.beside) for n, d in known.items() if n in given and d.option.beside):
        said, usual = setting.get(other, known[other].default), known[other].default
        if said not in values if values else said == usual:
            need = f"{other} = {' or '.join(map(repr, values))}" if values else f"a {other}"
            why = f"without {need}: give that, or leave {name} out."
            out[name] = f" beside {other}: say one of the two." if values == (None,) else f" {why}"
    return out


def shown(value: Any) -> str:
    """A value in a sentence: as it is written where that is short, else what it is."""
    if isinstance(value, _PLAIN) or type(value).__module__ == "numpy":
        text = repr(value)
        return f"an array of shape {value.shape}" if "\n" in text else shortened(text, _SHOWN)
    return f"{'an' if type(value).__name__[0] in 'aeiouAEIOU' else 'a'} {type(value).__name__}"


def _read(of: Any, given: Any, what: str, names: list[str], noun: str) -> dict[str, Any]:
    """A user's mapping, checked against the options of a class or a function."""
    need_names(what, given, names, noun)
    known, parameters = declared(of), inspect.signature(of).parameters
    if lost := [name for name in names if parameters[name].default is inspect.Parameter.empty and name not in given]:
        raise CoterieError(f"{what} does not say {' or '.join(lost)}.")
    return {name: known[name].read(value, what) if name in known else value for name, value in given.items()}


def annotated(cls: type) -> dict[str, Any]:
    """Of a class's own body, by name; none where they cannot be read."""
    try:
        return inspect.get_annotations(cls, eval_str=True, locals={})  # where a field may have a function's name
    except Exception:  # a class of a user's own may name what is there for type checkers only
        if cls.__module__.partition(".")[0] == "coterie":
            raise
        return {}


def _split(hint: Any) -> tuple[Any, Option] | None:
    """Type and declaration of an annotation; None where nothing is declared."""
    if get_origin(hint) is not Annotated:
        return None
    kind, *said = get_args(hint)
    return next(((kind, one) for one in said if isinstance(one, Option)), None)


def _tables(kind: Any, value: Any, name: str, what: str) -> Any:
    """A table, or tables by name, as the dataclasses that are declared for them; None where none is."""
    place = f"{what[:-1]}.{name}]" if what.startswith("[") else f"[{name}]"
    for one in get_args(kind) if _is_union(kind) else (kind,):
        inner: Any = get_args(one)[-1] if get_origin(one) is dict else None
        if _has_options(one):
            return of(one, value, place, noun="key")
        if _has_options(inner):
            each = {str(key): (v, f"{place[:-1]}.{key}]") for key, v in value.items()}
            return {key: v if isinstance(v, inner) else of(inner, v, at, noun="key") for key, (v, at) in each.items()}
    return None


def _has_options(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind) and bool(declared(kind))


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _literals(kind: Any) -> list[str]:
    """All texts that a type lists."""
    if get_origin(kind) is Literal:
        return [str(v) for v in get_args(kind)]
    return [text for part in get_args(kind) for text in _literals(part)] if _is_union(kind) else []


_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): ""}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "texts"}
_TABLE = "a table of names and values"


def _words(kind: Any, option: Option) -> str:
    parts, origin = get_args(kind), get_origin(kind)
    if option.each:
        ends = f"one for each {option.each}, or a function" if _is_union(kind) else f"or one for each {option.each}"
        return f"{option.range('a number')}, {ends}"
    if origin is Literal or (kind is str and option.choices is not None):
        return _one_of(_literals(kind) or option.names)
    if kind in _NOUNS:
        return option.range(_NOUNS[kind]) if kind in (int, float) else _NOUNS[kind]
    if _is_union(kind):
        rest = [_words(p, option) for p in parts if get_origin(p) is not Literal]
        return _one_of([*_literals(kind), *filter(None, rest)])
    if origin is tuple:
        several = _SEVERAL.get(parts[0], "numbers" if _is_union(parts[0]) else "values")
        count = "a list of" if parts[-1] is Ellipsis else len(parts)
        return f"{count} {option.range(several) if option.choices is None else _one_of(option.names)}"
    if origin is dict or _has_options(kind):
        return _TABLE
    return "a function" if origin is Callable else f"a {getattr(kind, '__name__', 'value')}"


def _one_of(names: list[str]) -> str:
    return " or ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} or {names[-1]}"


def _inside(value: Any, option: Option) -> bool:
    """Whether a value is a number in the option's range, or a row of them."""
    import numpy as np

    try:
        given = np.asarray("" if isinstance(value, bool | str) else value, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    inside = np.isfinite(given)
    for end, holds in zip(option.ends, (np.greater_equal, np.greater, np.less_equal, np.less), strict=True):
        inside = inside if end is None else inside & holds(given, end)
    return given.ndim < 2 and bool(np.all(inside))


@cache
def _adapter(kind: Any, option: Option) -> Any:
    """What checks values of a type."""
    from pydantic import TypeAdapter

    return TypeAdapter(_typed(kind, option))


def _typed(kind: Any, option: Option) -> Any:
    """A type as pydantic checks it: without coercion, within its range, and with NumPy's numbers as Python's."""
    from pydantic import BeforeValidator, Field, InstanceOf, Strict

    low, above, high, below = option.ends
    if kind is float:
        finite = Field(ge=low, gt=above, le=high, lt=below, allow_inf_nan=option.infinite)
        return Annotated[float, Strict(), finite, BeforeValidator(_number)]
    if kind is int:
        return Annotated[int, Strict(), Field(ge=low, gt=above, le=high, lt=below), BeforeValidator(_number)]
    if kind is bool:
        return Annotated[bool, Strict(), BeforeValidator(_number)]
    if kind is str:
        return Annotated[str, Strict()] if option.choices is None else Literal[tuple(option.names)]
    parts, origin = get_args(kind), get_origin(kind)
    if _is_union(kind):
        return Union[tuple(_typed(part, option) for part in parts)]  # noqa: UP007
    if origin is tuple:
        each = tuple(part if part is Ellipsis else _typed(part, option) for part in parts)
        return Annotated[tuple[each], Strict(), BeforeValidator(_several if Ellipsis in each else _listed)]  # type: ignore
    if origin is dict:
        each = (_typed(parts[0], option), _typed(parts[1], option))
        return Annotated[dict[each], Strict(), BeforeValidator(lambda v: dict(v) if isinstance(v, Mapping) else v)]  # type: ignore
    if origin is Literal:
        kinds = {type(v) for v in parts}
        return Annotated[kind, BeforeValidator(lambda v: v if type(v) in kinds else None), BeforeValidator(_number)]
    plain = kind is Any or kind is type(None) or origin is not None or not isinstance(kind, type)
    return kind if plain else InstanceOf[kind]  # type: ignore[misc]


def _number(value: Any) -> Any:
    """A number of NumPy as Python's; a ValueError where it takes more than 64 bits."""
    numpy = sys.modules.get("numpy")  # without which there is none of its numbers
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    if value != value or (isinstance(value, int) and not -LARGE <= value < LARGE):
        raise ValueError("no number, or too large")
    return value


def _listed(value: Any) -> Any:
    """A list, or an array, as a tuple."""
    numpy = sys.modules.get("numpy")
    value = value.tolist() if numpy is not None and isinstance(value, numpy.ndarray) else value
    return tuple(value) if isinstance(value, (list, tuple, range)) else value


def _several(value: Any) -> Any:
    """The same; a single text or number is a list of one."""
    return (value,) if isinstance(value, (str, int, float)) else _listed(value)
