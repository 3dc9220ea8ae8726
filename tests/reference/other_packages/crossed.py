"""``python crossed.py penicillin.csv insteval.csv FOLDER``: coterie where groupings cross, as crossed.json in FOLDER.

The tables are lme4's. A quarter of the rows is held out, ten times (InstEval: three); which rows, crossed.R reads.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import coterie


def fit(table, formula, client, **options):
    return coterie.fit(table, formula, client, method="hierarchical", splits=0, **options)


def alone(train, test, formula, client, shared=()):
    found = fit(train, formula, client, shared=list(shared))
    return found, found, found.predict(test)["prediction"]


def in_turns(train, test, formula, first, second, shared=(), rounds=10):
    """What one grouping explains is the offset of the other's fit; predictions are of the second's last fit."""
    train, test = train.assign(rest=0.0), test.assign(rest=0.0)
    before = np.inf
    for _ in range(rounds):
        one = fit(train, formula, first, shared=list(shared), offset="rest")
        for rows in (train, test):
            rows["rest"] = one.predict(rows)["prediction"] - rows["rest"]
        two = fit(train, f"{formula.partition('~')[0]}~ 1", second, offset="rest")
        whole = [two.predict(rows)["prediction"] for rows in (train, test)]
        for rows, prediction in zip((train, test), whole, strict=True):
            rows["rest"] = prediction - rows["rest"]
        if np.abs(whole[0] - before).max() < 1e-3:
            break
        before = whole[0]
    return one, two, whole[1]


def measure(table, how, held):
    outcome = how[1][0].split()[0]
    one, two, _ = how[0](table, table, *how[1], **how[2])
    errors = []
    for out in held:
        prediction = how[0](table[~out], table[out], *how[1], **how[2])[2]
        errors.append(float(np.sqrt(np.mean((table[out][outcome] - prediction) ** 2))))
    found = one.global_coefficients
    return {
        "rmse": float(np.mean(errors)),
        "std_errors": dict(zip(found["term"], map(float, found["std_error"]), strict=True)),
        "variances": [list(map(float, f.variance_components["cov"])) for f in (one, two)],
    }


PENICILLIN = {
    "plates, sample ignored": (alone, ("diameter ~ 1", "plate"), {}),
    "samples, plate ignored": (alone, ("diameter ~ 1", "sample"), {}),
    "plates, sample a factor": (alone, ("diameter ~ C(sample)", "plate"), {"shared": ["C(sample)"]}),
    "samples, plate a factor": (alone, ("diameter ~ C(plate)", "sample"), {"shared": ["C(plate)"]}),
    "plates, then samples": (in_turns, ("diameter ~ 1", "plate", "sample"), {}),
    "samples, then plates": (in_turns, ("diameter ~ 1", "sample", "plate"), {}),
}
INSTEVAL = {
    "lecturers, student ignored": (alone, ("y ~ service", "d"), {"shared": ["service"]}),
    "students, lecturer ignored": (alone, ("y ~ service", "s"), {"shared": ["service"]}),
    "lecturers, then students": (in_turns, ("y ~ service", "d", "s"), {"shared": ["service"]}),
}


def main(penicillin, insteval, folder):
    found = {}
    for name, path, hows, splits in (("penicillin", penicillin, PENICILLIN, 10), ("insteval", insteval, INSTEVAL, 3)):
        table = pd.read_csv(path)
        table = table.astype({column: str for column in ("s", "d", "service") if column in table})
        held = [np.random.default_rng([1, k]).random(len(table)) < 0.25 for k in range(splits)]
        pd.DataFrame({f"split{k}": out.astype(int) for k, out in enumerate(held)}).to_csv(
            Path(folder) / f"{name}_splits.csv", index=False
        )
        found[name] = {label: measure(table, how, held) for label, how in hows.items()}
    (Path(folder) / "crossed.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
