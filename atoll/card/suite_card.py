"""A card of a suite's own cells: the methods of one row, as the suite has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atoll.card.make_card import CardOptions
from atoll.errors import ConfigError
from atoll.experiment import Device
from atoll.suites import CardFigure, Suite, cells_at, merged


def suite_sources(suite: Suite, figure: CardFigure, overrides: Sequence[str] = ()) -> list[tuple[str, dict[str, Any]]]:
    """The experiments of a row by method; a ConfigError where the suite has no such cell at this size."""
    cells: Mapping[str, Mapping[str, Any]] = cells_at(suite, figure.row, overrides)
    missing = [method for method in figure.methods if method not in cells]
    if missing:
        raise ConfigError(
            f"card.{figure.name}.methods: the suite has no cell {'/'.join(figure.row.values())}/{missing[0]}. "
            f"It has {', '.join(cells) or 'none of that row'}."
        )
    return [(method, merged(cells[method], figure.base)) for method in figure.methods]


def suite_card_options(suite: Suite, figure: CardFigure, seeds: int | None, jobs: int, device: Device) -> CardOptions:
    """As the suite says; seeds may be asked for."""
    return CardOptions(
        seeds=seeds or min(figure.seeds, suite.seeds),
        rounds=figure.rounds,
        attacks=figure.attacks,
        profile=figure.profiles[0],
        jobs=jobs,
        device=device,
    )
