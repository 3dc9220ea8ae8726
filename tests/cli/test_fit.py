"""`coterie fit`: what it writes and says, and the tables that must work however odd they are."""

import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as package
from tests.cli.harness import N, changed, coterie, files, table


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def fit(df, *arguments, formula="score ~ hours", client="school", file="table.csv"):
    """Fit a table through the command, and load the model that was written."""
    if df is not None:
        df.to_csv(file, index=False)
    ran = coterie("fit", file, "--formula", formula, "--client", client, "--out", "model", *arguments)
    assert (ran.code, ran.err) == (0, "")
    return ran, package.load("model")


def finite(result):
    frames = (result.global_coefficients.drop(columns=["term", "df"]), result.client_coefficients)
    comparison = result.comparison.drop(columns="loss_nested", errors="ignore")  # of the chosen method alone
    frames += (comparison, result.variance_components[["sd", "cov"]])
    return all(np.isfinite(frame.to_numpy(dtype=float)).all() for frame in frames)


def test_writes_model_and_report_and_says_what_was_found(folder):
    ran, result = fit(table(), "--cluster", "sector")
    names = files(folder)
    assert {"model", "model/model.json", "model/report.html", "table.csv"} <= names
    assert len(names) == 5
    lines = ran.out.splitlines()
    assert lines[0] == "Read 60 rows of 6 schools in 2 sectors from table.csv."
    for method in ("hierarchical", "local", "pooled", "own-intercept", "clusterwise", "single-cluster"):
        assert method in ran.out
    assert f"Recommended: {result.recommended}. {result.recommended} has the lowest held-out squared error" in ran.out
    assert lines[-2:] == ["Model:  model", "Report: model/report.html"]
    assert finite(result)
    report = Path("model/report.html").read_text(encoding="utf-8")
    assert "squared error" in report
    assert len(report) < 2_000_000


def test_without_out_nothing_is_written(folder):
    table().to_csv("table.csv", index=False)
    ran = coterie("fit", "table.csv", "--formula", "score ~ hours", "--client", "school")
    assert ran.code == 0
    assert "Nothing was written: add --out DIR" in ran.out
    assert files(folder) == {"table.csv"}


def test_a_summary_is_printed_where_it_is_asked_for(folder):
    table().to_csv("table.csv", index=False)
    arguments = ("fit", "table.csv", "--formula", "score ~ hours", "--client", "school", "--method", "hierarchical")
    plain, ran = (coterie(*arguments, "--splits", "0", *more) for more in ((), ("--summary",)))
    assert ran.code == 0
    shown = str(
        package.fit(pd.read_csv("table.csv"), "score ~ hours", "school", method="hierarchical", splits=0).summary()
    )
    assert shown in ran.out
    assert "95% interval" not in plain.out


def test_is_what_the_library_gives():
    _, result = fit(table(), "--cluster", "sector", "--seed", "4", "--splits", "3")
    direct = package.fit(pd.read_csv("table.csv"), "score ~ hours", "school", "sector", seed=4, splits=3)
    pd.testing.assert_frame_equal(result.client_coefficients, direct.client_coefficients)
    drop = {"columns": "seconds"}
    pd.testing.assert_frame_equal(result.comparison.drop(**drop), direct.comparison.drop(**drop))
    assert result.data_fingerprint == direct.data_fingerprint


def test_every_option_arrives():
    arguments = "--cluster sector --family gaussian --shared level --covariance full --cluster-variance own --ml"
    arguments += " --method hierarchical --residual by-client --gamma 2 --lam 3 --offset day --weights visits"
    arguments += " --missing drop --splits 2 --test-fraction 0.4 --split-by visits --seed 9"
    df = table(visits=np.arange(N) % 4 + 1, **changed("hours", [5], None))
    ran, result = fit(df, *arguments.split(), formula="score ~ hours + level")
    expected = {"cluster": ["sector"], "family": "gaussian", "covariance": "full", "cluster_variance": "own"}
    expected |= {"reml": False, "method": "hierarchical", "residual": "by-client", "offset": "day", "missing": "drop"}
    expected |= {"weights": "visits", "splits": 2, "test_fraction": 0.4, "split_by": "visits", "seed": 9, "own": True}
    expected |= {"shared": ["level[T.lo]", "level[T.mid]"], "client": "school", "order_by": None}
    assert {key: result.settings[key] for key in expected} == expected
    assert "given-strengths" in result.comparison.index
    assert "1 of 60 rows were left out" in ran.out
    assert result.offset == "day"


@pytest.mark.parametrize(
    "arguments",
    [
        "--gamma 0.5 --splits 0",
        "--gamma 3 --lam 1 --splits 0",
        "--gamma 0.1,10 --alpha 0.2,0.8 --method given-strengths",
    ],
)
def test_given_strengths(arguments):
    ran, result = fit(table(), "--cluster", "sector", *arguments.split())
    words = arguments.split()
    given = {name.removeprefix("--"): value.split(",") for name, value in zip(words[::2], words[1::2], strict=True)}
    strengths = result.settings["strengths"]
    assert set(strengths) == set(given) & {"gamma", "lam", "alpha"}
    assert all(value in map(float, given[name]) for name, value in strengths.items())
    assert "given-strengths" in ran.out
    assert result.method == "given-strengths"


@pytest.mark.parametrize("method", ["async-l2gd", "async-al2sgd"])
def test_over_rounds(method):
    arguments = ["--method", method, "--gamma", "2", "--lam", "3", "--splits", "1"]
    arguments += [
        "--rounds",
        "steps=5e2",
        "--rounds",
        "coordinator=peers",
        "--rounds",
        "p0=0.1",
        "--rounds",
        "p=0.1,0.2",
    ]
    ran, result = fit(table(), "--cluster", "sector", *arguments)
    run = result.settings["rounds"]
    assert run["asked"] == {"steps": 500, "coordinator": "peers", "p0": 0.1, "p": [0.1, 0.2]}
    assert method in result.comparison.index and result.method == method
    assert "Over rounds with p0 = 0.100, p = 0.100, 0.200, step size " in ran.out
    assert "Communications: " in ran.out and " expected" in ran.out
    assert "of the way short of the exact optimum" in ran.out
    assert "Distance left against communications" in Path("model/report.html").read_text(encoding="utf-8")


def test_methods_over_rounds_are_compared_only_by_name():
    _, result = fit(table(), "--cluster", "sector", "--gamma", "2", "--splits", "1")
    assert not any(name.startswith("async") for name in result.comparison.index)


def test_shuffled_rows_and_renamed_order_give_the_same_answer():
    df = table()
    options = ["--cluster", "sector", "--method", "hierarchical"]
    _, one = fit(df, *options)
    _, two = fit(df.sample(frac=1, random_state=3), *options)
    ours, theirs = one.client_coefficients, two.client_coefficients
    assert list(ours.index) == list(theirs.index)
    np.testing.assert_allclose(theirs, ours, rtol=1e-9)
    np.testing.assert_allclose(two.cluster_coefficients, one.cluster_coefficients, rtol=1e-9)
    assert two.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-9)


def test_shuffled_clients_give_the_same_evidence():
    df = table()
    by_school = [df[df["school"] == name] for name in ("oak", "ash", "fir", "birch", "elm", "cedar")]
    _, one = fit(df)
    _, two = fit(pd.concat(by_school))
    np.testing.assert_allclose(two.comparison["loss_rows"], one.comparison["loss_rows"], rtol=1e-9)
    np.testing.assert_allclose(two.client_coefficients, one.client_coefficients, rtol=1e-9)


@pytest.mark.parametrize("method", ["hierarchical", "local", "pooled", "own-intercept"])
def test_huge_scales_are_other_units(method):
    df = table()
    big = df.assign(hours=df["hours"] * 1e8, score=df["score"] * 1e-3)
    options = ["--method", method, "--covariance", "diagonal", "--splits", "1"]
    _, one = fit(df, *options)
    _, two = fit(big, *options)
    assert finite(two)
    np.testing.assert_allclose(two.client_coefficients["hours"] * 1e11, one.client_coefficients["hours"], rtol=1e-6)
    np.testing.assert_allclose(two.predict(big)["prediction"] * 1e3, one.predict(df)["prediction"], rtol=1e-6)


def test_huge_next_to_tiny():
    df = table(small=np.random.default_rng(1).normal(size=N) * 1e-3)
    df["hours"] = df["hours"] * 1e8
    _, result = fit(df, formula="score ~ hours + small")
    assert finite(result)
    alone = fit(df.assign(hours=df["hours"] / 1e8, small=df["small"] * 1e3), formula="score ~ hours + small")[1]
    assert result.recommended == alone.recommended
    np.testing.assert_allclose(result.comparison["loss_rows"], alone.comparison["loss_rows"], rtol=1e-6)


def test_a_client_with_one_class_only():
    passed = (np.arange(N) % 3 == 0).astype(int)
    passed[:10] = 1
    ran, result = fit(table(passed=passed), "--family", "binomial", formula="passed ~ hours")
    assert "1 of 6 clients (school) have outcomes of one class only" in ran.out
    assert finite(result)
    assert result.predict(table())["prediction"].between(0, 1).all()


def test_perfect_separation_stays_finite_and_is_said():
    df = table(passed=(table()["hours"] > 0).astype(int))
    ran, result = fit(df, "--family", "binomial", "--method", "hierarchical", formula="passed ~ hours")
    assert "separated perfectly" in ran.out
    assert "hours" in ran.out.partition("separated perfectly")[2]
    assert finite(result)
    assert result.client_coefficients.abs().to_numpy().max() < 1e6


def test_one_row_for_each_client():
    ran, result = fit(table(school=np.arange(N)))
    assert "Every client (school) has one row" in ran.out
    assert result.method == "pooled"
    assert list(result.variance_components["level"]) == ["residual"]


def test_one_cluster():
    ran, result = fit(table(sector="town"), "--cluster", "sector")
    assert "There is only one cluster: 'sector' is town in every row" in ran.out
    assert set(result.variance_components["level"]) <= {"client", "residual"}


def test_a_coefficient_constant_within_clients_is_shared_and_said():
    df = table(size=np.repeat([3.0, 5.0, 1.0, 8.0, 2.0, 9.0], 10))
    ran, result = fit(df, "--method", "hierarchical", formula="score ~ hours + size")
    assert "size has one coefficient for all clients (school)" in ran.out
    assert result.client_coefficients["size"].nunique() == 1


def test_clusters_from_fine_to_coarse():
    df = table(pair=np.repeat(["p1", "p2", "p3", "p4"], [20, 10, 20, 10]))
    ran, result = fit(df, "--cluster", "pair", "--cluster", "sector", "--method", "hierarchical")
    assert "in 4 pair groups in 2 sectors" in ran.out
    assert list(result.cluster_coefficients.index.get_level_values("level").unique()) == ["pair", "sector"]
    other = coterie("fit", "table.csv", "--formula", "score ~ hours", "--client", "school", "--cluster", "sector")
    assert other.code == 0


LABELS = {
    "spaces": ["North East", "South  West", " lead", "trail ", "a", "b c d"],
    "non-ASCII": ["Zürich", "Łódź", "東京", "Québec", "São Paulo", "Ελλάδα"],
    "numbers": [11, 2, 7, 100, 30, 5],
    "zip codes": ["01002", "1002", "00501", "501", "10001", "94103"],
    "numbers and text": ["1", "2", "x", "10", "1b", "y"],
    "fractions": [0.5, 1.5, 2.25, 3.0, 4.0, 5.125],
    "large": [10**15 + j for j in range(6)],
    "quotes": ['say "hi"', "it's", "a,b", "a;b", "<b>", "&amp;"],
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_every_kind_come_back(kind):
    df = table(school=np.repeat(np.array(LABELS[kind], dtype=object), 10))
    ran, result = fit(df, "--method", "local", "--splits", "1")
    assert "of 6 schools" in ran.out
    assert set(result.client_coefficients.index.astype(str)) == {str(v).strip() for v in LABELS[kind]}
    ran = coterie("predict", "model", "table.csv")
    assert ran.code == 0
    assert "60 by client" in ran.err


@pytest.mark.parametrize("file", ["new.csv", "new.csv.gz", "new.parquet"])
def test_zip_codes_keep_their_zeros_in_every_file(file):
    zips = np.repeat(np.array(LABELS["zip codes"], dtype=object), 10)
    _, result = fit(table(school=zips, hours=[f"0{j % 10}.5" for j in range(N)]), "--method", "local")
    assert list(result.client_coefficients.index) == sorted(LABELS["zip codes"])
    new = table(school=zips).iloc[[0, 10, 20]]
    new.to_parquet(file) if file.endswith("parquet") else new.to_csv(file, index=False)
    ran = coterie("predict", "model", file)
    assert [line.split(",")[0] for line in ran.out.splitlines()] == ["school", "01002", "1002", "00501"]
    assert "3 by client" in ran.err
    unpadded = table(school="1002").iloc[:3]
    unpadded.to_csv(file, index=False) if "csv" in file else unpadded.to_parquet(file)
    assert "3 by client" in coterie("predict", "model", file).err


def test_control_characters_of_labels_do_not_reach_the_terminal():
    schools = np.repeat(["\x1b[31mred", "b", "c", "d", "e", "f"], 10)
    df = table(school=schools, sector=np.repeat(["\x1b[2Ju", "\x07v"], 30))
    ran, _ = fit(df, "--cluster", "sector")
    assert "\x1b" not in ran.out
    torn = df.assign(sector=["u", "v"] * 30)
    torn.to_csv("table.csv", index=False)
    ran = coterie("fit", "table.csv", "--formula", "score ~ hours", "--client", "school", "--cluster", "sector")
    assert ran.code == 2
    assert "\x1b" not in ran.err


FORMATS = {
    "a.csv.gz": lambda df: Path("a.csv.gz").write_bytes(gzip.compress(df.to_csv(index=False).encode())),
    "a.parquet": lambda df: df.to_parquet("a.parquet"),
    "a.feather": lambda df: df.to_feather("a.feather"),
    "a.npz": lambda df: np.savez("a.npz", **{c: np.array(list(df[c])) for c in df}),
    "bom.csv": lambda df: df.to_csv("bom.csv", index=False, encoding="utf-8-sig"),
    "index.csv": lambda df: df.to_csv("index.csv"),
    "crlf.csv": lambda df: df.to_csv("crlf.csv", index=False, lineterminator="\r\n"),
    "UPPER.CSV": lambda df: df.to_csv("UPPER.CSV", index=False),
    "quoted.csv": lambda df: df.to_csv("quoted.csv", index=False, quoting=1),
    "spaced name.csv": lambda df: df.to_csv("spaced name.csv", index=False),
}


@pytest.fixture(scope="module")
def once():
    """What is computed for the first of several tests."""
    return {}


@pytest.mark.parametrize("file", FORMATS)
def test_every_file_format_gives_the_same_model(file, once):
    expected = once.get("result") or fit(table(), "--splits", "1")[1]
    once["result"] = expected
    FORMATS[file](table())
    _, result = fit(None, "--splits", "1", file=file)
    np.testing.assert_array_equal(result.client_coefficients, expected.client_coefficients)
    assert list(result.client_coefficients.index) == list(expected.client_coefficients.index)


def test_columns_that_are_not_used_may_hold_anything():
    df = table(odd=[None, "x", 3, np.inf] * 15, empty=[None] * N)
    assert finite(fit(df)[1])


def test_order_by_ties():
    ran, one = fit(table(day=np.arange(N) % 2), "--order-by", "day")
    assert "on the latest rows with 25% of each client's rows held out" in ran.out
    days = pd.date_range("2020-01-01", periods=10).astype(str).to_list()
    _, two = fit(table(day=days * 6), "--order-by", "day")
    assert one.client_gains["test_rows"].between(2, 3).all()
    assert two.client_gains["test_rows"].between(2, 3).all()
    ran, _ = fit(table(day=np.arange(N) < 10), "--order-by", "day")
    assert "the same 'day': those held out" in ran.out
    assert "All rows of" not in fit(table(day=np.arange(N)), "--order-by", "day")[0].out


def test_rows_left_out_on_request_are_counted():
    df = table(**changed("hours", [1, 2, 3], None), **changed("school", [60], None))
    ran, result = fit(df, "--missing", "drop")
    assert "Note: 4 of 60 rows were left out" in ran.out
    assert result.client_gains["rows"].sum() == 56


def test_a_category():
    _, result = fit(table(), formula="score ~ hours + level")
    assert finite(result)
    assert "level[T.lo]" in result.client_coefficients.columns


def test_rows_of_weight_zero_are_as_good_as_not_there():
    w = np.arange(N) % 4
    df = table(w=w)
    ran, one = fit(df, "--weights", "w", "--method", "hierarchical")
    _, two = fit(df[w > 0], "--weights", "w", "--method", "hierarchical")
    assert "15 of 60 rows were left out: their weight ('w') is 0." in ran.out
    np.testing.assert_allclose(one.client_coefficients, two.client_coefficients, rtol=1e-9)
    np.testing.assert_allclose(one.comparison["loss_rows"], two.comparison["loss_rows"], rtol=1e-9)
    ran, result = fit(table(w=(np.arange(N) % 10 == 0) * 2), "--weights", "w")  # one row of each school
    assert "Every client (school) has one row" in ran.out
    assert result.method == "pooled"


def test_counts_and_offsets():
    df = table(exposure=np.log(np.arange(N) % 5 + 1.0))
    ran, result = fit(df, "--family", "poisson", "--offset", "exposure", formula="visits ~ hours")
    assert "Poisson deviance" in ran.out
    assert finite(result)


def test_residual_variances_by_client():
    ran, result = fit(table(), "--residual", "by-client", "--method", "hierarchical", "--splits", "0")
    assert len(result.client_residual_sd) == 6
    assert "No methods were compared." in ran.out
    assert "Fitted: hierarchical." in ran.out


def test_a_model_is_replaced_and_other_files_stay(folder):
    fit(table())
    Path("model/notes.txt").write_text("mine")
    old = files(folder / "model")
    _, result = fit(table(), "--method", "pooled")
    assert result.method == "pooled"
    assert Path("model/notes.txt").read_text() == "mine"
    assert len(files(folder / "model")) == len(old)


def test_a_report_that_fails_leaves_the_old_model(folder, monkeypatch):
    fit(table(), "--method", "local")
    before = {name: (folder / "model" / name).read_bytes() for name in files(folder / "model")}

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coterie.report.fit_page.write_report", full)
    arguments = ["table.csv", "--formula", "score ~ hours", "--client", "school", "--method", "pooled"]
    ran = coterie("fit", *arguments, "--out", "model")
    assert "No space left on device" in ran.message
    assert {name: (folder / "model" / name).read_bytes() for name in files(folder / "model")} == before
    ran = coterie("fit", *arguments, "--out", "fresh")
    assert ran.code == 2
    assert {name.split(os.sep)[0] for name in files(folder)} == {"table.csv", "model"}
