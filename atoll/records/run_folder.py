"""A run is a folder (`layout.py` names its files). This is its only reader, and its only writer.

Nothing is ever half-written: whole files are replaced in one step, and the record only grows at its end.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from atoll.errors import RecordError
from atoll.records import layout
from atoll.records.atomic import as_json, is_draft, replace_file, replace_text, sync_file
from atoll.records.lock import locked_folder
from atoll.records.record_lines import RecordLine, last_line, line_of, read_lines
from atoll.records.upgrade import is_old, upgraded_info, upgraded_line

Info = dict[str, Any]  # what run.json holds
_INFO = {
    "label": str, "digest": str, "seed": int, "status": str, "engine": dict, "experiment": dict, "hardware": dict,
}  # fmt: skip
_AGAIN = "Run the experiment again in a new folder."


class RunFolder:
    """Reads and writes one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    # What is in it.

    @property
    def info(self) -> Info:
        """What run.json says. A file of an older version is brought up to date here, and nowhere else."""
        path = self.path / layout.RUN
        try:
            info = json.loads(path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise RecordError(f"{self.path}: is not a run (it has no {layout.RUN}). {self._instead()}") from None
        except (OSError, ValueError) as e:
            raise RecordError(f"{path}: cannot be read ({e}). {_AGAIN}") from e
        return _checked(info, path)

    def _instead(self) -> str:
        """What somebody may have meant who named this folder."""
        runs = sorted(path.parent for path in self.path.glob(f"*/{layout.RUN}"))
        if runs:
            return f"It holds {len(runs)} runs below it: name those, for example {self.path / '*'}."
        return "Name the folder of a run."

    def exists(self) -> bool:
        """Is there a run here already?"""
        return (self.path / layout.RUN).is_file()

    def record(self) -> list[RecordLine]:
        """Every whole line of the record. Those of an older version are brought up to date, like `info`."""
        lines = read_lines(self.record_path)
        if not any(map(is_old, lines)) or not self.exists():
            return lines
        experiment = self.info["experiment"]
        return [upgraded_line(line, experiment) for line in lines]

    def last_line(self) -> RecordLine:
        """How far a run is that another process may be at work on."""
        return last_line(self.record_path)

    @property
    def record_path(self) -> Path:
        """The file of the record, for readers such as DuckDB."""
        return self.path / layout.RECORD

    def clients(self) -> dict[str, Any] | None:
        """What clients.json says, if there is one."""
        return read_table(self.clients_path, _AGAIN)

    @property
    def clients_path(self) -> Path:
        return self.path / layout.CLIENTS

    def preprocessing(self) -> dict[str, Any]:
        """What preprocessing.json says."""
        table = read_table(self.path / layout.PREPROCESSING, _AGAIN)
        if table is None:
            raise RecordError(f"{self.path}: has no {layout.PREPROCESSING}: an older version wrote it. {_AGAIN}")
        return table

    def phases(self) -> dict[str, Any] | None:
        """Where the time of its rounds went, if it was profiled."""
        return read_table(self.profile / layout.PHASES, "Profile it again.")

    @property
    def profile(self) -> Path:
        """The folder of what `--profile` writes."""
        return self.path / layout.PROFILE

    @property
    def profile_page(self) -> Path:
        """The phases, drawn."""
        return self.profile / layout.PROFILE_PAGE

    @property
    def trace(self) -> Path:
        """One round, kernel by kernel."""
        return self.profile / layout.TRACE

    # To begin one.

    def vacant(self) -> None:
        """Refuse a place where no run can begin, as far as that is known before anything is written."""
        there = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not there.is_dir():
            raise RecordError(f"{there}: is a file. Name a folder with --out.")
        if not os.access(there, os.W_OK | os.X_OK):
            raise RecordError(f"{there}: cannot be written. Name another folder with --out.")
        strangers = sorted(p.name for p in self.path.iterdir() if not is_draft(p)) if self.path.exists() else []
        if strangers:
            raise RecordError(
                f"{self.path}: holds {strangers[0]!r}, which is not part of a run. Name an empty or a new folder."
            )

    def create(self, needed_bytes: int) -> None:
        """Make the folder, or refuse and leave nothing behind: it cannot be written, or the disk is too full."""
        new = [p for p in (self.path, *self.path.absolute().parents) if not p.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
            self._check_space(needed_bytes)
        except (OSError, RecordError) as e:
            for folder in new:
                with suppress(OSError):
                    folder.rmdir()
            if isinstance(e, RecordError):
                raise
            raise RecordError(f"{self.path}: cannot be written ({e.strerror}). Name another folder with --out.") from e

    def _check_space(self, needed_bytes: int) -> None:
        free = shutil.disk_usage(self.path).free
        if free < needed_bytes:
            raise RecordError(
                f"{self.path}: the disk has {free / 1e6:,.0f} MB left, the run needs about "
                f"{needed_bytes / 1e6:,.0f} MB. Free some space, or name a folder on another disk with --out."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out: two that write one record would spoil it."""
        with locked_folder(self.path):
            for draft in filter(is_draft, self.path.iterdir()):
                draft.unlink(missing_ok=True)
            yield

    # To write.

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Replace run.json, which gets the format of this version."""
        whole = {"format": layout.RUN_FORMAT} | {key: value for key, value in info.items() if key != "format"}
        self._replace(layout.RUN, lambda path: path.write_text(as_json(whole, indent=1)))

    def write_clients(self, clients: Mapping[str, Any]) -> None:
        """Replace clients.json."""
        self._replace(layout.CLIENTS, lambda path: path.write_text(as_json(clients)))

    def write_preprocessing(self, preprocessing: Mapping[str, Any]) -> None:
        """Write what the model takes."""
        self._replace(layout.PREPROCESSING, lambda path: path.write_text(as_json(preprocessing, indent=1)))

    def write_phases(self, phases: Mapping[str, Any], page: str) -> None:
        """Replace what a profile says, and its page."""
        self.profile.mkdir(parents=True, exist_ok=True)
        replace_text(self.profile / layout.PHASES, as_json(phases))
        replace_text(self.profile_page, page)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a line to the record."""
        self._append(self.record_path, entry)

    def _append(self, path: Path, entry: Mapping[str, Any]) -> None:
        try:
            with path.open("ab") as f:
                f.write(line_of(entry).encode())
        except OSError as e:
            raise self._full(e) from e

    def append_times(self, line: Mapping[str, Any]) -> None:
        """Add a round's timestamps; before its line of the record, which must not be ahead of them."""
        self._append(self.path / layout.CLOCK, line)

    def times(self) -> list[RecordLine]:
        """The timestamps of every round, if the run had a clock."""
        return read_lines(self.path / layout.CLOCK)

    def write_times(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Replace all timestamps."""
        self._write_lines(layout.CLOCK, lines)

    def write_record(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Replace the record."""
        self._write_lines(layout.RECORD, lines)

    def cut(self, rounds: int) -> list[RecordLine]:
        """Forget what came after this many rounds."""
        lines = self.record()[:rounds]
        self.write_record(lines)
        if (self.path / layout.CLOCK).exists():
            self.write_times(self.times()[:rounds])
        return lines

    def _write_lines(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        self._replace(name, lambda path: path.write_text("".join(map(line_of, lines))))

    def settle(self) -> None:
        """See the record on the disk: a checkpoint must never be ahead of it, even if the power fails."""
        for path in (self.record_path, self.path / layout.CLOCK):
            if path.exists():
                sync_file(path)

    # Tensors.

    def save_model(self, state: Mapping[str, Any], name: str | None = None) -> None:
        """Write the learned model; or another one, by its name."""
        self._save(layout.MODEL if name is None else layout.OTHER_MODEL.format(name=name), state)

    def model(self, name: str | None = None) -> dict[str, Any]:
        """The learned model, on the host; or another one, by its name."""
        return self._load(layout.MODEL if name is None else layout.OTHER_MODEL.format(name=name))

    def save_best(self, state: Mapping[str, Any]) -> None:
        """Write the best model so far."""
        self._save(layout.BEST, state)

    def best_model(self) -> dict[str, Any]:
        """The best model, on the host."""
        return self._load(layout.BEST)

    @property
    def best_path(self) -> Path:
        return self.path / layout.BEST

    @property
    def model_path(self) -> Path:
        return self.path / layout.MODEL

    def save_checkpoint(self, state: Mapping[str, Any], client_state: str | None) -> None:
        """Replace the checkpoint. `client_state`: the file that it names; those of earlier ones go."""
        self._save(layout.CHECKPOINT, state)
        for path in self._client_states():
            if path.name != client_state:
                path.unlink(missing_ok=True)

    def checkpoint(self) -> dict[str, Any]:
        """What `save_checkpoint` was given, on the host."""
        return self._load(layout.CHECKPOINT)

    def has_checkpoint(self) -> bool:
        """Is there anything to go on from?"""
        return self.checkpoint_path.exists()

    @property
    def checkpoint_path(self) -> Path:
        return self.path / layout.CHECKPOINT

    def stream_client_state(self, rounds: int, pieces: Iterable[Any]) -> str:
        """Write the clients' states after so many rounds, piece by piece; the name of the file."""
        name = layout.CLIENT_STATE.format(rounds=rounds)

        def write(path: Path) -> None:
            with path.open("wb") as f:
                for piece in pieces:
                    f.write(piece)

        self._replace(name, write)
        return name

    def copy_checkpoint(self, other: RunFolder, client_state: str | None) -> None:
        """Put into another folder what a run goes on from."""
        times = [layout.CLOCK] if (self.path / layout.CLOCK).exists() else []
        for name in (layout.CHECKPOINT, layout.RECORD, *times, *([client_state] if client_state else [])):
            shutil.copyfile(self.path / name, other.path / name)

    def discard(self, model: bool) -> None:
        """Remove what only a resume would need, for there will be none; `model`: and models, and what they take."""
        models = [self.model_path, self.best_path, self.path / layout.PREPROCESSING] if model else []
        for path in (self.checkpoint_path, *self._client_states(), *models):
            path.unlink(missing_ok=True)

    def _client_states(self) -> list[Path]:
        return list(self.path.glob(layout.CLIENT_STATE.format(rounds="*")))

    def _save(self, name: str, state: Mapping[str, Any]) -> None:
        import torch

        self._replace(name, lambda path: torch.save(state, path))

    def _load(self, name: str) -> dict[str, Any]:
        """Tensors by name; nothing in the file is executed."""
        import torch

        path = self.path / name
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise RecordError(f"{self.path}: has no {name}, so there is nothing to go on from.") from None
        except Exception as e:
            what = str(e).strip().partition("\n")[0] or type(e).__name__
            raise RecordError(f"{path}: cannot be read ({what}). Start again in a new folder.") from e
        return state

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        try:
            replace_file(self.path / name, write)
        except (OSError, RuntimeError) as e:  # torch.save reports a full disk as a RuntimeError
            raise self._full(e) from e

    def _full(self, e: Exception) -> RecordError:
        return RecordError(
            f"{self.path}: could not be written ({e}). What was there is still whole: free some space, "
            "then go on with --resume."
        )


def read_table(path: Path, instead: str) -> dict[str, Any] | None:
    """A JSON file that holds a table; None where it is not there."""
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise RecordError(f"{path}: cannot be read ({e}). {instead}") from e
    if not isinstance(table, dict):
        raise RecordError(f"{path}: holds no table. {instead}")
    return table


def _checked(info: Any, path: Path) -> Info:
    if not isinstance(info, dict):
        raise RecordError(f"{path}: holds no table. {_AGAIN}")
    if info.get("format") != layout.RUN_FORMAT:
        raise RecordError(
            f"{path}: has format {info.get('format')!r}; this version of atoll reads format {layout.RUN_FORMAT}. "
            f"Read it with the version that wrote it (atoll {info.get('atoll', 'unknown')})."
        )
    wrong = [key for key, kind in _INFO.items() if not isinstance(info.get(key), kind)]
    if wrong:
        raise RecordError(f"{path}: lacks {', '.join(wrong)}, or holds something else there. {_AGAIN}")
    return upgraded_info(info)
