"""One file for each client: folders, patterns and lists; decimal commas; who is left without a training row."""

import duckdb
import numpy as np
import pytest

from atoll.data.formats import FILES
from atoll.errors import DataError

SITES = {
    "Bern": "age,bp,ill\n30,1.5,0\n40,2.5,1\n",
    "St. Mary": "bp,age,ill\n3.5,50,0\n4.5,60,1\n5.5,70,0\n",  # the order of columns is free
}


@pytest.fixture
def sites(tmp_path):
    for name, text in SITES.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "README.md").write_text("no table")
    return tmp_path


def csv(path, **options):
    return FILES["csv"](path=path, **{"label": "ill", "test_share": 0.0, "standardise": "none", **options})


def test_a_folder_a_pattern_and_a_list_are_one_client_for_each_file(sites):
    files = tuple(sites / f"{name}.csv" for name in SITES)
    tables = [csv(sites), csv(sites / "*.csv"), csv(files)]
    assert len({d.digest() for d in tables}) == 1
    assert tables[0].train["x"].tolist() == [[30, 1.5], [40, 2.5], [50, 3.5], [60, 4.5], [70, 5.5]]
    assert {name: key.tolist() for name, key in tables[0].keys.items()} == {"file": [0, 0, 1, 1, 1]}
    assert tables[0].client_names == {"file": ("Bern", "St. Mary")}
    assert tables[0].name == sites.name


def test_files_below_each_other_are_what_one_file_with_a_client_column_is(sites):
    rows = [line + f",{name}" for name in SITES for line in _swapped(name)]
    (sites / "whole.csv").write_text("\n".join(["age,bp,ill,site", *rows]))
    whole = csv(sites / "whole.csv", client="site", standardise="features")
    (sites / "whole.csv").unlink()
    stacked = csv(sites, standardise="features")
    assert whole.train["x"].tolist() == stacked.train["x"].tolist()
    assert whole.keys["site"].tolist() == stacked.keys["file"].tolist()
    assert whole.client_names == {"site": ("Bern", "St. Mary")}


def _swapped(name):
    lines = [line.split(",") for line in SITES[name].split()[-3 if name != "Bern" else -2 :]]
    return [",".join(cells if name == "Bern" else [cells[1], cells[0], cells[2]]) for cells in lines]


def test_a_column_may_tell_the_clients_of_several_files(sites):
    for path in sites.glob("*.csv"):
        lines = path.read_text().split()
        path.write_text("\n".join(f"{line},{'ward' if i == 0 else 'AB'[i % 2]}" for i, line in enumerate(lines)))
    d = csv(sites, client="ward")
    assert d.client_names == {"ward": ("A", "B")}
    assert d.inputs == (2,)  # the file is no feature, and no key


def test_parquet_files_may_be_one_for_each_client(tmp_path):
    for name in ("north", "south"):
        duckdb.sql("SELECT range AS a, range % 2 AS y FROM range(4)").write_parquet(str(tmp_path / f"{name}.parquet"))
    d = FILES["parquet"](path=tmp_path, label="y", test_share=0.0)
    assert (d.examples, d.client_names) == (8, {"file": ("north", "south")})


def test_test_rows_may_be_several_files_too(sites):
    d = csv(sites, test=sites / "*.csv", test_share=None)
    assert np.array_equal(d.train["x"], d.test["x"])


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("Basel.csv", "Age,bp,ill\n1,2,0\n", {}, r"lacks 'age'\. Did you mean 'Age'\?; Bern\.csv lacks 'Age'"),
        ("Basel.csv", "age,bp\n1,2\n", {}, r"Basel\.csv lacks 'ill'"),
        ("Basel.csv", "age,bp,ill,bmi\n1,2,0,3\n", {}, r"Bern\.csv lacks 'bmi'; St\. Mary\.csv lacks 'bmi'"),
        ("Basel.csv", "", {}, r"Basel\.csv: is empty"),
    ],
)  # fmt: skip
def test_a_file_that_lacks_a_column_is_named(name, text, options, message, sites):
    (sites / name).write_text(text)
    with pytest.raises(DataError, match=message):
        csv(sites, **options)


def test_columns_that_nobody_learns_from_may_differ(sites):
    (sites / "Basel.csv").write_text("age,bp,ill,bmi\n1,2,0,3\n")
    assert csv(sites, exclude=("bmi",)).digest() == csv(sites, features=("age", "bp")).digest()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("*.txt", r"data\.path: there is no file in the pattern '.*\*\.txt'"),
        ((), "there is no file in the list"),
        (("Bern.csv", "Bern.csv"), "Bern.csv is listed twice"),
        (("Bern.csv", "Genf.csv"), r"there is no file .*Genf\.csv"),
        ("", r"is a folder without a file that ends in \.parquet or \.pq\. It has 'Bern\.csv', 'README\.md'"),
    ],
)
def test_files_that_are_not_there_are_said(path, message, sites):
    kind = "parquet" if path == "" else "csv"
    files = tuple(sites / p for p in path) if isinstance(path, tuple) else sites / path
    with pytest.raises(DataError, match=message):
        FILES[kind](path=files, label="ill")


def test_a_client_that_vanishes_into_the_test_part_is_named(sites):
    (sites / "Zug.csv").write_text("age,bp,ill,part\n1,2,0,test\n1,2,1,test\n")
    for name in SITES:
        head, *rows = (sites / f"{name}.csv").read_text().split()
        (sites / f"{name}.csv").write_text("\n".join([f"{head},part", *(f"{row},train" for row in rows)]))
    d = csv(sites, test_by="part", test_share=None)
    assert d.client_names == {"file": ("Bern", "St. Mary")}
    assert len(d.notes) == 1
    assert "No training row is left of these clients (file)" in d.notes[0]
    assert "'Zug' (2)" in d.notes[0]


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_cell_that_is_no_number_is_named_in_whichever_part_it_lies(tmp_path, part):
    rows = [f"{i},{i % 2},{'test' if i < 5 else 'train'}" for i in range(20)]
    row = 2 if part == "test" else 12
    rows[row] = rows[row].replace(f"{row},", "n.a.x,", 1)
    (tmp_path / "a.csv").write_text("\n".join(["bp,ill,part", *rows, ""]))
    with pytest.raises(DataError, match=rf"column 'bp' holds numbers but for 'n\.a\.x', the first in row {row + 1}\."):
        csv(tmp_path / "a.csv", test_by="part", test_value="test", test_share=None)


def test_numbers_may_have_a_decimal_comma(tmp_path):
    (tmp_path / "a.csv").write_text('bp;job;ill\n1,5;x;0\n-2;y;1\n"3,25";x;1\n')
    d = csv(tmp_path / "a.csv", decimal=",")
    assert d.train["x"][:, 0].tolist() == [1.5, -2, 3.25]
    with pytest.raises(
        DataError, match=r"column 'bp' holds numbers with a decimal comma \('1,5', '3,25'\)\. Set decimal"
    ):
        csv(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("bp;ill\n1.5;0\n2;1\n-3.25;1\n")
    with pytest.raises(
        DataError, match=r"'bp' holds numbers that are not written as `decimal` says \('-3\.25', '1\.5'\)"
    ):
        csv(tmp_path / "a.csv", decimal=",")
    (tmp_path / "a.csv").write_text("bp;ill\n1.500;0\n2,5;1\n")  # a point that divides thousands, or not: no guess
    with pytest.raises(DataError, match="column 'bp' holds text"):
        csv(tmp_path / "a.csv", decimal=",", categorical=())
