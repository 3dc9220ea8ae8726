"""Text that is read as missing: it is named, and there is a way to say that it is a level."""

import io

import numpy as np
import pandas as pd
import pytest

import coterie as package
from tests.cli.harness import coterie

OPTIONS = ["--client", "hosp", "--method", "pooled", "--splits", "0"]
FIT = ["fit", "drug.csv", "--formula", "y ~ drug", *OPTIONS]


@pytest.fixture
def drugs(tmp_path, monkeypatch):
    """An arm called None, whose mean is 0; those of A and B are 1 and 2."""
    monkeypatch.chdir(tmp_path)
    drug = np.tile(["None", "A", "B"], 20)
    noise = np.random.default_rng(0).normal(size=60)
    df = pd.DataFrame({"hosp": np.arange(60) // 10, "drug": drug, "arm": np.where(drug == "A", "Some", "None")})
    df["y"] = (drug == "A") + 2.0 * (drug == "B") + 0.1 * (noise - noise.mean())
    df.to_csv("drug.csv", index=False)
    return df


@pytest.mark.usefixtures("drugs")
def test_the_text_and_its_rows_are_named():
    message = coterie(*FIT).message
    assert "column 'drug' has missing values in 20 rows" in message.casefold()
    assert "where the file says 'None' (20 rows)" in message
    assert "--na-value ''" in message
    note = next(line for line in coterie(*FIT, "--missing", "drop").out.splitlines() if "left out" in line)
    assert "20 of 60 rows" in note
    assert "'None' (20 rows)" in note


def test_a_client_whose_name_was_read_as_missing_is_named_too(drugs):
    with pytest.raises(package.CoterieError, match=r"no label in 20 rows .*says 'None' .*labels=\['drug'\]\)\.$"):
        package.fit(package.read_table("drug.csv"), "y ~ 1", "drug")
    result = package.fit(package.read_table("drug.csv", labels="drug"), "y ~ 1", "drug", method="local", splits=0)
    np.testing.assert_allclose(result.client_coefficients.loc["None"], drugs.y[::3].mean(), atol=1e-12)


@pytest.mark.usefixtures("drugs")
def test_what_is_left_says_what_was_left_out():
    binomial = ["fit", "drug.csv", "--formula", "arm ~ 1", "--family", "binomial", "--missing", "drop", *OPTIONS]
    message = coterie(*binomial).message
    assert "is constant: 'Some'" in message
    assert "'None' (40 rows)" in message


def test_a_model_remembers_what_means_missing(drugs):
    ran = coterie(*FIT, "--na-value", "", "--out", "model")
    assert ran.code == 0, ran.err
    assert "left out" not in ran.out
    result = package.load("model")
    assert result.design.levels == {"drug": ("A", "B", "None")}
    means = drugs.groupby("drug").y.mean()
    estimate = result.global_coefficients.set_index("term").estimate
    assert estimate["drug[T.None]"] == pytest.approx(means["None"] - means["A"], rel=1e-10)
    new = pd.DataFrame({"hosp": [1, 2], "drug": ["None", "A"]})
    new.to_csv("new.csv", index=False)
    frame = pd.read_csv(io.StringIO(coterie("predict", "model", "new.csv").out))
    np.testing.assert_allclose(frame.prediction, means[["None", "A"]], rtol=1e-10)
    assert "the file says 'None' (1 row)" in coterie("predict", "model", "new.csv", "--na-value", "None").message
    ran = coterie("predict", "model", "new.csv", "--na-value", "None", "--missing", "empty")
    assert "In 'drug' the file says 'None' (1 row), which was read as missing." in ran.err


@pytest.mark.usefixtures("drugs")
@pytest.mark.parametrize("command", [["compare"], ["advise"]])
def test_compare_and_advise_read_tables_alike(command):
    arguments = [*command, "drug.csv", "--formula", "y ~ drug", "--client", "hosp", "--splits", "1"]
    assert "'None' (20 rows)" in coterie(*arguments).message
    assert coterie(*arguments, "--na-value", "").code == 0
