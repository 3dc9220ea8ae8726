"""Advice against its own parts: weights, held-out losses by a literal loop, intervals, sentences, bad input."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

import coterie
from coterie.data.datasets import fetch
from coterie.data.prepare_table import prepare
from coterie.data.splits import split_rows
from coterie.engines.local_engines import InProcess
from coterie.errors import CoterieError
from coterie.families import family_named
from coterie.methods.collaboration.choose_collaborators import choose
from coterie.methods.collaboration.metric_and_similarity import around_pooled
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import objective
from tests.messages import names


@pytest.fixture(scope="module")
def table():
    """Thirty clients that differ by about as much as twenty rows leave open."""
    rng = np.random.default_rng(2)
    client = np.repeat(np.arange(30), rng.integers(12, 30, 30))
    own = 0.3 * rng.normal(size=(30, 2))
    x = rng.normal(size=client.size)
    y = 1.0 + own[client, 0] + (0.5 + own[client, 1]) * x + rng.normal(size=client.size)
    return pd.DataFrame({"client": client, "cluster": client // 10, "x1": x, "y": y})


@pytest.fixture(scope="module")
def advice(table):
    return coterie.advise(table, "y ~ x1", "client", splits=3, seed=4)


def test_weights_are_those_that_theory_chooses(table, advice):
    clients = prepare(table, "y ~ x1", "client")[0]
    fed = InProcess(objective(clients, "gaussian"), ids=clients.ids)
    choice = choose(fed, around_pooled(fed, GroupedProblem(ClusterTree(), "gaussian", np.arange(2), None))[1])
    frame = advice.clients
    np.testing.assert_allclose(frame["alpha"], choice.alpha, rtol=1e-9)
    np.testing.assert_allclose(frame["speedup"], choice.speedup, rtol=1e-9)
    np.testing.assert_array_equal(frame["collaborators"], np.diff(choice.pairs.starts))
    sums = advice.weights.groupby("client")[["tau", "weight"]].sum()
    np.testing.assert_allclose(sums["tau"], 1.0)
    np.testing.assert_allclose(sums["weight"], frame["alpha"].loc[sums.index])
    mine = advice.of(frame.index[3])
    assert list(mine.columns) == ["collaborator", "tau", "weight"]
    assert mine["tau"].is_monotonic_decreasing and frame.index[3] not in set(mine["collaborator"])


def test_held_out_losses_are_those_of_a_literal_loop(table, advice):
    """A client together with others minimises (1 - alpha) f_0 + alpha sum tau_k f_k: least squares, row by row."""
    clients = prepare(table, "y ~ x1", "client")[0]
    sums, rows, gains = np.zeros((30, 2)), np.zeros(30), []
    for repeat in range(3):
        test = split_rows(clients, 0.25, 4, repeat)
        train = clients.subset(~test)
        fed = InProcess(objective(train, "gaussian"), ids=clients.ids)
        choice = choose(fed, around_pooled(fed, GroupedProblem(ClusterTree(), "gaussian", np.arange(2), None))[1])
        here = np.zeros((30, 2))
        for i in range(30):
            held = np.arange(clients.starts[i], clients.stops[i])
            held = held[test[held]]
            weight = np.zeros(30)
            weight[i] = 1.0 - choice.alpha[i]
            for p in np.flatnonzero(choice.pairs.pair_main == i):
                weight[choice.pairs.pair_client[p]] = choice.alpha[i] * choice.pairs.tau[p]
            root = np.sqrt((weight / train.counts)[train.codes])
            together = np.linalg.lstsq(root[:, None] * train.X, root * train.y, rcond=None)[0]
            own = slice(train.starts[i], train.stops[i])
            alone = np.linalg.lstsq(train.X[own], train.y[own], rcond=None)[0]
            here[i] = [np.sum((clients.y[held] - clients.X[held] @ b) ** 2) for b in (alone, together)]
        count = clients.subset(test).counts
        gains.append((here[:, 0] - here[:, 1]) / count)
        sums += here
        rows += count
    frame = advice.clients
    np.testing.assert_array_equal(frame["test_rows"], rows)
    np.testing.assert_allclose(frame["loss_alone"], sums[:, 0] / rows, rtol=1e-6)
    np.testing.assert_allclose(frame["loss_together"], sums[:, 1] / rows, rtol=1e-5)
    np.testing.assert_allclose(frame["gain"], (sums[:, 0] - sums[:, 1]) / rows, atol=1e-4)
    gains = np.array(gains)
    half = student.ppf(0.975, 2) * np.sqrt(gains.var(axis=0, ddof=1) * (1 / 3 + 1 / 3))
    np.testing.assert_allclose(frame["gain_high"] - frame["gain_low"], 2 * half, rtol=1e-3)
    assert advice.evidence.loc["together", "loss_rows"] == pytest.approx(sums[:, 1].sum() / rows.sum(), rel=1e-5)


def test_rows_are_held_out_by_order_or_by_groups(table):
    """The latest rows of each client, once; or whole persons, none of whom is on both sides."""
    rng = np.random.default_rng(5)
    df = table.assign(day=rng.permutation(len(table)), person=rng.integers(0, 80, len(table)))
    later = coterie.advise(df, "y ~ x1", "client", order_by="day", seed=4)
    for label, rows in df.sort_values("day").groupby("client"):
        mine = later.clients.loc[label]
        k = int(mine["test_rows"])
        first, last = rows[:-k], rows[-k:]
        theta = np.polyfit(first["x1"], first["y"], 1)
        assert mine["loss_alone"] == pytest.approx(np.mean((last["y"] - np.polyval(theta, last["x1"])) ** 2), rel=1e-6)
    clients = prepare(df, "y ~ x1", "client")[0]
    train = clients.subset(~split_rows(clients, 0.25, 4, order=df["day"].to_numpy()[clients.order]))
    fed = InProcess(objective(train, "gaussian"), ids=clients.ids)
    choice = choose(fed, around_pooled(fed, GroupedProblem(ClusterTree(), "gaussian", np.arange(2), None))[1])
    factor = family_named("gaussian").loss_factor
    np.testing.assert_allclose(later.clients["predicted_gain"], factor * choice.gain, rtol=1e-9)
    assert later.settings["order_by"] == "day" and "three splits or more" not in " ".join(later.sentences)
    apart = coterie.advise(df, "y ~ x1", "client", split_by="person", splits=1, seed=4)
    test = split_rows(clients, 0.25, 4, 0, groups=df["person"].to_numpy()[clients.order])
    np.testing.assert_array_equal(apart.clients["test_rows"], np.bincount(clients.codes, test))
    with pytest.raises(CoterieError, match=names("order_by splits 0")):
        coterie.advise(df, "y ~ x1", "client", order_by="day", splits=0)


def test_sentences_say_who_whether_it_held_and_whom_it_harms(advice):
    text = " ".join(advice.sentences)
    assert "of 30 clients (client) should collaborate" in text
    assert "theory predicted a gain of" in text and "Client by client they correlate by" in text
    assert "95% interval of a client's own measured gain" in text
    assert "worse" in text


def test_says_where_one_pooled_model_is_better():
    rng = np.random.default_rng(3)
    df = pd.DataFrame({"client": np.repeat(np.arange(40), 8), "x": rng.normal(size=320)})
    df["y"] = df["x"] + rng.normal(size=320)
    advice = coterie.advise(df, "y ~ x", "client", collaborators=1, splits=3)
    loss = advice.evidence["loss_rows"]
    assert loss["pooled"] < loss["together"]
    assert "One pooled model does better over rows" in " ".join(advice.sentences)


def test_says_where_clients_alone_are_better(monkeypatch):
    monkeypatch.setattr(
        "coterie.methods.collaboration.choose_collaborators.SURE", np.inf
    )  # what would keep these clients alone
    rng = np.random.default_rng(5)
    client = np.repeat(np.arange(8), 30)
    df = pd.DataFrame({"client": client, "x": rng.normal(size=240)})
    eta = 1.0 + (rng.normal(size=8)[client] + 1.0) * df["x"]
    df["y"] = rng.poisson(1e6 * np.exp(np.minimum(eta, 4.0)))
    advice = coterie.advise(df, "y ~ x", "client", family="poisson", splits=3)
    loss, said = advice.evidence["loss_rows"], " ".join(advice.sentences)
    assert loss["local"] < loss["pooled"] < loss["together"]
    assert "what is predicted is not borne out here" in said
    assert "One pooled model" not in said
    assert "nan" not in said


def test_one_client_of_size_among_small_ones_is_spoken_of_as_one():
    rng = np.random.default_rng(6)
    client = np.repeat(np.arange(6), [200, 4, 4, 4, 4, 4])
    df = pd.DataFrame({"client": client, "x": rng.normal(size=220), "y": rng.normal(size=220)})
    said = " ".join(coterie.advise(df, "y ~ x", "client", splits=3).sentences)
    assert "For 1 client with rows enough" in said
    assert "1 client is too few" in said


def test_prediction_only(table):
    advice = coterie.advise(table, "y ~ x1", "client", splits=0)
    assert advice.evidence.empty and "gain" not in advice.clients
    assert len(advice.sentences) in (1, 2) and repr(advice).splitlines() == advice.sentences
    single = table.drop_duplicates("client")
    with pytest.raises(CoterieError, match=names("client row spare test")):
        coterie.advise(single, "y ~ 1", "client")
    assert len(coterie.advise(single, "y ~ 1", "client", splits=0).clients) == 30


def test_collaborators_of_the_same_cluster(table):
    advice = coterie.advise(table, "y ~ x1", "client", "cluster", within="cluster", collaborators=3, splits=1)
    home = table.drop_duplicates("client").set_index("client")["cluster"]
    pairs = advice.weights
    assert (home.loc[pairs["client"]].to_numpy() == home.loc[pairs["collaborator"]].to_numpy()).all()
    assert advice.clients["collaborators"].max() <= 3
    assert advice.clients["gain_low"].isna().all()
    assert "cluster" in advice.clients


def test_strangers_are_told_so():
    rng = np.random.default_rng(0)
    school = np.repeat(np.arange(12), 40)
    df = pd.DataFrame({"school": school, "x": rng.normal(size=480)})
    df["y"] = 100.0 * rng.normal(size=12)[school] + df["x"] * 50 * rng.normal(size=12)[school] + rng.normal(size=480)
    advice = coterie.advise(df, "y ~ x", "school", splits=3)
    assert advice.clients["speedup"].max() < 1.1
    assert "No client (school) should count on collaborators" in advice.sentences[0]


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_classes_and_counts(family):
    rng = np.random.default_rng(1)
    client = np.repeat(np.arange(20), 30)
    df = pd.DataFrame({"client": client, "x1": rng.normal(size=600)})
    eta = 0.2 * rng.normal(size=20)[client] + 0.5 * df["x1"]
    df["y"] = (
        rng.poisson(np.exp(eta)) if family == "poisson" else (rng.random(600) < 1 / (1 + np.exp(-eta))).astype(int)
    )
    advice = coterie.advise(df, "y ~ x1", "client", family=family, splits=2)
    assert np.isfinite(advice.clients[["loss_alone", "loss_together", "loss_pooled"]].to_numpy()).all()
    assert advice.evidence.loc["together", "loss_rows"] < advice.evidence.loc["local", "loss_rows"]


def test_the_same_advice_for_a_shuffled_table(table, advice):
    other = coterie.advise(table.sample(frac=1, random_state=3), "y ~ x1", "client", splits=0)
    np.testing.assert_allclose(other.clients["alpha"], advice.clients["alpha"], atol=1e-9)


def test_four_hospitals():
    """What docs/collaborators.md says of them."""
    df = fetch("heart")
    advice = coterie.advise(df, "disease ~ scale(age) + sex + cp", "hospital", family="binomial")
    loss = advice.evidence["loss_rows"]
    assert loss["together"] < loss["local"] < loss["pooled"]
    assert advice.clients["speedup"].idxmax() == "Switzerland"


def test_an_unknown_client_gets_a_hint(advice):
    with pytest.raises(CoterieError, match=names("client '99' table")):
        advice.of(99)


WRONG = [
    (
        {"collaborators": 0},
        "collaborators must be a whole number from 1 .*, not 0. Without collaborators a client works alone",
    ),
    ({"collaborators": 2.5}, "collaborators must be a whole number from 1 .*, not 2.5"),
    ({"splits": -1}, "splits must be a whole number from 0, not -1"),
    ({"seed": "a"}, "seed must be a whole number, not 'a'"),
    ({"test_fraction": 1.0}, "test_fraction must be a number between 0 and 1, not 1"),
    ({"test_fraction": "a"}, "test_fraction must be a number between 0 and 1, not 'a'"),
    ({"within": "school"}, "within must be all or cluster, not 'school'"),
    ({"within": "cluster"}, "need clusters: name a cluster column"),
    ({"family": "poison"}, "Did you mean 'poisson'"),
    ({"model": "y ~ x2"}, "'x2', which is not a column"),
    ({"model": "y ~ x1 + I(2 * x1)"}, "x1"),
    ({"client": "clint"}, "Did you mean 'client'"),
    ({"weights": "w"}, "'w'"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG, ids=[str(o) for o, _ in WRONG])
def test_bad_input_gets_a_sentence(table, options, sentence):
    with pytest.raises(CoterieError, match=sentence):
        coterie.advise(table, **{"model": "y ~ x1", "client": "client", **options})


def test_one_client_has_nobody_to_collaborate_with(table):
    with pytest.raises(CoterieError, match="There is only one client"):
        coterie.advise(table[table["client"] == 0], "y ~ x1", "client")


def test_alone_and_together_are_under_the_same_prior():
    """Twelve clients with 8 rows of two classes; with nobody to listen to, nothing is gained by the prior."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(12), 8)
    x = rng.normal(size=96)
    slope = 3.0 * rng.normal(size=12)[client]
    df = pd.DataFrame({"client": client, "x": x, "y": (slope * x + rng.logistic(size=96) > 0).astype(int)})

    def ask(**how):
        return coterie.advise(df, "y ~ x", "client", family="binomial", splits=3, **how)

    auto, firm, none = ask(), ask(prior=1e5), ask(prior="none")
    assert 0.0 < auto.settings["prior"] <= 1.0 and none.settings["prior"] == 0.0
    assert any(s.startswith("A prior worth 1e+05 rows pulls every model") for s in firm.sentences)
    assert not any("A prior worth" in s for s in none.sentences)
    np.testing.assert_allclose(firm.clients["loss_alone"], firm.clients["loss_pooled"], atol=1e-3)
    np.testing.assert_allclose(firm.clients["gain"], 0.0, atol=1e-3)
    alone = [one.evidence["loss_rows"]["local"] for one in (firm, auto, none)]
    assert alone[1] < alone[2] and len(set(alone)) == 3
    with pytest.raises(CoterieError, match=names("prior auto none number")):
        ask(prior="weak")


def test_a_file_is_its_table_and_what_has_no_advice_says_why(table, tmp_path):
    table.to_csv(tmp_path / "rows.csv", index=False)
    read = coterie.advise(tmp_path / "rows.csv", "y ~ x1", "client", splits=0)
    want = coterie.advise(table, "y ~ x1", "client", splits=0)
    np.testing.assert_allclose(read.clients["speedup"], want.clients["speedup"], rtol=1e-9)
    with pytest.raises(CoterieError, match=names("folder federation table")):
        coterie.advise(tmp_path, "y ~ x1", "client")
    with pytest.raises(CoterieError, match=names("personal coterie.Torch leave out")):
        coterie.advise(table, "y ~ x1", "client", personal=["head*"])
    with pytest.raises(CoterieError, match=names("within formula leave out")):
        coterie.advise(table, coterie.Torch("softmax", target="y"), "client", within="cluster")
    with pytest.raises(CoterieError, match=names("cluster formula group net")):
        coterie.advise(table, coterie.Torch("softmax", target="y"), "client", "cluster")
    with pytest.raises(CoterieError, match=names("configuration seed sections")):
        coterie.advise("nets.toml", seed=3)


def test_a_configuration_of_a_table_gives_no_advice_before_any_work(table, monkeypatch):
    monkeypatch.setattr("coterie.api.compared", None)
    made = coterie.fit(table, "y ~ x1", "client", splits=0, method="pooled").config()
    with pytest.raises(CoterieError, match=names("configuration table advice formula")):
        coterie.advise(made)


def test_a_file_of_a_configuration_of_a_table_gives_none_either(table, tmp_path):
    (tmp_path / "table.toml").write_text('[data]\nsource = "none.csv"\n[model]\nformula = "y ~ x"\n')
    with pytest.raises(CoterieError, match=names("configuration table advice formula")):
        coterie.advise(str(tmp_path / "table.toml"))


def test_a_net_is_told_which_method_is_best_and_for_whom():
    """Three clients whose classes are turned, and three like each other: a model of one's own against one for all."""
    rng = np.random.default_rng(0)
    client, X = np.repeat(np.arange(6), 80), rng.normal(size=(480, 3))
    y = ((X[:, 0] > 0) ^ (client >= 3)).astype(np.int64)
    given = ((X, y, client), coterie.Torch("softmax"))
    options = {"rounds": {"rounds": 20, "eta": 0.5}, "seed": [0, 1, 2]}
    advice = coterie.advise(*given, **options)
    table = coterie.compare(*given, methods="auto", **options)
    method = advice.settings["method"]
    assert method in table.index and method not in ("local", "pooled")
    np.testing.assert_allclose(advice.evidence["loss_rows"]["together"], 1.0 - table["accuracy"][method])
    frame = advice.clients
    np.testing.assert_allclose(frame["gain"], frame["loss_alone"] - frame["loss_together"], atol=1e-12)
    assert (frame["loss_pooled"] > frame["loss_alone"] + 0.2).all() and set(frame["best"]) <= set(table.index)
    assert frame["gain_low"].notna().all() and advice.weights.empty
    said = " ".join(advice.sentences)
    assert f"by {method}" in said and "best method of a client" in said and "predicted" not in said
    with pytest.raises(CoterieError, match=names("single collaborators sentences")):
        advice.of("0")
