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
from atoll.privacy.events import Composed, Event, Gaussian, Sampled, check_delta, check_epsilon, turns
from atoll.privacy.pld import Pld
from atoll.privacy.rdp import Curve, Rdp

Batches = Literal["shuffled", "poisson", "fixed"]
BEST: dict[str, Accountant] = {"shuffled": Analytic(), "poisson": Pld(), "fixed": Rdp()}


@dataclass(frozen=True)
class Examples:
    """Clients of these sizes, and how each draws its batches; as `data/population.py` does it.

    >>> plan = Examples(sizes=(100, 400), batch=20, epochs=2, sampling="poisson")
    >>> plan.steps(400), plan.worst(noise=2.0, rounds=5, delta=1e-4)[1]  # who has fewer examples has less to hide in
    (40, 100)
    """

    sizes: tuple[int, ...]
    batch: int  # 0: the whole client
    epochs: int = 1
    max_steps: int | None = None
    sampling: Batches = "shuffled"
    min_separation: int = 1  # rounds from one turn of a client to its next, at least
    _curves: dict[tuple[float, int], Curve] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.sampling not in BEST:
            raise ConfigError(f"sampling: {self.sampling!r} is unknown. Use one of {', '.join(BEST)}.")

    @property
    def adjacency(self) -> Adjacency:
        """What neighbouring data sets differ in."""
        return "replace-one" if self.sampling == "fixed" else "zero-out"

    def steps(self, n: int) -> int:
        """Of a client with n examples in one round."""
        whole = self._batches(n) * self.epochs
        return whole if self.max_steps is None else min(whole, self.max_steps)

    def drawn(self, n: int) -> int:
        """The examples of one of its batches, expected."""
        return min(self.batch or n, n)

    def epochs_begun(self, n: int) -> int:
        """How often one example may be seen in a round, where batches are shuffled."""
        return -(-self.steps(n) // max(1, self._batches(n)))

    def round(self, noise: float, n: int) -> Event:
        """What one round does to the examples of a client that has n."""
        if self.sampling == "fixed":
            return Composed(((Sampled(Gaussian(noise), "without_replacement", n, self.drawn(n)), self.steps(n)),))
        if self.sampling == "poisson" and self.drawn(n) < n:
            return Composed(((Sampled(Gaussian(noise), "poisson", n, self.drawn(n)), self.steps(n)),))
        times = self.epochs_begun(n) if self.sampling == "shuffled" else self.steps(n)
        return Composed(((Sampled(Gaussian(noise), "everyone", n, n), times),))

    def event(self, noise: float, rounds: int, n: int) -> Event:
        """What `rounds` rounds do to them at most."""
        return Composed(((self.round(noise, n), turns(rounds, self.min_separation)),))

    @cached_property
    def suspects(self) -> tuple[int, ...]:
        """The sizes that may be the worst: of all with as many steps, the smallest."""
        sizes = sorted({n for n in self.sizes if n > 0}, reverse=True)
        if self.sampling == "shuffled":
            return (max(sizes, key=self.epochs_begun),) if sizes else ()
        return tuple({self.steps(n): n for n in sizes}.values())

    def accountant(self, noise: float, rounds: int) -> Accountant:
        """The tightest that knows every client's event: Rényi bounds where the losses outgrow a grid."""
        best, events = BEST[self.sampling], (self.event(noise, rounds, n) for n in self.suspects)
        return best if all(best.supports(event) is None for event in events) else Rdp()

    def worst(
        self, noise: float, rounds: int, delta: float, accountant: Accountant | None = None
    ) -> tuple[float, int | None]:
        """The largest epsilon of any client, and the examples that it has.

        Rényi bounds rank the suspects; one whose bound is no larger than what was found need not be looked at closely.
        """
        check_delta("local.privacy.delta", delta)
        close, times = accountant or self.accountant(noise, rounds), turns(rounds, self.min_separation)
        found: tuple[float, int | None] = (0.0, None)
        for loose, n in sorted(((self._curve(noise, n).epsilon(times, delta), n) for n in self.suspects), reverse=True):
            if times and (found[1] is None or loose > found[0]):
                found = max(found, (close.epsilon(self.event(noise, rounds, n), delta), n), key=lambda x: x[0])
        return found if found[1] is not None else (0.0, next(iter(self.suspects), None))

    def bound(self, noise: float, rounds: int, delta: float) -> float:
        """An upper bound of that epsilon, at little cost for one more round."""
        if self.sampling == "shuffled":
            return self.worst(noise, rounds, delta)[0]
        times = turns(rounds, self.min_separation)
        return max((self._curve(noise, n).epsilon(times, delta) for n in self.suspects), default=0.0)

    def noise(self, epsilon: float, delta: float, rounds: int, accountant: Accountant | None = None) -> float:
        """The smallest noise multiplier (to 0.1 %) with which no client's epsilon is above this one."""
        check_epsilon("local.privacy.epsilon", epsilon)
        close = accountant or self.accountant(1.0, rounds)
        noise, n = 0.0, self._likely()
        while n is not None:
            enough = noise_for(lambda z, n=n: self.event(z, rounds, n), epsilon, delta, close, 1e-3)  # type: ignore[misc]
            noise = max(noise, enough)
            spent, other = self.worst(noise, rounds, delta, accountant)
            if spent <= epsilon or other == n:
                break
            n = other
        return noise

    def _batches(self, n: int) -> int:
        """Of one epoch."""
        return -(-n // self.batch) if self.batch else min(n, 1)

    def _likely(self) -> int | None:
        """A first guess of the worst: small rates cost about steps x rate²."""
        return max(self.suspects, key=lambda n: self.steps(n) * (self.drawn(n) / n) ** 2, default=None)

    def _curve(self, noise: float, n: int) -> Curve:
        """Kept for the noise of the run; a search for the noise makes many."""
        if (noise, n) not in self._curves:
            if len(self._curves) > 4 * len(self.suspects):
                self._curves.clear()
            self._curves[noise, n] = Curve(self.round(noise, n))
        return self._curves[noise, n]
