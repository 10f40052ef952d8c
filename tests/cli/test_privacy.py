"""`atoll privacy`, from the words typed to what is printed."""

import doctest
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from atoll.cli import common
from atoll.cli import privacy as cli_privacy
from atoll.errors import ConfigError
from tests.support.paths import ROOT

RUN = "--delta 1e-6 --rounds 100 --population 10000 --cohort 100"
LONG = "--delta 1e-6 --rounds 1000000000 --population 1000 --cohort 10 --sampling poisson"
Command = Callable[[str], Result]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(common.console, "width", 200)
    return lambda words: CliRunner().invoke(cli_privacy.app, words.split())


def value(result: Result, name: str) -> str:
    assert result.exit_code == 0, result.output + repr(result.exception)
    found = re.search(rf"│ {re.escape(name)} +│ (.*?) +│", result.output)
    assert found, result.output
    return found[1]


def test_an_epsilon_comes_with_everything_that_it_needs(command: Command) -> None:
    found = command(f"epsilon --noise-multiplier 2 {RUN} --sampling poisson --accountant rdp")
    facts = {name: value(found, name) for name in ("delta", "unit", "adjacency", "sampler", "accountant", "assumed")}
    assert facts == {
        "delta": "1e-06",
        "unit": "client",
        "adjacency": "add-or-remove",
        "sampler": "poisson, 100 of 10000",
        "accountant": "rdp",
        "assumed": "amplified by Poisson sampling at rate 0.01",
    }
    assert 0 < float(value(found, "epsilon")) < 1
    assert "Warning" not in found.output


def test_the_sampler_decides(command: Command) -> None:
    def spent(words: str) -> float:
        return float(value(command(f"epsilon --noise-multiplier 2 {RUN} {words}"), "epsilon"))

    poisson, fixed, cyclic = (spent(f"--sampling {s}") for s in ("poisson", "fixed", "cyclic --min-separation 50"))
    assert poisson < fixed
    assert poisson < cyclic
    assert value(command(f"epsilon --noise-multiplier 2 {RUN} --sampling fixed"), "adjacency") == "replace-one"
    assert value(command(f"epsilon --noise-multiplier 2 {RUN} --sampling with-replacement"), "adjacency") == "zero-out"


def test_calibrated_noise_accounts_to_the_budget_or_less(command: Command) -> None:
    found = command(f"calibrate --epsilon 1.5 {RUN} --sampling poisson --accountant rdp")
    noise = value(found, "noise multiplier")
    assert float(value(found, "epsilon")) <= 1.5
    again = command(f"epsilon --noise-multiplier {noise} {RUN} --sampling poisson --accountant rdp")
    assert value(again, "epsilon") == value(found, "epsilon")
    assert float(value(again, "epsilon")) == pytest.approx(1.5, rel=1e-3)


def test_a_curve_rises_and_says_when_the_budget_is_spent(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "new" / "curve.csv"
    found = command(
        f"curve --noise-multiplier 2 {RUN} --sampling poisson --accountant rdp --points 5 --epsilon 0.5 --out {out}"
    )
    rows = [line for line in out.read_text().splitlines() if not line.startswith("#")]
    spent = [float(row.split(",")[1]) for row in rows[1:]]
    assert (rows[0], [row.split(",")[0] for row in rows[1:]]) == ("round,epsilon", ["20", "40", "60", "80", "100"])
    assert spent == sorted(spent)
    within = int(value(found, "rounds within 0.5").split()[0])
    assert sum(e <= 0.5 for e in spent) == within // 20
    assert "# adjacency: add-or-remove" in out.read_text()


def test_a_curve_is_drawn(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "curve.svg"
    assert command(f"curve --noise-multiplier 2 --delta 1e-3 --rounds 4 --population 50 --out {out}").exit_code == 0
    assert out.read_text().lstrip().startswith(("<svg", "<?xml"))
    wrong = command(
        f"curve --noise-multiplier 2 --delta 1e-3 --rounds 4 --population 50 --out {tmp_path / 'curve.gif'}"
    )
    assert isinstance(wrong.exception, ConfigError)
    assert "must end in .csv or .svg" in str(wrong.exception)


def test_a_delta_above_one_over_the_population_is_warned_about(command: Command) -> None:
    found = command("epsilon --noise-multiplier 2 --delta 1e-3 --rounds 10 --population 5000")
    assert "Warning: delta 0.001 is above 1 / population (0.0002)" in found.output


def test_what_is_not_private_gets_no_number(command: Command) -> None:
    none = command("epsilon --noise-multiplier 0 --delta 1e-5 --rounds 10 --population 5000")
    assert value(none, "epsilon") == "not private: the noise multiplier is 0: no noise is added"
    apart = command(f"epsilon --noise-multiplier 2 {RUN} --sampling poisson --mechanism banded --min-separation 8")
    assert value(apart, "epsilon").startswith("not private: banded needs 8 rounds between two turns")


def test_banded_noise_needs_a_sampler_that_keeps_its_separation(command: Command) -> None:
    found = command(f"epsilon --noise-multiplier 20 {RUN} --sampling cyclic --mechanism banded --min-separation 50")
    assert "a unit takes part at most 2 times, at least 50 rounds apart" in value(found, "assumed")


def test_coins_within_groups_cost_less_than_fixed_numbers_of_them(command: Command) -> None:
    words = f"epsilon --noise-multiplier 2 {RUN} --mechanism banded --min-separation 50 --accountant rdp --sampling"
    cyclic, coins = (command(f"{words} {how}") for how in ("cyclic", "cyclic-poisson"))
    assert float(value(coins, "epsilon")) < float(value(cyclic, "epsilon"))
    assert value(coins, "sampler") == "cyclic poisson, 100 of 10000"
    assert "rate 0.5 within 50 groups, in 2 turns of a unit" in value(coins, "assumed")
    few = command(f"calibrate --epsilon 1 {RUN} --mechanism banded --min-separation 150 --sampling cyclic-poisson")
    assert "150 groups of 100 need 15000 units" in str(few.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"epsilon --noise-multiplier 2 {RUN}", "--sampling: is missing, and epsilon depends on it"),
        (f"epsilon --noise-multiplier 2 {RUN} --sampling everyone", "everyone is 10000 units"),
        (
            f"epsilon --noise-multiplier -2 {RUN} --sampling poisson",
            "--noise-multiplier: must be 0 or between 1e-10 and 1e10 (got -2",
        ),
        (
            f"epsilon --noise-multiplier inf {RUN} --sampling poisson",
            "--noise-multiplier: must be 0 or between 1e-10 and 1e10 (got inf)",
        ),
        (
            f"epsilon --noise-multiplier 1e300 {RUN} --sampling poisson",
            "--noise-multiplier: must be 0 or between 1e-10 and 1e10 (got 1e+300)",
        ),
        (f"calibrate --epsilon 0 {RUN} --sampling poisson", "--epsilon: must be above 0"),
        (
            f"epsilon --noise-multiplier 2 {RUN.replace('1e-6', '1')} --sampling poisson",
            "--delta: must be above 0 and below 1",
        ),
        (
            f"epsilon --noise-multiplier 2 {RUN.replace('--cohort 100', '--cohort 20000')} --sampling poisson",
            "--cohort: 20000 is more than --population 10000. Use a smaller one; for all of them --sampling everyone",
        ),
        (
            f"epsilon --noise-multiplier 2 {RUN.replace('--cohort 100', '--cohort 20000')}",
            "--cohort: 20000 is more than",
        ),
        (
            f"epsilon --noise-multiplier 2 {RUN.replace('--cohort 100', '--cohort 0')} --sampling poisson",
            "--cohort: must be above 0 (got 0). For everyone leave --cohort out.",
        ),
        (f"epsilon --noise-multiplier 2 {RUN} --sampling fixed --accountant pld", "pld cannot account this"),
        (
            f"epsilon --noise-multiplier 2 {RUN} --sampling poisson --accountant analytic",
            "Use accountant = 'pld', 'prv' or 'rdp'.",
        ),
        (
            f"epsilon --noise-multiplier 2 {RUN} --sampling fixed --accountant analytic",
            "sampling. Use accountant = 'rdp'.",
        ),
        (f"epsilon --noise-multiplier 2 {LONG} --accountant pld", "1,000,000,000 rounds are more than it can compose"),
        (
            f"epsilon --noise-multiplier 2 {LONG} --mechanism laplace",
            "accountant: none can account this: 1,000,000,000 rounds",
        ),
    ],
)
def test_mistakes_are_explained(command: Command, words: str, said: str) -> None:
    result = command(words)
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)


@pytest.mark.parametrize(("old", "new"), [("--noise", "--noise-multiplier"), ("--separation", "--min-separation")])
@pytest.mark.parametrize("joined", [" ", "="])
def test_an_old_option_is_refused_with_the_new_one(command: Command, old: str, new: str, joined: str) -> None:
    for name in ("epsilon", "calibrate", "curve"):
        result = command(f"{name} {RUN} {old}{joined}2")
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception) == f"{old}: is called {new} now."


@pytest.mark.slow
def test_a_run_that_outgrows_a_grid_of_losses_is_accounted_by_renyi_divergences(command: Command) -> None:
    found = command(f"epsilon --noise-multiplier 1 {LONG}")
    assert (value(found, "accountant"), float(value(found, "epsilon"))) == ("rdp", pytest.approx(93132.3, rel=1e-4))
    million = command(f"epsilon --noise-multiplier 1 {LONG.replace('1000000000', '1000000')}")
    assert value(million, "accountant") == "pld"
    quiet = command(
        "epsilon --noise-multiplier 1e-5 --delta 1e-6 --rounds 10 --population 100 --cohort 10 --sampling poisson"
    )
    assert value(quiet, "accountant") == "rdp"
    assert float(value(quiet, "epsilon")) > 5e9  # a unit that comes once, and may come up to ten times


def test_a_curve_refuses_its_budget_before_it_computes(command: Command) -> None:
    found = command("curve --noise-multiplier 2 --delta 1e-3 --rounds 1 --population 50 --epsilon -1")
    assert "--epsilon: must be above 0" in str(found.exception)
    assert found.output == ""
    assert (
        value(command("curve --noise-multiplier 2 --delta 1e-3 --rounds 1 --population 50"), "mechanism")
        == "gaussian, 1 round"
    )


def test_the_command_is_part_of_atoll_and_shows_no_traceback() -> None:
    words = "privacy epsilon --noise-multiplier 2 --delta 2 --rounds 3 --population 10"
    done = subprocess.run([sys.executable, "-m", "atoll", *words.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--delta: must be above 0 and below 1 (got 2.0)" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_room_and_its_command_load_without_torch() -> None:
    heavy = "{'torch', 'scipy', 'numpy', 'dp_accounting', 'prv_accountant'}"
    code = f"import sys, atoll.privacy, atoll.cli.privacy; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_examples_of_the_page_run() -> None:
    page = ROOT / "docs" / "privacy-accounting.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted >= 5
    assert found.failed == 0
