"""What a person is told while something goes on: how much is done, and how long the rest takes."""

import io

import pytest

from coterie import status_line
from coterie.status_line import status, steps, told


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def said(monkeypatch):
    """Texts of the line in their order; a second goes by between any two looks at the clock."""
    texts, seconds = [], iter(range(100))
    monkeypatch.setattr("rich.status.Status.update", lambda self, text: texts.append(text))
    monkeypatch.setattr(status_line, "monotonic", lambda: float(next(seconds)))
    return texts


def test_a_line_counts_what_is_done_and_what_time_is_left(said, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    with status("Comparing ..."):
        assert list(steps("abcd", 4, "Splits")) == list("abcd")
    left = [
        "Splits: 1 of 4, 3 s left",
        "Splits: 2 of 4, 2 s left",
        "Splits: 3 of 4, 1 s left",
        "Splits: 4 of 4, 0 s left",
    ]
    assert said == [*left, "Comparing ..."]


def test_it_has_a_line_of_its_own_where_none_is_shown_and_of_two_loops_the_outer_one(said, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    for _ in steps(range(2), 2, "Samples"):
        assert list(steps(range(3), 3, "Splits")) == [0, 1, 2]
    assert said == ["Samples: 1 of 2, 1 s left", "Samples: 2 of 2, 0 s left", "Samples ..."]
    assert status_line._SHOWN.get() is None


def test_items_that_stand_for_several_and_loops_that_may_end_earlier(said, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    with status("Fitting ..."):
        for _ in steps([2, 6], 10, "Rounds", done=int, since=1, most=True):
            pass
    assert said[0] == "Rounds: 2 of at most 10, at most 8 s left"  # 1 s for one of nine
    assert said[1] == "Rounds: 6 of at most 10, at most 2 s left"  # 2 s for five


def test_what_a_line_elsewhere_shows_is_told_and_no_terminal_has_it(said, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    heard = []
    with told(heard.append), status("Training ..."):
        for _ in steps("ab", 2, "Rounds"):
            list(steps("cd", 2, "Splits"))
    assert heard == ["Rounds: 1 of 2, 1 s left", "Rounds: 2 of 2, 0 s left", "Training ..."] and not said


def test_nothing_is_shown_without_a_terminal_and_a_loop_that_is_left_takes_its_line_away(said, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    for item in (loop := steps(range(3), 3, "Samples")):
        if item == 1:
            break
    loop.close()
    assert status_line._SHOWN.get() is None and said.pop() == "Samples ..."
    said.clear()
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert list(steps(range(3), 3, "Samples")) == [0, 1, 2] and said == []
