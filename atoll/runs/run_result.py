"""What came of a run."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from torch import nn

from atoll.data import ModelInputs
from atoll.errors import ConfigError
from atoll.records import REPORT, RunFolder
from atoll.runs import run_views
from atoll.runs.use_model import Client, UsableModel, save_weights
from atoll.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BOOKS = {"round", "train_loss", "bytes", "cohort", "settings", "dropped", "model", "seconds", "privacy"}
_BOOKS |= {"realigned", "unchanged", "diagnostics"}


class Run:
    """A run that has ended (or was interrupted), read from its folder, or told by the rank that can read it."""

    def __init__(
        self,
        folder: Path | str,
        temporary: bool = False,
        contents: Tree | None = None,
        module: nn.Module | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._files = RunFolder(self.folder)
        self._contents = contents or {}
        self.info: dict[str, Any] = self._contents["info"] if contents else self._files.info
        self.history: list[dict[str, Any]] = self._contents["history"] if contents else self._files.record()
        self._usable = UsableModel(self._files, module)
        self.error: Exception | None = None  # why it failed, where others went on (`run_together`)
        self._temporary = temporary
        if temporary:  # the folder lives as long as its run
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    @property
    def params(self) -> Tree:
        """The learned model, keyed like the module's state: `module.load_state_dict(run.params)`."""
        return self._contents["params"] if self._contents else self._files.model()

    @property
    def ema(self) -> Tree:
        """The moving average of the model (`server.ema`), likewise."""
        return self._files.model("ema")

    @property
    def inputs(self) -> ModelInputs:
        """What the model takes, and what its answers mean."""
        return self._usable.inputs()

    def model(
        self, client: Client | None = None, module: nn.Module | str | None = None, best: bool = False
    ) -> nn.Module:
        """The learned model as a module that is ready to predict; of a personal method, that of a `client`.

        Clients go by name or number. `module`: one like that which was handed to `simulate`, or its import path, where
        only its folder is left of a run. `best`: after the best round, and not the last.
        """
        usable = self._usable if module is None else UsableModel(self._files, module)
        return usable.loaded(client, self._best_of(client) if best else self.params)

    def predict(
        self,
        x: Any,
        client: Client | None = None,
        probabilities: bool = False,
        module: nn.Module | str | None = None,
        best: bool = False,
    ) -> NDArray[Any]:
        """What the model says of new rows: classes by name (by number where they have none), or numbers.

        `x` is an array; of a run on a file or a frame it is a file, a frame or a dict of columns with the columns of
        training, and is prepared as the training rows were.
        """
        out = self._usable.outputs(self.model(client, module, best), x)
        return self.inputs.probabilities(out) if probabilities else self.inputs.answers(out)

    def export(
        self,
        path: Path | str,
        client: Client | None = None,
        module: nn.Module | str | None = None,
        best: bool = False,
    ) -> Path:
        """Write the model's weights as .safetensors or .pt, keyed like the module's state."""
        return save_weights(self.model(client, module, best), Path(path))

    def _best_of(self, client: Client | None) -> Tree:
        if client is not None:
            raise ConfigError("best: is the server's model; clients' own are those of the last round. Leave one out.")
        if self.best is None:
            raise ConfigError(
                "best: this run kept no best model: no round had a finite number to choose it on, or none that a "
                "private run may choose by. Leave best out."
            )
        return self.best_params

    @property
    def best(self) -> dict[str, Any] | None:
        """Which `round` has the best model, chosen `on` what, and the `value` there; None if nothing could choose."""
        return self.info.get("best")

    @property
    def best_params(self) -> Tree:
        """That model, keyed like `params`."""
        return self._contents["best"] if self._contents else self._files.best_model()

    @property
    def final(self) -> dict[str, Any]:
        """The metrics of the last evaluation (None: not a number), flat, with the last training loss and the round."""
        last: dict[str, Any] = {"round": len(self.history)}
        losses = [e["train_loss"] for e in self.history if "train_loss" in e]
        measured = [e for e in self.history if "clients" in e]
        if losses:
            last["train_loss"] = losses[-1]
        if measured:
            last |= {k: v for k, v in measured[-1].items() if k not in _BOOKS}
        return last

    @property
    def status(self) -> str:
        """One of "finished", "stopped early: why", "interrupted", "failed: what" and "running"."""
        return str(self.info["status"])

    def report(self, out: Path | str | None = None) -> Path:
        """Write the report of this run; `atoll report` puts several side by side."""
        from atoll.report import write  # matplotlib is slow to import

        return write([self.folder], Path(out) if out is not None else self.folder / REPORT)

    def frame(self) -> Any:
        """The record as a pandas frame: a row for each round, a column for each number (`clients.accuracy.mean`)."""
        return run_views.frame(self.history)

    def plot(self, *metrics: str) -> Figure:
        """A matplotlib figure of these numbers by round; of the first metric and the training loss if none is named."""
        names = run_views.chosen(self.history, metrics, self.info["experiment"].get("metric"))
        return run_views.figure(self.history, names, str(self.info["label"]))

    def _repr_html_(self) -> str:
        return run_views.as_html(
            str(self.info["label"]), self.status, self.final, "" if self._temporary else str(self.folder)
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{k} {v:.4g}" for k, v in self.final.items() if isinstance(v, float))
        return f"Run({str(self.folder)!r}, {self.status}, {len(self.history)} rounds, {shown})"
