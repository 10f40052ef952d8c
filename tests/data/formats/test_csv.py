"""CSV and Parquet: what people bring of their own, and what they are told when it does not fit."""

import bz2
import gzip

import duckdb
import numpy as np
import pytest
import torch

import atoll
from atoll.data.formats import FILES
from atoll.errors import DataError

PEOPLE = """age,job,bank,income
30,clerk,north,yes
40,cook,south,no
50,clerk,south,yes
60,guard,north,no
70,cook,north,no
"""


@pytest.fixture
def write(tmp_path):
    def written(content, name="people.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def csv(path, label="income", **options):
    return FILES["csv"](path=path, label=label, **{"test_share": 0.0, **options} if "test" not in options else options)


def test_a_table_becomes_numbers_categories_labels_and_clients(write):
    d = csv(write(PEOPLE), client="bank", standardise="none")
    assert (d.name, d.kind, d.inputs, d.outputs, d.classes) == ("people.csv", "classification", (4,), 2, ("no", "yes"))
    assert d.decode(d.train)["x"].tolist() == [
        [30, 1, 0, 0],
        [40, 0, 1, 0],
        [50, 1, 0, 0],
        [60, 0, 0, 1],
        [70, 0, 1, 0],
    ]
    assert d.train["y"].tolist() == [1, 0, 1, 0, 0]
    assert {k: v.tolist() for k, v in d.keys.items()} == {"bank": [0, 1, 1, 0, 0]}
    assert d.train["slots"].dtype == torch.int16  # a category takes two bytes, however many there are
    assert d.test is None


def test_numbers_are_standardised_with_the_training_rows(write):
    d = csv(write(PEOPLE), features=("age",), test=write("age,income\n130,no\n", "test.csv"))
    x = np.array([30, 40, 50, 60, 70])
    assert torch.allclose(d.train["x"][:, 0], torch.from_numpy((x - x.mean()) / x.std()).float())
    assert float(d.test["x"]) == pytest.approx((130 - x.mean()) / x.std())


def test_a_constant_column_and_large_numbers_survive_standardising(write):
    d = csv(write("a,b,y\n1e38,5,0\n-1e38,5,1\n"), "y")
    assert d.train["x"].tolist() == [[1, 0], [-1, 0]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_in_the_first_line(delimiter, write):
    d = csv(write(PEOPLE.replace(",", delimiter)), client="bank")
    assert d.digest() == csv(write(PEOPLE, "other.csv"), client="bank").digest()


@pytest.mark.parametrize(
    "changed",
    [
        gzip.compress(PEOPLE.encode()),
        bz2.compress(PEOPLE.encode()),
        PEOPLE.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + PEOPLE.encode(),
        PEOPLE.replace(",", ", ").encode(),
        PEOPLE.replace("clerk", '"clerk"').encode(),
        PEOPLE.rstrip("\n").encode(),
    ],
    ids=["gzip", "bzip2", "crlf", "byte order mark", "spaces", "quotes", "no last line end"],
)
def test_the_same_table_is_read_however_it_is_written(changed, write):
    assert csv(write(changed), client="bank").digest() == csv(write(PEOPLE, "plain.csv"), client="bank").digest()


@pytest.mark.parametrize("name", ["a[1].csv", "a*.csv", "it's.csv", "what?.csv", "a b.csv"])
def test_the_name_of_a_file_is_no_pattern(name, write):
    write("age,income\n1,2\n", "a1.csv")
    assert csv(write(PEOPLE, name)).examples == 5


def test_a_file_in_another_encoding_is_read_when_it_is_told(write):
    text = "town,y\nZürich,0\nBern,1\n"
    d = csv(write(text.encode("latin-1"), "towns.csv"), label="town", features=("y",), encoding="latin-1")
    assert d.classes == ("Bern", "Zürich")
    assert csv(write(text.encode("utf-16"), "wide.csv"), label="town", features=("y",), encoding="utf-16").classes[
        1
    ] == ("Zürich")
    with pytest.raises(DataError, match=r"towns\.csv: line 2 is no UTF-8 text \(byte 0xfc"):
        csv(write(text.encode("latin-1"), "towns.csv"), label="town")
    with pytest.raises(DataError, match=r"data\.encoding: 'latin-11' is not known"):
        csv(write(text.encode("latin-1"), "towns.csv"), label="town", encoding="latin-11")
    with pytest.raises(DataError, match=r"towns\.csv: line 2 is no ascii text"):
        csv(write(text.encode("latin-1"), "towns.csv"), label="town", encoding="ascii")


def test_a_line_deep_in_the_file_that_is_no_utf8_is_named(write):
    rows = b"".join(b"%d,0\n%d,1\n" % (i, i) for i in range(50_000))
    with pytest.raises(DataError, match=r"line 100002 is no UTF-8 text"):
        csv(write(b"a,y\n" + rows + b"caf\xe9,1\n"), label="y")
    with pytest.raises(DataError, match=r"p\.csv\.gz: line 2 is no UTF-8 text .*Set encoding"):
        csv(write(gzip.compress(b"a,y\ncaf\xe9,1\n"), "p.csv.gz"), label="y")


def test_columns_without_names_can_be_named(write):
    body = PEOPLE.partition("\n")[2]
    plain = csv(write(PEOPLE), client="bank")
    d = csv(write(body, "body.csv"), header=False, names=("age", "job", "bank", "income"), client="bank")
    assert d.digest() == plain.digest()
    assert csv(write(body, "body.csv"), "column3", header=False, client="column2").train["y"].tolist() == [
        1,
        0,
        1,
        0,
        0,
    ]
    with pytest.raises(DataError, match=r"data\.names: has 2 names for the 4 columns of body\.csv"):
        csv(write(body, "body.csv"), header=False, names=("a", "b"))


def test_a_column_without_a_name_is_left_out(write):
    d = csv(write(",a,y\n0,5,0\n1,6,1\n"), label="y", standardise="none")  # as pandas writes its index
    assert d.train["x"].tolist() == [[5], [6]]


def test_features_can_be_chosen_or_excluded(write):
    path = write("a,b,c,y\n1,2,3,0\n4,5,6,1\n")
    assert csv(path, "y", features=("c", "a"), standardise="none").train["x"].tolist() == [[3, 1], [6, 4]]
    assert csv(path, "y", exclude=("b",), standardise="none").train["x"].tolist() == [[1, 3], [4, 6]]


def test_several_kinds_of_clients_may_be_named(write):
    d = csv(write(PEOPLE), client=("bank", "job"))
    assert {k: v.tolist() for k, v in d.keys.items()} == {"bank": [0, 1, 1, 0, 0], "job": [0, 1, 0, 2, 1]}
    assert d.inputs == (1,)


def test_long_numbers_of_clients_are_not_rounded_into_one(write):
    d = csv(write("u,a,y\n90071992547409921,1,0\n90071992547409922,2,1\n"), "y", client="u")
    assert d.keys["u"].tolist() == [0, 1]


def test_numbers_can_be_categories(write):
    path = write("zip,y\n8001,0\n3000,1\n8001,1\n")
    assert csv(path, "y", categorical=("zip",)).train["slots"].tolist() == [[2], [1], [2]]


def test_a_category_that_training_does_not_have_is_all_zeros(write):
    d = csv(write(PEOPLE), exclude=("bank",), test=write("age,job,income\n50,pilot,yes\n50,cook,no\n", "test.csv"))
    assert d.decode(d.test)["x"][:, 1:].tolist() == [[0, 0, 0], [0, 1, 0]]
    assert d.test["y"].tolist() == [1, 0]


def test_test_rows_come_from_a_column_that_tells_them(write):
    path = write("a,part,y\n1,train,0\n2,test,1\n3,train,1\n")
    d = csv(path, "y", test_by="part", test_share=None, standardise="none")
    assert (d.train["x"].tolist(), d.test["x"].tolist(), d.inputs) == ([[1], [3]], [[2]], (1,))
    path = write("a,year,y\n1,2018,0\n2,2019,1\n3,2018,1\n")
    assert csv(path, "y", test_by="year", test_value=2019, test_share=None).test["y"].tolist() == [1]
    path = write("a,held,y\n1,false,0\n2,true,1\n3,false,1\n")
    assert csv(path, "y", test_by="held", test_value=True, test_share=None).test["y"].tolist() == [1]


def test_a_share_of_every_class_is_held_out_unless_told_otherwise(write):
    rows = "".join(f"{i},{i % 2}\n" for i in range(100))
    d = FILES["csv"](path=write("a,y\n" + rows), label="y")
    assert torch.bincount(d.test["y"]).tolist() == [10, 10]
    assert d.examples == 80
    assert d.digest() != FILES["csv"](path=write("a,y\n" + rows), label="y", seed=1).digest()


def test_ages_are_regressed_on(write):
    path = write("a,age\n1,30.5\n2,40\n3,50\n")
    d = csv(path, "age")
    assert (d.kind, d.outputs, d.train["y"].tolist()) == ("regression", 1, [[30.5], [40], [50]])
    whole = csv(write("a,age\n1,30\n2,40\n"), "age", kind="regression", standardise="all")
    assert whole.train["y"].tolist() == [[-1], [1]]


def test_missing_values_are_counted_and_can_be_filled(write):
    path = write("a,b,job,y\n1,10,x,0\n,20,y,1\n3,NA,,1\n8,30,x,1\n")
    with pytest.raises(
        DataError,
        match=r"2 of 4 rows miss a value \('a' 1, 'b' 1, 'job' 1\).*missing = 'drop'.*'mean', 'median' or 'zero'",
    ):
        csv(path, "y")
    found = {how: csv(path, "y", missing=how, standardise="none") for how in ("mean", "median", "zero", "drop")}
    assert found["mean"].train["x"].tolist() == [[1, 10], [4, 20], [3, 20], [8, 30]]
    assert found["median"].train["x"].tolist() == [[1, 10], [3, 20], [3, 20], [8, 30]]
    assert found["zero"].train["x"].tolist() == [[1, 10], [0, 20], [3, 0], [8, 30]]
    assert found["mean"].decode(found["mean"].train)["x"][:, 2:].tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]
    assert found["drop"].train["x"].tolist() == [[1, 10], [8, 30]]


def test_what_fills_a_gap_is_the_training_rows_mean(write):
    path = write("a,part,y\n2,train,0\n,train,1\n100,test,1\n")
    d = csv(path, "y", missing="mean", test_by="part", test_share=None, standardise="none")
    assert d.train["x"].tolist() == [[2], [2]]


def test_a_number_may_stand_for_a_missing_one(write):
    path = write("a,y\n1,0\n-999,1\n 3 ,1\n ? ,0\n")
    d = csv(path, "y", missing="zero", missing_as=("-999", "?"), standardise="none")
    assert d.train["x"].tolist() == [[1], [0], [3], [0]]


def test_a_missing_label_is_never_filled(write):
    path = write("a,y\n1,0\n2,\n,1\n")
    with pytest.raises(DataError, match=r"2 of 3 rows miss a value .*'zero' \(rows without a label are then left out"):
        csv(path, "y")
    d = csv(path, "y", missing="mean", standardise="none")
    assert d.train["x"].tolist() == [[1], [1]]  # the row without a label counts for nothing, not even for the mean
    assert d.notes == ("1 of 3 rows without a label ('y') are left out.",)
    assert csv(path, "y", missing="zero", test=path).test["y"].tolist() == [0, 1]
    with pytest.raises(DataError, match="no row has a label, so none is left"):
        csv(write("a,y\n1,\n2,\n"), "y", missing="mean")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            PEOPLE,
            {"label": "incom"},
            r"data\.label: people.csv has no column 'incom'\. Did you mean 'income'\? It has 'age'",
        ),
        (PEOPLE, {"client": "Bnk"}, r"data\.client: .* no column 'Bnk'\. Did you mean 'bank'\?"),
        (PEOPLE, {"features": ("agee",)}, r"data\.features: .* Did you mean 'age'\?"),
        (PEOPLE, {"exclude": ("jab",)}, r"data\.exclude: .* Did you mean 'job'\?"),
        (PEOPLE, {"categorical": ("jab",)}, r"data\.categorical: .* Did you mean 'job'\?"),
        (PEOPLE, {"test_by": "ag"}, r"data\.test_by: .* Did you mean 'age'\?"),
        (PEOPLE, {"features": ("income",)}, r"data\.features: 'income' is also the label"),
        (PEOPLE, {"exclude": ("age", "job", "bank")}, r"no column left to learn from"),
        (PEOPLE, {"categorical": ("bank",)}, r"column 'job' holds text, which is no number\. Add it to categorical"),
        (
            PEOPLE,
            {"categories": 2},
            r"column 'job' has 3 categories \('clerk', 'cook', 'guard'\), too many for one-hot",
        ),
        (
            PEOPLE,
            {"test_by": "bank", "test_value": "sout"},
            r"no row has 'sout' in column 'bank'\. Did you mean 'south'\?",
        ),
        (PEOPLE, {"kind": "regression"}, r"column 'income' holds text \('no', 'yes'\), which cannot be regressed on"),
        (
            "a,u,y\n1,x,0\n2,x,1\n",
            {"label": "y", "client": "u"},
            r"data\.client: column 'u' has one value only \('x'\).*leave client out and say how to split",
        ),
        ("a,y\n1,0\n2,0\n", {"label": "y"}, r"data\.label: column 'y' has one value only \(0\.0\)"),
        (
            "a,y\n" + "".join(f"1,{i}\n" for i in range(200)),
            {"label": "y"},
            r"200 different values\. Is this regression\? Set kind = 'regression'",
        ),
        (
            "a,y\n1,0\n?,1\n3,1\n4,0\n",
            {"label": "y"},
            r"column 'a' holds numbers but for '\?', the first in row 2\. If that stands for a missing value",
        ),
        ("a,y\n1,0\ninf,1\n", {"label": "y"}, r"column 'a' has 1 numbers that are not finite, the first in row 2"),
        ("a,y\n1,0\n1e39,1\n", {"label": "y", "standardise": "none"}, r"column 'a' has 1 numbers that are not finite"),
        ("a,y\n1,0\n2\n", {"label": "y"}, r"people\.csv: line 3 has 1 cells, and there are 2 columns"),
        ("a,y\n1,0\n2,3,4\n", {"label": "y"}, r"people\.csv: line 3 has 3 cells, and there are 2 columns"),
        ("a;y\n1;0\n2;3;4\n", {"label": "y"}, r"people\.csv: line 3 has 3 cells, and there are 2 columns"),
        ('a,y\n1,0\n"2,1\n', {"label": "y"}, r"people\.csv: (line 3|cannot be read)"),
        ("a,a,y\n1,0,1\n", {"label": "y"}, r"has several columns called 'a'"),
        ("1,2\n3,4\n", {"label": "y"}, r"its first line holds numbers .* Set header = false"),
        ("a,y\n", {"label": "y"}, r"has no rows"),
        ("", {"label": "y"}, r"is empty, or begins with an empty line"),
        ("a,y\n,0\n,1\n", {"label": "y", "missing": "drop"}, r"every row misses something"),
        ("a,y\n,0\n,1\n", {"label": "y", "missing": "mean"}, r"no training row has a value in column 'a'"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_advice(text, options, message, write):
    options = {"label": "income", "test_share": None if "test_by" in options else 0.0, **options}
    with pytest.raises(DataError, match=message):
        FILES["csv"](path=write(text), **options)


def test_two_ways_to_tell_the_test_rows_are_one_too_many(write):
    with pytest.raises(DataError, match=r"data\.test_share: the test rows are already told by test\. Leave one"):
        FILES["csv"](path=write(PEOPLE), label="income", test=write(PEOPLE, "t.csv"), test_share=0.5)


def test_a_test_file_must_have_the_columns_of_the_first(write):
    with pytest.raises(DataError, match=r"data\.test: t\.csv has no column 'job'"):
        csv(write(PEOPLE), test=write("age,income\n1,yes\n", "t.csv"))
    with pytest.raises(DataError, match=r"data\.test: column 'age' of t\.csv is no number everywhere"):
        csv(write(PEOPLE), test=write("age,job,income\nold,cook,yes\n", "t.csv"))


def test_no_row_is_lost_among_many(write):
    n = 30_000
    rows = "".join(f"{i},{i % 7},{i % 3}\n" for i in range(n))
    d = csv(write("a,u,y\n" + rows), "y", client="u", standardise="none")
    assert torch.equal(d.train["x"][:, 0], torch.arange(n).float())
    assert torch.equal(d.keys["u"], torch.arange(n) % 7)
    assert torch.equal(d.train["y"], torch.arange(n) % 3)


def to_parquet(path, query):
    duckdb.connect().execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path


def test_parquet_gives_the_same_as_csv(write, tmp_path):
    path = to_parquet(tmp_path / "people.parquet", f"SELECT * FROM read_csv('{write(PEOPLE)}', header = true)")
    d = FILES["parquet"](path=path, label="income", client="bank", test_share=0.0)
    assert d.digest() == csv(write(PEOPLE), client="bank").digest()


def test_parquet_has_types_of_its_own(tmp_path):
    columns = "true AS flag, 1.5::DECIMAL(4, 2) AS price, 7::UTINYINT AS small, DATE '2020-01-01' + i AS day, i AS y"
    path = to_parquet(tmp_path / "t.parquet", f"SELECT {columns} FROM (SELECT unnest([0, 1])::INTEGER AS i)")
    d = FILES["parquet"](path=path, label="y", client="day", standardise="none", test_share=0.0)
    assert d.train["x"].tolist() == [[1, 1.5, 7]] * 2
    assert d.keys["day"].tolist() == [0, 1]
    with pytest.raises(DataError, match=r"column 'day' holds DATE, which is no number\. Leave it out with exclude"):
        FILES["parquet"](path=path, label="y")
    path = to_parquet(tmp_path / "l.parquet", "SELECT [1, 2] AS pair, unnest([0, 1]) AS y")
    with pytest.raises(DataError, match=r"column 'pair' holds INTEGER\[\], which is no number"):
        FILES["parquet"](path=path, label="y")


def test_nulls_and_not_a_numbers_of_parquet_are_missing(tmp_path):
    values = "(1.0, 0), (NULL, 1), ('nan'::DOUBLE, 1)"
    path = to_parquet(tmp_path / "n.parquet", f"SELECT * FROM (VALUES {values}) AS t(a, y)")
    with pytest.raises(DataError, match=r"2 of 3 rows miss a value \('a' 2\)"):
        FILES["parquet"](path=path, label="y")


def test_a_broken_parquet_file_is_refused(tmp_path):
    path = to_parquet(tmp_path / "x.parquet", "SELECT 1 AS a, 0 AS y")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"x\.parquet: cannot be read as Parquet .* for CSV use name = 'csv'"):
        FILES["parquet"](path=path, label="y")


def test_a_csv_file_of_ones_own_runs_with_its_own_clients(write, tmp_path):
    draw = np.random.default_rng(0)
    age, job, bank = draw.uniform(20, 60, 300), draw.choice(["cook", "clerk"], 300), draw.integers(0, 5, 300)
    rows = zip(age, job, bank, (age > 40) ^ (job == "cook"), strict=True)
    path = write("age,job,bank,rich\n" + "".join(f"{a:.2f},{j},b{b},{r}\n" for a, j, b, r in rows))
    run = atoll.run(
        {
            "rounds": 12,
            "data": {"name": "csv", "path": str(path), "label": "rich", "client": "bank"},
            "algorithm": {"name": "fedavg", "lr": 0.5},
            "engine": "vector",
            "task": {"model": {"name": "mlp"}},
        },
        out=tmp_path / "run",
        device="cpu",
    )
    assert run.final["accuracy"] > 0.9
    assert run.history[-1]["cohort"]["ids"] == [0, 1, 2, 3, 4]
