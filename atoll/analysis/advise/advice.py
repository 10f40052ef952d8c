"""The advice: what did best on the nearest measured settings, how sure that is, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atoll.analysis.advise.distance import WITHIN, Distance, distance
from atoll.analysis.advise.evidence import LIKELY, Setting
from atoll.analysis.advise.target import Target

SURE = 0.95


@dataclass(frozen=True)
class Near:
    """A measured setting, and how far it is."""

    distance: Distance
    setting: Setting


@dataclass(frozen=True)
class Advice:
    """What to use, and why. `method` is None where there is no evidence."""

    target: Target
    method: str | None
    certainty: str  # "clear", "probable", "equal" (the second does as well), "undecided", "none"
    near: tuple[Near, ...]
    within: float
    considered: int  # settings that were looked at
    nearest: float | None  # the distance of the nearest of all

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "words": words(self)}


def advise(target: Target, evidence: Sequence[Setting], within: float = WITHIN, most: int = 3) -> Advice:
    """The nearest settings, and what did best on the nearest of them. The order of the evidence does not matter."""
    ranked = sorted((Near(d, s) for s in evidence if (d := _far(target, s)) is not None), key=_order)
    near = tuple(n for n in ranked if n.distance.total <= within)[:most]
    nearest = ranked[0].distance.total if ranked else None
    if not near:
        return Advice(target, None, "none", (), within, len(evidence), nearest)
    first = near[0].setting
    return Advice(target, first.advised, certainty(first), near, within, len(evidence), nearest)


def _far(target: Target, setting: Setting) -> Distance | None:
    same_privacy = target.private == bool(setting.privacy)
    return distance(target.skew, setting.skew, setting.data == target.data, same_privacy)


def _order(near: Near) -> tuple[Any, ...]:
    """By distance; then the full size before smaller ones, more seeds, and names, so that nothing is left to chance."""
    s = near.setting
    return round(near.distance.total, 9), s.size != "full", -len(s.seeds), s.suite, s.size, s.block, s.row, s.best


def certainty(setting: Setting) -> str:
    """How sure the first place is."""
    if setting.cheaper is not None:
        return "equal"
    if setting.p_better >= SURE:
        return "clear"
    if setting.p_equal >= LIKELY:
        return "equal"
    return "probable" if setting.p_better >= LIKELY else "undecided"


def words(advice: Advice) -> list[str]:
    """The advice in plain English."""
    if advice.method is None:
        return [_nothing(advice), *_to_find_out(advice.target)]
    return [*_nearest_text(advice.near[0]), *_others(advice)]


def _nothing(advice: Advice) -> str:
    if not advice.considered:
        return "No evidence: no measured setting has two methods on two seeds or more."
    if advice.nearest is None:
        return f"No evidence: none of the {advice.considered} measured settings says how unlike its clients are."
    return (
        f"No evidence: the nearest of {advice.considered} measured settings is {advice.nearest:.2f} away, "
        f"further than {advice.within:g}."
    )


def _to_find_out(target: Target) -> Iterator[str]:
    if target.next_step:
        yield f"To measure it on these clients, at three seeds each:\n{target.next_step}"


def _nearest_text(near: Near) -> Iterator[str]:
    s, second = near.setting, near.setting.scores[1].method
    margin, scale = s.margin, s.scale
    assert margin.half is not None
    where = f"the nearest measured setting, {s.name}, {near.distance.total:.2f} away"
    if s.cheaper is None:
        yield f"Use {s.best}: it did best on {where}."
    else:
        yield (
            f"Use {s.advised}: {s.best} did best on {where}, but practically they are equal (p(equal within "
            f"{s.rope * scale:g}) {s.cheaper.p_equal:.2f}), and {s.advised} sends {s.cheaper.share:.0%} of the bytes."
        )
    yield (
        f"{s.best} is {abs(margin.mean) * scale:.3g} ± {margin.half * scale:.2g} ahead of {second} in {s.metric} over "
        f"{len(s.seeds)} seeds: p(better) {s.p_better:.2f}, p(equal within {s.rope * scale:g}) {s.p_equal:.2f}, "
        f"p(worse) {s.p_worse:.2f}."
    )
    if s.cheaper is None:
        cost = "choose by cost" if math.isnan(s.scores[0].bytes) else "it sends no less: take either"
        yield _CERTAINTY[certainty(s)].format(second=second, more=_more(s), cost=cost)
    if near.distance.other_data:
        what = f"That was another data set, {s.data}" if s.data else "Those results do not name their data set"
        yield f"{what}: take it as a hint."
    if s.privacy:
        but = ", and what is asked about has no mechanism: take it as a hint" if near.distance.other_privacy else ""
        yield f"That was with a mechanism for privacy (the best {s.privacy}){but}."
    elif near.distance.other_privacy:
        yield "That was without privacy, and what is asked about has a mechanism: noise may change the order."
    if s.size != "full":
        yield f"Those runs are of the size {s.size!r}: short ones, so weak evidence."
    if s.diverged:
        yield f"Not finite in some seed there, and so not considered: {', '.join(s.diverged)}."


_CERTAINTY = {
    "clear": "That is clear.",
    "probable": "That is probable, not certain: {more} would settle it.",
    "equal": "Practically {second} is equal; {cost}.",
    "undecided": "That is undecided: the order may be chance. {more} would settle it.",
}


def _more(s: Setting) -> str:
    if s.settled is None:
        return "more than 1,000 seeds"
    more = max(1, s.settled - len(s.seeds))
    return f"{more} more seed{'' if more == 1 else 's'}"


def _others(advice: Advice) -> Iterator[str]:
    others = advice.near[1:]
    same = sum(n.setting.advised == advice.method for n in others)
    if len(others) == 1:
        yield f"The next nearest setting gives {'the same' if same else 'other'} advice."
    elif others:
        yield f"Of the {len(others)} next nearest settings, {same} {'gives' if same == 1 else 'give'} the same advice."
    if unlike := sum(n.distance.other_privacy for n in others):
        has = "no mechanism for privacy" if advice.target.private else "a mechanism for privacy"
        which = "It" if len(others) == 1 else f"{unlike} of them"
        yield f"{which} had {has}, unlike what is asked about."
