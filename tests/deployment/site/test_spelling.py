"""Labels that look alike at a site are one client, the same as at other sites; what is said of them names none."""

import unicodedata

import numpy as np
import pytest

from coterie.data.labels import label_ids
from coterie.deployment.site.prepared_data import prepare
from coterie.deployment.site.site_toml import Member
from coterie.deployment.site.table import LEFT_OUT, PROBLEM
from tests.deployment import sites

WAYS = ["Malmö", "Malmö ", unicodedata.normalize("NFD", "Malmö"), "Lund"]


@pytest.mark.parametrize("column", ["ward", "kind"])
def test_labels_and_levels_are_joined_where_a_site_reads_its_table(column, tmp_path):
    frame = sites.table(0)
    clean, dirty = (
        frame.assign(**{column: [way[i % 4] for i in range(40)]}) for way in (["Malmö"] * 3 + ["Lund"], WAYS)
    )
    task = {"kind": "table", "formula": "score ~ age + kind", "client": "ward"}
    held = []
    for name, table in (("clean", clean), ("dirty", dirty)):
        sites.build(tmp_path / name, {"basel": table}, labels=["ward"])
        home = sites.home(tmp_path / name, "basel")
        held.append(prepare(home, Member.read(home), task))
    good, joined = held
    assert joined.labels.tolist() == good.labels.tolist()
    assert joined.ids.tolist() == good.ids.tolist() == label_ids(good.labels).tolist()
    np.testing.assert_array_equal(*(h.objective.gram(np.ones(3), 0.0)[0] for h in held))
    assert good.notes == joined.notes == (LEFT_OUT,)
    assert not (sites.home(tmp_path / "clean", "basel") / PROBLEM).exists()
    told = (sites.home(tmp_path / "dirty", "basel") / PROBLEM).read_text()
    assert f"of '{column}' is written in several ways" in told or f"Labels of '{column}' are" in told
