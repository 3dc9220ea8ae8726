"""The files that people write: what is read back, and one sentence for everything that is wrong."""

from __future__ import annotations

import pytest

from coterie import files
from coterie.deployment import toml_files
from coterie.deployment.federation_toml import FEDERATION, Config, named_in
from coterie.deployment.site.site_toml import Member
from coterie.errors import CoterieError

CONFIG = {"name": "heart", "engine": "nvflare", "sites": ("bern", "basel")}


def test_a_configuration_is_read_as_it_was_written(tmp_path):
    config = Config(**CONFIG, host="fed.example.org", port=9000, seed=3, policy={"deadline": 60.0, "strict": False})
    config.write(tmp_path)
    assert Config.read(tmp_path) == config
    assert Config.read(tmp_path / "federation.toml").sites == ("basel", "bern")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sites": ("bern", "bern")}, "Two sites are called 'bern'"),
        ({"sites": ("Bern", "bern")}, "Two sites are called 'Bern'"),
        ({"sites": ()}, "name one at least"),
        ({"sites": ("a b",)}, "A site's name is letters"),
        ({"sites": ("../up",)}, "A site's name is letters"),
        ({"sites": ("server",)}, "choose another name"),
        ({"engine": "smoke"}, "engine .*must be flower or nvflare, not 'smoke'"),
        ({"port": 70000}, "port .*from 1 to 65,535"),
        ({"port": True}, "port .*from 1 to 65,535"),
        ({"seed": -1}, "from 0"),
        ({"host": "a b"}, "is no host"),
        ({"policy": 3}, "must be a table"),
    ],
    ids=str,
)
def test_a_wrong_configuration_is_said_in_one_sentence(change, sentence, tmp_path):
    with pytest.raises(CoterieError, match=sentence):
        Config(**CONFIG | change)
    toml_files.write(tmp_path / "federation.toml", CONFIG | change)
    with pytest.raises(CoterieError, match=r"federation.toml'"):
        Config.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = 'heart'\nengine = 'flower'\n", "federation.toml': A federation needs its sites"),
        ("name = heart", "is not TOML"),
        ("nam = 'heart'", "no key 'nam'. Did you mean 'name'"),
    ],
)
def test_a_file_that_cannot_be_meant(text, sentence, tmp_path):
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises(CoterieError, match=sentence):
        Config.read(tmp_path)


def test_a_folder_or_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(CoterieError, match=r"There is no folder .*nowhere"):
        Config.read(tmp_path / "nowhere")
    with pytest.raises(CoterieError, match=r"There is no file .*federation.toml"):
        Config.read(tmp_path)


def test_a_site_is_one_of_the_list():
    with pytest.raises(CoterieError, match=r"There is no site 'basle' in federation 'heart'. Did you mean 'basel'"):
        Config(**CONFIG).need_site("basle")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"name": "basel", "min_group": 0}, "min_group .*must be a whole number from 1"),
        ({"name": "basel", "allow": ["os; rm"]}, "allow .*must be a list of 'module'"),
        ({"data": "data.csv"}, "does not say name"),
        ({"name": "basel", "data": 3}, "data .*path of a table"),
    ],
    ids=str,
)
def test_a_wrong_site_is_said_in_one_sentence(keys, sentence, tmp_path):
    toml_files.write(tmp_path / "site.toml", keys)
    with pytest.raises(CoterieError, match=sentence):
        Member.read(tmp_path)


def test_what_a_site_says_is_read_as_it_was_written(tmp_path):
    member = Member("basel", 'rows/of "may".csv', 7, ("models:make", "models"))
    member.write(tmp_path)
    assert Member.read(tmp_path) == member


def test_any_tables_are_written_as_toml(tmp_path):
    value = {"a": 1, "b": [1.5, float("inf"), -2], "c": {"x y": 'line\nand "quotes" \\ \x7f é', "d": {"e": []}}}
    toml_files.write(tmp_path / "x.toml", value, "two\nlines")
    assert files.read_toml(tmp_path / "x.toml", "a file") == value


def test_a_configuration_names_a_federation_by_its_source_alone(tmp_path):
    (tmp_path / FEDERATION).write_text("")
    assert named_in({"data": {"source": "."}}, tmp_path) == tmp_path
    for data in ({}, {"data": {}}, {"data": {"source": ""}}, {"data": {"source": 5}}, {"data": 5}):
        assert named_in(data, tmp_path) is None  # though it lies in the folder of one
