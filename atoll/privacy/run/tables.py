"""The tables of a file that are about privacy."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from atoll.core import Count, Table, Whole


class LocalPrivacyTable(Table):
    """[local.privacy]: DP-SGD inside a client, for each of its examples. One of noise_multiplier and epsilon."""

    max_norm: Annotated[float, Field(gt=0)]  # the most that the gradient of ONE example may be long
    noise_multiplier: Annotated[float, Field(ge=0)] | None = None  # noise on a batch's sum, over max_norm
    epsilon: Annotated[float, Field(gt=0)] | None = None  # of the worst client, over the whole run
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None  # None: a tenth of 1 / examples of the largest client
    sampling: Literal["shuffled", "poisson", "fixed"] = "shuffled"  # how the batch of a step is drawn

    numbers: ClassVar[tuple[str, ...]] = (
        "max_norm",
        "noise_multiplier",
        "epsilon",
        "delta",
    )  # of which engines see values only


class SimulateTable(Table):
    """[privacy.simulate]: the larger system that `noise_cohort` stands for; its cohort is the noise_cohort."""

    population: Count
    sampling: Literal["poisson", "fixed", "cyclic", "cyclic_poisson"] = "poisson"


class PrivacyTable(Table):
    """[privacy]: how a run's epsilon is counted, what it may cost, and whether it is tested."""

    accountant: Literal["auto", "analytic", "pld", "prv", "rdp"] = "auto"
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None  # None: the mechanism's, or a tenth of 1 / clients
    budget: Annotated[float, Field(gt=0)] | None = None  # epsilon: training stops before it is overspent
    canaries: Whole = 0  # planted in the run, to test from outside what the accountant says
    simulate: SimulateTable | None = None
    public_statistics: bool | None = None  # what a file's examples are prepared with (means, vocabulary) is no secret
