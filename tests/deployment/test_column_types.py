"""A type of column is one row of a table: a schema, a site's check and its proposal take a further one as it is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from coterie import options
from coterie.deployment import column_types
from coterie.deployment.column_types import TYPES, ColumnType, SchemaColumn
from coterie.deployment.schema import Schema, disagreements, propose, unite
from coterie.deployment.site.table import validate_rows
from coterie.errors import CoterieError


@pytest.fixture
def flag(monkeypatch):
    """A column of yes and no, whose check says where there is something else."""

    def check(name, column, series, least, found):
        found.problems += [f"'{name}' is no flag"] * (not series.isin(["no"]).all())
        return column

    row = ColumnType(
        "flag",
        "flags",
        lambda name, series, before, least: (
            before or SchemaColumn("flag", levels=("no", "yes")),
            [f"'{name}' is a flag"],
        ),
        check,
        lambda series: np.asarray(series.notna()),
        needs_levels=True,
    )
    monkeypatch.setitem(column_types.TYPES, "flag", row)
    options._adapter.cache_clear()  # which types there are
    yield row
    options._adapter.cache_clear()


def test_a_further_type_is_one_row(flag, tmp_path):
    schema = Schema({"ill": SchemaColumn("flag", levels=("no", "yes")), "x": SchemaColumn("number")})
    schema.write(tmp_path / "schema.toml")
    assert Schema.read(tmp_path / "schema.toml") == schema and schema.labels == []
    rows = pd.DataFrame({"ill": ["no", "maybe"], "x": [1.0, 2.0]})
    assert validate_rows(rows, schema, 1)[1].problems == ["'ill' is no flag"]
    assert propose(rows, known=schema)[1] == ["'ill' is a flag"]
    assert disagreements(schema, Schema({"ill": SchemaColumn("number"), "x": SchemaColumn("number")})) == [
        "'ill' is a number and not a flag"
    ]
    assert unite({"basel": schema})[0] == schema
    assert schema.design("x ~ ill").terms == ("(Intercept)", "ill[T.yes]")


def test_a_type_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(CoterieError, match=f"type .*{', '.join(list(TYPES)[:-1])}"):
        SchemaColumn("flag")
