"""A run that a test kills: ``python driver.py CLUSTER FOLDER`` reads FOLDER/rows and goes on where FOLDER stands."""

import sys
from pathlib import Path

import numpy as np

from coterie.engines.ray import Ray
from coterie.methods import hierarchical
from coterie.methods.clustered_l2gd.fit import fit as rounds


def run(home, methods=("exact", "rounds"), **options):
    """Fit the rows of a folder by an exact method and one over rounds; all numbers that come out."""
    found = {}
    with Ray.parquet(home / "rows", "y ~ x + z", "id", "group", reveal=True, **options) as fed:
        if "exact" in methods:
            fitted = hierarchical.fit(fed, fed.problem, "diagonal")
            found |= {"exact": fitted.client, "cov": fitted.client_cov, "likelihood": np.array(fitted.log_likelihood)}
        if "rounds" in methods:
            options = {"steps": 400, "seed": 3}
            found["rounds"] = rounds(fed, fed.problem, gamma=1.0, lam=2.0, rounds=options).client
        found["exchanges"] = np.array(fed.ledger.exchanges)
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[2])

    def say(exchanged):
        sys.stdout.write(f"{exchanged.number}\n")
        sys.stdout.flush()

    found = run(folder, address=sys.argv[1], folder=folder / "state", journal=folder / "journal", watch=say)
    np.savez(folder / "found.part.npz", **found)
    (folder / "found.part.npz").replace(folder / "found.npz")
