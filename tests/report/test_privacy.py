"""Privacy in a run's report: what is said, and what is never said."""

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticUndefined
from rich.console import Console

from atoll import report
from atoll.core import Table
from atoll.errors import RecordError
from atoll.experiment import StopTable
from atoll.privacy.run import LocalPrivacyTable, PrivacyTable, SimulateTable
from atoll.records import audits, read_runs
from atoll.records.privacy_claims import (
    SIMULATION,
    Claim,
    claims,
    claims_for_results,
    round_down,
    round_up,
    shown_delta,
    shown_lower,
    shown_upper,
    weakest_claims,
)
from atoll.report import privacy
from atoll.report.metrics import ACCURACY
from atoll.report.privacy_plots import spending
from atoll.report.seed_groups import group
from atoll.report.settings import DEFAULTS
from tests.report.test_report import write_run
from tests.support.page_parser import Loads

pytestmark = pytest.mark.usefixtures("without_figures")
CANARIES = "canaries (Steinke, Nasr, Jagielski, 2023)"
NUMBERS = st.floats(1e-12, 1e9)
WHY = "the weights are not equal"


def holds(epsilon: float = 1.87, **more: Any) -> dict[str, Any]:
    return {
        "holds": True, "epsilon": epsilon, "delta": 1e-3, "unit": "client", "adjacency": "add-or-remove",
        "sampler": "poisson, 10 of 100 clients", "mechanism": "gaussian_noise, noise multiplier 1.2",
        "accountant": "pld", "rounds": 3, "assumed": ["amplified by Poisson sampling at rate 0.1"],
        "calibrated": {"epsilon": 2.0, "delta": 1e-3}, "budget": 8.0, **more,
    }  # fmt: skip


def canaries(found: float, **more: Any) -> dict[str, Any]:
    told = {"method": CANARIES, "epsilon_lower": found, "confidence": 0.95, "delta": 1e-3}
    return told | {"canaries": 1000, "guesses": 400, "correct": 380} | more


def attack(found: float | None, level: str = "example", **more: Any) -> dict[str, Any]:
    told = {"name": "loss threshold", "level": level, "auc": 0.61, "auc_interval": [0.55, 0.67]}
    told |= {"tpr_at_fpr": {"0.01": 0.05, "0.001": 0.004}, "epsilon_lower": found, "confidence": 0.95, "delta": 1e-3}
    return told | {"members": 500, "others": 700, "note": "on the last model"} | more


def private(
    root: Path,
    block: Mapping[str, Any] | None,
    line: Callable[[int], Mapping[str, Any]] = lambda r: {"epsilon": 0.6234567 * r, "snr": 0.5 / r},
    attacks: Sequence[Mapping[str, Any]] = (),
    **run: Any,
) -> Path:
    """A run with this block, this part of every record line, and these attacks."""
    folder = write_run(root, **run)
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "privacy": block} if block is not None else info))
    entries = [json.loads(text) for text in (folder / "record.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({**entry, "privacy": line(entry["round"])}) + "\n" for entry in entries)
    (folder / "record.jsonl").write_text(text)
    if attacks:
        (folder / "audit.json").write_text(json.dumps({"attacks": list(attacks)}))
    return folder


def page_of(folders: Sequence[Path], tmp_path: Path) -> str:
    return html.unescape(report.write(folders, tmp_path / "out" / "report.html").read_text("utf-8"))


def section_of(page: str) -> str:
    """The section on privacy as a reader reads it."""
    found = re.search(r'<section aria-labelledby="privacy">.*?</section>', page, re.DOTALL)
    assert found, "the page has no section on privacy"
    return " ".join(re.sub(r"<[^>]*>", " ", found[0]).split())


def printed(folders: Sequence[Path]) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(report.summary(folders))
    return " ".join(capture.get().split())


def figures(folders: Sequence[Path]) -> dict[str, str]:
    return {plot.name: plot.alt for plot in spending(group(read_runs(folders)), ACCURACY)}


@given(NUMBERS)
def test_a_printed_epsilon_is_never_below_and_a_printed_lower_bound_never_above(value: float) -> None:
    assert value <= float(shown_upper(value)) <= value * 1.0011
    assert value * 0.9989 <= float(shown_lower(value)) <= value
    assert (round_up(round_up(value)), round_down(round_down(value))) == (round_up(value), round_down(value))


@given(st.floats(1e-30, 0.99))
def test_a_printed_delta_is_never_below(delta: float) -> None:
    assert delta <= float(shown_delta(delta)) <= delta * 1.0011


@given(NUMBERS, st.floats(0, 0.9))
def test_results_keep_an_epsilon_that_is_not_below_after_their_own_rounding(epsilon: float, delta: float) -> None:
    found = claims_for_results({"client": holds(epsilon, delta=delta)})["client"]
    assert float(f"{found['epsilon']:.6g}") >= epsilon
    assert float(f"{found['delta']:.6g}") >= delta
    again = claims(json.loads(json.dumps({"client": found})))[0]
    assert (again.epsilon, again.delta, again.sampler) == (found["epsilon"], found["delta"], holds()["sampler"])


@pytest.mark.parametrize(
    "part",
    [
        {},
        None,
        "yes",
        holds() | {"holds": False},
        holds() | {"holds": "true"},
        holds() | {"holds": 1},
        holds(float("nan")),
        holds(float("inf")),
        holds(-1.0),
        holds() | {"epsilon": None},
        holds() | {"epsilon": True},
        holds() | {"delta": None},
        holds() | {"delta": 1.0},
        {key: value for key, value in holds().items() if key != "delta"},
    ],
)
def test_what_is_not_plainly_a_guarantee_is_none(part: Any) -> None:
    (found,) = claims({"client": part})
    assert found.epsilon is None
    assert not found.holds
    assert found.said.startswith("not private: ")
    assert "epsilon" not in claims_for_results({"client": part})["client"]


def test_a_block_that_simulates_has_no_epsilon_of_its_own_whatever_it_says() -> None:
    found = {one.kind: one for one in claims({"client": holds(1.0), "simulates": holds(2.0)})}
    assert found["client"].epsilon is None
    assert (found["simulates"].epsilon, found["simulates"].holds) == (2.0, False)


def test_a_run_that_made_more_rounds_than_its_block_says_has_the_bound_of_its_last_line(tmp_path: Path) -> None:
    """run.json is written at the start and at the end: of a run that was killed it says what no round costs."""
    folder = private(tmp_path, {"client": holds(0.0, rounds=0)})
    (found,) = read_runs([folder])[0].claims
    assert (found.epsilon, found.rounds) == (pytest.approx(3 * 0.6234567), 3)
    assert "epsilon 1.871 at delta 1e-3" in printed([folder])
    silent = private(tmp_path, {"client": holds(0.0, rounds=0)}, lambda r: {"snr": 0.5}, label="silent")
    assert "not private: its account covers 0 of the 3 rounds made" in printed([silent])
    assert "not private: its account covers 0 of the 3 rounds made" in section_of(page_of([silent], tmp_path))
    ended = private(tmp_path, {"client": holds(1.5, rounds=3)}, label="ended")
    assert "epsilon 1.5 at delta 1e-3" in printed([ended])  # tighter than the bound in its lines


def test_seeds_with_one_epsilon_have_one_figure_and_others_the_largest() -> None:
    same = weakest_claims({0: claims({"client": holds(1.5)}), 1: claims({"client": holds(1.5)})})
    assert [one.epsilon for one in same] == [1.5]
    other = weakest_claims(
        {0: claims({"client": holds(1.5, delta=1e-3)}), 1: claims({"client": holds(1.2, delta=1e-2)})}
    )
    assert [(one.epsilon, one.delta) for one in other] == [(1.5, 1e-2)]


@pytest.mark.parametrize("broken", [{"client": {"holds": False, "why": WHY}}, None, {"audit": canaries(1.0)}])
def test_one_seed_that_is_not_private_makes_its_group_so(broken: Any) -> None:
    (found,) = weakest_claims({0: claims({"client": holds()}), 1: claims(broken)})
    assert found.epsilon is None
    assert found.why.startswith("seed 1: ")


def test_a_page_without_an_account_says_nothing_of_privacy(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    assert "privacy" not in page_of([folder], tmp_path).lower()
    assert "private" not in printed([folder])


def test_the_section_says_everything_that_an_epsilon_depends_on(tmp_path: Path) -> None:
    said = section_of(page_of([private(tmp_path, {"client": holds(1.87001)})], tmp_path))
    for word in (
        "fedavg 1.871 1e-3 client, add-or-remove",
        "poisson, 10 of 100 clients",
        "gaussian_noise, noise multiplier 1.2",
        "pld, 3 rounds",
        "epsilon 2 at delta 1e-3; budget 8",
        "Audit: not audited Assumed: amplified by Poisson sampling at rate 0.1",
        "measured on clients' data in this report are not covered by epsilon",
    ):
        assert word in said, word
    assert "contradicts the accounted" not in said


def test_the_terminal_says_it_in_a_line(tmp_path: Path) -> None:
    folders = [private(tmp_path, {"client": holds(1.87)}), private(tmp_path, {"client": {"why": WHY}}, label="other")]
    assert "epsilon 1.87 at delta 1e-3 (client level, add-or-remove, poisson, pld)" in printed(folders[:1])
    both = printed(folders)
    assert "fedavg: epsilon 1.87 at delta 1e-3 (client level, add-or-remove, poisson, pld)" in both
    assert f"other: not private: {WHY}" in both


@pytest.mark.figures
def test_a_run_that_is_not_private_says_why_and_has_no_epsilon_anywhere(tmp_path: Path) -> None:
    """Neither the block's nor the record lines' number may be seen, whatever they hold."""
    block = {"client": {"holds": False, "why": WHY, "epsilon": 7.6543, "delta": 1e-3}}
    folder = private(tmp_path, block, lambda r: {"epsilon": 7.6543, "snr": 0.5})
    page, said = page_of([folder], tmp_path), printed([folder])
    assert f"not private: {WHY}" in section_of(page)
    assert f"not private: {WHY}" in said
    drawn = re.sub(r' (d|x|y|transform|style|viewBox)="[^"]*"', "", page)  # where things stand in a figure
    for text in (drawn, said):
        assert "7.65" not in text
        assert "epsilon 7" not in text
    assert list(figures([folder])) == ["snr"]
    assert "Accuracy against epsilon" not in page


def test_an_epsilon_in_a_name_is_one_that_holds_or_only_asked_for(tmp_path: Path) -> None:
    folders = [
        private(
            tmp_path,
            {"client": holds(asked) if good else {"holds": False, "why": WHY}},
            transform=[{"name": "gaussian_noise", "epsilon": asked}],
        )
        for asked, good in ((2.0, True), (4.0, False))
    ]
    assert [one.name for one in group(read_runs(folders))] == ["fedavg epsilon=2", "fedavg epsilon asked=4"]


def test_what_is_simulated_stands_in_a_row_of_its_own_and_is_called_so(tmp_path: Path) -> None:
    block = {"client": {"holds": False, "why": "noise_cohort"}, "simulates": holds(1.2345, label="simulation only")}
    folder = private(tmp_path, block, lambda r: {"simulated_epsilon": 0.4 * r})
    page, said = page_of([folder], tmp_path), printed([folder])
    assert "fedavg not private: noise_cohort" in section_of(page)
    assert f"{SIMULATION} simulates 1.235 1e-3" in section_of(page)
    assert "fedavg 1.235" not in section_of(page)
    assert f"simulates epsilon 1.235 at delta 1e-3 (client level, add-or-remove, poisson, pld): {SIMULATION}" in said
    assert not re.search(r"(?<!simulates )epsilon 1\.235", said)
    assert set(figures([folder])) == {"simulates-metric", "simulates-epsilon"}
    assert "Simulated epsilon by round (simulation only)" in page
    assert "<h3>Epsilon by round" not in page


def test_a_unit_that_is_not_protected_is_named_beside_one_that_is(tmp_path: Path) -> None:
    block = {"client": {"holds": False, "why": WHY}, "example": holds(4.2, unit="example")}
    folder = private(tmp_path, block, lambda r: {"example_epsilon": 1.4 * r})
    for text in (section_of(page_of([folder], tmp_path)), printed([folder])):
        assert f"client level: not private: {WHY}" in text
    assert "epsilon 4.2 at delta 1e-3 (example level, add-or-remove, poisson, pld)" in printed([folder])
    assert set(figures([folder])) == {"example-metric", "example-epsilon"}


def test_an_audit_below_the_account_is_shown_beside_it(tmp_path: Path) -> None:
    block = {"client": holds(1.87), "audit": canaries(0.90009)}
    said = section_of(page_of([private(tmp_path, block, attacks=[attack(0.3, "client")])], tmp_path))
    assert (
        f"{CANARIES}, client: at least 0.9 (95 % confidence, delta 1e-3); 380 of 400 guesses right, 1,000 canaries"
        in said
    )
    assert "loss threshold, client: at least 0.3 (95 % confidence, delta 1e-3); 500 members, 700 others" in said
    assert "0.610 (0.550 to 0.670) 0.05 at 0.01; 0.004 at 0.001" in said
    assert "on the last model" in said
    assert "contradicts the accounted" not in said


@pytest.mark.parametrize(
    ("block", "attacks"),
    [
        ({"client": holds(1.87), "audit": canaries(1.8701)}, ()),
        ({"client": holds(1.87), "audit": canaries(2.5, delta=1e-2)}, ()),
        ({"client": holds(1.87)}, [attack(1.9, "client")]),
        ({"client": {"holds": False}, "example": holds(1.87, unit="example")}, [attack(1.9, "example")]),
    ],
)
def test_an_audit_above_the_account_is_said_loudly(tmp_path: Path, block: Any, attacks: Any) -> None:
    folder = private(tmp_path, block, attacks=attacks)
    words = (
        "the audit contradicts the accounted epsilon: there is a mistake in the mechanism, or this is one of the 5 %"
    )
    page = page_of([folder], tmp_path)
    assert words in section_of(page)
    assert words in page[: page.index("</header>")]
    assert 'class="alarm" role="alert"' in page
    assert words in printed([folder])


@pytest.mark.parametrize(
    ("block", "attacks"),
    [
        ({"client": holds(1.87), "audit": canaries(1.87)}, ()),
        ({"client": holds(1.87), "audit": canaries(2.5, delta=1e-4)}, ()),  # of a smaller delta: another statement
        ({"client": holds(1.87), "audit": canaries(2.5, confidence=None)}, ()),
        ({"client": holds(1.87)}, [attack(1.9, "example")]),  # of another unit
        ({"client": holds(1.87)}, [attack(None, "client")]),
        ({"client": {"holds": False, "why": WHY}, "simulates": holds(1.0), "audit": canaries(5.0)}, ()),
    ],
)
def test_an_audit_that_contradicts_nothing_raises_no_alarm(tmp_path: Path, block: Any, attacks: Any) -> None:
    folder = private(tmp_path, block, attacks=attacks)
    assert "contradicts the accounted" not in page_of([folder], tmp_path) + printed([folder])


def test_many_audits_say_how_often_one_is_wrong_by_chance(tmp_path: Path) -> None:
    folders = [private(tmp_path, {"client": holds(2.0), "audit": canaries(1.0 + s)}, seed=s) for s in range(3)]
    (line,) = privacy.alarms(group(read_runs(folders)))
    assert line.startswith("fedavg, seed 2: ")
    assert "3 bounds were looked at: by chance one of them is too high in up to 15 % of such reports." in line
    assert "at least 3 (95 % confidence, delta 1e-3); 380 of 400 guesses right, 1,000 canaries; the largest of 3" in (
        section_of(page_of(folders, tmp_path))
    )


def test_attacks_on_another_unit_stand_apart_from_an_epsilon(tmp_path: Path) -> None:
    both = [attack(0.9, "example"), attack(0.3, "client")]
    folder = private(tmp_path, {"client": holds(1.87)}, attacks=both)
    own, other = privacy.section(group(read_runs([folder]))).claims.rows  # type: ignore[union-attr]
    assert own.below[0].text == (
        "Audit: loss threshold, client: at least 0.3 (95 % confidence, delta 1e-3); 500 members, 700 others"
    )
    assert len(other.cells) == 2  # words in place of an epsilon
    assert other.cells[1].text == "example level: no epsilon is accounted"
    assert [one.partition(" (")[0] for one in other.cells[1].remarks] == [
        "Audit: loss threshold, example: at least 0.9"
    ]
    text, said = section_of(page_of([folder], tmp_path)), printed([folder])
    assert "fedavg example level: no epsilon is accounted Audit: loss threshold, example: at least 0.9" in text
    assert (
        "audit: loss threshold, example: at least 0.9 (95 % confidence, delta 1e-3); 500 members, 700 others (no"
        in said
    )
    assert said.count("no epsilon is accounted at this level") == 1
    assert "the largest of" not in text + said


def test_attacks_on_each_unit_stand_beside_its_own_epsilon(tmp_path: Path) -> None:
    block = {"client": holds(1.87), "example": holds(4.2, unit="example")}
    folder = private(tmp_path, block, attacks=[attack(0.9, "example"), attack(0.3, "client")])
    rows = privacy.section(group(read_runs([folder]))).claims.rows  # type: ignore[union-attr]
    assert [(row.cells[3].text.partition(",")[0], row.below[0].text.split(":")[1]) for row in rows] == [
        ("client", " loss threshold, client"),
        ("example", " loss threshold, example"),
    ]
    assert "no epsilon is accounted" not in printed([folder])


def test_a_name_does_not_say_the_defaults_of_a_table_that_one_run_has(tmp_path: Path) -> None:
    table = {"accountant": "auto", "canaries": 0, "delta": 1e-3}
    folders = [write_run(tmp_path, label="plain"), write_run(tmp_path, label="plain", privacy=table)]
    assert [one.name for one in group(read_runs(folders))] == ["plain", "plain delta=0.001"]
    tables: dict[str, type[Table]] = {
        "privacy": PrivacyTable,
        "privacy.simulate": SimulateTable,
        "local.privacy": LocalPrivacyTable,
    }
    tables["stop"] = StopTable
    there = {f"{at}.{key}": field.default for at, one in tables.items() for key, field in one.model_fields.items()}
    usual = {key: value for key, value in there.items() if value is not None and value is not PydanticUndefined}
    assert usual == DEFAULTS


def test_the_words_below_the_privacy_table_do_not_scroll_with_it(tmp_path: Path) -> None:
    page = page_of([private(tmp_path, {"client": holds(1.87)})], tmp_path)
    found = re.search(r'<section aria-labelledby="privacy">.*?</section>', page, re.DOTALL)
    assert found
    table, _, below = found[0].partition("</table>")
    assert "upper bounds by the accountant" in below
    assert "upper bounds by the accountant" not in table
    assert ">assumed</th>" not in table  # a line below each row, not a column


def test_figures_say_no_less_than_was_spent(tmp_path: Path) -> None:
    folders = [private(tmp_path, {"client": holds()}, seed=seed) for seed in (0, 1)]
    found = figures(folders)
    assert set(found) == {"client-metric", "client-epsilon", "snr"}
    assert found["client-epsilon"] == "epsilon against round: fedavg from 0.6235 to 1.871."
    assert found["client-metric"] == "accuracy (%) against epsilon: fedavg from 20 to 60."
    assert found["snr"] == "signal-to-noise ratio against round: fedavg from 0.5 to 0.1667."
    report.write(folders, tmp_path / "out" / "card.html", figures=["png"])
    assert (tmp_path / "out" / "card-client-epsilon.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.figures
def test_a_logarithmic_axis_has_plain_numbers(tmp_path: Path) -> None:
    folder = private(tmp_path, {"client": holds()}, lambda r: {"snr": 0.001 * 100**r})
    (plot,) = spending(group(read_runs([folder])), ACCURACY)
    assert ">0.1<" in plot.svg()
    assert "$" not in plot.svg()


def test_the_metric_stands_at_the_epsilon_of_its_own_round(tmp_path: Path) -> None:
    folder = private(tmp_path, {"client": holds()}, values=(None, 0.4, None, 0.6))
    (plot,) = [one for one in spending(group(read_runs([folder])), ACCURACY) if one.name == "client-metric"]
    line, *_ = plot.draw().axes[0].get_lines()
    assert line.get_xdata().tolist() == [1.247, 2.494]  # rounds 2 and 4, rounded up
    assert line.get_ydata().tolist() == [40.0, 60.0]


@pytest.mark.figures
def test_the_page_still_loads_nothing_and_its_ids_are_its_own(tmp_path: Path) -> None:
    block = {"client": holds(1.0), "example": holds(3.0, unit="example"), "audit": canaries(2.0)}
    evil = [attack(0.1, note="<script>alert(1)</script>")]
    line = lambda r: {"epsilon": r, "example_epsilon": 3 * r, "snr": 1 / r}  # noqa: E731
    folder = private(tmp_path, block, line, evil)
    page = Loads()
    text = report.write([folder], tmp_path / "report.html").read_text("utf-8")
    page.feed(text)
    assert page.tags.count("script") == 1  # our own
    assert "<script>alert" not in text
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.parametrize("text", ["{}", '{"attacks": 3}', '{"attacks": [1]}', "["])
def test_a_broken_audit_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_run(tmp_path)
    (folder / "audit.json").write_text(text)
    with pytest.raises(RecordError, match=r"audit\.json"):
        read_runs([folder])


def test_a_bound_with_its_delta_is_read_as_it_was_written() -> None:
    found = audits.attack_bounds({"audit": canaries(0.5)}, [attack(0.2)])
    assert [(one.level, one.epsilon, one.delta) for one in found] == [("client", 0.5, 1e-3), ("example", 0.2, 1e-3)]
    assert audits.contradicted((Claim("client", 0.4, 1e-3), Claim("example", 0.4, 1e-3)), found) == [
        (Claim("client", 0.4, 1e-3), found[0])
    ]
