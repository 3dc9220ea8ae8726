"""Files of a federation as editors write them."""

import pytest

from coterie import files
from coterie.deployment.site.site_toml import Member


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_mark_that_windows_puts_first_does_not_matter(encoding, tmp_path):
    (tmp_path / "site.toml").write_text("name = 'basel'\n", encoding=encoding)
    assert Member.read(tmp_path).name == "basel"
    assert files.read_toml(tmp_path / "site.toml", "a site") == {"name": "basel"}
