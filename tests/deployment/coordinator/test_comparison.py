"""Rows that sites hold out: the evidence of one table, and nothing about fewer rows than a site speaks of."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import coterie
from coterie.api import compared
from coterie.deployment import logs, secure_sum_setup
from coterie.deployment.coordinator.run import run
from coterie.deployment.federation_toml import Config
from coterie.deployment.logs import read_status
from coterie.deployment.site.preview import preview
from coterie.deployment.site.receiver import SiteReceiver
from coterie.engines import wire
from coterie.engines.retry_and_quorum import BelowQuorum
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.methods.registry import FITTED
from coterie.methods.tree.penalised_tree import describe
from coterie.report.fit_page import render
from tests.cells import schools
from tests.deployment.hospitals import begin, folders, heart, transport

LEARN = {"covariance": "isotropic"}
SCHOOLS = {"formula": "y ~ x", "client": "school"}


def hold_out(root, table, task, min_group=5, name="hierarchical", column="site", secure=None, **options):
    """The result of a run, its folder, and the sites'."""
    labels = [c for c in ("school", "district") if c in table.columns]
    coordinator, homes = folders(root, table, column, labels, min_group=min_group)
    if secure is not None:
        config = replace(Config.read(coordinator), secure=secure)
        for home in (coordinator, *homes):
            config.write(home)
        secure_sum_setup.init(config, homes)
    options = (LEARN if name == "hierarchical" else {}) | {"splits": 1} | options
    home = begin(coordinator, "run", {"program": name, "task": task, "options": options, "seed": 3})
    run(transport(homes), coordinator, "run")
    return coterie.load(home / "result"), home, homes


def of_one_table(table, task, name="hierarchical", splits=1, **options):
    """The same by `coterie.fit`."""
    options = (LEARN if name == "hierarchical" else {}) | options
    task = {"client": "hospital"} | task
    return coterie.fit(table, task.pop("formula"), method=name, splits=splits, seed=3, **task, **options)


def alike(there, here, rtol=1e-10, intervals=True):
    """The rows of a comparison that both have; what is behind the best, or chosen, depends on who is compared."""
    names = [n for n in there.comparison if n not in ("seconds", "loss_nested") and not n.startswith("behind")]
    names = [n for n in names if intervals or not n.endswith(("_low", "_high"))]
    want = here.comparison.loc[there.comparison.index, names]
    pd.testing.assert_frame_equal(there.comparison[names], want, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("splits, cluster", [(1, "district"), (2, None)])
def test_the_evidence_of_sites_is_that_of_one_table(tmp_path, splits, cluster):
    table = schools()
    task = SCHOOLS if cluster is None else SCHOOLS | {"cluster": cluster}
    there, home, _ = hold_out(tmp_path, table, task, splits=splits)
    here = of_one_table(table, task, splits=splits)
    assert list(there.comparison.index) == ["local", "pooled", "hierarchical"], "\n".join(there.notes)
    alike(there, here)
    for name in ("rows", "test_rows", "loss_local", "loss_pooled"):
        np.testing.assert_allclose(there.client_gains[name], here.client_gains[name], rtol=1e-10)
    assert there.client_gains.index.equals(here.client_gains.index)
    assert there.recommended == "hierarchical" and "lowest held-out squared error" in there.reason
    assert there.settings["splits"] == splits and there.settings["test_fraction"] == 0.25
    assert there.ledger["exchanges"] + there.settings["held_out"]["exchanges"] == read_status(home)["exchange"]
    assert "The methods compared" in render(there) and "Who gains, who loses" in render(there)


def test_a_baseline_over_hospitals_is_compared_with_the_other(tmp_path):
    task = {"formula": "disease ~ age + exang", "family": "binomial", "missing": "drop"}
    there, _, _ = hold_out(tmp_path, heart(), task, name="local", column="hospital", test_fraction=0.4)
    alike(there, of_one_table(heart(), task, name="local", test_fraction=0.4))
    assert list(there.comparison.index) == ["local", "pooled"]


OVER_ROUNDS = {
    "single-cluster": {"covariance": "isotropic"},
    "ditto": {"rounds": {"rounds": 2, "B": 4}},
    "group-models": {"rounds": {"rounds": 2, "B": 4, "seed": 5}},
    "similarity-network": {"network": {"k": 3, "lam": 0.5}},
}


@pytest.mark.soak("single-cluster", "group-models")
@pytest.mark.parametrize("name", OVER_ROUNDS)
def test_methods_of_every_kind_are_compared_as_on_one_table(tmp_path, name):
    task = SCHOOLS | {"cluster": "district"}
    there, _, _ = hold_out(tmp_path, schools(), task, name=name, **OVER_ROUNDS[name])
    assert list(there.comparison.index) == ["local", "pooled", name], there.notes
    # sites were not asked of clusters that a method ignores: its intervals are over clients
    alike(there, of_one_table(schools(), task, name, **OVER_ROUNDS[name]), 1e-9, not FITTED[name].flat)


MAIN = {"main": [100, 104], "collaborators": 3}
COLLABORATION = {
    "gaussian": (schools, "site", SCHOOLS, "bias-correction", {}),
    "main": (schools, "site", SCHOOLS, "weighted-averaging", {"rounds": MAIN}),
    "binomial": (heart, "hospital", {"formula": "disease ~ age + exang", "family": "binomial", "missing": "drop"},
                 "weighted-averaging", {}),
}  # fmt: skip


@pytest.mark.soak("binomial")
@pytest.mark.parametrize("kind", [pytest.param("gaussian", marks=pytest.mark.soak), "main", "binomial"])
def test_main_clients_are_compared_as_on_one_table_with_models_under_their_own_prior(tmp_path, kind):
    make, column, task, name, options = COLLABORATION[kind]
    there, _, _ = hold_out(tmp_path, make(), task, name=name, column=column, splits=2, **options)
    here = of_one_table(make(), task, name, splits=2, **options)
    assert list(there.comparison.index) == ["local", "pooled", name], there.notes
    alike(there, here, 1e-8)
    own = there.comparison["loss_clients"]["local"] - there.comparison["loss_clients"][name]
    assert (abs(there.comparison["gain_over_local"][name] - own) > 1e-6) == (kind == "binomial")


SEVERAL = ["single-cluster", "hierarchical", "ditto", "weighted-averaging", "clusterwise", "own-intercept"]


MASKED = pytest.param({"min_sites": 3}, marks=pytest.mark.soak)


@pytest.mark.parametrize("secure", [None, MASKED], ids=["each", "masked"])
def test_several_methods_are_compared_at_once_and_the_best_is_fitted(tmp_path, secure):
    task, rounds = SCHOOLS | {"cluster": "district"}, {"rounds": {"seed": 3}}
    there, _, _ = hold_out(tmp_path, schools(), task, name="compare", methods=SEVERAL, secure=secure, **rounds)
    here = compared(schools(), "y ~ x", "school", "district", methods=SEVERAL, splits=1, seed=3, **rounds)
    out = [] if secure is None else ["weighted-averaging"]  # a secure sum has no clients of one site alone
    assert list(there.comparison.index) == ["local", "pooled", *(n for n in SEVERAL if n not in out)], there.notes
    assert [note.split(",")[0] for note in there.notes if "Left out" in note] == [f"Left out: {n}" for n in out]
    alike(there, here, 1e-8 if secure is None else 1e-5, intervals=False)
    assert there.recommended == there.method == here.comparison["loss_rows"].idxmin()
    assert there.config()["method"] == {"name": "auto", "compare": SEVERAL} | rounds["rounds"]


def test_a_method_that_a_site_does_not_answer_is_left_out_and_named(tmp_path):
    coordinator, homes = folders(tmp_path, schools(), "site", ["school"])
    site = homes[1] / "site.toml"
    works = '"coterie.deployment.*", "coterie.methods.tree.*", "coterie.methods.local:*"'
    site.write_text(site.read_text().replace('"coterie.*"', works))
    asked = {"methods": ["hierarchical", "ditto"], "splits": 1}
    home = begin(coordinator, "run", {"program": "compare", "task": SCHOOLS, "options": asked, "seed": 3})
    run(transport(homes), coordinator, "run")
    numbers = [entry["exchange"] for entry in logs.read(home / logs.LOG) if "exchange" in entry]
    assert numbers == [*range(1, read_status(home)["exchange"] + 1)]  # one count for the splits and the fit of the best
    there = coterie.load(home / "result")
    assert list(there.comparison.index) == ["local", "pooled", "hierarchical"], "\n".join(there.notes)
    assert any("Left out: ditto" in note and "disclosure" in note for note in there.notes)


@pytest.mark.parametrize("secure, name", [(None, "hierarchical"), ({"min_sites": 3}, "pooled")], ids=["few", "masked"])
def test_where_clients_are_not_to_be_seen_sums_make_the_comparison(tmp_path, secure, name):
    table, least = schools(), 10 if secure is None else 5
    there, _, homes = hold_out(tmp_path, table, SCHOOLS, least, name, secure=secure, splits=2)
    here = of_one_table(table, SCHOOLS, name)
    alike(there, here, 1e-10 if secure is None else 1e-6, intervals=False)
    low, high = (there.comparison[f"gain_over_local_{side}"]["pooled"] for side in ("low", "high"))
    gains = here.client_gains["loss_local"] - here.client_gains["loss_pooled"]
    least = there.comparison["loss_rows"][["local", "pooled"]].min()
    parameter = 2 * least / (3 * here.client_gains["test_rows"].sum())  # what two columns cost
    half = np.hypot(stats.t.ppf(0.975, 11) * gains.std() / np.sqrt(12), parameter)
    np.testing.assert_allclose([low, high], [gains.mean() - half, gains.mean() + half], rtol=1e-5)
    assert there.client_gains.empty and "as sums over clients" in there.notes[-1]
    assert "Of 2 splits 1 was made" in there.notes[-1] and there.settings["splits"] == 1
    asked = [line for line in (homes[0] / "log.jsonl").read_text().splitlines() if '"run": "run.split0"' in line]
    assert asked and not any('"kind": "ask"' in line for line in asked)
    assert "The methods compared" in render(there)


def test_too_few_held_out_rows_are_said_and_the_model_is_there(tmp_path):
    there, _, _ = hold_out(tmp_path, schools(), SCHOOLS | {"cluster": "district"}, min_group=10)
    assert there.comparison.empty and np.isfinite(there.model.client).all()
    assert there.notes[-1] == ("No rows were held out: of some cluster at a site they are fewer than its min_group.")


def test_no_number_tells_of_fewer_held_out_rows_than_min_group(tmp_path):
    _, homes = folders(tmp_path, schools(), "site", ["school", "district"])
    ends = transport(homes)
    for fraction in (0.01, 0.99):  # the difference from all rows would be that of one row of each client
        hold = {"seed": 0, "repeat": 0, "fraction": fraction}
        task = {"kind": "table", **SCHOOLS, "hold": hold}
        fed = Remote(ends, run=f"few{fraction:.0%}".rstrip("%"), task=task)
        with pytest.raises(CoterieError, match=r"(so|too) few rows"):
            fed.total(describe)
        assert fed.participants.counts.max() == 1
    whole = {"seed": 0, "repeat": 0, "fraction": 0.5}
    strange = [whole | {"by": by} for by in ("x", {"order_by": 1}, {"how": "x"}, {"order_by": "x", "split_by": "x"})]
    for wrong in ({"seed": 0}, {"seed": 0, "repeat": 0, "fraction": 1}, "half", *strange):
        request = {"kind": "open", "run": "wrong", "seed": 0, "task": {"kind": "table", **SCHOOLS, "hold": wrong}}
        assert "A split is" in wire.decode(SiteReceiver(homes[0]).receive(wire.encode(request)))["refused"]


@pytest.mark.usefixtures("in_full")
def test_a_run_that_was_cut_while_it_compared_has_its_model_and_goes_on(tmp_path):
    table = schools()
    coordinator, homes = folders(tmp_path, table, "site", ["school", "district"],
                                 policy={"deadline": 0.5, "pause": 0.05})  # fmt: skip
    program = {"program": "pooled", "task": SCHOOLS, "options": {"splits": 1}, "seed": 3}
    home = begin(coordinator, "run", program)
    lame = transport(homes)

    def receive(data, inner=lame._receivers["north"]):
        request = wire.decode(data)
        return None if request["run"] != "run" and request.get("exchange", [0, 0])[1] > 4 else inner(data)

    lame._receivers["north"] = receive
    with pytest.raises(BelowQuorum, match="north: did not answer"):
        run(lame, coordinator, "run")
    assert coterie.load(home / "result").comparison.empty
    run(transport(homes), coordinator, "run")
    there = coterie.load(home / "result")
    alike(there, of_one_table(table, SCHOOLS, name="pooled"))
    assert read_status(home)["exchange"] == there.ledger["exchanges"] + there.settings["held_out"]["exchanges"]


def test_splits_that_sites_refuse_since_they_differ_by_few_rows_end_the_comparison(tmp_path):
    """Of 24 rows 6 are held out: two splits share 4 of them at some client soon, and then differ by 4 rows."""
    there, _, _ = hold_out(tmp_path, schools(), SCHOOLS, name="pooled", splits=9)
    made = there.settings["splits"]
    assert 2 <= made < 9 and f"Of 9 splits {made} were made" in there.notes[-1]
    alike(there, of_one_table(schools(), SCHOOLS, name="pooled", splits=made))


def test_nothing_is_compared_unless_it_is_asked_for(tmp_path):
    there, _, _ = hold_out(tmp_path, schools(), SCHOOLS, name="pooled", splits=0)
    assert there.comparison.empty and "--splits 1" in there.notes[-1]


@pytest.mark.parametrize(
    "name, options, said",
    [
        ("pooled", {"splits": -1}, "splits must be a whole number from 0"),
        ("pooled", {"splits": 1, "test_fraction": 2.0}, "between 0 and 1"),
        ("compare", {"methods": ["ditto", "dito"]}, "no method 'dito' for a table"),
        ("compare", {"methods": ["fedbn"]}, "normalise"),
        ("compare", {"methods": ["clusterwise"]}, "needs clusters"),
    ],
)
def test_what_cannot_be_compared_is_said_before_a_site_is_asked(tmp_path, name, options, said):
    with pytest.raises(CoterieError, match=said):
        hold_out(tmp_path, schools(), SCHOOLS, name=name, **options)


def test_a_preview_shows_what_leaves_of_rows_that_are_held_out(tmp_path):
    _, homes = folders(tmp_path, schools(), "site", ["school", "district"])
    program = {"program": "pooled", "task": SCHOOLS, "options": {"splits": 1}}
    found = preview(homes[0], program, run)
    assert found.ended == ""
    left = {item.work.removeprefix("deployment."): item for item in found.leaving}
    assert left["site.holdout:losses"].covers == 6 and left["site.holdout:losses"].values["losses"] == "float64 (4, 2)"
    assert left["site.holdout:baselines"].values == {} and left[""].answers == 2


@pytest.mark.soak
def test_baselines_of_counts_have_the_dispersion_that_they_have_on_one_table(tmp_path):
    table = schools().assign(count=lambda d: np.floor(np.exp(0.5 * d["y"])).astype(int))
    task = {"formula": "count ~ x", "client": "school", "family": "negative-binomial"}
    there, _, _ = hold_out(tmp_path, table, task, name="local")
    alike(there, of_one_table(table, task, name="local"), 1e-8)
