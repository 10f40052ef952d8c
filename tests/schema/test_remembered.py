"""What signatures said is kept as JSON: a file is checked by it as by the signatures themselves."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import ConfigError
from atoll.experiment import CATALOGUE, GIVEN, Experiment, plain_signatures, schema
from atoll.schema import Argument, bare, check_remembered, from_json, marks, read, to_json
from tests.support.mutated_experiments import mutated

ARGUMENTS = {f"{k}.{n}": schema(b, GIVEN.get(k, ())) for k, builders in CATALOGUE.items() for n, b in builders.items()}
ARGUMENTS["experiment"] = schema(Experiment)
MINE = {
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "iid", "clients": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
}


def said(argument: Argument) -> list[Any]:
    """All that may be said about an argument."""
    shown = [repr(m) for m in marks(argument.type) if type(m).__module__.startswith("annotated_types")]
    inner = None if argument.table is None else {name: said(a) for name, a in argument.table.items()}
    plain = argument.required or json.loads(json.dumps(argument.default))
    flags = (argument.kind, argument.many, argument.lists, argument.scheduled)
    return [argument.name, argument.words, argument.required, plain, *flags, inner, shown, str(bare(argument.type))[:6]]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_is_kept_of_a_signature_is_all_that_it_says(name: str) -> None:
    arguments = ARGUMENTS[name]
    back = from_json(json.loads(json.dumps(to_json(arguments))))
    assert {n: said(a) for n, a in back.items()} == {n: said(a) for n, a in arguments.items()}


def problems(check: Any, raw: Any) -> list[str]:
    try:
        check(raw)
    except ConfigError as e:
        return e.problems
    return []


@pytest.mark.slow
def test_mutated_files_get_the_same_findings_word_by_word(tmp_path: Path) -> None:
    kept, path, found = json.loads(json.dumps(plain_signatures())), tmp_path / "e.toml", 0
    for seed in range(200):
        path.write_text(mutated(random.Random(seed)), "utf-8")
        try:
            raw = read(path)
        except ConfigError:
            continue
        expected, ours = problems(Experiment.parse, raw), problems(partial(check_remembered, kept), raw)
        left = not ours and ":" in path.read_text("utf-8")  # may name code of the user's
        assert left or ours == expected, path.read_text("utf-8")
        found += len(ours)
    assert found > 100


def test_a_file_that_names_code_of_the_users_is_left_to_its_own_signature() -> None:
    kept = plain_signatures()
    check_remembered(kept, {**MINE, "roundz": 1, "algorithm": "mine:Mine"})
    with pytest.raises(ConfigError, match="roundz"):
        check_remembered(kept, {**MINE, "roundz": 1})
    check_remembered(kept, MINE)
