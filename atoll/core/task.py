"""What is learned."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from atoll.core.units import UnitLayer
from atoll.tree import Tree

# {"params": what gradients move, "buffers": what a forward pass renews (BatchNorm's statistics); often empty}
Model: TypeAlias = Tree


@dataclass(frozen=True)
class StepNeeds:
    """What training on one batch asks of an engine."""

    key: bool = False  # of its own, for dropout or noise
    example_gradients: bool = False  # a gradient for every example at a time, and not one for all
    whole_because: str | None = None  # why a batch must be its real examples and nothing else, if it must


class Task(Protocol):
    """A model and its loss, as pure functions of ONE client's batch.

    A batch is `{"x", "y", "mask", "key"}`: the mask is 1 for real examples and 0 for padding, the key feeds dropout.
    With `Traits.places` it has "place", too: which of the client's own examples each is.
    """

    def init(self, key: Tensor) -> Model:
        """The model before the first round."""
        ...

    def loss(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tensor, Tree]:
        """The mean loss over the REAL examples, and the renewed buffers."""
        ...

    def measure(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        """One column per statistic, one row per example, so that any group of examples can be summed."""
        ...

    def measure_together(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        """The same of several models, rows of the trees, that predict together: by the mean of their probabilities."""
        ...

    def features(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        """What enters the last layer, (B, features); as in training, or as when the model predicts."""
        ...

    def logits(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        """What the model puts out for every example, before the loss; as in training, or as when it predicts."""
        ...

    def statistics(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        """Means over the REAL examples of which `renewed_buffers` makes buffers; shaped like the buffers."""
        ...

    def renewed_buffers(self, means: Tree, buffers: Tree, examples: Tensor) -> Tree:
        """The buffers of all `examples` whose `statistics` were averaged; `buffers` are those they were taken with."""
        ...

    def unit_layers(self) -> tuple[UnitLayer, ...]:
        """Layers in the order of a forward pass, with their hidden units; () where nothing is known of units."""
        ...

    def names(self, kind: str) -> tuple[str, ...]:
        """The names of the parameters and buffers of the last layer ("head") or of normalisation ("norm")."""
        ...

    def head_shape(self) -> tuple[int, int]:
        """How many classes the last layer tells apart (1: none), and how many features enter it."""
        ...

    def is_cross_entropy(self) -> bool:
        """Is the loss the mean over examples of the cross-entropy of classes, with no weights and no smoothing?"""
        ...


class SecondModel(Task, Protocol):
    """A model that an algorithm owns beside the one it learns: a teacher, a smaller copy for slow devices.

    An algorithm asks for one in its signature (`teacher: SecondModel`), and a file names it like `task.model`. It is
    built for the same data; `init` in the algorithm's own `init` puts it into the server's state.
    """


@runtime_checkable
class GivesGradient(Protocol):
    """A task that says itself what the gradient of a batch is, in place of the gradient of `loss`."""

    def gradient(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tree, Tensor]:
        """The gradient to step along, and the mean loss for the record."""
        ...
