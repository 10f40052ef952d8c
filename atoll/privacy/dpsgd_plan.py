"""What DP-SGD inside clients costs: the event of one client's examples, and the client for whom it is worst.

The size n of a client is public: it sets its rate, its steps and its weight. Neighbours differ in one example of one
client, which is blanked out (its gradient is zero) and still counted; with `fixed` batches it is replaced by another.

| sampling | a client's event | adjacency |
|---|---|---|
| shuffled | one Gaussian for each epoch: an example is in one of its batches, and those are disjoint | zero-out |
| poisson | a Poisson-sampled Gaussian for each step, rate batch / n | zero-out |
| fixed | a Gaussian on batch of n without replacement for each step | replace-one |

A client is counted in every round that it could take part in: who reads an update knows whose it is, so that being
drawn for a round hides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from atoll.errors import ConfigError
from atoll.privacy.accountant import Accountant
from atoll.privacy.analytic import Analytic
from atoll.privacy.calibrate import noise_for
from atoll.privacy.composition import Adjacency
from atoll.privacy.events import Composed, Event, Gaussian, Sampled, check_delta, check_epsilon, max_participations
from atoll.privacy.pld import Pld
from atoll.privacy.rdp import Rdp, RdpCurve

Batches = Literal["shuffled", "poisson", "fixed"]
BEST: dict[str, Accountant] = {"shuffled": Analytic(), "poisson": Pld(), "fixed": Rdp()}


@dataclass(frozen=True)
class DpSgdPlan:
    """Clients of these sizes, and how each draws its batches; as `data/population.py` does it.

    >>> plan = DpSgdPlan(sizes=(100, 400), batch=20, epochs=2, sampling="poisson")
    >>> plan.steps(400), plan.worst(noise=2.0, rounds=5, delta=1e-4)[1]  # who has fewer examples has less to hide in
    (40, 100)
    """

    sizes: tuple[int, ...]
    batch: int  # 0: the whole client
    epochs: int = 1
    max_steps: int | None = None
    sampling: Batches = "shuffled"
    min_separation: int = 1  # rounds from one turn of a client to its next, at least
    _curves: dict[tuple[float, int], RdpCurve] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.sampling not in BEST:
            raise ConfigError(f"sampling: {self.sampling!r} is unknown. Use one of {', '.join(BEST)}.")

    @property
    def adjacency(self) -> Adjacency:
        """What neighbouring data sets differ in."""
        return "replace-one" if self.sampling == "fixed" else "zero-out"

    def steps(self, n: int) -> int:
        """Local steps of a client with n examples in one round."""
        whole = self._batches(n) * self.epochs
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def batch_size(self, n: int) -> int:
        """The expected examples in one of its batches."""
        return min(self.batch or n, n)

    def epochs_begun(self, n: int) -> int:
        """How often one example may be seen in a round, where batches are shuffled."""
        return -(-self.steps(n) // max(1, self._batches(n)))

    def round(self, noise: float, n: int) -> Event:
        """What one round does to the examples of a client that has n."""
        if self.sampling == "fixed":
            return Composed(((Sampled(Gaussian(noise), "without_replacement", n, self.batch_size(n)), self.steps(n)),))
        if self.sampling == "poisson" and self.batch_size(n) < n:
            return Composed(((Sampled(Gaussian(noise), "poisson", n, self.batch_size(n)), self.steps(n)),))
        times = self.epochs_begun(n) if self.sampling == "shuffled" else self.steps(n)
        return Composed(((Sampled(Gaussian(noise), "everyone", n, n), times),))

    def event(self, noise: float, rounds: int, n: int) -> Event:
        return Composed(((self.round(noise, n), max_participations(rounds, self.min_separation)),))

    @cached_property
    def candidate_sizes(self) -> tuple[int, ...]:
        """The sizes that may be the worst: of all with as many steps, the smallest."""
        sizes = sorted({n for n in self.sizes if n > 0}, reverse=True)
        if self.sampling == "shuffled":
            return (max(sizes, key=self.epochs_begun),) if sizes else ()
        return tuple({self.steps(n): n for n in sizes}.values())

    def accountant(self, noise: float, rounds: int) -> Accountant:
        """The tightest that knows every client's event: Rényi bounds where the losses outgrow a grid."""
        best, events = BEST[self.sampling], (self.event(noise, rounds, n) for n in self.candidate_sizes)
        return best if all(best.supports(event) is None for event in events) else Rdp()

    def worst(
        self, noise: float, rounds: int, delta: float, accountant: Accountant | None = None
    ) -> tuple[float, int | None]:
        """The largest epsilon of any client, and the examples that it has.

        Rényi bounds rank the suspects; one whose bound is no larger than what was found need not be looked at closely.
        """
        check_delta("local.privacy.delta", delta)
        tight, times = accountant or self.accountant(noise, rounds), max_participations(rounds, self.min_separation)
        largest: tuple[float, int | None] = (0.0, None)
        for renyi_bound, n in sorted(
            ((self._curve(noise, n).epsilon(times, delta), n) for n in self.candidate_sizes), reverse=True
        ):
            if times and (largest[1] is None or renyi_bound > largest[0]):
                largest = max(largest, (tight.epsilon(self.event(noise, rounds, n), delta), n), key=lambda x: x[0])
        return largest if largest[1] is not None else (0.0, next(iter(self.candidate_sizes), None))

    def bound(self, noise: float, rounds: int, delta: float) -> float:
        """An upper bound of that epsilon, at little cost for one more round."""
        if self.sampling == "shuffled":
            return self.worst(noise, rounds, delta)[0]
        times = max_participations(rounds, self.min_separation)
        return max((self._curve(noise, n).epsilon(times, delta) for n in self.candidate_sizes), default=0.0)

    def noise(self, epsilon: float, delta: float, rounds: int, accountant: Accountant | None = None) -> float:
        """The smallest noise multiplier (to 0.1 %) with which no client's epsilon is above this one."""
        check_epsilon("local.privacy.epsilon", epsilon)
        tight = accountant or self.accountant(1.0, rounds)
        noise, n = 0.0, self._first_guess()
        while n is not None:
            enough = noise_for(lambda z, n=n: self.event(z, rounds, n), epsilon, delta, tight, 1e-3)  # type: ignore[misc]
            noise = max(noise, enough)
            epsilon_spent, worst_size = self.worst(noise, rounds, delta, accountant)
            if epsilon_spent <= epsilon or worst_size == n:
                break
            n = worst_size
        return noise

    def _batches(self, n: int) -> int:
        return -(-n // self.batch) if self.batch else min(n, 1)

    def _first_guess(self) -> int | None:
        """A first guess of the worst: small rates cost about steps x rate²."""
        return max(self.candidate_sizes, key=lambda n: self.steps(n) * (self.batch_size(n) / n) ** 2, default=None)

    def _curve(self, noise: float, n: int) -> RdpCurve:
        """Cached for the noise of the run; a search for the noise makes many."""
        if (noise, n) not in self._curves:
            if len(self._curves) > 4 * len(self.candidate_sizes):
                self._curves.clear()
            self._curves[noise, n] = RdpCurve(self.round(noise, n))
        return self._curves[noise, n]
