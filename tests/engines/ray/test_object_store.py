"""Rows, state, journal and output of actors in an object store: the numbers of a table in this process."""

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie import files
from coterie.data.table_files import write_table
from coterie.engines.ray import Ray
from coterie.errors import CoterieError
from coterie.methods import local
from tests.cli.harness import coterie as command

pytest.importorskip("ray")
pytest.importorskip("moto")


def test_actors_read_and_write_at_a_url(pool):
    from tests.object_store import store

    rng = np.random.default_rng(0)
    df = pd.DataFrame({"id": np.repeat(np.arange(12), 9), "x": rng.normal(size=108)})
    df["y"] = df["x"] + rng.normal(size=12)[df["id"]] + rng.normal(size=108)
    with store() as bare:

        def url(name):
            return bare(name, "key:secret@")  # actors began without the keys in their environment

        for i, part in enumerate((df.iloc[:50], df.iloc[50:])):
            write_table(part, url(f"rows/part-{i}.parquet"))
        with Ray.parquet(url("rows"), "y ~ x", "id", folder=url("state"), journal=url("journal")) as fed:
            fitted = local.fit(fed, fed.problem)
            fed.write(url("coefficients"), fitted)
        assert (files.place(url("state")) / "site-1" / "head").is_file()
        assert list(files.place(url("journal")).glob("entries-0-*"))
        out = pd.concat([coterie.read_table(url(f"coefficients/site-{s}.parquet")) for s in range(2)])
        ran = command("fit", url("rows"), "--formula", "y ~ x", "--client", "id", "--splits", "0", "--engine", "ray")
        assert (ran.code, ran.err) == (0, "") and "secret" not in ran.out
        with pytest.raises(CoterieError, match="There is no folder 's3://bucket/nowhere'"):
            Ray.parquet(url("nowhere"), "y ~ x", "id")
    here = coterie.fit(df, "y ~ x", "id", method="local", splits=0, covariance="diagonal")
    slopes = out.set_index("id").loc[here.model.labels, "x"].to_numpy()
    np.testing.assert_allclose(slopes, here.model.client[:, 1], rtol=1e-6)
