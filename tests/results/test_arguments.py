"""Arguments of the wrong kind: one sentence that names the argument."""

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from tests.cli.harness import table

WRONG = [
    ({"model": None}, "Say what a client's model is, after the rows: a formula, or coterie.Torch"),
    ({"model": ["score ~ hours"]}, "is a formula, or coterie.Torch"),
    ({"client": None}, "A formula needs client"),
    ({"client": 0}, "client must name columns by text, not by 0: write '0'"),
    ({"client": ["school", "sector"]}, "client must be the name of one column"),
    ({"cluster": 1}, "cluster must name columns by text, not by 1: write '1'"),
    ({"cluster": ["sector", None]}, "cluster must name columns by text, not by None"),
    ({"shared": 3}, "shared must name columns by text"),
    ({"offset": 3}, "offset must name columns by text"),
    ({"weights": ["a", "b"]}, "weights must be the name of one column"),
    ({"order_by": 3}, "order_by must name columns by text"),
    ({"split_by": 3}, "split_by must name columns by text"),
    ({"splits": 2.5}, "splits must be a whole number from 0, not 2.5"),
    ({"splits": "5"}, "splits must be a whole number from 0, not '5'"),
    ({"seed": "a"}, "seed must be a whole number, not 'a'"),
    ({"test_fraction": "a"}, "test_fraction must be a number between 0 and 1, not 'a'"),
    ({"reml": "yes"}, "reml must be true or false, not 'yes'"),
    ({"family": None}, "family"),
    ({"gamma": "a"}, "gamma must be one number that is not negative, or a grid of such numbers, not 'a'"),
    ({"gamma": [1, [2]]}, "a grid of such numbers, not \\[2\\]"),
    ({"gamma": [1, -1]}, "gamma must be one number that is not negative, or a grid of such numbers, not -1"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG, ids=[str(o) for o, _ in WRONG])
@pytest.mark.parametrize("call", [coterie.fit, coterie.compare], ids=["fit", "compare"])
def test_an_argument_of_the_wrong_kind(call, options, sentence):
    with pytest.raises(CoterieError, match=sentence):
        call(table(), **{"model": "score ~ hours", "client": "school", **options})


def test_none_is_no_clusters_and_nothing_shared():
    options = {"model": "score ~ hours", "client": "school", "splits": np.int64(1), "seed": np.int64(3)}
    result = coterie.fit(table(), **options, cluster=None, shared=None, reml=np.True_)
    assert {type(result.settings[name]) for name in ("splits", "seed", "reml")} == {int, bool}
    assert result.model.levels == ()
    seconds = ["seconds"]
    expected = coterie.compare(table(), **options).drop(columns=seconds)
    pd.testing.assert_frame_equal(coterie.compare(table(), cluster=None, **options).drop(columns=seconds), expected)


def test_columns_with_numbers_for_names_are_named_by_text():
    df = table().rename(columns={"school": 0})
    assert coterie.fit(df, "score ~ hours", "0", splits=0).model.client_name == "0"


@pytest.mark.parametrize("path", [["a"], None, 3])
def test_a_path_of_the_wrong_kind(path):
    with pytest.raises(CoterieError, match="path must be the path of one file, not"):
        coterie.read_table(path)
