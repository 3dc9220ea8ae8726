"""Networks, edges and covariates that are hard or wrong: a right answer, or one sentence in the words of the user."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.relations.network import Network
from tests.messages import names

N, ROWS = 9, 10
LABELS = [f"c{i}" for i in range(N)]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    group = np.arange(N) % 3
    who = np.repeat(np.arange(N), ROWS)
    x = rng.normal(size=N * ROWS)
    y = np.array([0.0, 3.0, -3.0])[group][who] + x + rng.normal(size=N * ROWS)
    size = (group * 10.0 + rng.uniform(size=N))[who]
    return pd.DataFrame({"client": np.array(LABELS)[who], "x": x, "y": y, "size": size})


def fit(table, network, formula="y ~ x", **options):
    options = {"method": "similarity-network", "splits": 0} | options
    return coterie.fit(table, formula, "client", network={"lam": 0.02} | network, **options)


def ties(result):
    return result.model.info["network"]["ties"]


def sizes(table) -> pd.Series:
    return table.groupby("client")["size"].first()


# -- edges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edges", [[], pd.DataFrame({"from": [], "to": []}), Network.of(N, [])])
@pytest.mark.parametrize("lam", [0.0, 0.02, np.inf])
def test_no_edges_are_a_network_without_ties_not_one_to_be_learned(table, edges, lam):
    result = fit(table, {"edges": edges, "lam": lam})
    assert ties(result) == 0
    alone = coterie.fit(table, "y ~ x", "client", method="local", splits=0)
    np.testing.assert_allclose(result.model.client, alone.model.client, atol=1e-5)
    assert any("9 clients have no ties" in note for note in result.notes)


def test_held_out_rows_choose_between_nothing_where_nothing_is_tied(table):
    result = coterie.fit(table, "y ~ x", "client", method="similarity-network", network={"edges": []}, splits=1)
    assert ties(result) == 0


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        ([("c3", "c3")], names("edges tie client c3")),
        ([("c0", "c1", 1.0), ("c1", "c2", -1.0)], names("edge client c1 c2 positive finite weight")),
        ([("c0", "c1", None)], names("edge client c0 c1 nan")),
        ([("c0", "c1", np.inf)], names("edge client c0 c1 inf")),
        ([("c4", "c5", 1.0), ("c5", "c4", 2.0)], names("Edges client c5 c4 twice different weights")),
        (pd.DataFrame({"a": ["c0", "c1"], "b": ["c1", "c2"], "w": pd.array([1, None], "Int64")}), "client c1 and c2"),
        ([("c0", "c1"), ("c2", None)], names("Edge 2 client end")),
        ([("c0", np.nan)], names("Edge 1 client end")),
        ("edges.csv", names("edges pairs client labels type str")),
        (5, "not of type int"),
        ({"c0": ["c1"]}, "not of type dict"),
        (np.ones((N, N)), names("Edges pairs client labels 9 columns")),
        (pd.DataFrame([("c1", "c2")], columns=["c0", "c3"]), names("client c0 c3 columns")),
        (pd.DataFrame([("c1", "c2", 1.0)], columns=["c0", "c3", "1.5"]), "as names of columns"),
    ],
)
def test_wrong_edges_are_named_by_label(table, edges, says):
    with pytest.raises(CoterieError, match=says):
        fit(table, {"edges": edges})


def test_a_matrix_is_sent_to_where_it_is_understood(table):
    from scipy import sparse

    with pytest.raises(CoterieError, match="from_adjacency"):
        fit(table, {"edges": sparse.eye_array(N)})
    given = Network.from_adjacency(np.ones((N, N)) - np.eye(N))
    assert ties(fit(table, {"edges": given})) == N * (N - 1) // 2


def test_weights_of_any_size_give_finite_models(table):
    result = fit(table, {"edges": [("c0", "c1", 1e300), ("c1", "c2", 1e-300)]})
    assert np.isfinite(result.model.client).all()
    np.testing.assert_allclose(result.model.client[0], result.model.client[1], atol=1e-6)


def test_labels_that_are_numbers_match_whatever_type_they_come_in(table):
    numbered = table.assign(client=table["client"].str[1:].astype(int) * 7)
    edges = [(0, 7), (14, 21)]
    a = fit(numbered, {"edges": edges})
    b = fit(numbered, {"edges": np.array([[0.0, 7.0], [14.0, 21.0]])})
    c = fit(numbered, {"edges": [("0", "7"), ("14", "21")]})
    np.testing.assert_array_equal(a.model.client, b.model.client)
    np.testing.assert_array_equal(a.model.client, c.model.client)


# -- covariates -----------------------------------------------------------------------------------------------------


def test_covariates_of_any_kind_are_matched_by_label(table):
    by_name = fit(table, {"covariates": "size", "k": 2})
    own = sizes(table).iloc[::-1]
    for given in (own, own.to_dict(), own.to_frame(), own.reset_index(), {"client": own.index, "size": own.to_numpy()}):
        np.testing.assert_array_equal(fit(table, {"covariates": given, "k": 2}).model.client, by_name.model.client)
    twice = fit(table, {"covariates": ["size", "size"], "k": 2})
    np.testing.assert_array_equal(twice.model.client, by_name.model.client)


@pytest.mark.parametrize("unit", [1e-300, 1e-12, 1e12, 1e300])
def test_units_of_covariates_are_nothing(table, unit):
    a = fit(table, {"covariates": sizes(table), "k": 2})
    b = fit(table, {"covariates": sizes(table) * unit, "k": 2})
    np.testing.assert_array_equal(a.model.client, b.model.client)


def test_dates_and_numbers_among_objects_are_numbers(table):
    days = pd.Series(np.arange(N), index=LABELS)
    a = fit(table, {"covariates": days, "k": 2})
    for given in (
        pd.Timestamp("2020-01-01") + pd.to_timedelta(days, "D"),
        pd.to_timedelta(days, "D"),
        days.astype(object),
    ):
        np.testing.assert_array_equal(fit(table, {"covariates": given, "k": 2}).model.client, a.model.client)


def test_a_covariate_is_known_where_any_row_of_the_client_has_it(table):
    part = table.copy()
    part.loc[part.index % ROWS > 0, "size"] = np.nan
    a, b = (fit(t, {"covariates": "size", "k": 2}) for t in (table, part))
    np.testing.assert_array_equal(a.model.client, b.model.client)


def test_rows_without_a_label_may_be_dropped_from_covariates_too(table):
    part = table.copy()
    part.loc[:3, "client"] = None
    assert ties(fit(part, {"covariates": "size", "k": 2}, missing="drop")) > 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "covariates must be columns"),
        (["client"], "covariates must be columns"),
        (["sizes"], names("'sizes' table mean 'size'")),
        (pd.DataFrame({"client": LABELS}), "no column beside 'client'"),
        (pd.DataFrame({"size": np.arange(float(N))}), names("column 'client' index labels")),
        (pd.Series([np.inf, *range(N - 1)], index=LABELS, name="size"), names("Covariate 'size' infinite client c0")),
        (pd.Series([None, *range(N - 1)], index=LABELS, name="size", dtype="Int64"), "missing for client c0"),
        (
            pd.Series([f"u{i}" for i in range(N)], index=LABELS, name="name"),
            names("'name' category client"),
        ),
        (pd.Series(np.arange(N) * 1j, index=LABELS, name="size"), "complex"),
        (pd.Series(1.0, index=LABELS), "All clients have the same covariates"),
        (pd.Series(range(2 * N), index=LABELS * 2), "one row for each client"),
        (5, "covariates must be a table"),
        (np.ones(N - 1), names("row 9 clients")),
        (np.array(["s", "m", "l"] * 3), "covariates must be a table of numbers"),
    ],
)
def test_covariates_that_say_nothing_are_refused(table, given, says):
    with pytest.raises(CoterieError, match=says):
        fit(table, {"covariates": given})


# -- strengths, sizes and notes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [1.0, 1e12, 1e300, 1e308])
@pytest.mark.parametrize("p", [1, 2, "inf"])
def test_a_strength_beyond_all_merging_is_pooled_at_once(table, lam, p):
    result = fit(table, {"lam": lam, "p": p})
    pooled = coterie.fit(table, "y ~ x", "client", method="pooled", splits=0)
    assert result.model.info["network"]["kkt"] <= 1e-6 and len(set(result.merged)) == 1
    np.testing.assert_allclose(result.model.client, pooled.model.client, atol=1e-6)


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_outcomes_of_any_size_are_solved(table, unit):
    result = fit(table.assign(y=table["y"] * unit), {})
    assert result.model.info["network"]["kkt"] <= 1e-6
    assert len(set(result.merged)) == (1 if unit < 1.0 else N)


def test_the_smallest_number_is_a_strength(table):
    assert fit(table, {"lam": 5e-324}).model.info["network"]["kkt"] <= 1e-6


def test_notes_say_only_what_was_done(table):
    given = fit(table, {"lam": 0.0})
    assert any("Ties have no strength" in note for note in given.notes)
    assert not any("Held-out" in note for note in given.notes)
    pairs = [(LABELS[i], LABELS[(i + 3) % N]) for i in range(N)]
    parts = " ".join(fit(table, {"edges": pairs}).notes)
    assert "3 parts" in parts and "add edges" in parts and "connected" not in parts
    single = fit(table.groupby("client").head(1), {"lam": 1e-6})
    assert not any("one model serves all" in note for note in single.notes)


def test_runs_that_went_wrong_say_so(table):
    away = fit(table, {"k": 2}, rounds={"steps": 4, "eta": 8.0})
    assert any("farther from the optimum than it began" in note for note in away.notes)
    tight = fit(table, {"k": 2, "lam": 0.01}, rounds={"steps": 30, "bytes_per_update": 8})
    assert any("or more than 8 bytes_per_update" in note for note in tight.notes)
    one = fit(table, {"k": 2}, rounds={"steps": 1})
    assert any("after 1 step with" in note for note in one.notes)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ({"models": np.zeros((N, 7))}, names("models 2 columns formula 7")),
        ({"distance": "predictions", "probes": np.full((3, 2), np.nan)}, names("probes rows 0 1 2 finite")),
        ({"space": "modell"}, "Did you mean 'model'"),
    ],
)
def test_models_and_probes_are_checked(table, network, says):
    with pytest.raises(CoterieError, match=says):
        fit(table, network)


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        ({"codec": 5}, "codec of a run"),
        ({"codec": ""}, "codec of a run"),
        ({"down": 4}, names("down run similarity network codec")),
        ({"phases": (2.7, 1)}, names("phases run similarity network 2 whole numbers")),
        ({"phases": "51"}, names("phases run similarity network 2 whole numbers")),
        ({"phases": (0, 1)}, names("phases run similarity network 2 whole numbers")),
    ],
)
def test_options_of_a_run_are_not_guessed(table, rounds, says):
    with pytest.raises(CoterieError, match=says):
        fit(table, {}, rounds=rounds)


def test_covariates_that_look_the_same_are_one(table):
    """White space and forms of accents are no difference, as in labels of clients."""
    ways = np.array([["Zürich", "Bern", "Genf"], ["Zürich ", "Bern", " Genf"], ["Zu\u0308rich", " Bern ", "Genf"]])
    who, row = np.repeat(np.arange(N), ROWS), np.tile(np.arange(ROWS), N)
    clean, odd = (table.assign(town=ways[way, who % 3]) for way in (0, row % 3))
    found = [fit(t, {"covariates": "town", "k": 2}).model.client for t in (clean, odd)]
    np.testing.assert_array_equal(found[0], found[1])
