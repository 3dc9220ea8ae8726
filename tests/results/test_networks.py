"""A similarity network from a table: by label, by covariates, with a strength that held-out rows choose."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from tests.messages import names

N, ROWS = 24, 14


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Clients of three hidden groups, whose size tells the group."""
    rng = np.random.default_rng(0)
    group = np.arange(N) % 3
    beta = np.array([[0.0, 2.0], [3.0, -2.0], [-3.0, 0.0]])[group]
    who = np.repeat(np.arange(N), ROWS)
    x = rng.normal(size=N * ROWS)
    y = beta[who, 0] + beta[who, 1] * x + rng.normal(size=N * ROWS)
    size, kind = group * 10.0 + rng.uniform(size=N), np.array(["small", "middle", "large"])[group]
    labels = np.array([f"c{i:02d}" for i in range(N)])
    columns = {"client": labels[who], "x": x, "y": y, "size": size[who], "kind": kind[who], "group": group[who]}
    return pd.DataFrame(columns).sample(frac=1.0, random_state=1).reset_index(drop=True)


def fit(table, network, **options):
    return coterie.fit(table, "y ~ x", "client", network=network, **{"splits": 2} | options)


def ring() -> list[tuple[str, str]]:
    """Each client with the next two of its group."""
    return [(f"c{i:02d}", f"c{(i + step) % N:02d}") for i in range(N) for step in (3, 6)]


@pytest.mark.soak("covariates")
@pytest.mark.parametrize("space", ["model", "covariates"])
def test_hidden_groups_are_found_and_predict_better_than_all_others(table, space):
    network = {"k": 5} if space == "model" else {"covariates": ["size", "kind"], "k": 5}
    result = fit(table, network)
    assert result.recommended == "similarity-network"
    assert result.comparison.loc["similarity-network", "loss_rows"] < 0.97 * result.comparison.loc["local", "loss_rows"]
    found = pd.crosstab(result.merged, table.groupby("client")["group"].first())
    assert (found.gt(0).sum(axis=1) == 1).all()  # nobody merged with another group
    assert result.merged.nunique() < N / 2
    assert result.model.info["network"]["kkt"] <= 1e-6


def test_merged_clients_are_clusters_for_other_methods(table):
    result = fit(table, {"lam": 0.05, "k": 5}, method="similarity-network")
    again = table.assign(found=table["client"].map(result.merged))
    assert coterie.fit(again, "y ~ x", "client", "found", method="clusterwise", splits=0).method == "clusterwise"


def test_no_ties_are_local_and_endless_ones_pooled(table):
    edges = [*ring(), ("c00", "c01"), ("c01", "c02")]
    for lam, name in ((0.0, "local"), (np.inf, "pooled")):
        tied = fit(table, {"edges": edges, "lam": lam}, method="similarity-network", splits=0)
        plain = coterie.fit(table, "y ~ x", "client", method=name, splits=0)
        np.testing.assert_allclose(tied.model.client, plain.model.client, rtol=0, atol=1e-12)


def test_endless_ties_are_one_model_for_each_component(table):
    tied = fit(table, {"edges": ring(), "lam": np.inf}, method="similarity-network", splits=0)
    assert tied.model.info["network"]["components"] == 3
    for g in range(3):
        own = coterie.fit(table[table["group"] == g], "y ~ x", "client", method="pooled", splits=0)
        np.testing.assert_allclose(tied.client_coefficients.iloc[g::3], own.client_coefficients, atol=1e-6)
    assert any("3 parts" in note for note in tied.notes)


def test_edges_may_be_a_table_with_weights_in_any_order(table):
    frame = pd.DataFrame(ring(), columns=["from", "to"]).assign(weight=2.0)
    a = fit(table, {"edges": frame, "lam": 0.01}, method="similarity-network", splits=0)
    turned = frame[["to", "from", "weight"]].iloc[::-1]
    b = fit(table, {"edges": turned, "lam": 0.01}, method="similarity-network", splits=0)
    c = fit(table, {"edges": ring(), "lam": 0.02}, method="similarity-network", splits=0)
    np.testing.assert_allclose(a.model.client, b.model.client, atol=1e-12)
    np.testing.assert_allclose(a.model.client, c.model.client, atol=1e-5)


def test_covariates_may_be_a_table_by_client(table):
    frame = table.drop_duplicates("client")[["client", "size", "kind"]]
    by_name = fit(table, {"covariates": ["size", "kind"], "lam": 0.01}, method="similarity-network", splits=0)
    by_table = fit(table, {"covariates": frame, "lam": 0.01}, method="similarity-network", splits=0)
    indexed = fit(table, {"covariates": frame.set_index("client"), "lam": 0.01}, method="similarity-network", splits=0)
    np.testing.assert_array_equal(by_name.model.client, by_table.model.client)
    np.testing.assert_array_equal(by_name.model.client, indexed.model.client)


def test_a_run_over_rounds_comes_near_the_optimum_and_counts_its_bytes(table):
    options = {"edges": ring(), "lam": 0.02}
    exact = fit(table, options, method="similarity-network", splits=0)
    run = fit(table, options, method="similarity-network", splits=0, rounds={"steps": 150})
    coded = fit(table, options, method="similarity-network", splits=0, rounds={"steps": 150, "codec": "sign"})
    np.testing.assert_allclose(run.model.client, exact.model.client, atol=1e-2)
    assert abs(run.model.info["network"]["gap"]) < 1e-5
    assert coded.ledger["bytes_up"] < run.ledger["bytes_up"]
    assert abs(coded.model.info["network"]["gap"]) < 0.1


def test_shared_columns_have_one_coefficient(table):
    result = fit(table, {"edges": ring(), "lam": 0.01}, method="similarity-network", shared="x", splits=0)
    assert result.client_coefficients["x"].nunique() == 1
    assert result.client_coefficients["(Intercept)"].nunique() > 3


def test_results_survive_their_folder(table, tmp_path):
    result = fit(table, {"k": 5}, method="similarity-network")
    result.save(tmp_path / "model")
    again = coterie.load(tmp_path / "model")
    assert again.model.info["network"]["groups"] == result.model.info["network"]["groups"]
    np.testing.assert_array_equal(again.model.client, result.model.client)


@pytest.mark.parametrize(
    ("network", "options", "says"),
    [
        ({"k": 24}, {}, "24"),
        ({"k": 0}, {}, "k must be"),
        ({"space": "dream"}, {}, names("space similarity network model data feature covariates")),
        ({"lamb": 1}, {}, names("option 'lamb' mean 'lam'")),
        ({"lam": -1}, {}, names("lam similarity network held-out number 0 inf -1")),
        ({"lam": np.nan}, {}, "lam of a similarity network must be"),
        ({"lam": "strong"}, {}, "lam of a similarity network must be"),
        ({"p": 3}, {}, names("p similarity network 1 2 inf 3")),
        ({"edges": [("c00", "nobody")]}, {}, "names client 'nobody', not in the table"),
        ({"edges": [("c00", "c00")]}, {}, "tie client c00 to itself"),
        ({"edges": [("c00", "c01", -1.0)]}, {}, "eight"),
        ({"edges": [("c00", "c01", np.nan)]}, {}, "eight"),
        ({"edges": [("c00", "c01", "much")]}, {}, names("Weights edges third column numbers")),
        ({"edges": [("c00",)]}, {}, names("Edges pairs client labels")),
        ({"edges": [("c00", "c01"), ("c00", "c01", 1.0)]}, {}, "all be pairs"),
        ({"edges": ring(), "k": 3}, {}, "leave k out, or edges"),
        ({"covariates": ["x"]}, {}, names("vary within client x")),
        ({"covariates": ["nothing"]}, {}, "nothing"),
        ({"covariates": pd.DataFrame({"client": ["c00"], "size": [1.0]})}, {}, names("Covariates missing client c01")),
        ({}, {"method": "pooled"}, names("'pooled' no network")),
        ([1], {}, names("network names values [1]")),
        ({}, {"splits": 0, "method": "similarity-network"}, "chosen by held-out rows"),
        ({"lam": 0.1}, {"shared": ("x", "(Intercept)"), "method": "similarity-network"}, "All columns are shared"),
        (
            {"lam": 0.1},
            {"method": "similarity-network", "rounds": {"batch": -1}},
            names("batch run similarity network whole number"),
        ),
        ({"lam": 0.1}, {"method": "similarity-network", "rounds": {"codec": "zip"}}, "no codec 'zip'"),
        (
            {"lam": 0.1},
            {"method": "similarity-network", "rounds": {"phases": 3}},
            names("phases run similarity network 2 whole numbers"),
        ),
        (
            {"lam": 0.1},
            {"method": "similarity-network", "rounds": {"eta": 0}},
            names("eta run similarity network auto number above 0"),
        ),
        ({"lam": 0.1}, {"method": "similarity-network", "rounds": {"bytes_per_update": 3}}, "bytes an update at least"),
    ],
)
def test_bad_networks_are_refused_in_one_sentence(table, network, options, says):
    with pytest.raises(CoterieError, match=says) as e:
        fit(table, network, **options)
    assert "\n" not in str(e.value) and len(str(e.value)) < 400


def test_one_client_has_nobody_to_be_tied_to(table):
    with pytest.raises(CoterieError):
        fit(table[table["client"] == "c00"], {"k": 2})


def test_clients_of_one_row_and_constant_columns_do_not_stop_it(table):
    few = pd.concat([table[table["client"] != "c05"], table[table["client"] == "c05"].head(1)])
    for space in ("model", "data", "feature"):
        result = fit(few, {"space": space, "k": 4, "lam": 0.01}, method="similarity-network", splits=0)
        assert np.isfinite(result.model.client).all()
    lonely = [(a, b) for a, b in ring() if "c05" not in (a, b)]
    result = fit(few, {"edges": lonely, "lam": 0.01}, method="similarity-network", splits=0)
    assert np.isfinite(result.model.client).all()
    assert any("1 client has no ties (client) and learns from own rows only" in note for note in result.notes)
