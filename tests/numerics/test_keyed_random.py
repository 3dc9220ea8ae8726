"""Ids of texts are pandas' hashes, which models and federations of before hold."""

import numpy as np
import pandas as pd

from coterie.numerics.keyed_random import text_ids


def test_ids_of_texts_are_those_of_pandas():
    of_each_length = ["é€x"[k % 3] * k for k in range(40)]
    texts = ["", "7", "school 17", "z" * 1000, "a\0b", "\0", *of_each_length, *map(str, range(3000))]
    expected = pd.util.hash_array(np.array(texts, dtype=object), categorize=False)
    np.testing.assert_array_equal(text_ids(texts), expected)
    assert text_ids([]).shape == (0,)
