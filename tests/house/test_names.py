"""One word for one thing: no two public classes of one name, no file called alike in more than two rooms."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.house.test_rooms import ROOT, room_of


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
    assert not alike, f"rename all but one, after what they hold: {alike}"


def test_no_file_is_called_alike_in_more_than_two_rooms() -> None:
    alike = {stem: found for stem, found in rooms(modules()).items() if len(found) > 2}
    assert not alike, f"rename them, after what they are for: {alike}"


def test_the_test_itself_sees_classes_that_are_called_alike(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("class Row: ...\nclass _Own: ...\n")
    assert classes([tmp_path / "a.py", tmp_path / "b.py"]) == {"Row": ["a.py", "b.py"]}
