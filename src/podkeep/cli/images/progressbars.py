"""Bars on a terminal: one for each image, which is the sum, and below it one for each layer that something happens to.

Fits the terminal at every moment: a narrow one shows fewer columns, a low one fewer layers, those first that are being
fetched. At the end only the images are left. Imported only when there is a terminal: rich takes its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from podkeep.base.text.printable import printable
from podkeep.cli.core import output

if TYPE_CHECKING:
    from podkeep.cri.v1.podkeep_pb2 import PullProgress

_WIDE, _NARROW = 100, 72
"""Columns of the terminal from which there is room for everything, and for more than a percentage."""
_FINISHED = frozenset({"done", "exists"})
_OTHER_LINES = 2
"""Lines of the terminal that are left alone."""


@dataclass
class _Layer:
    """What was last told of a layer; bytes."""

    task: TaskID
    phase: str
    done: int
    total: int


class _Rate(ProgressColumn):
    """Bytes per second, in the units of the other numbers."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{output.size(int(speed))}/s" if speed else "", style="progress.data.speed")


def _name(column: Column) -> TextColumn:
    """Return the column of what a line is about, a name that others chose: nothing in it is markup."""
    return TextColumn("{task.description}", markup=False, table_column=column)


class _Fitting(Progress):
    """Chooses columns and rows anew each time it is drawn."""

    def __init__(self, bars: Bars, console: Console) -> None:
        name = _name(Column(no_wrap=True, overflow="ellipsis", ratio=1))
        self._wide: tuple[ProgressColumn, ...] = (
            _name(Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            DownloadColumn(binary_units=True),
            _Rate(),
            TimeRemainingColumn(),
        )
        self._middle: tuple[ProgressColumn, ...] = (
            name,
            BarColumn(bar_width=10),
            TaskProgressColumn(),
            _Rate(),
            TimeRemainingColumn(compact=True),
        )
        self._narrow: tuple[ProgressColumn, ...] = (name, TaskProgressColumn())
        self._bars = bars
        self._terminal = console
        super().__init__(*self._wide, console=console, expand=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the table of what is worth a line now."""
        width = self._terminal.width
        self.columns = self._wide if width >= _WIDE else self._middle if width >= _NARROW else self._narrow
        yield self.make_tasks_table(self._bars.rows(self.tasks, max(self._terminal.height - _OTHER_LINES, 1)))


class Bars:
    """A display for a terminal. Entered before the first event and left after the last."""

    def __init__(self, stream: IO[str], console: Console | None = None) -> None:
        self._images: dict[str, TaskID] = {}
        self._layers: dict[tuple[str, str], _Layer] = {}
        self._over = False
        self._progress = _Fitting(self, console or Console(file=stream))

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True
        self._progress.stop()

    def update(self, event: PullProgress) -> None:
        """Move the bars of the event's blob and of its image."""
        if event.image not in self._images:
            self._images[event.image] = self._progress.add_task(printable(event.image), total=None)
        if event.digest:
            self._update_layer(event)
            self._update_sum(event.image)
        else:
            self._update_image(event)

    def rows(self, tasks: Iterable[Task], most: int) -> list[Task]:
        """Return what to draw: images, each followed by layers, ``most`` lines in all."""
        by_id = {task.id: task for task in tasks}
        left = max(most - len(self._images), 0)
        layers = [] if self._over else sorted(self._layers.values(), key=_rank)[:left]
        chosen = {layer.task for layer in layers}
        rows: list[Task] = []
        for image, task in self._images.items():
            rows.append(by_id[task])
            rows += [
                by_id[layer.task] for (of, _), layer in self._layers.items() if of == image and layer.task in chosen
            ]
        return rows[:most]

    def _update_layer(self, event: PullProgress) -> None:
        key = (event.image, event.digest)
        description = printable(f"  {output.short(event.digest)} {event.phase}")
        if key not in self._layers:
            task = self._progress.add_task(description, total=None)
            self._layers[key] = _Layer(task=task, phase="", done=0, total=0)
        layer = self._layers[key]
        layer.phase, layer.done, layer.total = event.phase, event.done, event.total
        self._progress.update(layer.task, description=description, completed=event.done, total=event.total or None)

    def _update_sum(self, image: str) -> None:
        layers = [layer for (of, _), layer in self._layers.items() if of == image]
        finished = sum(layer.phase in _FINISHED for layer in layers)
        fetched = [layer for layer in layers if layer.phase != "exists"]
        self._progress.update(
            self._images[image],
            description=printable(f"{image} {finished}/{len(layers)} layers"),
            completed=sum(layer.done for layer in fetched),
            total=sum(layer.total for layer in fetched) or None,
        )

    def _update_image(self, event: PullProgress) -> None:
        task = self._images[event.image]
        if event.phase == "done":
            # What came before says how much was fetched; the size on disk is another number.
            shown = next(task for task in self._progress.tasks if task.id == self._images[event.image])
            total = shown.total or event.total or 1
            self._progress.update(task, description=printable(f"{event.image} done"), completed=total, total=total)
            return
        description = printable(f"{event.image} {event.phase}")
        self._progress.update(task, description=description, completed=event.done, total=event.total or None)


def _rank(layer: _Layer) -> int:
    """Order layers by how much a person wants to see them."""
    return 2 if layer.phase in _FINISHED else 1 if layer.phase == "waiting" else 0
