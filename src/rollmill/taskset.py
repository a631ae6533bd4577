"""Where tasks come from: a JSONL file, a function, Hugging Face. A taskset is a stream that can be begun again."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeAlias, cast

import msgspec

from rollmill.errors import ConfigError
from rollmill.types import T, encode, read_task

_CHUNK = 1 << 16

Rows: TypeAlias = Iterable[dict[str, Any]]


class Taskset(Generic[T]):
    """A stream of tasks that can be begun again."""

    def __init__(self, begin: Callable[[], Iterable[T]], name: str = "tasks") -> None:
        self._begin = begin
        self.name = name

    def __iter__(self) -> Iterator[T]:
        return iter(self._begin())

    def take(self, count: int) -> Taskset[T]:
        return Taskset(lambda: itertools.islice(self._begin(), count), self.name)

    def shuffle(self, seed: int = 0, *, buffer: int = 10_000) -> Taskset[T]:
        """Shuffle through a buffer: every order is the seed's, and memory stays bounded."""
        return Taskset(lambda: _shuffled(self._begin(), random.Random(seed), buffer), self.name)


def from_jsonl(path: str | Path, kind: type[T]) -> Taskset[T]:
    """Tasks from a file with one JSON row a line. A bad row is a `ConfigError` that names its line."""
    path = Path(path)
    return Taskset(lambda: (parse(row, kind, f"{path}, line {number}") for number, row in read_rows(path)), str(path))


def from_rows(rows: Rows | Callable[[], Rows], kind: type[T], *, name: str = "rows") -> Taskset[T]:
    """Tasks from rows in the shape of a file's: in memory, or made by a function, and then without end if it likes."""
    return Taskset(lambda: _parsed(rows() if callable(rows) else rows, kind, name), name)


def from_hub(name: str, row: Callable[[dict[str, Any]], dict[str, Any]], kind: type[T], **options: Any) -> Taskset[T]:
    """Tasks from a Hugging Face dataset (the extra `data`): `row` makes each of its examples a task's row."""

    def begin() -> Iterator[T]:
        try:
            import datasets
        except ImportError:
            raise ConfigError("a Hugging Face dataset needs the extra: pip install 'rollmill[data]'") from None
        stream = datasets.load_dataset(name, streaming=True, **({"split": "train"} | options))
        return _parsed(map(row, stream), kind, name)

    return Taskset(begin, name)


def read_rows(path: Path) -> Iterator[tuple[int, bytes]]:
    """The rows of a JSONL file with their line numbers, one at a time; blank lines do not count.

    A name that ends in `.gz` or `.zst` is read through its decompressor.
    """
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                row = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if row.strip():
                    yield number, row
    except EOFError:
        raise ConfigError(f"{path}: its end is missing") from None
    except (OSError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def is_plain(path: Path) -> bool:
    return path.suffix not in (".gz", ".zst")


class Frames:
    """Decompresses bytes as they come: frame after frame, or member after member."""

    def __init__(self, begin: Callable[[], Any], fault: type[Exception]) -> None:
        """`begin` makes what decompresses one frame, and raises `fault`."""
        self._begin, self._fault = begin, fault
        self._frame = begin()
        self.within = False
        """Whether the last frame is not whole yet."""

    def feed(self, chunk: bytes) -> bytes:
        """What these bytes add. Raises `OSError` where they are none of a compressed file."""
        parts = []
        while chunk:
            if self._frame.eof:
                self._frame = self._begin()
            try:
                parts.append(self._frame.decompress(chunk))
            except self._fault as error:
                raise OSError(str(error)) from None
            self.within = not self._frame.eof
            chunk = b"" if self.within else self._frame.unused_data
        return b"".join(parts)


def frames_of(path: Path) -> Frames | None:
    """What decompresses a file of this name; None for a plain one."""
    if path.suffix == ".gz":
        return Frames(lambda: zlib.decompressobj(wbits=31), zlib.error)
    if path.suffix == ".zst":
        import zstandard

        return Frames(zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj, zstandard.ZstdError)
    return None


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path))
    if (frames := frames_of(path)) is not None:
        return io.BufferedReader(_Decompressed(path, frames), _CHUNK)
    return path.open("rb")


class _Decompressed(io.RawIOBase):
    """What a compressed file holds."""

    def __init__(self, path: Path, frames: Frames) -> None:
        self._frames = frames
        self._ready = memoryview(b"")
        self._file = path.open("rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._file.read(_CHUNK)
            if not chunk:
                if self._frames.within:
                    raise EOFError
                return 0
            self._ready = memoryview(self._frames.feed(chunk))
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def parse(row: bytes, kind: type[T], place: str) -> T:
    """One row as a task; what is wrong with it is a `ConfigError` that begins with `place`."""
    try:
        task = read_task(row, kind)
        # Read through to its last value, so that nothing is found wrong with it later.
        _ = task.identity
        return task
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{place}: not JSON: {error}") from None


def _parsed(rows: Rows, kind: type[T], name: str) -> Iterator[T]:
    return (parse(encode(row), kind, f"{name}, row {number}") for number, row in enumerate(rows, 1))


def _shuffled(tasks: Iterable[T], order: random.Random, size: int) -> Iterator[T]:
    stream = iter(tasks)
    buffer = list(itertools.islice(stream, size))
    for task in stream:
        place = order.randrange(size)
        yield buffer[place]
        buffer[place] = task
    order.shuffle(buffer)
    yield from buffer
