"""A parser that crashes, swells or never ends takes a child with it, and the file is refused."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.data.formats.hdf5_arrays import tff_arrays
from atoll.data.formats.in_child import in_child
from atoll.errors import DataError
from tests.support import bad_readers
from tests.support.mutated_files import samples


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "a.h5"
    place.write_bytes(b"anything")
    return place


ENDS = {
    bad_readers.crash: "crashed its reader (SIGSEGV). Do not trust this file",
    bad_readers.allocate: "takes more than 0.5 GiB of memory to read. Do not trust this file",
    bad_readers.write_much: "File too large",
    bad_readers.loop: "takes more than 1 seconds of computing to read. Do not trust this file",
    bad_readers.leave: "its reader ended without a word (0: ). Do not trust this file",
    bad_readers.raise_something: "(RuntimeError: generator raised StopIteration; child_reader.py",
    bad_readers.refuse: "is not ours. Take another.",
    bad_readers.no_text: "atoll's reader failed on it (TypeError: sequence item 1: expected a bytes-like object",
}


@pytest.mark.parametrize("read", ENDS, ids=lambda read: read.__name__)
def test_whatever_becomes_of_the_child_the_file_is_refused(read: Callable[..., Any], path: Path) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}: .*{re.escape(ENDS[read])}"):
        in_child(read, path, memory=1 << 29, seconds=1 if read is bad_readers.loop else 20)


def test_a_child_that_waits_for_ever_is_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.data.formats.in_child._WAITING", 1)
    with pytest.raises(DataError, match="has not been read after 1 seconds"):
        in_child(bad_readers.sleep, path, seconds=1)


@pytest.mark.slow
def test_limits_of_this_process_hold_for_its_children(path: Path) -> None:
    code = "import resource, sys; from pathlib import Path; from atoll.data.formats.in_child import in_child; "
    code += "from tests.support import bad_readers; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
    code += "print(len(list(in_child(bad_readers.arrays, Path(sys.argv[1])))))"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.stdout.strip() == str(len(bad_readers.ARRAYS)), done.stderr


def same(ours: Any, theirs: Any) -> bool:
    alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape
    return alike and (
        ours.tolist() == theirs.tolist() if ours.dtype.kind == "O" else ours.tobytes() == theirs.tobytes()
    )


def test_arrays_come_back_to_the_last_bit(path: Path) -> None:
    found = list(in_child(bad_readers.arrays, path, times=3))
    assert len(found) == 3 * len(bad_readers.ARRAYS)
    assert all(same(ours, theirs) for ours, theirs in zip(found, 3 * bad_readers.ARRAYS, strict=True))
    found[0][0] = 7  # memory of one's own


@pytest.mark.parametrize("name", ["tff_emnist", "tff_cifar100", "tff_stackoverflow"])
def test_hdf5_reads_the_same_in_a_child_and_here(name: str, tmp_path: Path) -> None:
    fields = {"tff_emnist": {"pixels": [28, 28], "label": []}, "tff_stackoverflow": {"tokens": []}}
    fields["tff_cifar100"] = {"image": [32, 32, 3], "label": [], "coarse_label": []}
    given = {"fields": fields[name], "clients": None, "per_client": None, "most_bytes": 1 << 30}
    for file, content in samples()[name].files.items():
        (tmp_path / file).write_bytes(content)
        here, there = (
            list(tff_arrays(str(tmp_path / file), **given)),
            list(in_child(tff_arrays, tmp_path / file, **given)),
        )
        assert len(here) == 2 + 2 * len(fields[name])
        assert all(same(ours, theirs) for ours, theirs in zip(here, there, strict=True))
