"""The models of the workloads in Haiku, as fedjax's own models are written: channels last."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np


def linear(x, train):
    return hk.Linear(10, name="head")(x)


def cnn(x, train):
    x = jax.nn.relu(hk.Conv2D(32, 3, padding="VALID", name="conv1")(x))
    x = jax.nn.relu(hk.Conv2D(64, 3, padding="VALID", name="conv2")(x))
    x = hk.max_pool(x, (2, 2, 1), (2, 2, 1), "VALID")
    x = hk.dropout(hk.next_rng_key(), 0.25, x) if train else x
    x = jax.nn.relu(hk.Linear(128, name="dense")(hk.Flatten()(x)))
    x = hk.dropout(hk.next_rng_key(), 0.5, x) if train else x
    return hk.Linear(10, name="head")(x)


def lenet(x, train):
    x = hk.max_pool(jax.nn.relu(hk.Conv2D(6, 5, padding="VALID", name="conv1")(x)), (2, 2, 1), (2, 2, 1), "VALID")
    x = hk.max_pool(jax.nn.relu(hk.Conv2D(16, 5, padding="VALID", name="conv2")(x)), (2, 2, 1), (2, 2, 1), "VALID")
    x = jax.nn.relu(hk.Linear(120, name="dense1")(hk.Flatten()(x)))
    x = jax.nn.relu(hk.Linear(84, name="dense2")(x))
    return hk.Linear(10, name="head")(x)


MODELS = {"a": linear, "b": cnn, "c": lenet, "d": lenet, "e": linear}
SIDES = {256: 4, 400: 5}  # of what a LeNet flattens, by how many numbers that are


def after_flatten(layer, numbers):
    """The picture that was flattened before a layer, channels first as PyTorch does; None where there was none."""
    if layer == "dense":
        return (64, 14, 14)
    return (16, SIDES[numbers], SIDES[numbers]) if layer == "dense1" else None


def forward(job):
    """The workload's model as a Haiku transform of a batch."""
    if job.name not in MODELS:
        raise SystemExit(f"({job.name}) has no Haiku model here")
    return hk.transform(lambda batch, train: MODELS[job.name](batch["x"], train))


def last(x):
    """Examples with their channels last."""
    return x if x.ndim == 2 else np.ascontiguousarray(np.moveaxis(x, 1, -1))


def from_torch(weights):
    """Haiku's parameters of PyTorch's."""
    params = {}
    for key, value in weights.items():
        layer, kind = key.split(".")
        if kind == "weight":
            if picture := after_flatten(layer, value.shape[1]):
                value = np.moveaxis(value.reshape(-1, *picture), 1, -1).reshape(len(value), -1)
            value = value.T if value.ndim == 2 else value.transpose(2, 3, 1, 0)
        params.setdefault(layer, {})["w" if kind == "weight" else "b"] = jnp.asarray(value)
    return params


def to_torch(params):
    """PyTorch's parameters of Haiku's."""
    weights = {}
    for layer, parts in params.items():
        value = np.asarray(parts["w"])
        value = value.T if value.ndim == 2 else value.transpose(3, 2, 0, 1)
        if picture := after_flatten(layer, value.shape[1]):
            channels, *sides = picture
            value = np.moveaxis(value.reshape(-1, *sides, channels), -1, 1).reshape(len(value), -1)
        weights |= {f"{layer}.weight": value, f"{layer}.bias": np.asarray(parts["b"])}
    return weights
