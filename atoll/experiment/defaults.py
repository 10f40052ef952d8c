"""What follows from the data where the file does not say."""

from collections.abc import Collection

from atoll.errors import ConfigError
from atoll.schema import Entry

_LARGE = 28  # pixels: from here on a convolution earns its keep


def usual_model(kind: str, inputs: tuple[int, ...], vocabulary: int | None = None) -> Entry:
    """The model for data of this kind and shape: `task.model` where the file has none.

    >>> usual_model("classification", (1, 8, 8)), usual_model("classification", (3, 32, 32))
    ({'name': 'mlp'}, {'name': 'cnn'})
    """
    if kind == "next_token":
        return {"name": "char_lstm"}
    if vocabulary is not None:
        return {"name": "sentiment_lstm", "vocabulary": vocabulary}
    if kind == "regression":
        return {"name": "linear"}
    if len(inputs) == 3 and min(inputs[1:]) >= _LARGE:
        return {"name": "lenet" if inputs[0] == 1 else "cnn"}
    return {"name": "mlp"}


def usual_partition(data: str, keys: Collection[str]) -> Entry:
    """The natural clients of the data: `partition` where the file has none."""
    if len(keys) == 1:
        return {"name": "natural", "by": next(iter(keys))}
    if not keys:
        raise ConfigError(
            f"partition: is missing, and {data} has no natural clients. "
            'Example: partition = { name = "dirichlet", clients = 20, alpha = 0.3 }'
        )
    known = ", ".join(sorted(keys))
    raise ConfigError(
        f"partition: is missing, and {data} has several kinds of natural clients ({known}). "
        f'Example: partition = {{ name = "natural", by = "{min(keys)}" }}'
    )
