"""Launching Triton kernels, and compiling those of a step side by side before it first runs.

A kernel takes about a second to compile for each shape. Met one after the other, those of a ResNet hold up its first
round for half a minute, on one core of many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_compiling: ContextVar[bool] = ContextVar("atoll.compiling", default=False)


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """The kernel on a grid, to be called with its arguments; inside `compile_ahead` it is only compiled for them."""
    return partial(kernel.warmup, grid=grid) if _compiling.get() else kernel[grid]


def compile_ahead(f: Callable[[], Any]) -> None:
    """Call `f`, whose kernels are compiled side by side and do not run: what they would write holds anything.

    Where Triton cannot compile side by side, each is compiled where it is first met, as without this.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        mode = _Compiling(pool)
        with mode:
            f()
        mode.wait()


class _Compiling(TorchDispatchMode):  # type: ignore[misc,no-untyped-call]
    """Says so inside the operators of this package: gradients run in other threads, which know of modes alone."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pool = pool
        self.triton: Any = None  # its mode, as soon as it is needed

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else the whole compiler is imported to be told that it has no business here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace != "atoll":
            return func(*args, **(kwargs or {}))
        with self._inside():
            return func(*args, **(kwargs or {}))

    def wait(self) -> None:
        """Until all is compiled."""
        if self.triton is not None:
            self.triton.__exit__(None, None, None)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        try:
            from triton.runtime._async_compile import AsyncCompileMode, active_mode
        except ImportError:
            yield
            return
        if self.triton is None:  # an error comes again where the kernel is launched
            self.triton = AsyncCompileMode(self.pool, ignore_errors=True)
        told, active = _compiling.set(True), active_mode.set(self.triton)
        try:
            yield
        finally:
            _compiling.reset(told)
            active_mode.reset(active)
