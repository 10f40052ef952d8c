"""Diagnostics in a line of the record: plain numbers, no more of them than a line can hold, and none told twice."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll.core import Columns, Outcome, Participation, Traffic
from atoll.records.record_lines import line_of
from atoll.runs.record_line import as_read, diagnostics


def outcome(clients: int = 3, **said: Any) -> Outcome:
    ids = torch.arange(clients)
    drawn = Participation("fixed", clients, size=clients)
    columns = Columns(torch.zeros(clients), torch.ones(clients, dtype=torch.bool), ids)
    return Outcome(ids, drawn, torch.ones(clients), lambda: columns, Traffic(0, 0), diagnostics=said)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        (torch.tensor(7), 7),
        (torch.tensor([1.5, 2.0]), [1.5, 2.0]),
        (torch.tensor([[True], [False]]), [[True], [False]]),
        ({"weights": torch.tensor([0.25])}, {"weights": [0.25]}),
        (torch.zeros(0), []),
    ],
)
def test_tensors_become_numbers_and_lists(said: Any, written: Any) -> None:
    assert diagnostics(outcome(x=said), ()) == {"x": written}


def test_what_is_not_finite_is_null_in_the_record() -> None:
    entry = {"diagnostics": diagnostics(outcome(x=torch.tensor([1.0, math.nan])), ())}
    assert json.loads(line_of(entry)) == {"diagnostics": {"x": [1.0, None]}}


@pytest.mark.parametrize(
    ("x", "clients", "whole"),
    [
        (torch.zeros(1000), 3, True),
        (torch.zeros(1001), 3, False),
        (torch.zeros(40, 40), 3, False),
        (torch.zeros(2000), 2000, True),
        (torch.zeros(2001), 2000, False),
    ],
)
def test_of_more_than_a_number_per_client_there_is_the_shape(x: Tensor, clients: int, whole: bool) -> None:
    written = diagnostics(outcome(clients, x=x), ())["x"]
    assert written == (x.tolist() if whole else {"shape": list(x.shape)})


def test_what_a_listener_tells_is_written_once() -> None:
    assert diagnostics(outcome(signal=torch.tensor(1.0), chosen=torch.tensor(2)), {"signal"}) == {"chosen": 2}


def test_lines_that_are_held_for_all_rounds_have_no_diagnostics() -> None:
    entry = {"round": 1, "cohort": {"size": 1, "ids": [0]}, "diagnostics": {"x": [0.0]}}
    assert as_read(entry) == {"round": 1, "cohort": {"size": 1}}
