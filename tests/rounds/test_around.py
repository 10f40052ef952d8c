"""A round around another forwards all that a round has."""

from atoll.core import Round
from atoll.rounds.around import RoundAround


def test_a_round_around_another_forwards_every_part_of_a_round_but_its_run() -> None:
    parts = {name for name in vars(Round) if not name.startswith("_")}
    assert parts - set(vars(RoundAround)) == {"run"}
