"""Methods whose clients train more or other models than one that all of them average: what a file says for each."""

from typing import Any

OTHER_MODELS: dict[str, dict[str, Any]] = {
    "heterofl": {"algorithm": {"name": "heterofl", "lr": 0.1, "widths": [1.0, 0.5]}},
    "feddf": {"algorithm": {"name": "feddf", "lr": 0.1, "steps": 2}, "server": {"root": 0.1}},
    "fedmd": {"algorithm": {"name": "fedmd", "lr": 0.1, "widths": [1.0, 0.5]}, "server": {"root": 0.1}},
    "fedmd of kinds": {
        "algorithm": {"name": "fedmd", "lr": 0.1, "kinds": 2},
        "server": {"root": 0.1},
        "task": {"model": {"name": "one_of", "of": [{"name": "mlp", "widths": [8]}, {"name": "linear"}]}},
    },
    "fedma": {"algorithm": {"name": "fedavg", "lr": 0.1}, "round": {"name": "fedma"}},
    "fednas": {"algorithm": {"name": "fednas", "lr": 0.1}, "task": {"model": {"name": "supernet", "channels": 2}}},
    "fedgan": {"algorithm": {"name": "fedgan", "lr": 0.1}, "task": {"model": {"name": "gan", "width": 8}}},
    "fedgkt": {
        "algorithm": {"name": "fedgkt", "lr": 0.1},
        "task": {"model": {"name": "gkt", "features": 4, "widths": [8]}},
    },
    "pseudo_labels": {"algorithm": {"name": "pseudo_labels", "lr": 0.1, "labelled": 0.5}},
}
