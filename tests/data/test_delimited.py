"""Tables as text: labels are read as they are written, and what was read as missing is told."""

import gzip

import pandas as pd
import pytest

from coterie.data.table_files import read_table
from coterie.errors import CoterieError


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
