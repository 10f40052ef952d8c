"""Files that a user names: found, opened and read with care. A refusal says which file, what, and what instead."""

import bz2
import difflib
import functools
import gzip
import importlib
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn, ParamSpec, TypeVar

from atoll.data.memory import gib, machine_memory
from atoll.errors import Accident, AtollError, DataError, UnforeseenError

_CHUNK = 1 << 24
_PACKED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_SUFFIXES = ("", ".gz", ".bz2", ".xz")


P = ParamSpec("P")
T = TypeVar("T")


def at_the_door(name: str, read: Callable[P, T]) -> Callable[P, T]:
    """A reader whose errors are all ours: whatever a parser makes of a malformed file is a refusal of that file.

    The parsers are others' (a database, an image library, HDF5, json), and a file can make them raise anything.
    """

    @functools.wraps(read)
    def guarded(*args: P.args, **options: P.kwargs) -> T:
        try:
            return read(*args, **options)
        except AtollError:
            raise
        except Exception as e:
            raise unforeseen(options.get("path", args[0] if args else "data.path"), f"as {name!r}", e) from e

    return guarded


def unforeseen(path: object, how: str, e: Exception | Accident) -> DataError:
    """What to say of a file that made its reader fail, here or in a child."""
    if isinstance(e, MemoryError):
        return DataError(
            f"{path}: needs more memory than there is ({e or gib(machine_memory())}). Use fewer or smaller examples."
        )
    accident = Accident.of(e) if isinstance(e, Exception) else e
    what = f"{accident.error}: {accident.what or 'no more is known'}"
    if accident.ours:
        blame = (
            f"atoll's reader failed on it ({what}; {Path(accident.place).name}). It may be damaged: write or fetch it"
        )
        return UnforeseenError(f"{path}: cannot be read {how}; {blame} again. If it is well, report this.", accident)
    return UnforeseenError(
        f"{path}: cannot be read {how}; it is damaged, or something else ({what}). Write or fetch it again.", accident
    )


def refuse(path: Path | str, what: str, instead: str) -> NoReturn:
    raise DataError(f"{path}: {what}. {instead}.")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A question for a word that is misspelt, or nothing."""
    spelt = {k.lower(): k for k in islice(names, 10_000)}  # a folder may have very many
    matches = difflib.get_close_matches(word.lower(), spelt, n=1, cutoff=0.5)
    return f" Did you mean {spelt[matches[0]]!r}?" if matches else ""


def list_names(names: Sequence[str], at_most: int = 8) -> str:
    """A few of the names, for people."""
    more = f" and {len(names) - at_most:,} more" if len(names) > at_most else ""
    return ", ".join(repr(n) for n in names[:at_most]) + more


def existing_file(path: Path, option: str = "path") -> Path:
    """A file that is there, or what is there instead."""
    path = path.expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise DataError(f"data.{option}: {path} is a folder. Name a file; it has {contents(path)}.")
    return _absent(path, option, "file")


def existing_folder(path: Path, option: str = "path") -> Path:
    """A folder that is there, or what is there instead."""
    path = path.expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        advice = " Unpack it first." if path.name.endswith((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".zip")) else ""
        raise DataError(f"data.{option}: {path} is a file, but a folder is needed.{advice}")
    return _absent(path, option, "folder")


def member(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of these names that the folder has, plain or packed (.gz, .bz2, .xz)."""
    tried = (folder / f"{name}{suffix}" for name in names for suffix in _SUFFIXES)
    return next((p for p in tried if p.is_file()), None)


def required_member(folder: Path, names: Sequence[str]) -> Path:
    """`member`, or a refusal."""
    path = member(folder, names)
    if path is None:
        either = " or ".join(names)
        raise DataError(
            f"data.path: {folder} has no {either} (plain, .gz, .bz2 or .xz). It has {contents(folder)}. "
            "Set path to the folder that holds the original files under their original names."
        )
    return path


@contextmanager
def open_unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked where its first bytes say that it is packed."""
    try:
        with path.open("rb") as plain:
            start = plain.read(6)
        how = next((open_ for magic, open_ in _PACKED.items() if start.startswith(magic)), None)
        with path.open("rb") if how is None else how(path, "rb") as stream:
            yield stream
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as e:
        refuse(path, f"is damaged or cut short ({e})", "Fetch it again")
    except OSError as e:
        refuse(path, f"cannot be read ({e.strerror or e})", "Fetch it again, or see to its permissions")


def read_exactly(stream: IO[bytes], count: int, path: Path, what: str) -> bytearray:
    """`count` bytes. Memory grows with what is there, not with what a header claims."""
    content = bytearray()
    while len(content) < count:
        more = stream.read(min(_CHUNK, count - len(content)))
        if not more:
            refuse(
                path, f"is cut short: {what} needs {count:,} bytes, and there are {len(content):,}", "Fetch it again"
            )
        content += more
    return content


def read_all(path: Path) -> bytearray:
    """All bytes of a file, as long as memory holds them."""
    content = bytearray()
    with open_unpacked(path) as stream:
        while more := stream.read(_CHUNK):
            content += more
            check_memory(len(content), path)
    return content


def numbered_lines(
    path: Path, called: Path | None = None, instead: str = "Save it as UTF-8"
) -> Iterator[tuple[int, str]]:
    """The lines of a text file without their ends, numbered from 1; `called` is its name for the user."""
    with open_unpacked(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as e:
                byte = e.object[e.start]
                what = f"line {number} is no UTF-8 text (byte 0x{byte:02x} at {e.start + 1})"
                refuse(called or path, what, instead)


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_all(path))
    except json.JSONDecodeError as e:
        refuse(path, f"is no JSON, or cut short (line {e.lineno}, column {e.colno}: {e.msg})", "Fetch it again")
    except (UnicodeDecodeError, RecursionError) as e:
        refuse(path, f"is no JSON ({e})", "Use the files that the data set's own scripts write")


def check_memory(count: int, path: Path, instead: str = "Use fewer or smaller examples") -> None:
    """Refuse to hold more bytes than this machine has memory."""
    if count > machine_memory():
        refuse(path, f"would take {gib(count)}, and this machine has {gib(machine_memory())}", instead)


def import_extra(package: str, name: str) -> Any:
    """A package that atoll does not need unless this format is used."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as e:
        raise DataError(
            f"data.name: this format needs {package}, which is not installed. Run: pip install 'atoll[{name}]'"
        ) from e


def _absent(path: Path, option: str, what: str) -> NoReturn:
    parent = path.parent
    if not parent.is_dir():
        raise DataError(f"data.{option}: there is no folder {parent}, where {path.name} should be. See to the path.")
    here = f" in {Path.cwd()}" if not path.is_absolute() and parent == Path() else ""
    guess = did_you_mean(path.name, [p.name for p in parent.iterdir()])
    raise DataError(f"data.{option}: there is no {what} {path}{here}.{guess or ' See to the path.'}")


def contents(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    return list_names(names) if names else "nothing in it"
