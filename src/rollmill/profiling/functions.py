"""CPU time by function: of every thread, and of coroutines without their waits; yappi measures it for the process.

It is imported where somebody measures: tables are also read where nobody does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

_COLUMNS = ("name", "ncall", "tsub", "ttot", "tavg")
_WIDTH = 8
_GAP = "  "


class Function(Struct, frozen=True, array_like=True):
    """What one function took: by itself, and with all that it called."""

    name: str
    """With its class: `Shop.take`."""
    file: str
    line: int
    calls: int
    own_s: float
    total_s: float

    def __add__(self, other: Function) -> Function:
        return Function(
            self.name,
            self.file,
            self.line,
            self.calls + other.calls,
            self.own_s + other.own_s,
            self.total_s + other.total_s,
        )

    @property
    def place(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def start() -> None:
    """Measure from now on, from nothing."""
    import yappi

    if yappi.is_running():
        raise RuntimeError("this process is being profiled already")
    yappi.clear_stats()
    yappi.set_clock_type("cpu")
    yappi.start(builtins=False, profile_threads=True)


def stop() -> None:
    """What was measured stays until the next `start`."""
    import yappi

    yappi.stop()


def measured() -> list[Function]:
    """Every function that has run, also while it goes on."""
    import yappi

    stats = yappi.get_func_stats()
    # yappi names a method after the class of whoever called it first; its code knows where it was written.
    codes = yappi._fn_descriptor_dict
    return [
        Function(
            getattr(codes.get(one.full_name), "co_qualname", one.name).replace(".<locals>", ""),
            one.module,
            one.lineno,
            one.ncall,
            one.tsub,
            one.ttot,
        )
        for one in stats
    ]


def merged(tables: Iterable[Iterable[Function]]) -> list[Function]:
    """Of several processes: what each function took in all of them."""
    found: dict[tuple[str, int, str], Function] = {}
    for table in tables:
        for one in table:
            key = (one.file, one.line, one.name)
            found[key] = found[key] + one if key in found else one
    return list(found.values())


def table(functions: Iterable[Function], required_str: str = "") -> str:
    """As text, what took most first; only those with `required_str` in their name or their file."""
    chosen = [one for one in functions if required_str in one.name or required_str in one.file]
    chosen.sort(key=lambda one: (-one.total_s, -one.own_s, one.name))
    rows = [_COLUMNS, *_rows(chosen)]
    width = max(len(row[0]) for row in rows)
    return "".join(_line(width, row) for row in rows)


def _rows(functions: list[Function]) -> Iterator[tuple[str, ...]]:
    many = Counter(one.name for one in functions)
    for one in functions:
        # A method's name says enough; that of a function may be anybody's.
        name = one.name if "." in one.name and many[one.name] == 1 else f"{one.name} ({one.place})"
        seconds = (one.own_s, one.total_s, one.total_s / max(1, one.calls))
        yield name, str(one.calls), *(f"{value:.6f}"[:_WIDTH] for value in seconds)


def _line(width: int, row: tuple[str, ...]) -> str:
    name, *numbers = row
    return _GAP.join((name.ljust(width), *(number.ljust(_WIDTH) for number in numbers))).rstrip() + "\n"
