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


MODELS = {"a": linear, "b": cnn, "c": lenet}
AFTER_FLATTEN = {"dense": (64, 14, 14), "dense1": (16, 4, 4)}  # channels first, as PyTorch flattens them


def forward(job):
    """The workload's model as a Haiku transform of a batch."""
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
            if layer in AFTER_FLATTEN:
                value = np.moveaxis(value.reshape(-1, *AFTER_FLATTEN[layer]), 1, -1).reshape(len(value), -1)
            value = value.T if value.ndim == 2 else value.transpose(2, 3, 1, 0)
        params.setdefault(layer, {})["w" if kind == "weight" else "b"] = jnp.asarray(value)
    return params


def to_torch(params):
    """PyTorch's parameters of Haiku's."""
    weights = {}
    for layer, parts in params.items():
        value = np.asarray(parts["w"])
        value = value.T if value.ndim == 2 else value.transpose(3, 2, 0, 1)
        if layer in AFTER_FLATTEN:
            channels, *sides = AFTER_FLATTEN[layer]
            value = np.moveaxis(value.reshape(-1, *sides, channels), -1, 1).reshape(len(value), -1)
        weights |= {f"{layer}.weight": value, f"{layer}.bias": np.asarray(parts["b"])}
    return weights
