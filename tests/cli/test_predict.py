"""`coterie predict`: which model answers which row, and what is refused."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as package
from tests.cli.harness import changed, coterie, files, table, with_model


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A table of six schools in two sectors, and a model of it, made once."""
    options = ["--client", "school", "--cluster", "sector", "--method", "hierarchical", "--splits", "0"]
    return with_model(tmp_path_factory.mktemp("fitted"), "score ~ hours + level", *options)


@pytest.fixture
def model(fitted, tmp_path, monkeypatch):
    """The folder of a model, from where the command runs."""
    monkeypatch.chdir(shutil.copytree(fitted, tmp_path, dirs_exist_ok=True))
    return tmp_path / "model"


def new(**columns):
    """Four rows: a known school, a new one in a known sector, a new one in a new sector, one without labels."""
    data = {
        "school": ["ash", "yew", "rowan", None],
        "sector": ["town", "land", "moon", None],
        "hours": [0.5, 0.5, 0.5, 0.5],
        "level": ["lo", "lo", "hi", "mid"],
    }
    return pd.DataFrame({k: v for k, v in (data | columns).items() if v is not None})


def predicted(df, *arguments):
    df.to_csv("new.csv", index=False)
    ran = coterie("predict", "model", "new.csv", *arguments)
    assert ran.code == 0, ran.err
    return ran, pd.read_csv(io.StringIO(ran.out))


@pytest.mark.usefixtures("model")
def test_each_row_is_answered_by_the_finest_model_that_knows_it():
    ran, frame = predicted(new())
    assert list(frame.columns) == ["school", "prediction", "source"]
    assert list(frame["source"]) == ["client", "cluster", "global", "global"]
    assert ran.err == f"Predicted 4 rows: 1 by client, 1 by cluster, 2 by global.\n{UNLABELLED}\n"
    result = package.load("model")
    np.testing.assert_allclose(frame["prediction"], result.predict(new())["prediction"], rtol=1e-12)
    by_cluster = result.cluster_coefficients.loc["land"]
    expected = by_cluster["(Intercept)"] + 0.5 * by_cluster["hours"] + by_cluster["level[T.lo]"]
    assert frame["prediction"][1] == pytest.approx(expected, rel=1e-12)


@pytest.mark.usefixtures("model")
def test_a_table_without_clusters_and_outcome_will_do():
    _, frame = predicted(new(sector=None))
    assert list(frame["source"]) == ["client", "global", "global", "global"]


@pytest.mark.usefixtures("model")
def test_a_client_in_another_cluster_is_answered_by_itself_and_said():
    ran, frame = predicted(new(sector=["land"] * 4))
    assert frame["source"][0] == "client"
    assert "Note: 1 row is of a school that was in another cluster" in ran.err


@pytest.mark.usefixtures("model")
def test_intervals():
    _, frame = predicted(new(level=["lo"] * 4), "--interval", "0.9")
    assert list(frame.columns) == ["school", "prediction", "source", "lower", "upper"]
    width = frame["upper"] - frame["lower"]
    assert (width > 0).all()
    assert width[0] < width[1] < width[2]


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_an_interval_of_a_mean_is_said_to_be_one(tmp_path, monkeypatch, family):
    monkeypatch.chdir(tmp_path)
    table().to_csv("table.csv", index=False)
    formula = {"binomial": "passed ~ hours", "poisson": "visits ~ hours"}[family]
    options = ["--client", "school", "--family", family, "--splits", "0", "--out", "model"]
    assert coterie("fit", "table.csv", "--formula", formula, *options).code == 0
    said = "Note: The intervals are for the mean, not for a new outcome.\n"
    assert predicted(new(), "--interval", "0.9")[0].err.endswith(said)
    assert said not in predicted(new())[0].err


UNLABELLED = "Note: 1 row has no label in 'school', and is answered like clients never seen."


@pytest.mark.parametrize("out", ["out.csv", "out.csv.gz", "out.parquet", "out.feather"])
def test_into_a_file(model, out):
    new().to_csv("new.csv", index=False)
    ran = coterie("predict", "model", "new.csv", "--out", out)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "Read 4 rows of 3 schools in 3 sectors from new.csv.",
        "Predicted 4 rows: 1 by client, 1 by cluster, 2 by global.",
        UNLABELLED,
        f"Written to {out}.",
    ]
    frame = package.read_table(out)
    assert list(frame["source"]) == ["client", "cluster", "global", "global"]
    assert files(model.parent) >= {out, "new.csv", "table.csv"}


def test_model_json_will_do_as_the_model(model):
    new().to_csv("new.csv", index=False)
    assert coterie("predict", model / "model.json", "new.csv").out == coterie("predict", model, "new.csv").out


def test_labels_that_look_like_numbers_or_like_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = ["02134", "10001", "00501", "1e3", "1000", "NA"]
    table(school=np.repeat(codes, 10)).to_csv("table.csv", index=False)
    options = ["--client", "school", "--method", "hierarchical", "--splits", "0", "--out", "model"]
    ran = coterie("fit", "table.csv", "--formula", "score ~ hours", *options)
    assert (ran.code, ran.out.split(" from ")[0]) == (0, "Read 60 rows of 6 schools")
    _, frame = predicted(new(school=["02134", "ABC", "NA", None]))
    assert list(frame["source"]) == ["client", "global", "client", "global"]
    _, frame = predicted(new(school=["501", "02134", "10001", "1e3"]))
    assert list(frame["source"]) == ["global", "client", "client", "client"]


def test_a_client_column_named_like_an_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    df = table().rename(columns={"school": "source"})
    df.to_csv("table.csv", index=False)
    options = ["--client", "source", "--splits", "0", "--out", "model"]
    assert coterie("fit", "table.csv", "--formula", "score ~ hours", *options).code == 0
    ran = coterie("predict", "model", "table.csv")
    assert ran.out.startswith("source (client),prediction,source\n")


def test_a_method_without_variances_has_no_interval_for_the_unseen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table().to_csv("table.csv", index=False)
    options = ["--client", "school", "--method", "local", "--splits", "0", "--out", "model"]
    assert coterie("fit", "table.csv", "--formula", "score ~ hours", *options).code == 0
    ran, frame = predicted(new(), "--interval", "0.5")
    assert frame["lower"].notna().tolist() == [True, False, False, False]
    assert "'local' does not say how clients differ, so clients never seen have no interval" in ran.err


BAD = [
    ("no client column", new(school=None), [], ["client column 'school' is not in the table", "never seen"]),
    ("renamed client", new().rename(columns={"school": "School"}), [], ["Did you mean 'School'"]),
    ("no column", new(hours=None), [], ["'hours'", "not in the table"]),
    ("renamed column", new().rename(columns={"hours": "hour"}), [], ["'hours'", "Did you mean 'hour'"]),
    ("missing value", new(hours=[1, None, 2, 3]), [], ["'hours' has missing values in 1 row (data row 2)"]),
    ("infinite value", new(hours=[1, 2, np.inf, 3]), [], ["'hours' has infinite values in 1 row (data row 3)"]),
    ("text", new(hours=[1, 2, 3, "x"]), [], ["'hours' has values that are", "'x'"]),
    ("all text", new(hours=list("abcd")), [], ["'hours'", "numbers"]),
    ("new level", new(level=["lo", "top", "hi", "mid"]), [], ["'level'", "'top'", "row 2"]),
    ("missing level", new(level=["lo", None, "hi", "mid"]), [], ["'level' has missing values in 1 row (data row 2)"]),
    ("interval 0", new(), ["--interval", "0"], ["interval must be a probability between 0 and 1"]),
    ("interval 90", new(), ["--interval", "90"], ["interval must be a probability between 0 and 1", "90"]),
    ("no rows", new().iloc[:0], [], ["'new.csv' has no rows"]),
    ("out", new(), ["--out", "answers.txt"], ["'answers.txt' has none of the extensions .csv"]),
    ("out's folder", new(), ["--out", "no/answers.csv"], ["no folder 'no'"]),
]


@pytest.mark.parametrize(("df", "arguments", "fragments"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_table(model, df, arguments, fragments):
    df.to_csv("new.csv", index=False)
    before = files(model.parent)
    usual = [] if "--out" in arguments else ["--out", "answers.csv"]
    message = coterie("predict", "model", "new.csv", *usual, *arguments).message
    for fragment in fragments:
        assert fragment in message
    assert files(model.parent) == before


@pytest.mark.parametrize(("df", "fragments"), [b[1::2] for b in BAD[4:10]], ids=[b[0] for b in BAD[4:10]])
@pytest.mark.usefixtures("model")
def test_bad_rows_are_left_empty_where_that_is_asked(df, fragments):
    df.to_csv("new.csv", index=False)
    message = coterie("predict", "model", "new.csv").message
    assert message.endswith("or leave their predictions empty: missing='empty' (--missing empty).")
    ran, frame = predicted(df, "--missing", "empty")
    empty = frame["prediction"].isna()
    assert empty.sum() == (4 if fragments == ["'hours'", "numbers"] else 1)
    assert frame["source"].str.startswith("none: ").equals(empty)
    whole = predicted(new())[1]
    np.testing.assert_array_equal(
        frame["prediction"][~empty] == whole["prediction"][~empty], df["hours"][~empty] == 0.5
    )
    assert f"Predicted {4 - empty.sum()} rows" in ran.err and f"Left {empty.sum()} row" in ran.err


@pytest.mark.usefixtures("model")
def test_what_cannot_be_predicted_is_counted_by_its_reason():
    df = new(level=["lo", "top", "hi", None], hours=[None, 0.5, np.inf, 1])
    ran, frame = predicted(df, "--missing", "empty", "--interval", "0.9")
    assert frame["source"].tolist() == [
        "none: missing values in 'hours'",
        "none: a new level of 'level'",
        "none: infinite values in 'hours'",
        "none: missing values in 'level'",
    ]
    assert frame[["prediction", "lower", "upper"]].isna().all(axis=None)
    assert ran.err.splitlines()[0] == "Predicted 0 rows."
    assert (
        "missing must be error or empty, not 'drop'"
        in coterie("predict", "model", "new.csv", "--missing", "drop").message
    )


@pytest.mark.usefixtures("model")
def test_columns_of_the_table_are_kept_beside_the_predictions():
    df = new(pupil=["007", "1e3", "NA", "x"], prediction=[1, 2, 3, 4])
    df.to_csv("new.csv", index=False)

    def lines(*arguments):
        ran = coterie("predict", "model", "new.csv", *arguments)
        assert ran.code == 0, ran.err
        return [line.split(",") for line in ran.out.splitlines()]

    plain = lines()
    kept = lines("--keep", "pupil", "--keep", "prediction", "--keep", "pupil", "--keep", "school")
    assert kept[0] == ["school", "pupil", "prediction (table)", "prediction", "source"]
    assert [row[1:3] for row in kept[1:]] == [["007", "1"], ["1e3", "2"], ["NA", "3"], ["x", "4"]]
    assert [[row[0], *row[3:]] for row in kept[1:]] == plain[1:]
    every = lines("--keep", "all")
    assert every[0] == ["school", "sector", "hours", "level", "pupil", "prediction (table)", "prediction", "source"]
    assert [row[4] for row in every[1:]] == ["007", "1e3", "NA", "x"]
    assert (
        "kept column 'pupl' is not in the table. Did you mean 'pupil'"
        in coterie("predict", "model", "new.csv", "--keep", "pupl").message
    )


@pytest.mark.usefixtures("model")
def test_the_columns_there_are_stand_in_for_a_near_name():
    assert "There are the columns 'a', 'b'." in coterie("predict", "model", odd()).message
    assert "There are the columns 'a', 'b'." in coterie("fit", odd(), "--formula", "a ~ b", "--client", "Skola").message


def odd():
    pd.DataFrame({"a": [1, 2], "b": [3, 5]}).to_csv("odd.csv", index=False)
    return "odd.csv"


def arrays(model):
    return next(model.glob("*.safetensors"))


def rewrite(folder, **changes):
    document = json.loads((folder / "model.json").read_text())
    inside = {name: value for name, value in changes.items() if name in document["result"]}
    document["result"] |= inside
    (folder / "model.json").write_text(json.dumps(document | {k: v for k, v in changes.items() if k not in inside}))


DAMAGE = {
    "no folder": (lambda m: m.rename(m.with_name("gone")), "There is no coterie model in 'model': it does not exist"),
    "no json": (lambda m: (m / "model.json").unlink(), "There is no coterie model in 'model': it has no model.json"),
    "json cut off": (lambda m: (m / "model.json").write_text("{"), "'model' is damaged"),
    "json of others": (lambda m: (m / "model.json").write_text('{"a": 1}'), "is not a coterie model"),
    "json of numbers": (lambda m: (m / "model.json").write_text("[1, 2]"), "is not a coterie model"),
    "no arrays": (lambda m: arrays(m).unlink(), "cannot be read"),
    "arrays cut off": (lambda m: arrays(m).write_bytes(arrays(m).read_bytes()[:-8]), "'model' is damaged"),
    "other arrays": (lambda m: arrays(m).write_bytes(b"PK" * 99), "'model' is damaged"),
    "newer": (lambda m: rewrite(m, schema=99), "in a newer format"),
    "no design": (lambda m: rewrite(m, design={"formula": 3}), "is damaged"),
    "no result": (lambda m: rewrite(m, result=[1]), "'model' is damaged"),
    "no table": (lambda m: rewrite(m, comparison=None), "'model' is damaged"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("command", ["predict", "report"])
def test_a_model_that_is_none(model, command, kind):
    harm, fragment = DAMAGE[kind]
    harm(model)
    before = files(model.parent)
    arguments = ["model", "table.csv"] if command == "predict" else ["model", "--out", "page.html"]
    assert fragment in coterie(command, *arguments).message
    assert files(model.parent) == before


@pytest.mark.usefixtures("model")
def test_a_table_is_no_model():
    assert "There is no coterie model in 'table.csv'" in coterie("predict", "table.csv", "table.csv").message


@pytest.mark.usefixtures("model")
def test_level_and_labels_as_other_types():
    ran, frame = predicted(table(**changed("school", [1], "new school")))
    assert (frame["source"] == "client").sum() == 59
    assert ran.out.count("\n") == 61


def test_an_offset_travels_with_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    df = table(exposure=np.arange(60) % 3)
    df.to_csv("table.csv", index=False)
    options = ["--client", "school", "--family", "poisson", "--offset", "exposure", "--splits", "0", "--out", "model"]
    assert coterie("fit", "table.csv", "--formula", "visits ~ hours", *options).code == 0
    _, one = predicted(df)
    _, two = predicted(df.assign(exposure=df["exposure"] + 1))
    np.testing.assert_allclose(two["prediction"], one["prediction"] * np.e, rtol=1e-9)
    df.drop(columns="exposure").to_csv("new.csv", index=False)
    assert "'exposure' is not in the table" in coterie("predict", "model", "new.csv").message
    assert Path("model").is_dir()
