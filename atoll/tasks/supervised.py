"""A model and an objective as one task."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from atoll import rng, tree
from atoll.core import Model, StepNeeds, UnitLayer
from atoll.errors import ConfigError
from atoll.tasks.hidden_units import check_units_stay_apart, unit_layers
from atoll.tasks.keyed_dropout import forward_pass
from atoll.tasks.layers import BatchNorm, BatchNormPolicy, keyed, last_linear, make_stackable, norm_names
from atoll.tasks.lora import merged, merged_state, shared_copy
from atoll.tasks.objectives import Classification, Objective
from atoll.tree import Tree


class Supervised:
    """Any `nn.Module` plus a loss, as pure functions of parameters, buffers and a batch.

    What the module keeps between forward passes (BatchNorm's statistics, or a buffer of its own) goes in and comes
    out as `buffers`; everything else it holds is constant. `is_stochastic`: the module draws numbers of its own, which
    cannot be keyed, so such a task runs on the loop engine. `mutable_buffers`: those that it writes in place.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, example: Tree, batch_norm: BatchNormPolicy = "average"
    ) -> None:
        self.original = model
        self.model = make_stackable(model, batch_norm).to("cpu")
        self.objective = objective
        self.batch_norm = batch_norm
        self.keyed = keyed(self.model)
        self._threads = threading.local()
        self._lock = threading.Lock()
        self._one = tree.rows({"x": example["x"]}, slice(0, 1))["x"]
        self._renewed = self._probe(example)
        self._units: tuple[UnitLayer, ...] | None = None  # found when somebody asks
        self.device = torch.device("cpu")
        self._compute_dtype: torch.dtype | None = None
        self._cast_base: Tree = {}  # what is frozen, in that type

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """What the model computes in, if not in what its weights are."""
        return self._compute_dtype

    @compute_dtype.setter
    def compute_dtype(self, dtype: torch.dtype | None) -> None:
        self._compute_dtype = dtype
        self._cast_base = {} if dtype is None else {k: _cast(v, dtype) for k, v in self.base().items()}

    def base(self) -> Tree:
        """The frozen parameters, which all clients share and nobody sends."""
        return {k: v.detach() for k, v in self.model.named_parameters() if not v.requires_grad}

    def shared(self) -> tuple[Tensor, ...]:
        """All tensors of the base, in every type in which it is kept."""
        return *self.base().values(), *self._cast_base.values()

    def init(self, key: Tensor) -> Model:
        """The model's own weights: whoever builds the module decides how they are drawn."""
        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        params = {k: v.detach().clone() for k, v in self.model.named_parameters() if v.requires_grad}
        return {"params": params, "buffers": {k: state[k].detach().clone() for k in self._renewed}}

    def step_needs(self) -> StepNeeds:
        """What training on a batch takes."""
        return StepNeeds(key=self.keyed, whole_because=self.objective.loss.whole_because)

    def loss(self, params: Tree, buffers: Tree, batch: Tree) -> tuple[Tensor, Tree]:
        scored = self.objective.takes_linear_scores
        out, renewed = self._forward(params, buffers, batch, training=True, scored=scored)
        return self.objective.batch_loss(out, batch["y"], batch["mask"]), renewed

    def measure(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        out, _ = self._forward(params, buffers, batch, training=False)
        return tree.map(lambda x: x * batch["mask"], self.objective.columns(out, batch["y"]))  # type: ignore[no-any-return]

    def measure_together(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        models = range(len(tree.leaves(params)[0]))
        each = [self._forward(tree.rows(params, m), tree.rows(buffers, m), batch, training=False)[0] for m in models]
        columns = self.objective.columns(self.objective.together(torch.stack(each)), batch["y"])
        return tree.map(lambda x: x * batch["mask"], columns)  # type: ignore[no-any-return]

    def logits(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        return self._forward(params, buffers, batch, training)[0]

    def features(self, params: Tree, buffers: Tree, batch: Tree, training: bool = True) -> Tensor:
        last = last_linear(self._model())
        if last is None:
            raise ConfigError("task.model: has no linear layer, so what enters the last one cannot be compared.")
        inputs: list[Tensor] = []
        handle = last[1].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        try:
            self._forward(params, buffers, batch, training)
        finally:
            handle.remove()
        return inputs[-1].reshape(len(inputs[-1]), -1)

    def layer_input_shapes(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        """The input shapes of layers, for one example; only of layers that see the batch on the first axis."""
        shapes: dict[str, tuple[int, ...]] = {}
        model, rows = self.model, 3

        def record(name: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
                if len(args[0]) == rows:
                    shapes[name] = tuple(args[0].shape[1:])

            return hook

        handles = [model.get_submodule(name).register_forward_pre_hook(record(name)) for name in names]
        x = tree.map(lambda one: torch.zeros_like(one, device=self.device).expand(rows, *one.shape[1:]), self._one)
        try:
            self._try({"x": x, "mask": torch.ones(rows, device=self.device)})
        finally:
            for handle in handles:
                handle.remove()
        return shapes

    def losses_with_output_offsets(
        self, params: Tree, buffers: Tree, batch: Tree, offsets: Tree
    ) -> tuple[Tensor, Tree]:
        """Per-example losses with offsets added to layer outputs, by layer name; also the layer inputs.

        At zero offsets, the gradient by an offset is the gradient by that output (ghost norms).
        """
        inputs: Tree = {}
        model = self._model()

        def offset(name: str) -> Callable[..., Tensor]:
            def hook(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
                inputs[name] = args[0]
                shifted: Tensor = out + offsets[name] if out.shape == offsets[name].shape else out
                return shifted

            return hook

        handles = [model.get_submodule(name).register_forward_hook(offset(name)) for name in offsets]
        try:
            out, _ = self._forward(params, buffers, batch, training=True)
        finally:
            for handle in handles:
                handle.remove()
        sums, weights = self.objective.losses(out, batch["y"])
        return sums / weights.clamp(min=1e-6), inputs

    def statistics(self, params: Tree, buffers: Tree, batch: Tree) -> Tree:
        """Of BatchNorm in place of mean and variance: the first two moments about the running mean.

        These can be averaged over batches and clients, which variances cannot: what lies between them would be lost.
        """
        model, moments = self._model(), dict[str, list[tuple[Tensor, Tensor]]]()

        def record(name: str) -> Callable[..., None]:
            def hook(layer: BatchNorm, args: tuple[Tensor, ...]) -> None:
                moments.setdefault(name, []).append(layer.moments(args[0], buffers[f"{name}running_mean"]))

            return hook

        norms = {name: model.get_submodule(name.rstrip(".")) for name in self._positions}
        handles = [layer.register_forward_pre_hook(record(name)) for name, layer in norms.items()]
        try:
            _, renewed = self._forward(params, buffers, batch, training=True)
        finally:
            for handle in handles:
                handle.remove()
        for name, calls in moments.items():
            first, second = (torch.stack(x).mean(0) for x in zip(*calls, strict=True))
            renewed |= {f"{name}running_mean": first, f"{name}running_var": second}
        return renewed

    def renewed_buffers(self, means: Tree, buffers: Tree, examples: Tensor) -> Tree:
        """Variance: E[(x - a)^2] - E[x - a]^2, times n / (n - 1), as torch's running variance is an unbiased one."""
        renewed = {k: tree.cast_like(means[k], b) for k, b in buffers.items()}
        for name, positions in self._positions.items():
            shift, n = means[f"{name}running_mean"], examples * positions
            var = (means[f"{name}running_var"] - shift * shift).clamp(min=0) * (n / (n - 1).clamp(min=1))
            renewed |= {f"{name}running_mean": buffers[f"{name}running_mean"] + shift, f"{name}running_var": var}
            renewed |= {k: buffers[k] for k in (f"{name}num_batches_tracked",) if k in buffers}  # no step was made
        return renewed

    def names(self, kind: str) -> tuple[str, ...]:
        if kind == "norm":
            norms = norm_names(self.model)
            if not norms:
                raise ConfigError(
                    "task.model: has no normalisation layer, so nothing would stay with the clients. "
                    "Name what should stay in algorithm.keep, or take a model with one."
                )
            return self._learned(norms, "its normalisation layers")
        last = last_linear(self.model)
        if last is None:
            raise ConfigError("task.model: has no linear layer. Name what should stay with clients in algorithm.keep.")
        names = tuple(f"{last[0]}.{k}" if last[0] else k for k in last[1].state_dict())
        return self._learned(names, f"its last linear layer, {last[0]!r},")

    def _learned(self, names: tuple[str, ...], what: str) -> tuple[str, ...]:
        model = self.init(rng.key(0))
        learned = tuple(k for k in names if k in model["params"] or k in model["buffers"])
        if not learned:
            raise ConfigError(
                f"task.model: nothing of {what} learns, so nothing would stay with the clients. Name what should stay "
                "in algorithm.keep, or let it learn (task.lora.targets, task.lora.also_train)."
            )
        return learned

    def head_shape(self) -> tuple[int, int]:
        last = last_linear(self.model)
        if last is None:
            raise ConfigError("task.model: has no linear layer, so there are no features that enter the last one.")
        classes = self.objective.classes if isinstance(self.objective, Classification) else 1
        return classes, last[1].in_features

    def is_cross_entropy(self) -> bool:
        return isinstance(self.objective, Classification) and self.objective.is_cross_entropy

    def unit_layers(self) -> tuple[UnitLayer, ...]:
        """Its layers in the order of a forward pass, and whose units they read; a ConfigError where units mix."""
        if self._units is None:
            mask = torch.ones(2, device=self.device)
            x = tree.map(lambda one: torch.zeros_like(one, device=self.device).expand(2, *one.shape[1:]), self._one)
            model = copy.deepcopy(self.model)  # a forward pass renews statistics
            layers = unit_layers(model, lambda: _call(model, {"x": x, "mask": mask}))
            start = self.init(rng.key(0))
            noise = tree.map(lambda one: rng.normal(rng.key("units"), tuple(one.shape)).to(self.device), x)
            batch = {"x": noise, "mask": mask}
            check_units_stay_apart(layers, start["params"], lambda p: self.logits(p, start["buffers"], batch, False))
            self._units = layers
        return self._units

    def state(self, model: Model) -> Tree:
        """A model keyed like the module's own state, so that `module.load_state_dict` takes it; adapters are merged."""
        learned = {**model["params"], **model["buffers"]}
        own = self.original.state_dict() if self.batch_norm != "group" else self.model.state_dict()
        first = _first_names(self.model)
        return merged_state(self.model, {k: learned.get(first.get(k, k), v) for k, v in own.items()})

    def plain_module(self) -> nn.Module:
        """A module that takes `state`, with the weights that training started from."""
        return merged(self.model if self.batch_norm == "group" else self.original)

    def structure(self) -> Hashable:
        """Modules of one entry differ in what was drawn: what is learned is data, what is constant must be equal."""
        learned = self.init(rng.key(0))
        there = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        constant = {k: v for k, v in there.items() if k not in learned["params"] and k not in learned["buffers"]}
        kinds = type(self.model), type(self.objective), type(self.objective.loss)
        return *kinds, self.batch_norm, tree.digest(constant)

    def to(self, device: torch.device) -> Supervised:
        """The same task with the module's constants on another device."""
        self.device = device
        self.model.to(device)
        self.compute_dtype = self._compute_dtype  # of what is frozen there
        if self.objective.loss.module is not None:
            self.objective.loss.module.to(device)
        return self

    def _forward(
        self, params: Tree, buffers: Tree, batch: Tree, training: bool, scored: bool = False
    ) -> tuple[Tensor, Tree]:
        """Outputs, and renewed buffers; a model that is `scored` may give `LinearScores`, for a loss alone."""
        model = self._model()
        if model.training != training:
            model.train(training)
        # a module that writes in its buffer must not write in the server's
        state = {**params, **{k: v.clone() if k in self.mutable_buffers else v for k, v in buffers.items()}}
        x = batch["x"]
        if (to := self.compute_dtype) is not None:
            state = {**self._cast_base, **{k: _cast(v, to) if k in params else v for k, v in state.items()}}
            x = tree.map(lambda values: _cast(values, to), x)
        with forward_pass(batch["mask"], batch.get("key"), model if scored else None):
            out = _predictions(functional_call(model, state, *_arguments(x)))
        out = out.float() if self.compute_dtype is not None and isinstance(out, Tensor) else out
        return out, {k: state[k] for k in buffers}  # functional_call writes renewed buffers back into `state`

    def _model(self) -> nn.Module:
        """This thread's own copy: functional_call swaps parameters in place for the time of the call."""
        if threading.current_thread() is threading.main_thread():
            return self.model
        if not hasattr(self._threads, "model"):
            with self._lock:
                self._threads.model = shared_copy(self.model)
        return self._threads.model  # type: ignore[no-any-return]

    def _probe(self, example: Tree) -> tuple[str, ...]:
        """Try one batch: which buffers change, is the output of use, does the module draw random numbers?"""
        before = {k: v.clone() for k, v in self.model.named_buffers()}
        norms = {f"{n}." if n else "": m for n, m in self.model.named_modules() if isinstance(m, BatchNorm)}
        batch_norm_buffers = {f"{n}{k}" for n, m in norms.items() for k, _ in m.named_buffers()}
        self._positions: dict[str, int] = {}  # of BatchNorm layers, by prefix: values of a feature in one example

        def record(name: str) -> Callable[..., None]:
            return lambda layer, args: self._positions.update({name: args[0][0, 0].numel()})

        handles = [m.register_forward_pre_hook(record(n)) for n, m in norms.items() if m.tracked]
        rng_state = torch.get_rng_state()
        out = self._try(example)
        for handle in handles:
            handle.remove()
        self.is_stochastic = not torch.equal(rng_state, torch.get_rng_state())
        torch.set_rng_state(rng_state)
        if not isinstance(out, Tensor):
            what = f"gives a {type(out).__name__}, but must give one tensor"
            raise ConfigError(f"task.model: {what}. Wrap it in a module that returns the predictions alone.")
        problem = self.objective.refuse(out, example["y"])
        if problem:
            raise ConfigError(f"task.model: {problem}.")
        self.outputs = tuple(out.shape[1:])
        changed = {k for k, v in self.model.named_buffers() if not torch.equal(v, before[k])}
        for k, v in self.model.named_buffers():
            v.data.copy_(before[k])
        self.mutable_buffers = tuple(sorted(changed - batch_norm_buffers))
        return tuple(k for k in before if k in batch_norm_buffers | changed)

    def _try(self, example: Tree) -> Any:
        self.model.train()
        try:
            return _call(self.model, example)
        except ConfigError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as e:
            x = example["x"]
            shape = {k: tuple(v.shape[1:]) for k, v in x.items()} if isinstance(x, dict) else tuple(x.shape[1:])
            hint = " Whole numbers for an embedding: kind = 'tokens'." if "indices" in str(e) else ""
            raise ConfigError(f"task.model: cannot take inputs of shape {shape}: {e}.{hint}") from e


def _call(model: nn.Module, example: Tree) -> Any:
    """What a module itself makes of a batch."""
    key = torch.zeros(2, dtype=torch.int64, device=example["mask"].device)
    args, named = _arguments(example["x"])
    with torch.no_grad(), forward_pass(example["mask"], key):
        return _predictions(model(*args, **named))


def _arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    """How a model is called: with one tensor, or with several by name."""
    return ((), x) if isinstance(x, dict) else ((x,), {})


def _predictions(out: Any) -> Any:
    """Of a dict of outputs, as models with named inputs give, the logits."""
    return out["logits"] if isinstance(out, dict) and "logits" in out else out


def _cast(x: Tensor, to: torch.dtype) -> Tensor:
    return x.to(to) if x.is_floating_point() else x


def _first_names(model: nn.Module) -> dict[str, str]:
    """Every name of a tensor that has several (tied weights), with the one that it is learned under."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: first.setdefault(id(x), name) for name, x in named}
