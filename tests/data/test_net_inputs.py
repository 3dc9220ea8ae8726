import numpy as np
import pytest

from coterie.data.net_inputs import as_inputs, as_laid_out, layout
from coterie.errors import CoterieError

TOKENS = as_inputs([[1, 2], [3]], "X")
NAMED = as_inputs({"ids": [[1, 2], [3]], "dose": [0.5, 1.0]}, "X")


@pytest.mark.parametrize("rows", [[[7]], [[7, 8], [9, 1]], np.array([[7, 8]]), [[7, 8], []], [[7], [8, 9]], [[]]])
def test_series_may_have_one_length_or_none(rows):
    found = as_laid_out(rows, layout(TOKENS), "Rows")
    assert layout(found) == layout(TOKENS)
    assert [row.tolist() for row in found] == [list(row) for row in rows]


def test_parts_are_put_in_order_and_whole_numbers_may_stand_for_real_ones():
    found = as_laid_out({"dose": [1, 2], "ids": [[1, 2], [3, 4]]}, layout(NAMED), "Rows")
    assert found.dtype.names == ("ids", "dose")
    assert found["dose"].dtype == np.float32 and layout(found) == layout(NAMED)
    series = layout(as_inputs([[0.5], [1.0, 2.0]], "X"))
    assert layout(as_laid_out([[1, 2], [3]], series, "Rows")) == layout(as_laid_out([[], []], series, "Rows")) == series


@pytest.mark.parametrize("said", [layout(TOKENS), layout(NAMED)])
def test_no_rows_are_none(said):
    assert len(as_laid_out([], said, "Rows")) == 0


@pytest.mark.parametrize(
    ("rows", "said", "words"),
    [
        (
            [[1.5, 2]],
            layout(TOKENS),
            "Rows must be whole numbers, any number a row, not real numbers, any number a row.",
        ),
        ([7, 6], layout(TOKENS), "Rows must be whole numbers, any number a row, not whole numbers, one a row."),
        (
            {"ids": [[1]]},
            layout(NAMED),
            "Rows must be ids (whole numbers, any number a row), dose (real numbers, one a row), "
            "not ids (whole numbers, any number a row).",
        ),
    ],
)
def test_what_cannot_be_taken_is_said_in_words(rows, said, words):
    with pytest.raises(CoterieError) as found:
        as_laid_out(rows, said, "Rows")
    assert str(found.value) == words
