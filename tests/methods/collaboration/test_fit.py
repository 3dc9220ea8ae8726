"""The methods of a main client from a table: what they end at, what may be asked of them, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.report.fit_page import render
from tests.messages import names


def table(m=6, n=40, spread=0.5, seed=0, family="gaussian"):
    rng = np.random.default_rng(seed)
    client = np.repeat([f"c{i}" for i in range(m)], n)
    x = rng.normal(size=m * n)
    beta = np.array([1.0, 2.0]) + spread * rng.normal(size=(m, 2))
    eta = np.sum(np.repeat(beta, n, axis=0) * np.c_[np.ones(m * n), x], axis=1)
    y = eta + rng.normal(size=m * n) if family == "gaussian" else (rng.uniform(size=m * n) < 1 / (1 + np.exp(-eta))) * 1
    return pd.DataFrame({"client": client, "region": np.repeat(np.arange(m) % 2, n), "x": x, "y": y})


def fit(df, method, rounds=None, **options):
    options = {"splits": 0} | options
    return coterie.fit(df, "y ~ x", "client", method=method, rounds=rounds, **options)


def coefficients(result):
    return result.model.client


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_weights_of_all_clients_alike_give_the_pooled_model(family):
    df = table(family=family)
    found = fit(df, "weighted-averaging", {"tau": "equal", "alpha": 5 / 6, "steps": 400}, family=family)
    pooled = fit(df, "pooled", family=family)
    np.testing.assert_allclose(coefficients(found), coefficients(pooled), atol=1e-5)
    np.testing.assert_allclose(found.model.client_cov, pooled.model.client_cov, rtol=0.2)


@pytest.mark.parametrize("method", ["weighted-averaging", "bias-correction"])
def test_nobody_listened_to_or_all_bias_corrected_gives_what_each_client_has_alone(method):
    df = table()
    rounds = {"alpha": 0.0} if method == "weighted-averaging" else {}
    found, local = fit(df, method, rounds | {"steps": 600}), fit(df, "local")
    np.testing.assert_allclose(coefficients(found), coefficients(local), atol=1e-6)
    np.testing.assert_allclose(found.model.client_cov, local.model.client_cov, rtol=1e-6)
    assert found.model.sigma2 == pytest.approx(local.model.sigma2, rel=1e-6)


@pytest.mark.parametrize("tau", ["auto", "equal"])
def test_the_residual_variance_is_of_rows_where_collaborators_weigh_a_millionth_and_are_as_noisy(tau):
    rng, client = np.random.default_rng(0), np.repeat(np.arange(20), 40)
    x, w = rng.normal(size=800), np.where(client % 2 == 0, 1.0, 1e-6)
    y = 1.0 + 2.0 * x + 0.3 * rng.normal(size=20)[client] + rng.normal(size=800)
    df = pd.DataFrame({"client": client, "x": x, "y": y, "w": w})
    found = fit(df, "weighted-averaging", {"tau": tau}, weights="w")
    assert found.model.sigma2 == pytest.approx(fit(df, "local", weights="w").model.sigma2, rel=0.2)


def test_bias_that_is_kept_is_that_of_averaging_with_as_much_less():
    df, tau = table(), {"c0": {"c1": 0.25, "c2": 0.75}}
    kept = fit(df, "bias-correction", {"tau": tau, "alpha": 0.8, "keep": 0.5, "steps": 600})
    less = fit(df, "weighted-averaging", {"tau": tau, "alpha": 0.4, "steps": 600})
    np.testing.assert_allclose(coefficients(kept), coefficients(less), atol=1e-7)
    pooled = coefficients(fit(df, "pooled"))
    assert np.abs(coefficients(kept)[0] - pooled[0]).max() > 1e-3
    np.testing.assert_allclose(coefficients(kept)[1:], pooled[1:])  # those that are not main ones


def test_weights_may_be_a_matrix_and_are_normalised_where_asked():
    df = table()
    W = np.ones((6, 6)) - np.eye(6)
    one = fit(df, "weighted-averaging", {"tau": W, "normalise": True, "alpha": 0.5})
    other = fit(df, "weighted-averaging", {"tau": "equal", "alpha": 0.5})
    np.testing.assert_allclose(coefficients(one), coefficients(other))


@pytest.mark.soak("3.0")
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_held_out_rows_choose_how_much_others_count(spread):
    df = table(m=8, n=12, spread=spread)
    found = fit(df, "weighted-averaging", {"alpha": "held-out", "tau": "equal"}, splits=3, seed=1)
    kept = fit(df, "bias-correction", {"keep": "held-out", "tau": "equal"}, splits=3, seed=1)
    alpha, keep = found.model.info["collaboration"]["alpha"], kept.model.info["collaboration"]["keep"]
    assert (alpha >= 0.7 and keep >= 0.7) if spread == 0.0 else (alpha <= 0.2 and keep <= 0.3)


def test_chosen_weights_help_where_clients_are_alike_and_hardly_harm_where_they_are_not():
    for spread in (0.1, 3.0):
        df = table(m=12, n=8, spread=spread)
        result = fit(df, "weighted-averaging", splits=5)
        loss = result.comparison["loss_rows"]
        if spread == 0.1:
            assert loss["weighted-averaging"] < 0.95 * loss["local"]
        else:
            assert loss["weighted-averaging"] < 1.25 * loss["local"]  # six rows to train on, twelve clients
            assert loss["weighted-averaging"] < 0.5 * loss["pooled"]


@pytest.mark.soak(
    "weighted-averaging-rounds1",
    "weighted-averaging-rounds2",
    "weighted-averaging-rounds3",
    "weighted-averaging-rounds4",
    "weighted-averaging-rounds5",
    "weighted-averaging-rounds6",
    "weighted-averaging-rounds7",
)
@pytest.mark.parametrize(
    "rounds",
    [
        {"batch": 4, "eta": 0.05},
        {"local": 3},
        {"optimiser": "momentum"},
        {"optimiser": "adam", "eta": 0.02},
        {"participation": 0.5},
        {"rule": "trimmed"},
        {"rule": "clipped"},
        {"rule": "trust"},
        {"rule": "adaptive"},
        {"within": "cluster"},
        {"main": "c2"},
        {"main": ["c2", "c4"], "collaborators": 2},
    ],
)
@pytest.mark.parametrize("method", ["weighted-averaging", "bias-correction"])
def test_every_option_gives_a_finite_model_that_predicts(method, rounds):
    df = table()
    if rounds.get("rule") == "adaptive" and method == "bias-correction":
        with pytest.raises(CoterieError, match="take rule 'trust'"):
            fit(df, method, rounds)
        return
    options = {"cluster": "region"} if "within" in rounds else {}
    result = fit(df, method, rounds, **options)
    exact = method == "weighted-averaging" and set(rounds) <= {"main", "within", "collaborators"}
    assert result.model.info["collaboration"]["status"] == ("exact" if exact else "finished")
    assert np.isfinite(coefficients(result)).all()
    error = result.predict(df)["prediction"].to_numpy() - df["y"].to_numpy()
    assert np.mean(error**2) < 1.6
    assert "Main clients and their collaborators" in render(result)


BAD = [
    ({"nonsense": 1}, "no option 'nonsense'"),
    ({"alpha": 1.5}, "alpha of collaboration must be"),
    ({"alpha": -1}, "alpha of collaboration must be"),
    ({"alpha": np.nan}, "alpha of collaboration must be"),
    ({"alpha": "lots"}, "alpha of collaboration must be"),
    ({"alpha": "held-out"}, "with bias-correction they choose keep"),
    ({"alpha": True}, "alpha of collaboration must be"),
    ({"beta": 0}, "beta of collaboration must be"),
    ({"beta": np.nan}, "beta of collaboration must be"),
    ({"keep": 2}, "keep of collaboration must be"),
    ({"keep": "held-out"}, "keep is to be chosen by held-out rows"),
    ({"eta": 0}, "eta of collaboration must be"),
    ({"eta": np.inf}, "eta of collaboration must be"),
    ({"steps": 0}, "steps of collaboration must be"),
    ({"steps": 1.5}, "steps of collaboration must be"),
    ({"batch": -1}, "batch of collaboration must be"),
    ({"batch": 41}, "batch is 41, and no client has more than 40 rows"),
    ({"collaborators": 0}, "use the method 'local'"),
    ({"optimiser": "lbfgs"}, "optimiser of collaboration must be"),
    ({"rule": "vote"}, "rule of collaboration must be"),
    ({"within": "here"}, "within of collaboration must be"),
    ({"participation": 0}, "participation of collaboration must be"),
    ({"first": "guess"}, "first of collaboration must be"),
    ({"first": 10**12}, "first of collaboration must be"),
    ({"first": np.ones(2)}, "first of collaboration must be"),
    ({"eta": 10**400}, "eta of collaboration must be"),
    ({"alpha": 10**300}, "alpha of collaboration must be"),
    ({"rule": np.ones(3)}, "rule of collaboration must be"),
    ({"within": "cluster", "tau": {"c0": {"c1": 1.0}}}, "tau names them: leave one out"),
    ({"within": "cluster"}, "need clusters: name a cluster column"),
    ({"main": {"c0": 1}}, "main names a client by its label"),
    ({"main": "nobody"}, "main names client 'nobody'"),
    ({"tau": {"c0": {"c1": 0.5, "c2": 0.6}}}, "add up to 1.1"),
    ({"tau": {"c0": {"c1": -0.5, "c2": 1.5}}}, "must be numbers from 0 to 1"),
    ({"tau": {"c0": {"c0": 1.0}}}, "its own collaborator"),
    ({"tau": {"c0": {"who": 1.0}}}, "tau names client 'who'"),
    ({"tau": {"c0": 1.0}}, "must be a mapping from collaborators to weights"),
    ({"tau": {"c0": {"c1": "much"}}}, "must be a number, not 'much'"),
    ({"tau": {}}, "names no collaborators"),
    ({"tau": np.ones((2, 2))}, "must be 6 x 6"),
    ({"tau": "most"}, "tau of collaboration must be"),
    ({"tau": 0.5}, "must be 6 x 6, clients by clients, not a number"),
    ({"tau": None}, "tau of collaboration must be"),
    ({"tau": [[1.0, 2.0], [3.0]]}, "tau must be auto, equal, a mapping"),
    ({"tau": np.full((6, 6), "a")}, "or a matrix of numbers"),
    ({"tau": np.ones((6, 6, 2))}, "not 6 x 6 x 2"),
    ({"tau": {"c0": {"c1": True}}}, "must be a number, not True"),
    ({"tau": "equal", "collaborators": 2}, "leave one of the two out"),
    ({"normalise": True}, "give tau as well, or leave normalise out"),
    ({"normalise": "yes"}, "normalise of collaboration must be"),
]


@pytest.mark.parametrize(("rounds", "said"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_said_in_one_sentence(rounds, said):
    with pytest.raises(CoterieError, match=said):
        fit(table(), "bias-correction", rounds)


def test_options_of_bias_correction_are_not_those_of_averaging():
    with pytest.raises(CoterieError, match=names("beta option bias-correction")):
        fit(table(), "weighted-averaging", {"beta": 0.1})


def test_no_row_to_spare_chooses_nothing():
    with pytest.raises(CoterieError, match=names("No client row spare")):
        fit(table(m=30, n=1), "weighted-averaging", {"alpha": "held-out"}, splits=2)


@pytest.mark.parametrize("method", ["weighted-averaging", "bias-correction"])
def test_main_clients_have_all_coefficients(method):
    with pytest.raises(CoterieError, match=names("main client coefficients leave shared")):
        fit(table(), method, shared="x")
    df = table()
    df["h"] = df["client"].str[1:].astype(float) ** 2
    result = coterie.fit(df, "y ~ x + h", "client", method=method, splits=0)
    assert not any("one coefficient for all clients" in note for note in result.notes)


def test_one_client_has_no_collaborators():
    with pytest.raises(CoterieError, match=r"one client|no collaborators"):
        fit(table(m=1), "weighted-averaging")


def test_a_run_that_diverges_says_so_and_leaves_finite_coefficients():
    result = fit(table(), "weighted-averaging", {"eta": 1e6})
    assert result.model.info["collaboration"]["status"].startswith("diverged")
    assert np.isfinite(coefficients(result)).all()
    assert any("diverged by step" in note and "for c0, c1, c2" in note for note in result.notes)


def test_a_run_that_stops_early_says_so():
    result = fit(table(), "bias-correction", {"steps": 2})
    assert any("stopped after 2 steps" in note and "compare with more steps" in note for note in result.notes)


def separated(m=12, n=8):
    """Classes of few rows, some clients' all alike."""
    df = table(m=m, n=n, spread=1.5, family="binomial")
    df.loc[df["client"].isin(["c0", "c1"]), "y"] = 1
    return df


@pytest.mark.parametrize("method", ["weighted-averaging", "bias-correction"])
def test_the_prior_towards_the_pooled_model_has_a_name_and_a_switch(method):
    df, how = separated(), {"splits": 0, "family": "binomial"}
    found = {p: fit(df, method, {"prior": p, "steps": 200}, **how) for p in ("auto", "none", 1e6)}
    about = {p: result.model.info["collaboration"] for p, result in found.items()}
    assert 0.0 < about["auto"]["prior"] <= 1.0 and about["none"]["prior"] == 0.0 and about[1e6]["prior"] == 1e6
    said = {p: [note for note in result.notes if note.startswith("A prior worth")] for p, result in found.items()}
    assert len(said["auto"]) == 1 and "pulls every main client's model to the pooled one" in said["auto"][0]
    assert said["none"] == []
    if method == "weighted-averaging":  # whose steps come to the end
        pooled = coefficients(fit(df, "pooled", **how))
        far = {p: np.abs(coefficients(result) - pooled).max() for p, result in found.items()}
        assert far[1e6] < 1e-3 < far["auto"] < far["none"]
    assert fit(table(), method, {"steps": 2}).model.info["collaboration"]["prior"] == 0.0


@pytest.mark.parametrize("prior", ["auto", "none", 0.3])
def test_gain_over_local_is_over_local_under_the_same_prior(prior):
    """With no weight on others only the prior is left, and it gains nothing over itself."""
    df, rounds = separated(), {"alpha": 0.0, "tau": "equal", "prior": prior}
    result = fit(df, "weighted-averaging", rounds, splits=3, family="binomial")
    frame = result.comparison
    apart = frame["loss_clients"]["local"] - frame["loss_clients"]["weighted-averaging"]
    if prior == "none":  # then local itself is what it is compared with, whose prior is around 0
        assert frame["gain_over_local"]["weighted-averaging"] == pytest.approx(apart)
    else:
        assert frame["gain_over_local"]["weighted-averaging"] == pytest.approx(0.0, abs=1e-9)
        assert abs(apart) > 1e-3
    assert frame["gain_over_local"]["local"] == 0.0


@pytest.mark.parametrize("prior", [-1.0, np.nan, "weak", True])
def test_a_prior_that_is_none_is_refused(prior):
    with pytest.raises(CoterieError, match="prior of collaboration must"):
        fit(table(), "weighted-averaging", {"prior": prior})


@pytest.mark.parametrize("method", ["weighted-averaging", "bias-correction"])
def test_what_no_theorem_covers_runs_with_a_note(method):
    covered = fit(table(), method, {"steps": 3}).model.info["collaboration"]
    assert covered["uncovered"] == []
    more = {"beta": 1.2} if method == "bias-correction" else {}
    result = fit(table(), method, {"steps": 3, "eta": 1.2} | more)
    said = [note for note in result.notes if "nothing is promised" in note or "promise nothing" in note]
    assert all("beta = 1.2 is above 1" in note and "for ever" not in note for note in said[1:])
    assert len(said) == 1 + len(more) and "eta = 1.2 is above" in said[0] and "for 6 of 6 main clients" in said[0]
    assert np.isfinite(coefficients(result)).all()
    result = fit(table(), method, {"steps": 400, "eta": 50.0})
    assert result.model.info["collaboration"]["status"].startswith("diverged")
    assert np.isfinite(coefficients(result)).all()


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_steps_of_bias_correction_go_by_the_most_that_delta_may_be(family):
    """Classes curve otherwise away from the pooled model, where delta is looked at; straight lines do not."""
    about = fit(table(family=family), "bias-correction", {"steps": 2}, family=family).model.info["collaboration"]
    eta, delta, most, L, alpha = (np.array(about[k]) for k in ("eta", "delta", "delta_at_most", "L", "alpha"))
    assert np.all(most >= delta) and np.all((most == delta) == (family == "gaussian"))
    most_eta = np.minimum(0.5 / L, 1.0 / (np.sqrt(8.0) * alpha * most))
    assert np.all(eta <= most_eta * (1.0 + 1e-9)) and np.all(eta >= 0.95 * most_eta)  # less what the prior curves


@pytest.mark.parametrize("method", ["weighted-averaging", "bias-correction"])
def test_models_on_the_way_to_divergence_are_said_to_be_useless(method):
    result = fit(table(), method, {"eta": 9.0, "steps": 20})
    assert np.isfinite(coefficients(result)).all() and np.abs(coefficients(result)).max() > 1e3
    assert any("farther from" in note and "smaller eta" in note for note in result.notes)
    assert not any("way short" in note for note in result.notes)
