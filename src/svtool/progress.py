"""The one seam through which long work reports how far it is. Work code knows no terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Progress(Protocol):
    def stage(self, name: str, total: float | None = None) -> None:
        """Begin a stage (ends the one before). `total` None = length unknown."""

    def advance(self, amount: float = 1.0) -> None: ...

    def note(self, message: str) -> None:
        """One line for the person watching (goes to stderr in the CLI)."""


class Silent:
    """Progress for scripts and tests: collects nothing, prints nothing."""

    def stage(self, name: str, total: float | None = None) -> None: ...

    def advance(self, amount: float = 1.0) -> None: ...

    def note(self, message: str) -> None: ...


class RichProgress:
    """A progress bar on stderr, used as a context manager. Falls back to plain notes when stderr is no terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        self._console = Console(stderr=True)
        self._quiet = quiet
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task: int | None = None

    def __enter__(self) -> RichProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, name: str, total: float | None = None) -> None:
        from rich.progress import TaskID

        if self._task is not None:
            self._bar.remove_task(TaskID(self._task))
        self._task = int(self._bar.add_task(name, total=total))

    def advance(self, amount: float = 1.0) -> None:
        from rich.progress import TaskID

        if self._task is not None:
            self._bar.advance(TaskID(self._task), amount)

    def note(self, message: str) -> None:
        if not self._quiet:
            self._console.print(message, markup=False, highlight=False, soft_wrap=True)
