"""One word for one thing: no two public classes of one name, no file called alike in more than two rooms."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.house.test_rooms import ROOT, room_of

# What is still called alike. Take out what you rename; put nothing in.
CLASSES_CALLED_ALIKE = {
    "Case",  # testing/algorithm.py, testing/transform.py
}
FILES_CALLED_ALIKE: set[str] = set()


def classes(paths: list[Path]) -> dict[str, list[str]]:
    """The files of every public class, by its name."""
    found = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.name)
    return found


def rooms(paths: list[Path]) -> dict[str, set[str]]:
    """The rooms that have a file of a name."""
    found = defaultdict(set)
    for path in paths:
        if path.stem != "__init__":
            found[path.stem].add(room_of(path))
    return found


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def test_no_two_public_classes_have_one_name() -> None:
    alike = {name: files for name, files in classes(modules()).items() if len(files) > 1}
    new = {name: files for name, files in alike.items() if name not in CLASSES_CALLED_ALIKE}
    assert not new, f"rename all but one, after what they hold: {new}"
    assert alike.keys() >= CLASSES_CALLED_ALIKE, f"take out of the list: {CLASSES_CALLED_ALIKE - alike.keys()}"


def test_no_file_is_called_alike_in_more_than_two_rooms() -> None:
    alike = {stem: found for stem, found in rooms(modules()).items() if len(found) > 2}
    new = {stem: found for stem, found in alike.items() if stem not in FILES_CALLED_ALIKE}
    assert not new, f"rename them, after what they are for: {new}"
    assert alike.keys() >= FILES_CALLED_ALIKE, f"take out of the list: {FILES_CALLED_ALIKE - alike.keys()}"


def test_the_test_itself_sees_classes_that_are_called_alike(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("class Row: ...\nclass _Own: ...\n")
    assert classes([tmp_path / "a.py", tmp_path / "b.py"]) == {"Row": ["a.py", "b.py"]}
