"""Files: round trips through every format, and one sentence for every broken one."""

import gzip

import numpy as np
import pandas as pd
import polars as pl
import pytest

import coterie
from coterie.data.formula import parse
from coterie.data.table import Table
from coterie.data.table_files import read_table, write_table
from coterie.errors import CoterieError
from tests.messages import names


def frame():
    return pd.DataFrame(
        {
            "school": ["Åre", "b c", "b c", "東京"],
            "n": [1, 2, 3, 4],
            "x": [0.1, -2.5, np.nan, 1e-300],
            "ok": [True, False, True, True],
            "größe, in m": [1.0, 2.0, 3.0, 4.5],
        }
    )


@pytest.fixture
def df():
    return frame()


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".feather", ".CSV"])
def test_round_trip(df, tmp_path, suffix):
    path = tmp_path / f"a b{suffix}"
    write_table(df, path)
    back = read_table(path)
    pd.testing.assert_frame_equal(back, df)
    assert Table.of(back).fingerprint() == Table.of(df).fingerprint()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_written_files_are_the_same_every_time(df, tmp_path):
    write_table(df, tmp_path / "a.csv.gz")
    write_table(pl.from_pandas(df), tmp_path / "b.csv.gz")
    first, second = ((tmp_path / f"{n}.csv.gz").read_bytes() for n in "ab")
    assert gzip.decompress(first) == gzip.decompress(second)


def test_npz_columns(tmp_path):
    X = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "a.npz", X=X, y=np.array([1, 0, 1]), client=np.array(["a", "b", "b"]))
    back = read_table(tmp_path / "a.npz")
    assert list(back.columns) == ["X_0", "X_1", "y", "client"]
    assert back["X_1"].tolist() == [1.0, 3.0, 5.0]
    np.savez(tmp_path / "b.npz", X=X, columns=np.array(["age", "size"]), y=np.arange(3))
    assert list(read_table(tmp_path / "b.npz").columns) == ["age", "size", "y"]


def make(tmp_path, kind):
    """A broken file of each kind."""
    df = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    path = tmp_path / kind
    if kind.startswith("broken"):
        good = tmp_path / f"good{kind.removeprefix('broken')}"
        np.savez(good, a=np.arange(99)) if kind.endswith("npz") else write_table(df, good)
        path.write_bytes(good.read_bytes()[:-20])
    elif kind == "noise.npz":
        path.write_bytes(b"this is not a zip file")
    elif kind == "objects.npz":
        np.savez(path, a=np.array([{"x": 1}], dtype=object), allow_pickle=True)
    elif kind == "lengths.npz":
        np.savez(path, a=np.arange(3), b=np.arange(4))
    elif kind == "cube.npz":
        np.savez(path, a=np.zeros((2, 2, 2)))
    elif kind == "twice.npz":
        np.savez(path, X=np.zeros((2, 1)), X_0=np.zeros(2))
    elif kind == "twice.csv":
        path.write_text("a,b,a\n1,2,3\n")
    elif kind == "empty.csv":
        path.write_text("")
    elif kind == "header.csv":
        path.write_text("a,b\n")
    elif kind == "semicolons.csv":
        path.write_text("a;b\n1;2\n")
    elif kind == "latin.csv":
        path.write_bytes("a,b\nÅre,1\n".encode("latin-1"))
    elif kind == "ragged.csv":
        path.write_text("a,b\n1,2\n1,2,3,4\n")
    elif kind == "longer.csv":
        path.write_text("a,b\n1,2,3\n4,5,6\n")
    elif kind == "parquet.csv":
        df.to_parquet(path)
    elif kind == "table.xlsx":
        path.write_bytes(b"PK")
    elif kind == "rows.parquet":
        df.iloc[:0].to_parquet(path)
    elif kind == "folder.csv":
        path.mkdir()
    return path


BROKEN = {
    "absent.csv": "There is no file",
    "broken.parquet": "damaged or not what its extension says",
    "broken.feather": "damaged or not what its extension says",
    "broken.csv.gz": "damaged or not what its extension says",
    "broken.npz": "damaged or not what its extension says",
    "noise.npz": "damaged or not what its extension says",
    "objects.npz": "damaged or not what its extension says",
    "longer.csv": "rows of .* have 3 values, its first line only 2 names",
    "parquet.csv": "is a Parquet file by its content",
    "ragged.csv": "damaged or not what its extension says",
    "lengths.npz": r"do not have the same length \(a: 3, b: 4\)",
    "cube.npz": "'a' in .* has 3 dimensions",
    "twice.npz": "more than one column named 'X_0'",
    "twice.csv": "more than one column named 'a'",
    "empty.csv": "has no rows",
    "header.csv": "has no rows",
    "rows.parquet": "has no rows",
    "semicolons.csv": "has semicolons between its columns, not commas",
    "latin.csv": "is not UTF-8",
    "folder.csv": "is a folder",
    "absent": "There is no file",
    "table.xlsx": r"none of the extensions \.csv, \.csv\.gz, \.parquet.*pandas\.read_excel",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files(tmp_path, kind):
    with pytest.raises(CoterieError, match=BROKEN[kind]) as caught:
        read_table(make(tmp_path, kind))
    assert "\n" not in str(caught.value)


def test_a_missing_file_names_its_neighbour(tmp_path):
    write_table(pd.DataFrame({"a": [1]}), tmp_path / "schools.csv")
    with pytest.raises(CoterieError, match=r"Did you mean 'schools\.csv'\?"):
        read_table(tmp_path / "school.csv")


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    with pytest.raises(CoterieError, match="extensions"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "a.npz")
    with pytest.raises(CoterieError, match="no folder"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "none" / "a.csv")
    with pytest.raises(CoterieError, match="cannot be written"):
        write_table(pd.DataFrame({"a": [1, {"b": 2}, "c"]}), tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


def test_other_files_under_the_names_of_tables_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "a.npz").write_text("x\n1\n")
    with pytest.raises(CoterieError, match="no NPZ file"):
        read_table(tmp_path / "a.npz")
    (tmp_path / "a.csv").write_bytes("name,x\nash,1\n".encode("utf-16-le"))
    with pytest.raises(CoterieError, match="UTF-16"):
        read_table(tmp_path / "a.csv")


def test_a_dot_leaves_out_the_row_numbers_of_a_csv(tmp_path):
    pd.DataFrame({"g": [1, 1, 2, 2], "y": [1.0, 2, 3, 5], "x": [0.0, 1, 0, 1]}).to_csv(tmp_path / "a.csv")
    df = read_table(tmp_path / "a.csv")
    assert "Unnamed: 0" in df.columns
    assert parse("y ~ .", df.columns, exclude=["g"]).columns == ("x",)


@pytest.mark.parametrize("column", ["school", "level"])
def test_halves_of_characters_are_no_text(tmp_path, column):
    values = pd.Series(["ash", "oak\udcff", "yew", "ash"], dtype=object)
    df = pd.DataFrame({"school": ["a", "b", "a", "b"], "y": [1.0, 2.0, 3.0, 5.0]}).assign(**{column: values})
    with pytest.raises(CoterieError, match=names(f"'{column}' not Unicode data row 2")):
        coterie.fit(df, "y ~ level" if column == "level" else "y ~ 1", "school", splits=0)
    with pytest.raises(CoterieError, match="cannot be written"):
        write_table(df, tmp_path / "a.csv")
    assert not list(tmp_path.iterdir())


def test_what_a_fit_does_not_use_may_be_anything():
    df = pd.DataFrame({"school": ["a", "b"] * 3, "y": [1.0, 2.0, 3.0, 5.0, 2.0, 4.0]})
    df["other"] = pd.Series(["ash", "oak\udcff", None, 3, [], {}], dtype=object)
    assert coterie.fit(df, "y ~ 1", "school", splits=0).model.labels.tolist() == ["a", "b"]
