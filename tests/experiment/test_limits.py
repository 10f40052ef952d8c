"""Numbers and nesting beyond what any run can use: refused where they stand, before they break arithmetic elsewhere."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from atoll.errors import ConfigError
from atoll.experiment import Experiment, load
from atoll.experiment.memory import fits_in_memory
from atoll.experiment.setup import set_up
from atoll.schema.limits import MOST, WHOLE, beyond

BASE: dict[str, Any] = {
    "rounds": 2,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
    "algorithm": {"name": "fedavg", "lr": 0.1},
}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "epochs": ({"local": {"epochs": 2**62}}, r"local\.epochs: must be at most 1,000,000,000 .*use local\.max_steps"),
    "batch": ({"local": {"batch": 2**80}}, r"local\.batch: must be at most .* 0 means all examples"),
    "rows or all": ({"evaluate": {"rows": 2**62}}, r"evaluate\.rows: must be at most 1,000,000,000"),
    "server_lr": (
        {"algorithm": {"name": "fedavg", "lr": 0.1, "server_lr": 1e300}},
        r"server_lr: must be at most 3\.4e\+38",
    ),
    "lr of many digits": (
        {"algorithm": {"name": "fedavg", "lr": 10**400}},
        r"algorithm\.lr: must be at most 3\.4e\+38",
    ),
    "alpha": ({"partition": {"name": "dirichlet", "clients": 4, "alpha": 1e-300}}, r"alpha: must be further from 0"),
    "memory_gb": ({"engine": {"name": "auto", "memory_gb": 1e308}}, r"memory_gb: must be at most 1000000"),
    "workers": ({"engine": {"name": "threads", "workers": 10**5}}, r"workers: must be at most 1024"),
    "seed": ({"seed": 2**63}, r"seed: must be below 9223372036854775808"),
    "seed of the data": ({"data": {"name": "synthetic", "seed": -(2**70)}}, r"data\.seed: must be at least -9,223"),
    "in a list": (
        {"task": {"model": {"name": "mlp", "widths": [8, 10**12]}}},
        r"task\.model\.widths\.1: must be at most",
    ),
    "classes": ({"data": {"name": "synthetic", "classes": 10**5}}, r"data\.classes: must be at most 10000"),
    "draws": ({"cohort": {"name": "fixed_with_replacement", "size": 10**8}}, r"cohort\.size: must be at most 10000000"),
    "infinity": ({"algorithm": {"name": "fedavg", "lr": float("inf")}}, r"lr: must be a finite number"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_number_beyond_all_bounds_is_refused_where_it_stands(name: str) -> None:
    changes, words = CASES[name]
    with pytest.raises(ConfigError, match=words):
        Experiment.parse({**BASE, **changes})


def test_what_counts_has_a_lower_bound_and_other_numbers_have_64_bits() -> None:
    count = Annotated[int, Field(ge=1)]
    assert beyond(count | Literal["all"] | None, MOST, "x") == beyond(list[count], [1, MOST], "x") == []
    assert [place for place, _ in beyond(list[count], [1, MOST + 1], "x")] == ["x.1"]
    assert beyond(int, WHOLE, "x") == [] != beyond(int, WHOLE + 1, "x")
    assert beyond(Annotated[int, Field(ge=0, lt=2**64)], 2**63, "x") == []  # its own type says otherwise
    assert beyond(float, 10**30, "x") == beyond(dict[str, float], {"a": 0.0}, "x") == []


@pytest.mark.parametrize("text", [f"z = {'[' * 3000}", f"{'a.' * 3000}b = 1", f"z = {'{a=' * 2000}"])
def test_tables_nested_too_deeply_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"e\.toml: has tables or lists nested deeper than 20"):
        load(tmp_path / "e.toml")
    with pytest.raises(ConfigError, match="nested deeper than 20"):
        load(Path(__file__).parents[2] / "examples" / "private.toml", [f"a={'[' * 3000}{']' * 3000}"])


def test_so_is_a_dict_that_is() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match="experiment: has tables or lists nested deeper than 20"):
        Experiment.parse({**BASE, **deep})


@pytest.mark.parametrize(
    "accident",
    [MemoryError(), OverflowError("int too big"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")],
)
def test_what_does_not_fit_in_memory_is_a_setting_that_is_too_large(accident: Exception) -> None:
    with (
        pytest.raises(ConfigError, match=r"experiment: needs more memory than there is .*this machine has"),
        fits_in_memory(),
    ):
        raise accident


def test_another_accident_is_not() -> None:
    with pytest.raises(RuntimeError, match="shapes"), fits_in_memory():
        raise RuntimeError("shapes")


def test_a_model_that_does_not_fit_is_refused() -> None:
    wide = {"task": {"model": {"name": "mlp", "widths": [10**9, 10**9]}}}
    with pytest.raises(ConfigError, match="experiment: needs more memory than there is"):
        set_up(Experiment.parse({**BASE, **wide}))
