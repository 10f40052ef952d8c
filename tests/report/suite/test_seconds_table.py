"""Suites with a clock or a protocol: virtual seconds part by part, levels, and published overheads beside ours."""

from dataclasses import replace

from atoll.clock import RoundParts
from atoll.records import Cell, Results, Trace
from atoll.report.suite.exports import as_markdown
from atoll.report.suite.page import page
from atoll.report.suite.seconds_table import decomposed, protocols, published
from tests.support.suite_example import example

TIMES = RoundParts(2.0, 0.25, 1.5, 0.0, 0.0, 0.25, 0.0, 0.25, 1.75)
TOOK = {"protocol": "additive", "mode": "real", "up": 8e4, "down": 4e4, "client_seconds": 0.002, "server_seconds": 0.5}
PLAIN = Trace(0, "a", (1,), (0.9,), (4e6,), (0.0,), up=(2e6,), times=TIMES._asdict(), security={"level": 1})
SHARED = replace(
    PLAIN,
    digest="b",
    times=TIMES._replace(federated=2.5, encrypt=0.5)._asdict(),
    security={"level": 2, **TOOK},
)


def results(*runs: Trace, data: str = "cifar10-resnet18") -> Results:
    names = ("fedsgd", "secret_sharing(2)")
    cells = tuple(Cell("all", {"data": data, "algorithm": n}, (run,)) for n, run in zip(names, runs, strict=True))
    return Results("s", "S", "full", "accuracy", True, ("data", "algorithm"), cells,
                   scale=100, reference="oarf_tables", baseline={"algorithm": "fedsgd"})  # fmt: skip


def test_a_row_has_seconds_by_part_and_how_many_times_as_long_it_took() -> None:
    table = decomposed(results(PLAIN, SHARED), "all")
    assert table is not None
    plain, shared = ([cell.text for cell in line.cells[2:]] for line in table.rows)
    assert plain[:3] == ["2.00", "1.00", "25.0"]
    assert shared[:3] == ["2.50", "1.25", "40.0"]
    assert shared[6] == "0.500"  # encrypt


def test_levels_stand_beside_what_the_protocol_took() -> None:
    table = protocols(results(PLAIN, SHARED), "all")
    assert table is not None
    plain, shared = ([cell.text for cell in line.cells[2:]] for line in table.rows)
    assert plain[:2] == ["1", "—"]
    assert shared == ["2", "additive", "80.0", "40.0", "2.00", "—", "500", "counted"]  # nobody has a role


def test_what_some_do_for_all_has_a_column() -> None:
    decrypted = replace(SHARED, security={**SHARED.security, "role_seconds": 0.25})
    table = protocols(results(PLAIN, decrypted), "all")
    assert table is not None
    assert [cell.text for cell in table.rows[1].cells[-4:]] == ["2.00", "250", "500", "counted"]


def test_keys_from_a_seed_are_shouted_about() -> None:
    insecure = replace(SHARED, security={**SHARED.security, "level": 1, "insecure_seed": True})
    table = protocols(results(PLAIN, insecure), "all")
    assert table is not None
    assert "INSECURE" in " ".join(table.notes)


def test_the_published_overhead_stands_beside_ours_with_a_verdict() -> None:
    table = published(results(PLAIN, SHARED))
    assert table is not None
    texts = {line.cells[0].text: [cell.text for cell in line.cells[1:]] for line in table.rows}
    assert texts["cifar10-resnet18/secret_sharing(2)"][0].startswith("29.68")
    assert "differs" in texts["cifar10-resnet18/secret_sharing(2)"]
    assert published(results(PLAIN, SHARED, data="digits")) is None


def test_page_and_exports_have_the_tables_where_there_is_a_clock_and_nowhere_else() -> None:
    made = results(PLAIN, SHARED)
    drawn = page(made)
    assert 'id="times"' in drawn
    assert 'id="secured"' in drawn
    assert "## all, virtual seconds" in as_markdown(made)
    assert "## all, what the server sees" in as_markdown(made)
    without = as_markdown(example())
    assert "virtual seconds" not in without
    assert "what the server sees" not in without
    assert decomposed(example(), example().blocks()[0]) is None
