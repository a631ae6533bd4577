"""Datasets made ready for training: checked, counted, stamped with their agent, repeated, and put together by type."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from rollmill.config import Dataset
from rollmill.config.files import PACKAGE
from rollmill.data.conflict import conflict_path, difference
from rollmill.data.metrics import Metrics
from rollmill.data.prompts import Prompt
from rollmill.data.rollouts import read_fields
from rollmill.data.scratch import scratch
from rollmill.data.written import write_json
from rollmill.errors import ConfigError
from rollmill.store.folder import stem
from rollmill.store.schema import one_line
from rollmill.store.streamed import replacing
from rollmill.taskset import read_rows
from rollmill.types import encode


class Source(Struct, frozen=True):
    """A dataset that an agent plays."""

    agent: str
    dataset: Dataset
    path: Path
    check: Callable[[bytes, str], None]
    """Raises `ConfigError` for a row that cannot be played; it begins with the row's place."""
    prompt: Prompt | None = None

    def rows(self) -> Iterator[tuple[bytes, str]]:
        """Every row once, with its place, as it will be asked."""
        for line, content in read_rows(self.path):
            place = f"{self.path}, line {line}"
            yield content if self.prompt is None else self.prompt.render(content, place), place

    def beside(self, out: Path, name: str) -> Path:
        """A file that belongs to it: beside it, or in `out` where that place is not the user's."""
        if self.has_own_place:
            return self.path.with_name(f"{_stem(self.path)}_{name}")
        return out / f"{self.agent}_{self.dataset.name}_{name}"

    @property
    def has_own_place(self) -> bool:
        folder = self.path.parent.resolve()
        return not folder.is_relative_to(PACKAGE) and os.access(folder, os.W_OK)


class Prepared(Struct, frozen=True):
    """All datasets of one type, put together."""

    type: str
    path: Path
    metrics: Path
    rows: int


def prepare(sources: Sequence[Source], out: Path, *, overwrite: bool = False) -> list[Prepared]:
    """Write everything; or nothing, where a row is wrong, or where metrics that were written before were others.

    Those that differ then lie beside them as `…_conflict.json`, unless one is to `overwrite` the other.
    """
    types: dict[str, list[Source]] = {}
    for source in sources:
        types.setdefault(source.dataset.type, []).append(source)
    made = {type: Prepared(type, out / f"{type}.jsonl", out / f"{type}_metrics.json", 0) for type in types}
    _refuse_sources(sources, made.values())
    metrics: dict[Path, dict[str, Any]] = {}
    for type, some in types.items():
        whole = Metrics()
        for source in some:
            counted = _counted(source)
            metrics[source.beside(out, "metrics.json")] = _described(source.dataset) | counted.said()
            whole.merge(counted)
        metrics[made[type].metrics] = whole.said()
    with scratch(out / "prepared") as folder:
        _settle(metrics, overwrite=overwrite)
        return [replace(one, rows=_write(types[type], one.path, folder)) for type, one in made.items()]


def _refuse_sources(sources: Sequence[Source], made: Iterable[Prepared]) -> None:
    for one in made:
        for source in sources:
            if one.path.exists() and one.path.samefile(source.path):
                raise ConfigError(f"output_dirpath: {one.path} is a dataset that is prepared; name another folder")


def _counted(source: Source) -> Metrics:
    metrics = Metrics()
    for content, place in source.rows():
        source.check(content, place)
        metrics.add(read_fields(content, place), source.dataset.num_repeats)
    if not metrics.examples:
        raise ConfigError(f"{source.path}: there is no row in it")
    return metrics


def _described(dataset: Dataset) -> dict[str, Any]:
    """The dataset as its configuration has it."""
    fields = msgspec.structs.asdict(dataset)
    return {**fields, **fields.pop("extra")}


def _settle(metrics: Mapping[Path, dict[str, Any]], *, overwrite: bool) -> None:
    """Write the metrics, unless some differ from what was written before: then only those, under another name."""
    found = {} if overwrite else {path: difference(path, now) for path, now in metrics.items()}
    conflicts = {path: said for path, said in found.items() if said is not None}
    for path in conflicts:
        write_json(conflict_path(path), metrics[path])
    if conflicts:
        said = "; ".join(f"{path} ({what})" for path, what in conflicts.items())
        raise ConfigError(
            f"metrics are others than those that were written before, the new ones lie beside them as …_conflict.json: "
            f"{said}; correct the data, or take the new ones with +overwrite_metrics_conflicts=true"
        )
    for path, now in metrics.items():
        write_json(path, now)
        conflict_path(path).unlink(missing_ok=True)


def _write(sources: Sequence[Source], path: Path, folder: Path) -> int:
    """The rows of all of them, and those of each in a file of its own."""
    rows = 0
    with replacing(path, folder) as whole:
        for source in sources:
            own = source.beside(path.parent, "prepare.jsonl")
            with scratch(own) as beside, replacing(own, beside) as file:
                for line in _lines(source):
                    file.write(line)
                    whole.write(line)
                    rows += 1
    return rows


def _lines(source: Source) -> Iterator[bytes]:
    """Each row with its agent, as often as it is repeated, one after the other."""
    agent = {"agent_ref": Raw(encode({"type": "responses_api_agents", "name": source.agent}))}
    for content, place in source.rows():
        line = one_line(encode({**read_fields(content, place), **agent})) + b"\n"
        for _ in range(source.dataset.num_repeats):
            yield line


def _stem(path: Path) -> str:
    return stem(path.with_suffix("") if path.suffix in (".gz", ".zst") else path)
