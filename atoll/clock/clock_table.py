"""[clock]: virtual time, as a file asks for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Positive: TypeAlias = Annotated[float, Field(gt=0)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0)]
Distribution: TypeAlias = dict[str, Any]  # read by quantities.py

DropoutMoment: TypeAlias = Literal["download", "training", "upload", "any"]


class ClockTable(BaseModel):
    """[clock]: how fast clients and links are, and how long the server waits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds_per_step: NotNegative | Literal["measured"]  # of a client with slowness 1
    seconds_to_compress: NotNegative | Literal["measured"] = 0.0  # an update: all transforms of a client, slowness 1
    devices: str | dict[str, float] | None = None  # a device class, or shares of several
    slowness: Positive | Distribution | None = None  # factor on seconds_per_step; None, here and below: the class's
    up_mbps: Positive | Distribution | None = None  # 10^6 bits per second
    down_mbps: Positive | Distribution | None = None
    latency_ms: NotNegative | Distribution | None = None  # one way
    loss: Annotated[float, Field(ge=0, lt=1)] | None = None  # share of packets that are sent again
    slow_start: bool = True  # TCP's, in every message
    trace: str | None = None  # a file with one row for each client
    availability: Annotated[float, Field(gt=0, le=1)] | str | None = None  # a probability, or a file of intervals
    repeat: bool = False  # the intervals of availability begin again
    dropout: Annotated[float, Field(ge=0, le=1)] = 0.0  # probability of each client in each round
    dropout_moment: DropoutMoment = "any"
    dropout_correlation: Annotated[float, Field(ge=0, le=1)] | None = None  # of clients in one round; None: 0
    dropout_by_size: float | None = None  # probability in proportion to examples^this: 1: large clients are lost more
    dropout_by_labels: Annotated[list[int], Field(min_length=1)] | None = None  # or to the share of these labels
    deadline: Positive | None = None  # seconds after which the server waits no longer
    over_selection: Annotated[float, Field(ge=1, le=10)] = 1.0  # clients asked for each that is waited for
    min_reports: Annotated[int, Field(ge=1)] = 1  # with fewer a round is void
    grace: NotNegative = 0.0  # seconds beyond the deadline in which the server waits for min_reports

    @property
    def leaves_out(self) -> bool:
        """Could somebody who was asked not be in the sum?"""
        unreliable = self.dropout > 0 or self.availability is not None
        return unreliable or self.deadline is not None or self.over_selection > 1 or self.min_reports > 1

    @property
    def selects_by_time(self) -> bool:
        """Does it matter for the sum how long clients take, or how many examples they have?"""
        traced = isinstance(self.availability, str) or bool(self.dropout and self.dropout_by_size)
        return self.deadline is not None or self.over_selection > 1 or traced
