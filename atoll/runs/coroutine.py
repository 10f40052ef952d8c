"""A function that stops wherever it asks for something, and goes on with the answer: a generator made of a thread.

A generator can only stop in its own frame; this stops at any depth of calls. Only one side is ever at work: whoever
asks waits, and so does whoever answers, so nothing else needs a lock.
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
        self._body, self._ours = body, True  # whose turn is it?
        self._moved = threading.Condition()
        self._question: Any = None
        self._answer: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def next(self, answer: Any = None) -> Any:
        """Answer the last question (an exception is raised there); its next question, or None if it has ended."""
        with self._moved:
            self._answer = answer
            self._moved.notify_all()  # before the turn passes: Ctrl-C may come between any two lines
            self._ours = False
        if self._thread.ident is None:
            self._thread.start()
        self._wait()
        return self._question

    def close(self, why: BaseException) -> None:
        """End it: raise `why` wherever it waits. If it is at work (we were interrupted), wait for its question."""
        if self._thread.ident is None:
            return
        self._wait()
        while not self.over:
            self.next(why)

    def ask(self, question: Any) -> Any:
        """For the body: stop here until there is an answer."""
        self._pass(question)
        with self._moved:
            self._moved.wait_for(lambda: not self._ours)
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def _pass(self, question: Any) -> None:
        with self._moved:
            self._question, self._ours = question, True
            self._moved.notify_all()

    def _wait(self) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._ours)
        if self.over:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as e:  # told by whoever asks for `error`; a thread's own would go to the terminal
            self.error = e
        finally:
            self.over = True
            self._pass(None)
