"""Labels that look alike: joined where only white space or the form of accents differs, else named."""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.data.clients import Clients
from coterie.data.columns import Column
from coterie.data.labels import encode, find_labels, label_ids, resembling, spelling_notes, tidy
from coterie.data.prepare_table import prepare
from coterie.errors import CoterieError
from tests.messages import names

NFD = unicodedata.normalize("NFD", "Tübingen")
SAME = ["Tübingen", NFD, " Tübingen", "Tübingen\u00a0", f"{NFD}\t"]


def table(schools, **columns):
    rng = np.random.default_rng(3)
    n = 8 * len(schools)
    data = {"school": np.repeat(np.array(schools, dtype=object), 8), "x": rng.normal(size=n), "y": rng.normal(size=n)}
    return pd.DataFrame(data | {k: np.resize(np.array(v, dtype=object), n) for k, v in columns.items()})


@pytest.mark.parametrize("dtype", [object, "str", "category"])
def test_what_looks_the_same_is_one_label(dtype):
    column = encode(pd.Series([*SAME, "Köln", None, *SAME], dtype=dtype))
    assert column.labels.tolist() == ["Köln", "Tübingen"]
    assert column.codes.tolist() == [1] * 5 + [0, -1] + [1] * 5
    assert column.joined == ("Tübingen",)
    assert encode(pd.Series(["a ", "b"], dtype=dtype)).joined == ()


def test_one_label_has_one_hash_and_one_place_whatever_its_spelling():
    assert len(set(label_ids(np.array(SAME, dtype=object)).tolist())) == 1
    assert find_labels(np.array(["Köln", NFD], dtype=object), SAME).tolist() == [1] * 5
    older = np.array(["Malmö", "Malmö ", "Lund"], dtype=object)  # a model from before labels were joined
    assert find_labels(older, ["Malmö ", "Lund", "Ystad"]).tolist() == [0, 2, -1]


def test_levels_of_categories_are_joined_in_their_own_order():
    series = pd.Series(pd.Categorical(["no", "yes ", "yes"], categories=["yes ", "no", "yes"]))
    assert Column(series).levels[1] == ("yes", "no")
    codes, unseen = Column(pd.Series([" no", "yes", "maybe"])).codes_of(("yes ", "no"))
    assert codes.tolist() == [1, 0, -1] and unseen.tolist() == [False, False, True]


def test_a_fit_joins_clients_clusters_and_categories_and_says_so():
    clean = table(["Tübingen", "Tübingen", "Köln", "Ulm"], sex=["girl", "boy"], land=["BW"] * 16 + ["NW"] * 16)
    dirty = clean.assign(
        school=np.repeat(np.array(["Tübingen ", NFD, "Köln", "Ulm"], dtype=object), 8),
        sex=np.resize(np.array(["girl", "boy", "girl ", "boy"], dtype=object), 32),
        land=["BW", "BW "] * 8 + ["NW"] * 16,
    )
    call = {"model": "y ~ x + sex", "client": "school", "splits": 0}
    good, joined = coterie.fit(clean, **call), coterie.fit(dirty, **call)
    pd.testing.assert_frame_equal(good.client_coefficients, joined.client_coefficients)
    assert good.data_fingerprint == joined.data_fingerprint
    said = [note for note in joined.notes if "written in several ways" in note]
    assert len(said) == 2
    assert "1 label of 'school' is" in said[1] and "such as 'Tübingen'" in said[1]
    assert "2 label" not in said[0] and "'sex'" in said[0]
    assert not [note for note in good.notes if "several ways" in note]
    pd.testing.assert_frame_equal(joined.predict(dirty), good.predict(clean))
    clusters = prepare(dirty[dirty["school"] != "Köln"].assign(school=list("abcabcabcabc") * 2), "y ~ x", "school")[0]
    assert len(clusters) == 3


def test_the_same_of_an_outcome_that_is_computed():
    df = table(["a", "b"], passed=["yes", " yes", "no", "yes "])
    clients, _ = prepare(df, "(passed == 'yes') ~ x", "school")
    assert clients.y.tolist() == [1.0, 1.0, 0.0, 1.0] * 4


def test_a_site_s_notes_have_no_labels_and_its_ids_are_those_of_others():
    dirty = table(["Malmö ", "Malmö", "MALMÖ"])
    design = prepare(table(["Malmö", "Lund"]), "y ~ x", "school")[1]
    clients, _ = prepare(dirty, "y ~ x", "school", design=design, part=True)
    assert clients.ids.tolist() == label_ids(np.array(["MALMÖ", "Malmö"], dtype=object)).tolist()
    assert len(clients.notes) == 1 and "almö" not in clients.notes[0]
    assert clients.notes[0].startswith("Labels of 'school' are written in several ways that look alike")


def test_numbers_beside_text_that_print_alike_are_one_label_and_said():
    mixed = encode([1, "1", 2.0, "b", 1.0])
    assert mixed.labels.tolist() == ["1", "2", "b"] and mixed.joined == ("1",)
    (note,) = spelling_notes("school", mixed.labels, mixed.joined)
    assert "numbers beside text" in note and "'1'" in note
    X, ids = np.eye(4), np.array([1, "1", 2, "b"], dtype=object)
    assert Clients.from_arrays(X, np.arange(4.0), ids, name="school").notes == (note,)
    with pytest.raises(CoterieError, match=names("labels True False numbers")):
        Clients.from_arrays(X, np.arange(4.0), np.array([1, True, 2, "b"], dtype=object))
    assert not encode([1, 2.0, "b"]).joined and not encode([b"1", b"2"]).joined


def test_case_is_kept_and_said():
    labels = np.array(["MALMÖ", "Malmö", "lund", "Lund", "Ystad"], dtype=object)
    (note,) = spelling_notes("school", labels)
    assert "upper and lower case were kept apart: 'MALMÖ' and 'Malmö', and 1 more." in note
    assert spelling_notes("school", labels[2:4:2]) == spelling_notes("school", np.arange(5)) == []
    result = coterie.fit(table(["Malmö", "malmö", "Lund"]), "y ~ x", client="school", splits=0)
    assert len(result.model.labels) == 3
    assert any("'Malmö' and 'malmö'" in note for note in result.notes)


@pytest.mark.parametrize(
    ("strange", "known"),
    [
        ("Malmo", "Malmö"),
        ("MALMÖ", "Malmö"),
        ("Saint Etienne", "Saint-Étienne"),
        ("Götebrg", "Göteborg"),
        ("school 12", None),
        ("Kiruna", None),
        ("0212", None),
    ],
)
def test_a_slip_for_a_known_label(strange, known):
    labels = np.array(["Malmö", "Saint-Étienne", "Göteborg", "school 1", "02123"], dtype=object)
    found = resembling(np.array([strange], dtype=object), labels)
    assert found == ([] if known is None else [(strange, known)])
    assert resembling(np.array([1, 2]), np.array([1, 3])) == []


UUID = "1B4E28BA-2FA1-11D2-883F-0016D3CCA427"


@pytest.mark.parametrize(
    ("fitted", "asked", "meant"),
    [
        (["0001", "0002"], [1, 2], "0001"),
        ([1, 2], ["0001", "0002"], "1"),
        ([1, 2], ["1.0", "2.0"], "1"),
        ([0.5, 1.5], ["0.50", "1.50"], "0.5"),
        (["S01", "S02"], ["s1", "s2"], "S01"),
        (["S001", "S002"], [1, 2], "S001"),
        ([1, 2], ["school-1", "school-2"], "1"),
        (["a_b", "c_d"], ["A B", "C D"], "a_b"),
        ([UUID, "x"], [UUID.lower().replace("-", ""), "y"], UUID),
        (["2024-01-31", "2024-02-01"], pd.to_datetime(["2024-01-31", "2024-02-01"]), "2024-01-31"),
        ([True, False], ["true", "false"], "False"),
    ],
    ids=str,
)
def test_clients_that_are_written_otherwise_than_in_the_fitted_table_are_told(fitted, asked, meant):
    model = coterie.fit(table(fitted), "y ~ x", client="school", method="local", splits=0)
    got = model.predict(table(asked))
    assert set(got["source"]) == {"global"}
    (note,) = [n for n in got.attrs["notes"] if "never seen" in n]
    assert f"did you mean {meant!r}?" in note


@pytest.mark.parametrize(
    "asked",
    [
        [1.0, 2.0],
        ["1", "2"],
        [" 1", "2 "],
        [b"1", b"2"],
        [Decimal("1.0"), Decimal(2)],
        pd.Categorical(["1", "2"]),
        np.array([b"1", b"2"]),
        pd.array([1, 2], dtype="Int8"),
    ],
    ids=lambda v: f"{type(v).__name__}",
)
def test_one_client_whatever_its_label_s_type(asked):
    model = coterie.fit(table([1, 2]), "y ~ x", client="school", method="local", splits=0)
    got = model.predict(table([1, 2]).assign(school=pd.Series(asked).repeat(8).array))
    assert set(got["source"]) == {"client"}
    assert got.attrs["notes"] == []


def test_clusters_and_levels_that_are_written_otherwise_are_told_too():
    df = table(["a", "b", "c", "d"], size=["01", "02"])
    df["land"] = df.school.map({"a": "UK", "b": "UK", "c": "FR", "d": "FR"})
    model = coterie.fit(df, "y ~ x + size", client="school", cluster="land", method="clusterwise", splits=0)
    new = df.assign(school="new", land=df.land.str.lower())
    assert "were never seen, such as 'fr': did you mean 'FR'?" in model.predict(new).attrs["notes"][0]
    with pytest.raises(coterie.CoterieError, match=r"Did you mean '01'\?"):
        model.predict(df.assign(size=df["size"].astype(int)))


def test_a_client_never_seen_that_is_a_slip_is_named_by_predict():
    result = coterie.fit(table(["Malmö", "Lund", "Ystad"]), "y ~ x", client="school", method="local", splits=0)
    got = result.predict(table(["Malmo", "Lund ", "YSTAD", "Kiruna"]))
    assert got["source"].astype(str).tolist() == ["global"] * 8 + ["client"] * 8 + ["global"] * 16
    assert got.attrs["notes"] == ["The school 'Malmo' was never seen: did you mean 'Malmö'? 1 more may be slips too."]
    assert result.predict(table(["Kiruna", "Lund"])).attrs["notes"] == []


def test_many_labels_do_not_take_long():
    labels = np.array([f"skola nummer {i} " for i in range(30_000)], dtype=object)
    column = encode(pd.Series(np.concatenate([labels, np.char.strip(labels.astype(str)).astype(object)])))
    assert len(column.labels) == len(column.joined) == 30_000
    strange = np.array([f"skole nummer {i}" for i in range(1000)], dtype=object)
    assert resembling(strange, column.labels) == []
    assert tidy(" a ") == "a"


@pytest.mark.parametrize("formula", ["y ~ x + land", "y ~ x + C(land)", "y ~ x * land", "y ~ 0 + sex + x + land"])
def test_a_constant_category_is_refused_like_a_constant_number(formula):
    df = table(["a", "b"], land=["EU"], sex=["girl", "boy", "girl"]).assign(one=1.0)
    sentence = "Column 'land' is 'EU' in every row: leave it out of the formula."
    with pytest.raises(coterie.CoterieError) as problem:
        coterie.fit(df, formula, client="school", splits=0)
    assert str(problem.value) == sentence
    with pytest.raises(coterie.CoterieError, match=names("Column 'one' row leave")):
        coterie.fit(df, "y ~ x + one", client="school", splits=0)
    prepare(df, "y ~ 0 + land + x", "school")  # an intercept under another name


@pytest.mark.parametrize("table", ["pupils.csv", Path("pupils.csv")], ids=["text", "path"])
def test_a_path_that_is_not_there_is_named(table):
    with pytest.raises(coterie.CoterieError, match=names("no file 'pupils.csv'")):
        coterie.fit(table, "y ~ x", client="school")
