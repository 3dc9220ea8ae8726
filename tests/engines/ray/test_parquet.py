"""A folder of Parquet files read by actors: the same numbers as the whole table in one process."""

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.data.design import INTERCEPT
from coterie.data.identifiability import constant_within_clients
from coterie.data.prepare_table import prepare
from coterie.engines import InProcess
from coterie.engines.ray import Ray
from coterie.errors import CoterieError
from coterie.methods import hierarchical
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import objective

pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("pool")
M, N = 40, 400


@pytest.fixture(scope="module")
def table():
    """Unsorted rows of 40 clients in 5 groups in 2 regions."""
    rng = np.random.default_rng(0)
    who = np.concatenate([np.arange(M), rng.integers(0, M, N - M)])
    group = np.array([f"g{i % 5}" for i in range(M)])
    df = pd.DataFrame({"id": who, "group": group[who], "region": np.where(who % 5 < 2, "north", "south")})
    df["x"], df["z"] = rng.normal(size=N), rng.normal(3.0, 2.0, size=N)
    df["kind"] = rng.choice(["a", "b", "c"], N)
    df["size"] = rng.normal(size=M)[who]
    df["w"] = rng.integers(0, 3, N)
    eta = 0.4 * df["x"] + rng.normal(size=M)[who]
    df["y"] = eta + rng.normal(size=N)
    df["yes"] = np.where(eta + rng.logistic(size=N) > 0, "yes", "no")
    return df


def written(folder, df, files=3):
    """The table in files, in the order of its rows; pieces of another order of columns too."""
    folder.mkdir(exist_ok=True)
    for i, rows in enumerate(np.array_split(np.arange(len(df)), files)):
        part = df.iloc[rows]
        part[list(part.columns[:: (-1) ** i])].to_parquet(folder / f"part-{i}.parquet", index=False)
    return folder


def in_process(df, formula, family, **options):
    clients, _ = prepare(df, formula, "id", options.pop("cluster", ()), family, **options)
    personal = np.flatnonzero(~constant_within_clients(clients))
    intercept = clients.terms.index(INTERCEPT) if INTERCEPT in clients.terms else None
    problem = GroupedProblem(ClusterTree.of(clients), family, personal, intercept)
    fed = InProcess(objective(clients, family), clients.clusters, ids=clients.ids)
    return clients, problem, hierarchical.fit(fed, problem, "diagonal")


@pytest.mark.parametrize(
    ("formula", "family", "options", "order"),
    [
        ("y ~ x + z", "gaussian", {"cluster": ["group", "region"]}, "id"),
        ("y ~ x + scale(z) + kind + size", "gaussian", {"cluster": "group", "weights": "w"}, None),
        ("yes ~ x + C(w)", "binomial", {"offset": "z"}, "kind"),  # levels at one shard only, all clients torn
    ],
    ids=["sorted", "shuffled", "torn"],
)
def test_shards_give_the_numbers_of_the_whole_table(table, tmp_path, formula, family, options, order):
    df = table if order is None else table.sort_values(order, kind="stable")
    clients, problem, expected = in_process(df, formula, family, **dict(options))
    with Ray.parquet(written(tmp_path / "rows", df), formula, "id", family=family, reveal=True, **options) as fed:
        assert fed.terms == clients.terms
        np.testing.assert_array_equal(fed.problem.personal, problem.personal)
        for mine, other in zip(fed.problem.tree.parents, problem.tree.parents, strict=True):
            np.testing.assert_array_equal(mine, other)
        place = pd.Series(np.arange(len(clients)), clients.ids)[fed.clients.ids].to_numpy()
        np.testing.assert_array_equal(fed.clients.clusters, clients.clusters[place])
        fitted = hierarchical.fit(fed, fed.problem, "diagonal")
    np.testing.assert_allclose(fitted.client, expected.client[place], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fitted.client_cov, expected.client_cov[place], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fitted.log_likelihood, expected.log_likelihood, rtol=1e-12)


def test_clients_stay_at_the_actors_which_write_them(table, tmp_path):
    clients, _, expected = in_process(table, "y ~ x + kind", "gaussian", cluster="group")
    with Ray.parquet(written(tmp_path / "rows", table), "y ~ x + kind", "id", "group") as fed:
        fitted = hierarchical.fit(fed, fed.problem, "diagonal")
        assert len(fitted.client) == 0
        fed.write(tmp_path / "out", fitted)
        (label, groups), *_ = fed.levels
    assert (label, list(groups)) == ("group", [f"g{j}" for j in range(5)])
    out = pd.read_parquet(tmp_path / "out").set_index("id").loc[clients.labels]
    np.testing.assert_array_equal(out["group"], np.array(clients.levels[0].labels)[clients.clusters])
    np.testing.assert_array_equal(out["rows"], clients.counts)
    np.testing.assert_allclose(out[list(clients.terms)], expected.client, rtol=1e-9, atol=1e-9)
    sd = np.sqrt(expected.client_cov[:, [0, 2, 5, 9]])
    np.testing.assert_allclose(out[[f"std_error {t}" for t in clients.terms]], sd, rtol=1e-9)


def test_an_actor_may_be_left_without_rows(table, tmp_path):
    df = table.sort_values("id", kind="stable")
    df.loc[df["id"] >= 18, "x"] = np.nan
    folder = written(tmp_path / "rows", df, 2)
    _, _, expected = in_process(df, "y ~ x", "gaussian", missing="drop")
    with Ray.parquet(folder, "y ~ x", "id", missing="drop", reveal=True) as fed:
        assert sum(len(rows) == 0 for rows in fed.sites) == 1
        fitted = hierarchical.fit(fed, fed.problem, "diagonal")
        assert any("left out" in note for note in fed.notes)
    np.testing.assert_allclose(np.sort(fitted.client[:, 1]), np.sort(expected.client[:, 1]), rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "formula", "sentence"),
    [
        (lambda df: df.assign(group=df["x"].round().astype(int)), "y ~ x", "more than one 'group'"),
        (lambda df: df.assign(x=df["x"].where(df.index != 399)), "y ~ x", r"rows of site [01].*has missing values"),
        (lambda df: df.assign(id=7, group="g0"), "y ~ x", "only one client"),
        (lambda df: df.assign(y=1.0), "y ~ x", "constant"),
        (lambda df: df.assign(u=2 * df["z"]), "y ~ z + u", "'u' is a multiple of 'z'"),
        (lambda df: df, "y ~ nothing", "no column|not in the table|nothing"),
    ],
    ids=["client in two clusters", "missing", "one client", "constant", "collinear", "no column"],
)
def test_what_is_wrong_with_the_rows_is_named(table, tmp_path, change, formula, sentence):
    folder = written(tmp_path / "rows", change(table.reset_index(drop=True)))
    with pytest.raises(CoterieError, match=sentence):
        Ray.parquet(folder, formula, "id", "group")


def test_what_is_wrong_with_the_folder_is_named(tmp_path):
    with pytest.raises(CoterieError, match="no folder"):
        Ray.parquet(tmp_path / "nowhere", "y ~ x", "id")
    with pytest.raises(CoterieError, match="no rows"):
        Ray.parquet(tmp_path, "y ~ x", "id")
    (tmp_path / "broken.parquet").write_bytes(b"nonsense")
    with pytest.raises(CoterieError, match="damaged"):
        Ray.parquet(tmp_path, "y ~ x", "id")


@pytest.mark.parametrize(
    ("formula", "options"),
    [
        ("y ~ x + scale(z) + kind + size", {"cluster": ["group", "region"], "weights": "w"}),
        ("yes ~ x", {"family": "binomial", "offset": "z", "shared": "x", "method": "pooled"}),
    ],
    ids=["nested", "pooled"],
)
def test_a_fit_of_a_folder_is_read_by_actors(table, tmp_path, monkeypatch, formula, options):
    here = coterie.fit(table, formula, "id", splits=0, **options)
    folder = written(tmp_path / "rows", table.sort_values("id", kind="stable"))

    def refused(*_, **__):
        raise AssertionError("this process reads no rows")

    for place in ("pandas.read_parquet", "pyarrow.parquet.read_table", "coterie.data.prepare_table.prepare"):
        monkeypatch.setattr(place, refused)
    there = coterie.fit(str(folder), formula, "id", splits=0, engine={"kind": "ray", "sites": 2}, **options)
    monkeypatch.undo()
    mine, others = (
        {str(label): row for label, row in zip(r.model.labels, r.model.client, strict=True)} for r in (here, there)
    )
    assert mine.keys() == others.keys() and there.method == here.method
    counted = [note for note in there.notes if "rows were left out" in note]
    assert [note[:23] for note in counted] == [f"In the rows of site {s}: " for s in (0, 1)][
        : 2 * ("weights" in options)
    ]
    for label, row in mine.items():
        np.testing.assert_allclose(others[label], row, rtol=1e-5, atol=1e-6)
    new = table.head(50)
    np.testing.assert_allclose(there.predict(new)["prediction"], here.predict(new)["prediction"], rtol=1e-5, atol=1e-6)
    assert there.config()["data"]["source"] == str(folder) and there.config()["engine"] == {"kind": "ray", "sites": 2}
    there.save(tmp_path / "saved")
    np.testing.assert_array_equal(coterie.load(tmp_path / "saved").model.client, there.model.client)


def test_methods_are_compared_where_the_rows_are(table, tmp_path, monkeypatch):
    """As in one process on the same table, by the same keys: losses, intervals, and who gains."""
    given = {"cluster": "group", "splits": 2, "network": {"space": "model", "lam": 0.3, "k": 3}}
    methods = ["similarity-network"]
    rows = table.sort_values("id", kind="stable")
    here = coterie.compare(rows, "y ~ x", "id", methods=methods, **given)
    folder = written(tmp_path / "rows", rows)
    monkeypatch.setattr("pandas.read_parquet", None)
    there = coterie.compare(str(folder), "y ~ x", "id", methods=methods, engine="ray", **given)
    monkeypatch.undo()
    assert {*there.index} == {*here.index} == {"local", "pooled", *methods}
    columns = [name for name in here if name != "seconds"]
    np.testing.assert_allclose(there.loc[here.index, columns], here[columns], rtol=1e-5, atol=1e-6)


def test_what_actors_cannot_do_for_a_fit_is_said(table, tmp_path):
    folder = written(tmp_path / "rows", table)
    with pytest.raises(CoterieError, match="order_by names a column, of which actors tell nothing"):
        coterie.fit(str(folder), "y ~ x", "id", engine="ray", order_by="z")
    with pytest.raises(CoterieError, match="Held-out rows choose lam of the network where all rows are together"):
        coterie.fit(str(folder), "y ~ x", "id", engine="ray", method="similarity-network", network={"space": "model"})
