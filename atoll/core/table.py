"""Plain tables of files: checked, frozen, and nothing in them that is not known."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Table(BaseModel):
    """A part of a file that is a plain table."""

    model_config = ConfigDict(extra="forbid", frozen=True)
