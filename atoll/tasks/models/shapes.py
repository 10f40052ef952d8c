"""The shape of one example, read for a model that takes only some shapes."""

from atoll.errors import ConfigError

Shape = tuple[int, ...]


def image(model: str, inputs: Shape, *, smallest: int = 1, why: str = "") -> tuple[int, int, int]:
    """Channels, height and width; `smallest` is the shortest side that survives the model's layers."""
    if len(inputs) != 3:
        raise ConfigError(
            f"task.model.name: {model!r} takes images (channels, height, width), but one example has shape {inputs}. "
            "Use 'mlp' or 'linear' for vectors, 'char_lstm' or 'transformer_lm' for tokens."
        )
    channels, height, width = inputs
    if min(height, width) < smallest:
        raise ConfigError(
            f"task.model.name: {model!r} needs images of at least {smallest} x {smallest} pixels because {why} "
            f"(got {height} x {width}). For small images use 'mlp'."
        )
    return channels, height, width


def window(model: str, inputs: Shape) -> int:
    """The number of tokens in one example."""
    if len(inputs) != 1:
        raise ConfigError(
            f"task.model.name: {model!r} takes a window of tokens (length,), but one example has shape {inputs}. "
            "Use 'lenet', 'cnn' or 'resnet18' for images, 'mlp' for anything else."
        )
    return inputs[0]
