"""What cells sent, on the page and in the exports: ratios, and whoever never got there."""

from dataclasses import replace

from atoll.records import Cell, Results, Trace
from atoll.report.suite.bytes_table import published, sent
from atoll.report.suite.exports import as_latex, as_markdown
from atoll.report.suite.page import page
from tests.support.suite_example import example

PLAIN = Trace(0, "a", (1, 2), (0.5, 0.9), (2e6, 4e6), (0.0, 0.0), up=(1e6, 2e6))
SPARSE = replace(PLAIN, digest="b", up=(3e4, 6e4), bytes=(1.03e6, 2.06e6))
LOST = replace(SPARSE, digest="c", values=(0.1, 0.1))


def results(*runs: Trace, **changes: object) -> Results:
    names = ("fedsgd", "topk(1%)", "randk(1%)")
    path = {"data": "cifar10-resnet18"}
    cells = tuple(Cell("all", {**path, "algorithm": n}, (run,)) for n, run in zip(names, runs, strict=False))
    made = Results("s", "S", "full", "accuracy", True, ("data", "algorithm"), cells,
                   scale=100, reference="oarf_tables", baseline={"algorithm": "fedsgd"}, reach=0.95)  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def entries(made: Results) -> dict[str, list[str]]:
    table = sent(made, "all")
    assert table is not None
    return {line.cells[1].text: [cell.text for cell in line.cells[2:]] for line in table.rows}


def test_a_row_has_bytes_ratios_and_what_it_took() -> None:
    found = entries(results(PLAIN, SPARSE, LOST))
    assert found["fedsgd"] == ["90.0", "1.00", "1.00", "1.00", "1.00", "2.00", "2.00", "1.00"]
    assert found["topk(1%)"] == ["90.0", "0.0300", "1.00", "33.3", "1.94", "2.00", "0.0600", "33.3"]
    assert found["randk(1%)"][-3:] == ["not reached"] * 3


def test_runs_that_end_by_patience_have_no_ratio_end_to_end() -> None:
    patient = [replace(run, kept=1, status="stopped early: patience") for run in (PLAIN, SPARSE)]
    table = sent(results(*patient, reach=None), "all")
    assert table is not None
    assert [c.title for c in table.columns][-2:] == ["MB both ways until there", "accuracy (%) there"]
    assert [cell.text for cell in table.rows[1].cells[-2:]] == ["1.03", "50.0"]
    assert any("never better later" in note for note in table.notes)
    later = sent(results(*(replace(run, kept=2) for run in patient), reach=None), "all")
    assert later is not None
    assert not any("never better later" in note for note in later.notes)


def test_a_published_ratio_stands_beside_ours_with_a_verdict() -> None:
    ((title, table),) = published(results(PLAIN, SPARSE))
    assert "ratio" in title
    texts = [cell.text for cell in table.rows[0].cells]
    assert texts[:3] == ["cifar10-resnet18/topk(1%)", "33.32", "33.33"]
    assert "agrees" in texts


def test_page_and_exports_have_the_table_where_a_suite_names_a_baseline_and_nowhere_else() -> None:
    made = results(PLAIN, SPARSE)
    assert 'id="sent"' in page(made)
    assert "## all, bytes" in as_markdown(made)
    assert "all, bytes" in as_latex(made)
    assert 'id="sent"' not in page(example())
    assert sent(example(), example().blocks()[0]) is None
