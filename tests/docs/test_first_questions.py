"""The page of a biostatistician's questions runs over sites in this process, with the digits of one table."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import coterie
from coterie.deployment import folders
from coterie.deployment.coordinator import run
from coterie.deployment.schema import propose
from coterie.deployment.site.site_toml import Member
from tests.cli.test_federation import Engine
from tests.deployment.hospitals import folders as federation
from tests.deployment.hospitals import heart, transport
from tests.docs.test_snippets import ROOT, blocks, commands, run_command, run_python

PAGE = ROOT / "docs" / "first_questions.md"
COLUMNS = ["age", "sex", "cp", "thalach", "disease", "year", "days", "died"]
FEW = ("hungary", "switzerland")  # where too few rows lack a value for a sum without them
LATER = {**{f"thalach{k}": 100.0 for k in (1, 2, 3)}, "logodds": 0.1, "logyears": 0.1}


def patients() -> pd.DataFrame:
    """The hospitals' rows, Switzerland's without a level, of two years, with a follow-up of exponential times."""
    table = heart()
    table = table[(table["hospital"] != "switzerland") | (table["cp"] != "typical angina")].reset_index(drop=True)
    rng = np.random.default_rng(3)
    rate = 0.1 * np.exp(0.04 * (table["age"] - 54) + 0.5 * (table["sex"] == "Male"))
    life, left = rng.exponential(1 / rate), rng.uniform(0.5, 5.0, len(table))
    days = np.ceil(365.25 * np.minimum(life, left))
    return table.assign(year=rng.integers(1, 3, len(table)), days=days, died=(life < left).astype(int))


class Recorded(Engine):
    """Sites in this process, and what their tables were in each run."""

    def __init__(self):
        super().__init__()
        self.tables = {}

    def run(self, folder, run_id, timeout):
        homes = sorted((folder.parent / "sites").iterdir())
        frames = [pd.read_csv(home / "table.csv").assign(site=home.name) for home in homes]
        self.tables[run_id] = pd.concat(frames, ignore_index=True)
        run.run(transport(homes), folder, run_id)


@pytest.fixture
def heart_made(tmp_path, monkeypatch) -> Recorded:
    """The federation that the page speaks of, in the folder where it runs."""
    table = patients()
    coordinator, homes = federation(tmp_path / "heart", table)
    periods = np.resize(["from 0000", "from 0180", "from 0720"], len(table))
    example, _ = propose(table[COLUMNS].assign(**LATER, period=periods))
    (tmp_path / "records").mkdir()
    for home in homes:
        table.loc[table["hospital"] == home.name, COLUMNS].to_csv(tmp_path / f"records/{home.name}.csv", index=False)
        rules = {"min_level": 1, "complete": ["thalach"] if home.name in FEW else []}
        Member(home.name, "table.csv", 15, disclosure=rules).write(home)
    for home in (coordinator, *homes):
        example.write(home / "schema.toml")
    engine = Recorded()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda file: None)  # no process dies here
    monkeypatch.setattr(folders, "engine", lambda name: engine)
    return engine


def test_the_page_runs_with_the_digits_of_one_table(heart_made, capsys):
    names = {"__name__": "__main__"}
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.language == "python":
            run_python(PAGE, block, names)
        for arguments in commands(block):
            run_command(PAGE, block, arguments, capsys)
    asked, runs = {}, Path("heart/coordinator/runs")
    for name, table in heart_made.tables.items():
        asked[name] = program = tomllib.loads((runs / name / "run.toml").read_text())
        task = {key: value for key, value in program["task"].items() if key != "formula"}
        table = table[~(table["site"].isin(FEW) & table["thalach"].isna())]
        here = coterie.fit(table, program["task"]["formula"], client="site", method="hierarchical", splits=0,
                           **task, **program["options"])  # fmt: skip
        there = coterie.load(runs / name / "result")
        np.testing.assert_allclose(there.theta, here.theta, rtol=1e-8, atol=1e-9, err_msg=name)
        errors = here.global_coefficients["std_error"]
        np.testing.assert_allclose(there.global_coefficients["std_error"], errors, rtol=1e-6, err_msg=name)
    assert len(asked) == 9
    said(names)
    survival(heart_made.tables["survival"], asked["survival"]["task"])


def said(names):
    """What the page says of its own results."""
    level, term = names["level"], names["term"]
    assert level.client_std_errors[term].idxmax() == "switzerland"
    assert np.isnan(names["fill"].predict(names["records"]["va"].assign(site="va"))["prediction"]).sum() == 0
    assert names["records"]["va"]["thalach"].isna().sum() == 53 and not names["records"]["va"]["thalach1"].isna().any()
    of_one = names["fits"][0].global_coefficients["std_error"].to_numpy()
    assert np.all(names["filled"]["std_error"] > 0.9 * of_one) and names["filled"].loc["thalach", "estimate"] < 0


def survival(rows, task):
    """One model of all split rows has the greatest likelihood of hazards constant in periods, from unsplit rows."""
    found = coterie.fit(
        rows, task["formula"], client="site", family="poisson", offset="logyears", method="pooled", splits=0
    )
    people = patients()
    x = np.column_stack([people["age"], people["sex"] == "Male"])
    ends, died = np.array([0.0, 180.0, 720.0, np.inf]), people["died"].to_numpy()
    years = np.clip(people["days"].to_numpy()[:, None] - ends[:-1], 0.0, np.diff(ends)) / 365.25
    last = np.searchsorted(ends[1:], people["days"])

    def minus(theta):
        hazard = theta[:3] * [0, 1, 1] + theta[0]
        along = x @ theta[3:]
        return np.exp(along) @ years @ np.exp(hazard) - died @ (hazard[last] + along)

    best = minimize(minus, [-2.0, 0.0, 0.0, 0.0, 0.0], method="BFGS", options={"gtol": 1e-4})
    np.testing.assert_allclose(found.theta[0], best.x, atol=2e-4)
    assert rows["died"].sum() == died.sum()
