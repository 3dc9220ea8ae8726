"""A table as the rows of nets: a frame or a file, its columns by name, and what of it a net cannot take."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from tests.messages import names

SIZES = {"sizes": [2, 4, 2]}
SHORT = {"method": "fedavg", "rounds": 2}


def table():
    """Six schools in two sectors; a column of text between the numbers."""
    rng = np.random.default_rng(0)
    school = np.arange(90) % 6
    frame = pd.DataFrame({"school": [f"s{i}" for i in school], "sector": school // 3, "x": rng.normal(size=90)})
    return frame.assign(sex=np.where(frame.x > 0.3, "m", "f"), z=rng.normal(size=90), y=(frame.x > 0).astype(int))


def net(**more):
    return coterie.Torch("mlp", args=SIZES, **{"target": "y", "inputs": ["x", "z"]} | more)


@pytest.fixture(scope="module")
def result():
    return coterie.fit(table(), net(), client="school", **SHORT)


def test_a_table_is_the_arrays_of_its_columns(result):
    frame = table()
    arrays = frame[["x", "z"]].to_numpy(), frame.y.to_numpy()
    want = coterie.fit(arrays, coterie.Torch("mlp", args=SIZES), client=frame.school.to_numpy(), **SHORT)
    np.testing.assert_array_equal(result.theta, want.theta)
    np.testing.assert_array_equal(result.predict(frame, "s1"), want.predict(arrays[0], "s1"))


def test_its_file_its_configuration_and_what_is_saved_are_the_same(result, tmp_path):
    frame = table()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    np.testing.assert_array_equal(
        coterie.fit(tmp_path / "rows.csv", net(), client="school", **SHORT).theta, result.theta
    )
    np.testing.assert_array_equal(coterie.fit(frame, result.config()).theta, result.theta)
    result.save(tmp_path / "nets")
    read = coterie.load(tmp_path / "nets")
    assert read.inputs == ("x", "z")
    np.testing.assert_array_equal(read.predict(frame, "s2"), result.predict(frame, "s2"))


def test_inputs_are_by_default_all_other_numbers():
    found = coterie.fit(table(), net(inputs=None), client="school", group="sector", method="group-models", rounds=1)
    assert found.inputs == ("x", "z") and found.group.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"target": None, "inputs": None}, {}, "table target"),
        ({"target": None}, {}, "inputs target"),
        ({"target": "yy"}, {}, "target yy y"),
        ({"inputs": ["x", "sex"]}, {}, "sex number x z y"),
        ({"inputs": ["x", "y"]}, {}, "inputs target"),
        ({}, {"client": "schol"}, "schol school"),
        ({}, {"client": table().school}, "client name column"),
        ({}, {"group": {"s1": 2}}, "group name column"),
    ],
)
def test_what_a_net_cannot_take_is_refused(change, options, message):
    with pytest.raises(CoterieError, match=names(message)):
        coterie.fit(table(), net(**change), **{"client": "school", **SHORT} | options)


def test_missing_values_and_arrays_with_a_target_are_refused(result):
    frame = table()
    frame.loc[3, "x"] = np.nan
    with pytest.raises(CoterieError, match=names("x missing 4")):
        coterie.fit(frame, net(), client="school", **SHORT)
    with pytest.raises(CoterieError, match=names("x missing 4")):
        result.predict(frame, "s1")
    with pytest.raises(CoterieError, match=names("target table y")):
        coterie.fit((np.zeros((4, 2)), np.zeros(4)), net(inputs=None), client=np.arange(4), **SHORT)


@pytest.mark.parametrize(("values", "message"), [("no pain", "give texts words"), ("north", "code categories 0, 1")])
def test_text_in_place_of_numbers_is_refused_with_what_to_do(values, message):
    with pytest.raises(CoterieError, match=names(message)):
        coterie.fit(
            (np.array([values] * 20), np.arange(20) % 2), coterie.Torch("mlp", args=SIZES), np.arange(20) % 2, **SHORT
        )
