"""Options declared once: what is accepted and kept, and the one sentence for what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.options import Option, call, check, checked, declared, of
from tests.messages import names

RULES = {"mean": 1, "trimmed": 2, "trust": 3}


def even(value: int) -> int:
    if value % 2:
        raise CoterieError("pairs must be even.")
    return value


@dataclass(frozen=True)
class Inner:
    deadline: Annotated[float, Option("Seconds.", above=0.0, infinite=True)] = float("inf")
    retries: Annotated[int, Option("Times.", low=0)] = 10

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Outer:
    lam: Annotated[float, Option("Pull.", low=0.0)]
    eta: Annotated[float | Callable[[int], float], Option("Step.", above=0.0)] = 0.1
    share: Annotated[float, Option("Share.", above=0.0, high=1.0)] = 1.0
    steps: Annotated[int | None, Option("Steps.", low=1, high=1000)] = None
    flag: Annotated[bool, Option("A flag.")] = False
    own: Annotated[Literal["weighted", "averaged"], Option("How.")] = "weighted"
    alpha: Annotated[float | Literal["auto", "held-out"], Option("Weight.", low=0.0, high=1.0)] = "auto"
    rule: Annotated[str, Option("Rule.", choices=RULES)] = "mean"
    personal: Annotated[tuple[str, ...], Option("Names.")] = ()
    phases: Annotated[tuple[int, int] | None, Option("Phases.", low=1)] = None
    pairs: Annotated[int, Option("Pairs.", read=even, remedy="Take 2.")] = 0
    policy: Annotated[Inner, Option("A table.")] = Inner()
    sites: Annotated[dict[str, Inner], Option("Tables.")] = field(default_factory=dict)
    more: Annotated[dict[str, Any], Option("Whatever.")] = field(default_factory=dict)
    free: Any = None

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Mine(Outer):
    lam: float = 0.5
    other: str = "x"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"lam": np.float32(0.25)}, 0.25),
        ({"eta": 2}, 2.0),
        ({"steps": np.int64(3)}, 3),
        ({"flag": np.bool_(True)}, True),
        ({"alpha": "held-out"}, "held-out"),
        ({"alpha": 0}, 0.0),
        ({"personal": "head*"}, ("head*",)),
        ({"personal": ["a", "b"]}, ("a", "b")),
        ({"phases": np.array([1, 2])}, (1, 2)),
        ({"policy": {"retries": 3}}, Inner(retries=3)),
        ({"policy": {"deadline": float("inf")}}, Inner()),
        ({"sites": {"basel": {"retries": 3}, "bern": Inner()}}, {"basel": Inner(retries=3), "bern": Inner()}),
        ({"more": {"a": [1]}}, {"a": [1]}),
        ({"free": object}, object),
    ],
    ids=str,
)
def test_values_are_kept_in_their_declared_form(given, kept):
    made = of(Mine, given, "Mine")
    (name,) = given
    assert getattr(made, name) == kept and type(getattr(made, name)) is type(kept)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"lam": -1}, "lam of [a] must be a number from 0, not -1."),
        ({"lam": True}, "lam of [a] must be a number from 0, not True."),
        ({"lam": "0.1"}, "lam of [a] must be a number from 0, not '0.1'."),
        ({"lam": np.nan}, "lam of [a] must be a number from 0, not nan."),
        ({"lam": np.inf}, "lam of [a] must be a number from 0, not inf."),
        ({"lam": 2**70}, f"lam of [a] must be a number from 0, below 2**63, not {2**70}."),
        ({"eta": 0}, "eta of [a] must be a number above 0 or a function, not 0."),
        ({"share": 1.5}, "share of [a] must be a number above 0 and up to 1, not 1.5."),
        ({"steps": 2.0}, "steps of [a] must be a whole number from 1 to 1,000, not 2.0."),
        ({"flag": 1}, "flag of [a] must be true or false, not 1."),
        ({"own": "avaraged"}, "own of [a] must be weighted or averaged, not 'avaraged'. Did you mean 'averaged'?"),
        (
            {"alpha": "aut"},
            "alpha of [a] must be auto, held-out or a number from 0 to 1, not 'aut'. Did you mean 'auto'?",
        ),
        ({"rule": "krum"}, "rule of [a] must be mean, trimmed or trust, not 'krum'."),
        ({"personal": ["a", 3]}, "personal of [a] must be a list of texts, not ['a', 3]."),
        ({"phases": (1, 0)}, "phases of [a] must be 2 whole numbers from 1, not (1, 0)."),
        ({"pairs": 3}, "pairs must be even."),
        ({"pairs": None}, "pairs of [a] must be a whole number, not None. Take 2."),
        ({"policy": {"retries": -1}}, "retries of [a.policy] must be a whole number from 0, not -1."),
        ({"policy": {"deadline": 0}}, "deadline of [a.policy] must be a number above 0 or inf, not 0."),
        ({"policy": {"retrys": 1}}, "[a.policy] has no key 'retrys'. Did you mean 'retries'?"),
        ({"policy": 3}, "policy of [a] must be a table of names and values, not 3."),
        ({"sites": {"basel": 3}}, "[a.sites.basel] must be a table of names and values, not 3."),
        ({"more": Inner()}, "more of [a] must be a table of names and values, not an Inner."),
        ({"x": 1}, "[a] has no option 'x'. There are lam, eta, share, steps, "),
        (3, "[a] must be a table of names and values, not 3."),
    ],
    ids=str,
)
def test_what_is_refused_is_said_in_one_sentence(given, sentence):
    with pytest.raises(CoterieError) as found:
        of(Mine, given, "[a]")
    assert str(found.value).startswith(sentence)


def test_a_value_that_is_needed_is_asked_for():
    with pytest.raises(CoterieError, match=r"^Outer does not say lam\.$"):
        of(Outer, {}, "Outer")


def test_a_declaration_holds_below_another_default_of_a_subclass():
    assert Mine().lam == 0.5
    with pytest.raises(CoterieError, match=r"^lam must be a number from 0, not -1\.$"):
        Mine(lam=-1)
    assert list(declared(Mine)) == [n for n in Mine.__dataclass_fields__ if n not in ("free", "other")]


def test_hidden_options_cannot_be_given():
    with pytest.raises(CoterieError, match="has no hyper-parameter 'lam'"):
        of(Mine, {"lam": 1.0}, "Mine", hidden=("lam",), noun="hyper-parameter")


@checked
def scaled(x: Any, by: Annotated[float, Option("Factor.", low=0.0)] = 1.0) -> Any:
    return x, by


def test_functions_check_their_annotated_arguments():
    assert scaled(object, 2) == (object, 2.0)
    assert call(scaled, {"by": 2}, "scaled", 3) == (3, 2.0)
    for wrong in (lambda: scaled(0, by=-1), lambda: call(scaled, {"by": -1}, "Scaled", 3)):
        with pytest.raises(CoterieError, match=r"by (of scaled )?must be a number from 0, not -1"):
            wrong()
    with pytest.raises(CoterieError, match=names("Scaled no option 'bye' mean 'by'")):
        call(scaled, {"bye": 1}, "Scaled", 3)
