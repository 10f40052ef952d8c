"""A function that stops wherever it asks for something, and goes on with the answer: a generator made of a thread.

A generator can only stop in its own frame; this stops at any depth of calls. Only one side is ever at work: whoever
asks waits, and so does whoever answers, so nothing runs at the same time and nothing needs a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Ask = Callable[[Any], Any]


class Talk:
    """`body()` in a thread of its own, which runs only inside `next`; whatever it calls may `ask`."""

    def __init__(self, body: Callable[[], object]) -> None:
        self.error: BaseException | None = None  # what the body ended with, if it failed
        self.over = False
        self._body, self._working = body, False
        self._ours, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._question: Any = None
        self._answer: Any = None
        self._thread = threading.Thread(target=self._run)

    def next(self, answer: Any = None) -> Any:
        """Answer the last question (an exception is raised there); its next question, or None if it has ended."""
        self._answer, self._question, self._working = answer, None, True
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._theirs.release()
        self._wait()
        return self._question

    def close(self, why: BaseException) -> None:
        """End it: raise `why` wherever it waits. If it is at work (we were interrupted), wait for its question."""
        if self._working:
            self._wait()
        while self._thread.ident is not None and not self.over:
            self.next(why)

    def ask(self, question: Any) -> Any:
        """For the body: stop here until there is an answer."""
        self._question = question
        self._ours.release()
        self._theirs.acquire()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def _wait(self) -> None:
        self._ours.acquire()
        self._working = False
        if self.over:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as e:  # told by whoever asks for `error`; a thread's own would go to the terminal
            self.error = e
        finally:
            self._question, self.over = None, True
            self._ours.release()
