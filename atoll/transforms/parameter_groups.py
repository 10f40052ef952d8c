"""Tensors of an update in groups, by the names in their paths.

>>> import torch
>>> update = {"delta": {"fc1": torch.ones(1), "fc2": torch.ones(1)}}
>>> halved = map_groups(update, ["fc1", "rest"], "clip_layers.max_norms",
...                     lambda name, group: {p: x / 2 for p, x in group.items()} if name == "fc1" else group)
>>> halved
{'delta': {'fc1': tensor([0.5000]), 'fc2': tensor([1.])}}
"""

from collections.abc import Callable, Iterable

from atoll import tree
from atoll.errors import ConfigError
from atoll.tree import Tree

REST = "rest"  # takes what no other name takes


def group_of(path: str, names: Iterable[str], where: str) -> str:
    """The longest of the names that the path has in it, or "rest"; a refusal where there is neither."""
    listed = list(names)
    matching = [name for name in listed if name in path]
    if not matching and REST not in listed:
        raise ConfigError(f"{where}: {path!r} has no bound. Add one for it, or one for 'rest'.")
    return max(matching, key=len, default=REST)


def check_names(like: Tree, names: Iterable[str], where: str, rest: bool = False) -> None:
    """Refuse a name that no tensor has; also a "rest" of nothing, where that counts."""
    listed = list(names)
    used = {group_of(path, listed, where) for path, _ in tree.paths(like)}
    unused = [name for name in sorted(listed) if name not in used and (rest or name != REST)]
    if unused:
        paths = ", ".join(path for path, _ in list(tree.paths(like))[:6])
        what = "no tensor is left for 'rest'" if unused[0] == REST else f"no tensor is called {unused[0]!r}"
        raise ConfigError(f"{where}: {what}. There are {paths}, ...")


def map_groups(value: Tree, names: Iterable[str], where: str, change: Callable[[str, Tree], Tree]) -> Tree:
    """The update with every group changed: `change` gets its name and its tensors by path."""
    listed = list(names)
    groups: dict[str, Tree] = {name: {} for name in listed}
    for path, x in tree.paths(value):
        groups[group_of(path, listed, where)][path] = x
    changed = {p: x for name, tensors in groups.items() if tensors for p, x in change(name, tensors).items()}
    paths = iter([path for path, _ in tree.paths(value)])
    return tree.map(lambda _: changed[next(paths)], value)  # type: ignore[no-any-return]
