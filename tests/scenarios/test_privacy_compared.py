"""What is compared with what: compare, leaderboard and advise say where one side is private and the other is not."""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.analysis.advise import OTHER_PRIVACY, Target, advise, settings, target
from atoll.analysis.advise.advice import words
from atoll.analysis.compare import compare
from atoll.analysis.compare.load_side import Side
from atoll.cli import main
from atoll.records import Cell, Results
from atoll.records.privacy_claims import Claim, claims, claims_for_results
from atoll.records.privacy_labels import promised, promises_side_by_side, same_promises
from atoll.report.suite.leaderboard import board, standings
from tests.analysis.test_advise import SKEWED, SUITE, rows
from tests.report.suite.test_leaderboard import said as read_aloud
from tests.report.test_privacy import holds
from tests.support.suite_example import cell, example

SIMULATED = {"client": {"holds": False, "why": "rescaled"}, "simulates": holds(2.0)}


def held(results: Results, blocks: Mapping[str, Any]) -> Results:
    """The same results, the cells of these methods with such a block; "*" for all."""

    def one(cell: Cell) -> Cell:
        block = claims_for_results(blocks.get(cell.method, blocks.get("*")))
        return replace(cell, runs=tuple(replace(run, privacy=block) for run in cell.runs))

    return replace(results, cells=tuple(map(one, results.cells)))


# ------------------------------------------------------------------------------------------------------------ in words

Claims = st.builds(
    Claim,
    st.sampled_from(["client", "example", "simulates"]),
    st.none() | st.floats(0.01, 100),
    st.floats(1e-9, 0.1),
    adjacency=st.sampled_from(["", "replace-one", "zero-out"]),
)


@given(st.lists(Claims, max_size=2), st.lists(Claims, max_size=2))
def test_what_is_said_of_two_sides_is_silent_only_where_neither_has_an_epsilon(a: list[Claim], b: list[Claim]) -> None:
    told = promises_side_by_side(a, b)
    assert bool(told) == any(one.epsilon is not None for one in (*a, *b))
    assert ("they do not promise the same" in told) == (not same_promises(a, b))
    assert same_promises(a, b) == same_promises(b, a)
    assert same_promises(a, a)
    if not any(one.holds for one in a):
        assert promised(a).endswith("is not private")


def test_another_neighbour_or_another_unit_is_another_promise() -> None:
    one, other = claims({"client": holds(4.0)}), claims({"client": holds(4.0, adjacency="replace-one")})
    assert promises_side_by_side(one, other) == (
        "A holds epsilon 4 at delta 1e-3 for each client (add-or-remove), "
        "B holds epsilon 4 at delta 1e-3 for each client (replace-one): they do not promise the same."
    )
    example_level = claims({"example": holds(4.0, unit="example")})
    assert "B holds epsilon 4 at delta 1e-3 for each example: they do not" in promises_side_by_side(one, example_level)


# ------------------------------------------------------------------------------------------------------------- compare


def compared(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    sides = (Side(name, results=held(SUITE, blocks)) for name, blocks in (("A", a), ("B", b)))
    return compare(*sides).privacy


def test_a_comparison_says_what_both_sides_promise() -> None:
    four = {"*": {"client": holds(4.0)}}
    assert compared({}, {}) == ()
    assert compared(four, {}) == ("A holds epsilon 4 at delta 1e-3, B is not private: they do not promise the same.",)
    assert compared(four, {"*": {"client": holds(8.0)}}) == (
        "A holds epsilon 4 at delta 1e-3, B holds epsilon 8 at delta 1e-3: they do not promise the same.",
    )
    assert compared(four, four) == ("A and B alike: holds epsilon 4 at delta 1e-3.",)
    assert compared({"*": SIMULATED}, {}) == (
        "A simulates epsilon 2 at delta 1e-3 and is not private, B is not private: they do not promise the same.",
    )


def test_where_rows_differ_the_row_is_named() -> None:
    assert compared({"fedavg": {"client": holds(4.0)}}, {}) == (
        "digits/iid/fedavg, digits/skew/fedavg, adult/skew/fedavg: "
        "A holds epsilon 4 at delta 1e-3, B is not private: they do not promise the same.",
    )


def test_the_command_says_it_of_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base: dict[str, Any] = {
        "rounds": 2, "data": "digits", "partition": {"name": "iid", "clients": 6}, "task": {"model": "linear"},
        "local": {"max_steps": 2}, "algorithm": {"name": "fedavg", "lr": 0.1}, "engine": "loop",
    }  # fmt: skip
    noise = {"name": "gaussian_noise", "epsilon": 4.0, "delta": 1e-3}
    a = atoll.run({**base, "transform": ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}, noise]}, tmp_path / "a")
    b = atoll.run(base, tmp_path / "b")
    monkeypatch.setenv("COLUMNS", "300")
    asked = f"atoll compare {a.folder} {b.folder} --no-replay --json {tmp_path / 'found.json'}"
    monkeypatch.setattr(sys, "argv", shlex.split(asked))
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 0
    found = json.loads((tmp_path / "found.json").read_text())["comparison"]["privacy"]
    assert len(found) == 1
    assert found[0].startswith("A holds epsilon ")
    assert found[0].endswith(" at delta 1e-3, B is not private: they do not promise the same.")
    assert found[0] in " ".join(capsys.readouterr().out.split())


# --------------------------------------------------------------------------------------------------------- leaderboard


def contest(*means: float, **blocks: Any) -> Results:
    methods = ("fedavg", "fedprox", "scaffold")
    cells = tuple(cell(("digits", "iid"), m, mean, k) for k, (m, mean) in enumerate(zip(methods, means, strict=True)))
    return held(replace(example(), suite="mine", cells=cells), blocks)


def test_the_leaderboard_has_the_epsilon_of_whoever_leads_a_row() -> None:
    block = {"client": holds(4.0)}
    private = replace(contest(80, 84, 70, fedavg=block, fedprox=block, scaffold=block), suite="private")
    (one,) = standings(private)
    assert (one.privacy, one.uneven) == ("epsilon 4", False)
    text = read_aloud(board([contest(80, 84, 70), private]))
    assert "its privacy" in text
    assert "fedprox epsilon 4 84." in text
    assert "fedprox — 84." in text
    assert "1 row of 2 is of private runs" in text
    assert "†" not in text
    assert "privacy" not in read_aloud(board([contest(80, 84, 70)]))


def test_methods_of_one_row_that_hold_unlike_epsilons_are_marked() -> None:
    block = {"client": holds(4.0)}
    (one,) = standings(contest(80, 84, 70, fedavg=block))
    assert (one.best, one.privacy, one.uneven) == ("fedprox", "not private", True)
    text = read_aloud(board([contest(80, 84, 70, fedavg=block)]))
    assert "not private †" in text
    assert "the best may only be less private" in text


# -------------------------------------------------------------------------------------------------------------- advise

PRIVATE = held(
    rows("private", {("digits", "skew"): (SKEWED, {"fedavg": [0.3, 0.31, 0.3], "fedadam": [0.5, 0.51, 0.5]})}),
    {"*": {"client": holds(4.0)}},
)


def ask(*suites: Results, private: bool = False, **more: Any) -> Any:
    return advise(Target("asked", "digits", SKEWED, private=private), settings(suites), **more)


def test_evidence_is_of_the_kind_that_is_asked_about_where_there_is_any() -> None:
    plain, private = ask(SUITE, PRIVATE), ask(SUITE, PRIVATE, private=True)
    assert (plain.method, private.method) == ("fedprox", "fedadam")
    assert "privacy" not in " ".join(words(ask(SUITE, PRIVATE, most=1)))
    assert words(plain)[-1] == "1 of them had a mechanism for privacy, unlike what is asked about."
    assert words(private)[-1] == "2 of them had no mechanism for privacy, unlike what is asked about."
    assert words(ask(PRIVATE, SUITE, private=True, most=2))[-1].startswith("It had no mechanism")
    assert "That was with a mechanism for privacy (the best holds epsilon 4 at delta 1e-3)." in words(private)


def test_private_evidence_for_a_question_without_privacy_is_a_hint_and_says_so() -> None:
    found = ask(PRIVATE)
    assert found.method == "fedadam"
    assert found.near[0].distance.total == pytest.approx(OTHER_PRIVACY)
    assert (
        "That was with a mechanism for privacy (the best holds epsilon 4 at delta 1e-3), "
        "and what is asked about has no mechanism: take it as a hint."
    ) in words(found)
    assert ask(PRIVATE, within=0.05).method is None


def test_and_so_is_evidence_without_privacy_for_a_private_question() -> None:
    assert ("That was without privacy, and what is asked about has a mechanism: noise may change the order.") in words(
        ask(SUITE, private=True)
    )


def test_methods_of_a_setting_that_promise_unlike_things_are_told() -> None:
    mixed = held(SUITE, {"fedavg": {"client": holds(4.0)}})
    (said,) = [line for line in words(ask(mixed, private=True)) if "mechanism" in line]
    assert "(the best is not private, others there not the same)" in said
    simulated = held(SUITE, {"*": SIMULATED})
    assert "simulates epsilon 2 at delta 1e-3 and is not private" in " ".join(words(ask(simulated, private=True)))


@pytest.mark.parametrize(
    ("more", "private"),
    [
        ("", False),
        ('transform = [{ name = "clip_l2", max_norm = 1.0 }]', False),
        ('transform = ["equal_weights", {name = "clip_l2", max_norm = 1.0}, {name = "gaussian_noise", epsilon = 2.0}]',
         True),
        ("[local.privacy]\nmax_norm = 1.0\nepsilon = 2.0", True),
    ],
)  # fmt: skip
def test_a_file_with_a_mechanism_asks_a_private_question(more: str, private: bool, tmp_path: Path) -> None:
    head = 'rounds = 2\ndata = "digits"\nalgorithm = { name = "fedavg", lr = 0.1 }\n'
    (tmp_path / "a.toml").write_text(head + 'partition = { name = "iid", clients = 5 }\n' + more)
    assert target(str(tmp_path / "a.toml")).private is private
