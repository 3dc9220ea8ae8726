"""Numbers that stay: what each method says of a small table, and of a small federation in training, is written down.

``python tests/numbers/write.py`` writes them anew, after a change that is meant to change a number.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.numbers.cases import TABLES, TRAINED, Numbers
from tests.numbers.write import KEPT, machine

SAME, ELSEWHERE, SINGLE = 1e-12, 1e-5, 1e-6
"""Relative differences allowed: with the libraries and processor that wrote the numbers, with others, in float32."""

kept = json.loads(KEPT.read_text(encoding="utf-8"))


def compare(found: Numbers, name: str) -> None:
    written = kept["numbers"][name]
    assert set(found) == set(written)
    tolerance = SAME if kept["machine"] == machine() else ELSEWHERE
    tolerance = max(tolerance, SINGLE) if "a net" in name else tolerance
    for key, values in written.items():
        scale = max(1.0, *map(abs, values))
        np.testing.assert_allclose(found[key], values, rtol=tolerance, atol=tolerance * scale, err_msg=f"{name}: {key}")


@pytest.mark.soak(
    "one main client",
    "dp-sgd on a table",
    "amounts compared",
    "network by covariates",
    "one coin among peers",
    "negative-binomial clusterwise",
    "negative-binomial local",
    "successes of trials",
    "counts compared",
    "binomial async-al2sgd",
)
@pytest.mark.parametrize("name", TABLES)
def test_fits_give_the_numbers_written_down(name: str) -> None:
    compare(TABLES[name](), name)


@pytest.mark.parametrize("name", TRAINED)
def test_training_gives_the_numbers_written_down(name: str, tmp_path: Path) -> None:
    compare(TRAINED[name](tmp_path), name)


def test_nothing_written_down_is_left_out() -> None:
    assert set(kept["numbers"]) == {*TABLES, *TRAINED}
