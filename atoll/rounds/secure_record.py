"""What a run says of its secure sums: in every line of the record, and in run.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from atoll.core import Outcome
from atoll.protocols import Fit, ProtocolCosts
from atoll.reducers import SECURE
from atoll.tree import Tree


class SecureRecord:
    """Hears of every round: how many were asked, who was lost at which step, and what the protocol took.

    No key, mask, seed or share of one is ever in it.
    """

    key = SECURE
    diagnostics = frozenset([SECURE])

    def __init__(self, mode: str, protocol: str, insecure_seed: bool, level: int = 0) -> None:
        self.facts: dict[str, Any] = {"protocol": protocol, "mode": mode}
        if level:
            self.facts["level"] = level
        if insecure_seed:
            self.facts["insecure_seed"] = True
        self.rounds, self.void, self.lost = 0, 0, 0

    def hear(self, number: int, outcome: Outcome, left_out: int) -> dict[str, Any]:
        """What a line of the record says."""
        told = outcome.diagnostics[SECURE]
        unusable = 0 if "level" in self.facts else left_out  # whose updates are no numbers; edges never see them
        lost = [(id, at) for id, at in zip(told["ids"].tolist(), told["lost_at"].tolist(), strict=True) if at >= 0]
        line: dict[str, Any] = {"asked": len(told["ids"]), "in_sum": int(told["in_sum"].sum()) - unusable}
        if lost:
            line |= {"lost": len(lost), "lost_ids": [id for id, _ in lost], "lost_steps": [at + 1 for _, at in lost]}
        if bool(told["void"]):
            line["void"] = True
        if "sums" in told:
            line |= {"sums": int(told["sums"]), "void_sums": int(told["void_sums"])}
        costs = ProtocolCosts.read([float(f"{x:.6g}") for x in told["costs"].tolist()])
        seconds = {"client": costs.client_seconds, "server": costs.server_seconds}  # of a client on average
        if costs.role_seconds:
            seconds["role"] = costs.role_seconds
        line |= {"up": costs.up, "down": costs.down, "seconds": seconds}
        self._count(line)
        return line

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """A resumed run had made these rounds."""
        for entry in history:
            self._count(entry[self.key])

    def _count(self, line: Mapping[str, Any]) -> None:
        self.rounds += 1
        self.void += bool(line.get("void"))
        self.lost += int(line.get("lost", 0))

    def objects(self, number: int) -> str | None:
        """It never does."""
        return None

    def ended_by(self, what: Literal["a metric", "a client", "a bound"]) -> None:
        """Nothing follows from it."""

    def forecast(self) -> list[str]:
        """What is known before the first round."""
        return [f"{self.facts['protocol']}, mode = {self.facts['mode']!r}"]

    def summary(self, state: Tree, quick: bool = False) -> dict[str, Any]:
        """The block of run.json."""
        block = {**self.facts, "rounds": self.rounds, "void": self.void, "lost": self.lost}
        if SECURE in state:
            fit = Fit(*state[SECURE]["fit"].tolist())
            block["cost_model"] = {
                "fitted": "on this machine, to real runs of the same protocol",
                "runs": int(fit.runs),
                "clients": int(fit.clients),
                "numbers": int(fit.numbers),
                "median_error": {name: float(f"{x:.3g}") for name, x in fit.errors().items()},
            }
        return block
