"""scikit-learn's own checks, agreement with coterie.fit, and labels beside X or among its columns."""

import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import coterie
from coterie import CoterieError, HierarchicalClassifier, HierarchicalRegressor
from coterie.runs import run_table_method
from tests.messages import names

WIDE = "fits 10 to 30 columns to fewer rows; coterie refuses that, and takes weights as relative ones"


def expected_failures(_estimator):
    return {"check_sample_weight_equivalence_on_dense_data": WIDE}


@parametrize_with_checks(
    [HierarchicalRegressor(), HierarchicalRegressor("poisson"), HierarchicalClassifier()],
    expected_failed_checks=expected_failures,
)
@pytest.mark.filterwarnings("ignore")  # scikit-learn's checks warn on purpose
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def table(seed=3, clients=30, rows=12):
    """Clients in shuffled rows, in 5 clusters in 2 regions, with their own intercepts and slopes."""
    rng = np.random.default_rng(seed)
    client = rng.permutation(np.repeat(np.arange(clients), rows))
    a, b = rng.normal(0, 1.5, clients), rng.normal(1, 0.5, clients)
    x, z = rng.normal(size=(2, client.size))
    eta = a[client] + b[client] * x + 0.3 * z
    df = pd.DataFrame({"client": client, "cluster": client % 5, "region": client % 5 % 2, "x": x, "z": z})
    df["y"] = eta + rng.normal(size=client.size)
    df["yes"] = np.where(rng.random(client.size) < 1 / (1 + np.exp(-eta)), "yes", "no")
    df["count"] = rng.poisson(np.exp(0.3 * eta))
    return df


DF = table()
X = DF[["x", "z"]]


@pytest.mark.parametrize(
    ("model", "outcome", "family"),
    [
        (HierarchicalRegressor(shared=["z"]), "y", "gaussian"),
        (HierarchicalRegressor(covariance="full", reml=False), "y", "gaussian"),
        (HierarchicalRegressor("poisson", method="own-intercept"), "count", "poisson"),
        (HierarchicalRegressor("poisson"), "count", "poisson"),
        (HierarchicalClassifier(covariance="diagonal"), "yes", "binomial"),
        (HierarchicalRegressor(method="local"), "y", "gaussian"),
        (HierarchicalRegressor(method="auto"), "y", "gaussian"),
    ],
    ids=lambda v: repr(v)[:60],
)
def test_agrees_with_fit(model, outcome, family):
    model.fit(X, DF[outcome], clients=DF["client"], clusters=DF["cluster"])
    options = {"covariance": model.covariance, "reml": model.reml, "shared": tuple(model.shared), "family": family}
    options |= {"method": model.method, "splits": 5 if model.method == "auto" else 0}
    result = coterie.fit(DF, f"{outcome} ~ x + z", "client", "cluster", **options)
    assert model.result_.method == result.method
    np.testing.assert_allclose(model.client_coef_, result.client_coefficients[["x", "z"]], rtol=1e-12)
    np.testing.assert_allclose(model.client_intercept_, result.client_coefficients["(Intercept)"], rtol=1e-12)
    np.testing.assert_array_equal(model.clients_, result.client_coefficients.index)
    np.testing.assert_allclose([*np.ravel(model.intercept_), *np.ravel(model.coef_)], result.model.root, rtol=1e-12)
    new = DF.assign(client=DF["client"] + 12)  # 12 clients never seen
    predicted = (
        model.predict_proba(new[["x", "z"]], new["client"], new["cluster"])[:, 1]
        if family == "binomial"
        else model.predict(new[["x", "z"]], new["client"], new["cluster"])
    )
    np.testing.assert_allclose(predicted, result.predict(new)["prediction"], rtol=1e-12)


def test_several_clusters_by_name_by_place_and_as_columns():
    groups = DF[["cluster", "region"]]
    model = HierarchicalRegressor().fit(X, DF["y"], clients=DF["client"], clusters=groups)
    unseen = DF["client"] + 1000
    expected = coterie.fit(DF, "y ~ x + z", "client", ["cluster", "region"], splits=0, method="hierarchical")
    expected = expected.predict(DF.assign(client=unseen))["prediction"]
    for clusters in (groups, groups[["region", "cluster"]], groups.to_numpy()):
        np.testing.assert_allclose(model.predict(X, unseen, clusters), expected, rtol=1e-12)
    wide = HierarchicalRegressor(client_column="client", cluster_column=["cluster", "region"])
    columns = ["cluster", "x", "client", "z", "region"]
    wide.fit(DF[columns], DF["y"])
    np.testing.assert_allclose(wide.predict(DF[columns].assign(client=unseen)), expected, rtol=1e-12)
    with pytest.raises(CoterieError, match=names("clusters 1 column model levels cluster region")):
        model.predict(X, unseen, DF["x"])


def test_no_labels_is_one_model_and_missing_labels_are_never_seen():
    pooled = HierarchicalRegressor().fit(X, DF["y"])
    A = np.column_stack([np.ones(len(X)), X])
    w = np.linalg.lstsq(A, DF["y"])[0]
    np.testing.assert_allclose([pooled.intercept_, *pooled.coef_], w, rtol=1e-10)
    assert pooled.result_.method == "pooled"
    np.testing.assert_allclose(pooled.predict(X), A @ w, rtol=1e-10)

    model = HierarchicalRegressor().fit(X, DF["y"], clients=DF["client"])
    root = model.intercept_ + X.to_numpy() @ model.coef_
    np.testing.assert_allclose(model.predict(X), root)
    labels = DF["client"].astype(object).where(DF["client"] > 3)
    here = labels.isna().to_numpy()
    np.testing.assert_allclose(model.predict(X, labels)[here], root[here])
    assert not np.allclose(model.predict(X, labels)[~here], root[~here])
    with pytest.raises(CoterieError, match=names("clients label 48 rows")):
        HierarchicalRegressor().fit(X, DF["y"], clients=labels)


def test_labels_in_any_container_and_their_names():
    frame = pl.from_pandas(DF)
    plain = HierarchicalRegressor().fit(X, DF["y"], clients=DF["client"], clusters=DF["cluster"])
    forms = [
        (frame[["x", "z"]], frame["y"], frame["client"], frame["cluster"], "cluster"),
        (frame[["x", "z"]], frame["y"], frame["client"], frame[["cluster"]], "cluster"),
        (X.to_numpy().tolist(), DF["y"].tolist(), DF["client"].tolist(), DF["cluster"].tolist(), "cluster"),
        (np.asfortranarray(X), DF["y"], DF["client"].astype(str), DF["cluster"].to_numpy(), "cluster"),
        (X, DF["y"], DF["client"].astype("category"), DF[["cluster"]].rename(columns={"cluster": "lea"}), "lea"),
    ]
    for data, y, clients, clusters, name in forms:
        model = HierarchicalRegressor().fit(data, y, clients=clients, clusters=clusters)
        assert model.result_.model.levels[0].name == name
        ours = pd.DataFrame(model.client_coef_, index=model.clients_.astype(int)).sort_index()
        np.testing.assert_allclose(ours, plain.client_coef_[np.argsort(plain.clients_)], rtol=1e-9)
        np.testing.assert_allclose(
            model.predict(data, clients, clusters), plain.predict(X, DF["client"], DF["cluster"]), rtol=1e-9
        )


@pytest.mark.parametrize("column", ["one", "each"])
def test_clusters_that_tell_nothing_are_left_out_and_said(column):
    df = DF.assign(one="u", each=DF["client"] + 100)
    names = [column, "region"] if column == "each" else ["region", column]
    groups = df[names].to_numpy()
    model = HierarchicalRegressor().fit(X, DF["y"], clients=DF["client"], clusters=groups)
    expected = coterie.fit(df, "y ~ x + z", "client", names, method="hierarchical", splits=0)
    assert [level.name for level in model.result_.model.levels] == [f"cluster_{names.index('region') + 1}"]
    assert any("left out" in note for note in model.result_.notes)
    new = df.assign(client=df["client"] + 12)
    predicted = model.predict(X, new["client"], groups)
    np.testing.assert_allclose(predicted, expected.predict(new)["prediction"], rtol=1e-9)


def test_probabilities():
    model = HierarchicalClassifier().fit(X, DF["yes"], clients=DF["client"])
    both = model.predict_proba(X, DF["client"])
    np.testing.assert_allclose(both.sum(axis=1), 1.0, rtol=1e-15)
    assert list(model.classes_) == ["no", "yes"]
    assert (model.predict(X, DF["client"]) == np.where(both[:, 1] > 0.5, "yes", "no")).all()
    np.testing.assert_allclose(model.decision_function(X, DF["client"]), np.log(both[:, 1] / both[:, 0]), rtol=1e-9)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_grid_search_with_routed_labels():
    model = HierarchicalRegressor()
    for request in (model.set_fit_request, model.set_predict_request, model.set_score_request):
        request(clients=True, clusters=True)
    search = GridSearchCV(
        model, {"method": ["pooled", "hierarchical", "local"]}, cv=KFold(3, shuffle=True, random_state=1)
    )
    search.fit(X, DF["y"], clients=DF["client"], clusters=DF["cluster"])
    assert search.best_params_ == {"method": "hierarchical"}
    scores = dict(zip(["pooled", "hierarchical", "local"], search.cv_results_["mean_test_score"], strict=True))
    assert scores["pooled"] + 0.1 < scores["local"] < scores["hierarchical"]
    score = search.score(X, DF["y"], clients=DF["client"], clusters=DF["cluster"])
    assert score == pytest.approx(search.best_estimator_.score(X, DF["y"], DF["client"], DF["cluster"]))


@pytest.mark.parametrize("form", ["frame", "array", "polars"])
def test_grid_search_with_labels_in_x(form):
    wide = DF[["x", "client", "z"]]
    data = {"frame": wide, "array": wide.to_numpy(), "polars": pl.from_pandas(wide)}[form]
    model = HierarchicalRegressor(client_column=1 if form == "array" else "client")
    grid = {"method": ["pooled", "hierarchical"], "shared": [(0,), (2,)]}
    search = GridSearchCV(model, grid, cv=KFold(3, shuffle=True, random_state=1)).fit(data, DF["y"])
    assert search.best_params_["method"] == "hierarchical"
    assert search.best_params_["shared"] == (2,)  # x differs between clients, z does not
    beside = HierarchicalRegressor(shared=["z"]).fit(X, DF["y"], clients=DF["client"])
    np.testing.assert_allclose(search.best_estimator_.client_coef_, beside.client_coef_, rtol=1e-12)
    assert search.best_estimator_.n_features_in_ == 3


def test_text_labels_among_the_columns_of_an_object_array():
    names = np.array([f"school {c}" for c in DF["client"]], dtype=object)
    data = np.column_stack([names, X.to_numpy().astype(object)])
    model = HierarchicalClassifier(client_column=0).fit(data, DF["yes"])
    assert model.clients_[1] == "school 1"
    assert set(model.predict(data)) == {"yes", "no"}
    assert model.score(data, DF["yes"]) > 0.7
    assert cross_val_score(model, data, DF["yes"], cv=KFold(3, shuffle=True, random_state=0)).min() > 0.55


@pytest.mark.usefixtures("routing")
def test_works_in_a_pipeline():
    inner = HierarchicalRegressor(covariance="diagonal").set_fit_request(clients=True).set_predict_request(clients=True)
    pipe = make_pipeline(StandardScaler(), inner).fit(X, DF["y"], clients=DF["client"])
    plain = HierarchicalRegressor(covariance="diagonal").fit(
        StandardScaler().fit_transform(X), DF["y"], clients=DF["client"]
    )
    np.testing.assert_allclose(
        pipe.predict(X, clients=DF["client"]), plain.predict(StandardScaler().fit_transform(X), DF["client"])
    )


def test_clone_and_parameters():
    model = HierarchicalRegressor("poisson", covariance="full", shared=(1,), client_column=0)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert set(model.get_params()) - set(HierarchicalClassifier().get_params()) == {"family"}
    twin.set_params(family="gaussian", client_column=None).fit(X, DF["y"], clients=DF["client"])
    assert not hasattr(model, "result_")
    with pytest.raises(ValueError, match="Invalid parameter"):
        twin.set_params(covarianc="full")


def test_weights_are_repetitions_where_their_scale_says_nothing():
    """Least squares do not know a constant factor; elsewhere weights are relative, as in ``coterie.fit``."""
    w = np.random.default_rng(0).integers(0, 4, len(DF))
    rows = np.repeat(np.arange(len(DF)), w)
    model = HierarchicalRegressor(method="pooled")
    weighted = clone(model).fit(X, DF["y"], clients=DF["client"], sample_weight=w)
    repeated = clone(model).fit(X.iloc[rows], DF["y"].iloc[rows], clients=DF["client"].iloc[rows])
    np.testing.assert_allclose(weighted.client_coef_, repeated.client_coef_, rtol=1e-5)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-5)


def test_shuffled_rows_give_the_same_model():
    rows = np.random.default_rng(1).permutation(len(DF))
    one = HierarchicalRegressor().fit(X, DF["y"], clients=DF["client"])
    two = HierarchicalRegressor().fit(X.iloc[rows], DF["y"].iloc[rows], clients=DF["client"].iloc[rows])
    np.testing.assert_allclose(two.client_coef_, one.client_coef_, rtol=1e-8)


def test_sorted_rows_without_intercept_are_not_copied(monkeypatch):
    objective = run_table_method.objective  # what every method works on
    n, p = 20_000, 10
    rng = np.random.default_rng(0)
    data, y = rng.normal(size=(n, p)), rng.normal(size=n)
    clients = np.repeat(np.arange(n // 10), 10)
    seen = []
    monkeypatch.setattr(run_table_method, "objective", lambda *a: seen.append(objective(*a)) or seen[-1])
    for method in ("pooled", "hierarchical"):
        model = HierarchicalRegressor(method=method, covariance="diagonal", fit_intercept=False)
        model.fit(data, y, clients=clients)
        assert (model.intercept_, model.client_intercept_.max()) == (0.0, 0.0)
    assert [np.shares_memory(rows.X, data) for rows in seen] == [True, True]


@pytest.mark.parametrize("shuffled", [False, True], ids=["sorted", "shuffled"])
def test_predicting_and_arranging_hold_one_copy_of_x_at_most(shuffled):
    n, p = 300_000, 10
    rng = np.random.default_rng(0)
    data, y = rng.normal(size=(n, p)), rng.normal(size=n)
    clients = np.repeat(np.arange(n // 10), 10)
    clients = rng.permutation(clients) if shuffled else clients
    model = HierarchicalRegressor(method="pooled").fit(data[:1000], y[:1000], clients=clients[:1000])
    parts = model._take_apart(data, clients, None)
    tracemalloc.start()
    model._rows(parts, y, None, [f"x{j}" for j in range(p)])
    arranging = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    base = tracemalloc.get_traced_memory()[0]
    model.predict(data, clients)
    predicting = tracemalloc.get_traced_memory()[1] - base
    tracemalloc.stop()
    assert arranging < 2.0 * data.nbytes
    assert predicting < 1.0 * data.nbytes


BAD = [
    ("unknown family", HierarchicalRegressor("poison"), {}, "no family 'poison'; use gaussian, .*'poisson'"),
    ("binomial family", HierarchicalRegressor("binomial"), {}, "must be gaussian, poisson, .* or student-t.4., not b"),
    ("unknown covariance", HierarchicalRegressor(covariance="diag"), {}, "Did you mean 'diagonal'"),
    ("unknown method", HierarchicalRegressor(method="pool"), {}, "Did you mean 'pooled'"),
    ("no clusters", HierarchicalRegressor(method="clusterwise"), {}, "needs clusters"),
    ("unknown shared", HierarchicalRegressor(shared=["zz"]), {}, "no term 'zz' to share"),
    ("shared out of range", HierarchicalRegressor(shared=[7]), {}, "shared names column 7"),
    ("short labels", HierarchicalRegressor(), {"clients": [1, 2]}, "clients has 2 labels; X has 360 rows"),
    ("labels twice", HierarchicalRegressor(client_column="x"), {}, "not both"),
    ("no such column", HierarchicalRegressor(client_column="school"), {"clients": None}, "no column 'school'"),
    ("torn client", HierarchicalRegressor(), {"clusters": np.arange(360) % 7}, "in more than one 'cluster'"),
    ("zero weights", HierarchicalRegressor(), {"sample_weight": np.zeros(360)}, "non-zero"),
    ("negative weights", HierarchicalRegressor(), {"sample_weight": -np.ones(360)}, "Negative values"),
    ("negative counts", HierarchicalRegressor("poisson"), {}, "y is negative in"),
    ("many classes", HierarchicalClassifier(), {"y": DF["client"]}, "has 30 classes"),
    ("one class", HierarchicalClassifier(), {"y": ["a"] * 360}, "one class only, a"),
    ("missing", HierarchicalRegressor(), {"X": X.mask(X > 2)}, "contains NaN"),
    (
        "frame of labels",
        HierarchicalRegressor(),
        {"clients": DF[["client"]]},
        "clients must be one column with a label",
    ),
    ("one label", HierarchicalRegressor(), {"clients": 3}, "clients must be one column with a label"),
    ("cube of clusters", HierarchicalRegressor(), {"clusters": np.zeros((360, 1, 1))}, "one or two dimensions, not 3"),
    ("same name", HierarchicalRegressor(), {"clusters": DF["client"]}, "'client' names both"),
    (
        "two clients",
        HierarchicalRegressor(client_column=["x", "z"]),
        {"clients": None},
        "client_column names 2 columns",
    ),
    (
        "no columns left",
        HierarchicalRegressor(client_column=0, cluster_column=1),
        {"clients": None},
        "no column beside",
    ),
    ("no intercept", HierarchicalRegressor(method="own-intercept", fit_intercept=False), {}, "needs an intercept"),
    ("no seed", HierarchicalRegressor(random_state=None), {}, "random_state must be a whole number, not None"),
    ("strengths", HierarchicalRegressor(method="given-strengths"), {}, "needs strengths"),
]


@pytest.mark.parametrize(("model", "changes", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(model, changes, message):
    given = {"X": X, "y": DF["y"], "clients": DF["client"]} | changes
    with pytest.raises(ValueError, match=message):
        model.fit(**given)


def test_rows_of_weight_0_are_as_good_as_not_there():
    """Splits, and what is told from single rows, are those of the rows that weigh."""
    rng = np.random.default_rng(4)
    X, clients, weights = rng.normal(size=(120, 2)), np.repeat(np.arange(15), 8), rng.uniform(0.2, 3.0, 120)
    weights[::7] = weights[clients == 3] = 0.0
    y, some = (rng.random(120) < 0.5).astype(int), weights > 0.0
    for method in ("auto", "hierarchical"):
        model = HierarchicalClassifier(method=method).fit(X, y, clients, sample_weight=weights)
        other = HierarchicalClassifier(method=method).fit(X[some], y[some], clients[some], sample_weight=weights[some])
        assert list(model.clients_) == list(other.clients_)
        np.testing.assert_array_equal(model.client_coef_, other.client_coef_)


def test_amounts_of_zero_are_refused():
    with pytest.raises(CoterieError, match=r"gamma needs amounts above 0; y is 0 in 1 row"):
        HierarchicalRegressor("gamma").fit(np.ones((6, 1)), [0.0, 1.0, 2.0, 1.0, 3.0, 1.0], clients=[1, 1, 1, 2, 2, 2])
