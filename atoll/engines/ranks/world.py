"""The processes of one run: which of them this is, and how they talk.

Launched by `torchrun`, every process runs the same program. Small things (losses, flags, words) go between hosts by
gloo; tensors of a GPU go by NCCL where every rank has a GPU of its own, and over the host where some share one.
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.distributed.rendezvous import rendezvous

from atoll.engines.ranks import buffers
from atoll.engines.ranks.failure_store import FailureStore
from atoll.errors import AtollError, ConfigError, RankError, TrainingError
from atoll.tree import Tree

T = TypeVar("T")
_TIMEOUT = 1800.0  # seconds that a rank waits for the others, unless ATOLL_TIMEOUT says otherwise


@dataclass(frozen=True)
class World:
    """This rank's place among all ranks, and what they do together. With one rank everything is the identity."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1  # ranks on this machine
    backend: str = "none"
    sharing: int = 1  # ranks that share this one's memory: the machine's, or the GPU's
    failures: FailureStore | None = None
    over_gpus: bool = False  # NCCL, between GPUs; else their tensors go over the host

    @property
    def host_group(self) -> Any:
        """Gloo, between hosts."""
        return _groups["gloo"]

    @property
    def gpu_group(self) -> Any:
        """NCCL, or None."""
        return _groups["nccl"] if self.over_gpus else None

    # ------------------------------------------------------------------------------------------------ small things

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._collective():
            dist.all_gather_object(values, value, group=self.host_group)
        return values

    def broadcast(self, value: T, source: int = 0) -> T:
        """One rank's value, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        with self._collective():
            dist.broadcast_object_list(box, src=source, group=self.host_group)
        return box[0]

    def on_rank_zero(self, do: Callable[[], T]) -> T:
        """Rank 0 does it; every rank gets what came of it, or the same error."""
        if self.size == 1:
            return do()
        result, error = (None, None) if self.rank else _tried(do)
        if self.rank == 0 and error is not None:
            self.broadcast((None, _portable(error)))
            raise error
        result, error = self.broadcast((result, error))
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def local_rank_zero_first(self, do: Callable[[], T]) -> T:
        """Every rank does it, one on each machine ahead of the others: it fills the caches that they read."""
        if self.size == 1:
            return do()
        result: T | None = None
        error: Exception | None = None
        for turn in (True, False):
            if (self.local_rank == 0) == turn:
                result, error = _tried(do)
            errors = [e for e in self.all_gather(None if error is None else _portable(error)) if e is not None]
            if errors:
                raise error or errors[0]
        return result  # type: ignore[return-value]

    def any_rank(self, flag: bool) -> bool:
        """Has any rank raised its flag?"""
        return flag if self.size == 1 else bool(self.all_reduce(torch.tensor([float(flag)])).item())

    def check_same(self, what: str, mark: str) -> None:
        """Refuse ranks that are not at the same work."""
        marks = self.all_gather(mark)
        astray = [r for r, m in enumerate(marks) if m != marks[0]]
        if astray:
            raise ConfigError(
                f"ranks: rank {astray[0]} has another {what} than rank 0. Give all of them the same file, data and "
                "versions; draw models and arrays from a seed (torch.manual_seed) before you hand them over."
            )

    # ----------------------------------------------------------------------------------------------------- tensors

    def all_reduce(self, buffer: Tensor) -> Tensor:
        """The sum over ranks, in the place of a tensor of the host."""
        if self.size > 1:
            with self._collective():
                dist.all_reduce(buffer, group=self.host_group)
        return buffer

    def all_reduce_tree(self, values: Tree) -> Tree:
        """The sum over ranks of every leaf, the same on every rank."""
        return values if self.size == 1 else buffers.summed(values, self._all_reduce)

    def all_gather_rows(self, rows: Tree, counts: list[int]) -> Tree:
        """The rows of all ranks, in the order of ranks; rank r has counts[r] of them."""
        return rows if self.size == 1 else buffers.joined(rows, counts, self._all_gather)

    def broadcast_tree(self, values: Tree | None, source: int = 0) -> Tree:
        """One rank's tree, on every rank; on the others, on the host."""
        if self.size == 1:
            return values  # type: ignore[return-value]
        layout = self.broadcast(buffers.layout(values) if values is not None and self.rank == source else None, source)
        here = values if self.rank == source and values is not None else buffers.zeros(layout)

        def broadcast(buffer: Tensor) -> None:
            with self._collective(), _on_host(buffer) as x:
                dist.broadcast(x, src=source, group=self.host_group)

        return buffers.moved(here, broadcast)

    def send(self, values: Tree, to: int) -> None:
        """To one rank, which must receive it."""
        group = self.host_group
        with self._collective():
            buffers.moved(values, lambda x: dist.send(x, to, group=group))  # type: ignore[arg-type, return-value]

    def receive(self, like: Tree, source: int) -> Tree:
        """From one rank: a tree of the host, like this one."""
        group = self.host_group
        with self._collective():
            return buffers.moved(like, lambda x: dist.recv(x, source, group=group))  # type: ignore[arg-type, return-value]

    def _all_reduce(self, buffer: Tensor) -> None:
        with self._collective():
            if buffer.is_cuda and self.gpu_group is not None:
                dist.all_reduce(buffer, group=self.gpu_group)
                return
            with _on_host(buffer) as x:
                dist.all_reduce(x, group=self.host_group)

    def _all_gather(self, buffer: Tensor) -> Tensor:
        with self._collective():
            own = buffer if buffer.is_cuda and self.gpu_group is not None else buffer.cpu()
            gathered = own.new_empty((self.size, *own.shape))
            dist.all_gather(list(gathered.unbind(0)), own, group=self.gpu_group if own.is_cuda else self.host_group)
            return gathered.to(buffer.device)

    # ------------------------------------------------------------------------------------------------------ places

    def on_device(self, device: torch.device) -> World:
        """The same world, computing there: a GPU of its own if there are enough, its part of the machine's cores."""
        if self.size == 1:
            return self
        self.check_same("kind of device (torch sees a GPU on some machines only; use --device cpu)", device.type)
        if device.type != "cuda":
            torch.set_num_threads(threads(self.local_size))
            return replace(self, backend="gloo", sharing=self.local_size, over_gpus=False)
        torch.cuda.set_device(self.local_rank % torch.cuda.device_count())
        here = torch.cuda.get_device_properties(torch.cuda.current_device())
        cards = self.all_gather((socket.gethostname(), str(getattr(here, "uuid", torch.cuda.current_device()))))
        sharing = cards.count(cards[self.rank])
        if len(set(cards)) < self.size or not dist.is_nccl_available():
            return replace(self, backend="gloo", sharing=sharing, over_gpus=False)
        if "nccl" not in _groups:
            _groups["nccl"] = dist.new_group(backend="nccl", timeout=timedelta(seconds=timeout()))
        return replace(self, backend="nccl", sharing=sharing, over_gpus=True)

    # ------------------------------------------------------------------------------------------------------ the end

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """One run. If this rank fails inside, the others can say why."""
        if self.failures is not None:
            self.failures.turn += 1
        try:
            yield
        except BaseException as e:
            if self.failures is not None:
                self.failures.report_follows() if isinstance(e, RankError) else self.failures.report_failure(e)
            raise

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """What fails in here failed because another rank was lost, or did not come in time."""
        try:
            yield
        except RuntimeError as e:
            verdict = self.failures.verdict() if self.failures is not None else None
            _broken.append(True)
            if verdict is None:
                reason = str(e).strip().splitlines()[-1][:200]
                verdict = (
                    f"another rank was lost, or did not answer within {timeout():.0f} s ({reason}). "
                    "ATOLL_TIMEOUT sets these seconds"
                )
            raise RankError(f"ranks: {verdict}.".replace("?.", "?")) from e


ALONE = World()
_groups: dict[str, Any] = {}  # by backend; here alone, so that they can be let go at the end
_broken: list[bool] = []  # a rank was lost: nothing can be said goodbye to


def timeout() -> float:
    """How long a rank waits for the others, in seconds."""
    words = os.environ.get("ATOLL_TIMEOUT", str(_TIMEOUT))
    try:
        seconds = float(words)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"ATOLL_TIMEOUT: must be seconds above 0 (got {words!r}). Leave it out for {_TIMEOUT:.0f}.")
    return seconds


def threads(local_size: int) -> int:
    """Threads of one of so many ranks on a machine: what OMP_NUM_THREADS says, else its part of the cores.

    1 is no answer: torchrun sets it for everybody who did not. ATOLL_THREADS is taken as it is.
    """
    for name in ("ATOLL_THREADS", "OMP_NUM_THREADS"):
        words = os.environ.get(name, "")
        if words.isdigit() and int(words) > (1 if name == "OMP_NUM_THREADS" else 0):
            return int(words)
    return max(1, cores() // local_size)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launched() -> bool:
    """Is this one of several processes that torchrun started?"""
    named = all(os.environ.get(k) for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return named and int(os.environ["WORLD_SIZE"]) > 1


def join() -> World:
    """This process's world: that of torchrun, or the one in which it is alone."""
    return _joined() if launched() else ALONE


def joined() -> World | None:
    """The world, if this process has joined it."""
    return _joined() if _joined.cache_info().currsize else None


@functools.cache
def _joined() -> World:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=timeout())
    try:
        if dist.is_initialized():  # the program has a group of its own
            store, _groups["gloo"] = _get_default_store(), dist.new_group(backend="gloo", timeout=limit)
        else:
            store, _, _ = next(rendezvous("env://", timeout=limit))
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
            _groups["gloo"] = dist.group.WORLD
            atexit.register(_goodbye)
    except RuntimeError as e:
        raise RankError(f"ranks: rank {rank} could not reach the others ({str(e).splitlines()[0][:200]}).") from e
    failures = FailureStore(PrefixStore("atoll", store), rank, size)
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", size))
    return World(rank, size, local_rank, local_size, "gloo", local_size, failures)


def _goodbye() -> None:
    """End the groups' threads while there is an interpreter: what they still hold they could not let go of later."""
    if dist.is_initialized() and not _broken:
        with suppress(RuntimeError):
            dist.destroy_process_group()
            _groups.clear()


@contextmanager
def _on_host(buffer: Tensor) -> Iterator[Tensor]:
    """The buffer, or a copy of it on the host that goes back."""
    if not buffer.is_cuda:
        yield buffer
        return
    copy = buffer.cpu()
    yield copy
    buffer.copy_(copy)


def _tried(do: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return do(), None
    except RankError:
        raise
    except Exception as e:
        return None, e


def _portable(error: Exception) -> Exception:
    """The error as another process can have it."""
    if isinstance(error, ConfigError):
        return ConfigError(error.problems)
    if isinstance(error, AtollError | OSError):
        return type(error)(*error.args)
    return TrainingError(f"{type(error).__name__}: {error}")
