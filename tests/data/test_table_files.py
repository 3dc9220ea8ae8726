"""Files: round trips through every format, and one sentence for every broken one."""

import gzip

import numpy as np
import pandas as pd
import polars as pl
import pytest

import coterie
from coterie.data.formula import parse
from coterie.data.table import Table, to_pandas
from coterie.data.table_files import read_table, write_table
from coterie.errors import CoterieError
from tests.messages import names


@pytest.fixture
def df():
    return pd.DataFrame(
        {
            "school": ["Åre", "b c", "b c", "東京"],
            "n": [1, 2, 3, 4],
            "x": [0.1, -2.5, np.nan, 1e-300],
            "ok": [True, False, True, True],
            "größe, in m": [1.0, 2.0, 3.0, 4.5],
        }
    )


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


def test_excel_s_byte_order_mark_is_not_part_of_a_name(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufeffname,x\né,1\n".encode())
    assert list(read_table(tmp_path / "a.csv").columns) == ["name", "x"]


LABELS = [
    # cells of a label column, what they are read as
    (["01", "001", "1"], ["01", "001", "1"]),
    (["1e3", "1000", "1000.0"], ["1e3", "1000", "1000.0"]),
    (["00501", "2134", "10001"], ["00501", "2134", "10001"]),
    (["NA", "null", "None", "nan", "N/A", "NaN"], ["NA", "null", "None", "nan", "N/A", "NaN"]),
    (["NA", "", "x"], ["NA", None, "x"]),
    (["nan", "1.5", "inf"], ["nan", "1.5", "inf"]),
    (["7", "-3", "0"], [7, -3, 0]),
    (["7", "", "9007199254740993"], [7, None, 9007199254740993]),
    (["1.0", "", "2.5"], [1.0, None, 2.5]),
    (["1.50", "1.5"], ["1.50", "1.5"]),
    ([" 7", "8 "], [7, 8]),
    (["9" * 25, "1"], ["9" * 25, "1"]),
    (["True", "False"], ["True", "False"]),
]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv", ".tsv.gz"])
@pytest.mark.parametrize(("cells", "values"), LABELS, ids=[" ".join(c)[:30] for c, _ in LABELS])
def test_labels_are_read_as_they_are_written(tmp_path, cells, values, suffix):
    path = tmp_path / f"a{suffix}"
    mark = "\t" if ".tsv" in suffix else ","
    content = "\n".join([f"x{mark}zip", *(f"NA{mark}{c}" for c in cells)]).encode()
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    df = read_table(path, labels=["zip", "absent"])
    assert [None if pd.isna(v) else v for v in df["zip"]] == values
    assert df["x"].isna().all()
    assert read_table(path, labels="zip").equals(df)


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
    "table.xlsx": r"none of the extensions \.csv, \.csv\.gz, \.parquet",
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


def test_to_pandas():
    df = pd.DataFrame({"a": [1]})
    assert to_pandas(df) is df
    assert to_pandas({"a": [1]}).equals(df)
    assert to_pandas(pl.DataFrame({"a": [1]})).equals(df)
    assert to_pandas(pl.LazyFrame({"a": [1]})).equals(df)
    assert list(to_pandas(pd.DataFrame({0: [1]})).columns) == ["0"]
    with pytest.raises(CoterieError, match="not ndarray"):
        to_pandas(np.zeros(3))
    with pytest.raises(CoterieError, match="same length"):
        to_pandas({"a": [1], "b": [1, 2]})


def test_fingerprint_sees_everything(df):
    seen = {Table.of(df).fingerprint()}
    others = [
        df.rename(columns={"n": "m"}),
        df[["n", "school", "x", "ok", "größe, in m"]],
        df.iloc[::-1],
        df.iloc[:3],
        df.astype({"n": float}),
        df.assign(n=[1, 2, 3, 5]),
        df.assign(x=[0.1, -2.5, 0.0, 1e-300]),
        df.assign(school=["Åre", "b c", "b c", "東 京"]),
        df.assign(ok=[True, False, True, False]),
        df.assign(when=pd.to_datetime("2020-01-01")),
        df.assign(when=pd.to_datetime("2020-01-02")),
    ]
    for other in others:
        seen.add(Table.of(other).fingerprint())
    assert len(seen) == 1 + len(others)
    assert all(len(s) == 64 for s in seen)


def test_fingerprint_does_not_see_how_a_table_is_stored(df):
    same = [
        df.copy(),
        df.set_axis([7, 3, 9, 1], axis=0),
        df.astype({"school": object}),
        df.astype({"school": "category"}),
        df.astype({"n": "int32"}),
        df.astype({"n": "Int64"}),
        df.convert_dtypes(dtype_backend="pyarrow"),
        pl.from_pandas(df),
    ]
    assert {Table.of(d).fingerprint() for d in same} == {Table.of(df).fingerprint()}


NONE = "drug,dose,zip\nNone,1,01002\nA,NA,NA\nB,,02003\nNone,2,01002\n"


def test_text_that_is_read_as_missing_is_told_from_empty_cells(tmp_path):
    (tmp_path / "t.csv").write_text(NONE)
    df = read_table(tmp_path / "t.csv")
    assert df.drug.isna().tolist() == [True, False, False, True]
    assert df.attrs["coterie"]["read_as_missing"] == {"drug": {"None": 2}, "dose": {"NA": 1}, "zip": {"NA": 1}}
    assert df.zip.isna().tolist() == [False, True, False, False]  # not a level although leading zeros make it text
    assert df.zip[0] == "01002"


@pytest.mark.parametrize(
    ("na_values", "drug", "dose"),
    [
        ([], ["None", "A", "B", "None"], ["1", "NA", None, "2"]),
        (["NA"], ["None", "A", "B", "None"], [1, None, None, 2]),
    ],
)
def test_what_means_missing_can_be_said(tmp_path, na_values, drug, dose):
    (tmp_path / "t.csv").write_text(NONE)
    df = read_table(tmp_path / "t.csv", na_values=na_values)
    assert df.drug.tolist() == drug
    assert df.dose.astype(object).where(df.dose.notna(), None).tolist() == dose
    assert df.attrs["coterie"]["na_values"] == na_values
    assert read_table(tmp_path / "t.csv", "drug").drug.tolist() == drug  # labels are read as they are written


def test_texts_that_mean_missing_must_be_texts(tmp_path):
    (tmp_path / "t.csv").write_text(NONE)
    with pytest.raises(CoterieError, match="na_values must be texts"):
        read_table(tmp_path / "t.csv", na_values=[-99])


def test_a_quotation_mark_that_swallows_rows_is_found(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('name,x\n"ash,1\nbirch,2\n"cedar,3\ndawn,4\n')  # two marks: pandas sees two rows
    with pytest.raises(CoterieError, match=r"line 2 of .* ends in line 4"):
        read_table(file)
    file.write_text('name,x\n"ash, the\n""old"" one",1\nbirch,2\n')
    assert list(read_table(file).name) == ['ash, the\n"old" one', "birch"]


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
