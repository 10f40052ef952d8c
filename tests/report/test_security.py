"""What was seen of the clients: in run.json, on the page, in a terminal and side by side; and no key anywhere."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import atoll
from atoll.analysis.compare import compare, opened, shown
from atoll.records import SecurityLevel, read_runs, security_level, weakest_level
from atoll.report import group, summary, write
from atoll.report.security import insecure_alarms, security_lines, security_section
from tests.report.test_report import write_run

pytestmark = pytest.mark.usefixtures("without_figures")

GIVEN: dict[str, Any] = {
    "rounds": 2,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "task": {"model": "linear"},
    "local": {"max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "transform": ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}],
    "evaluate": {"clients": 0},
    "engine": "loop",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plain run, a secure one, a modelled one, and one with keys from the seed."""
    place = tmp_path_factory.mktemp("runs")
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "secure": {"secure": {"protocol": "secagg", "dropout": 0.1}},
        "modelled": {"secure": {"protocol": "secagg", "mode": "cost"}},
        "insecure": {"secure": {"protocol": "secagg", "insecure_seed": True}},
    }
    for name, changes in kinds.items():
        atoll.run({**GIVEN, **changes, "label": name}, place / name)
    return {name: place / name for name in kinds}


def printed(renderable: Any) -> str:
    written = io.StringIO()
    Console(width=200, file=written).print(renderable)
    return " ".join(written.getvalue().split())


def test_every_page_states_the_level_with_its_reason(ran: dict[str, Path], tmp_path: Path) -> None:
    page = write([ran["plain"], ran["secure"], ran["modelled"]], tmp_path / "report.html").read_text()
    assert '<h2 id="security">Security</h2>' in page
    assert "the server sees every client&#39;s update" in page
    assert "secagg: the server learns the sum over those whose vectors arrived" in page
    assert "counted: every message was sent, as bytes" in page
    assert "a model fitted to" in page
    assert "INSECURE" not in page


def test_keys_from_the_seed_are_shouted_about(ran: dict[str, Path], tmp_path: Path) -> None:
    page = write([ran["secure"], ran["insecure"]], tmp_path / "report.html").read_text()
    assert '<p class="alarm" role="alert">INSECURE: insecure drew keys and masks' in page
    assert "INSECURE" in printed(summary([ran["insecure"]]))
    assert "INSECURE" not in printed(summary([ran["secure"]]))
    notes = json.loads((ran["insecure"] / "run.json").read_text())["notes"]
    assert notes[0].startswith("INSECURE: ")


def test_the_table_has_what_the_rounds_took(ran: dict[str, Path]) -> None:
    (record,) = read_runs([ran["secure"]])
    section = security_section(group([record]))
    assert section is not None
    assert section.costs is not None
    (row,) = section.costs.rows
    cells = [cell.text for cell in row.cells]
    lines = [line["secure"] for line in record.rounds]
    assert cells[1] == "secagg"
    assert cells[4] == str(sum(line.get("lost", 0) for line in lines))
    assert float(cells[6]) == pytest.approx(sum(line["up"] for line in lines) / len(lines) / 1e3, rel=0.01)


def test_a_terminal_hears_of_secure_runs_only(ran: dict[str, Path]) -> None:
    assert security_lines(group(read_runs([ran["plain"]]))) == []
    (line,) = security_lines(group(read_runs([ran["secure"]])))
    assert line.startswith("security level 2 (secagg: ")


def test_a_comparison_states_both_levels(ran: dict[str, Path]) -> None:
    made = compare(opened(str(ran["plain"])), opened(str(ran["secure"])))
    assert len(made.security) == 1
    assert "A level 1 (the server sees every client's update); B level 2 (secagg: " in made.security[0]
    assert "Security: A level 1" in printed(shown(made))
    same = compare(opened(str(ran["plain"])), opened(str(ran["plain"])))
    assert same.security == ("level 1 (the server sees every client's update)",)


def test_of_several_seeds_the_weakest_level_holds() -> None:
    one, two = SecurityLevel(1, "seen"), SecurityLevel(2, "summed")
    assert weakest_level([two, one]) == one
    assert weakest_level([two, None]) is None
    assert weakest_level([]) is None


def test_a_run_of_an_older_version_has_no_level(tmp_path: Path) -> None:
    groups = group(read_runs([write_run(tmp_path, values=[0.1, 0.2])]))
    assert security_level({}) is None
    assert security_section(groups) is None
    assert insecure_alarms(groups) == []


def test_no_record_has_a_key_a_mask_or_a_share(ran: dict[str, Path]) -> None:
    plain = json.loads((ran["plain"] / "record.jsonl").read_text().splitlines()[0])
    for name in ("secure", "insecure"):
        for line in (ran[name] / "record.jsonl").read_text().splitlines():
            entry = json.loads(line)
            assert entry.keys() - plain.keys() <= {"secure"}
            known = {"asked", "in_sum", "lost", "lost_ids", "lost_steps", "void"}
            assert entry["secure"].keys() <= known | {"up", "down", "seconds"}
