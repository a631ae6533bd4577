"""The profile of a service: written when it is stopped, and shown while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollmill.config import Instance
from rollmill.instances import environment_kind, make_agent, make_model
from rollmill.profiling.profiler import Profiler
from rollmill.serve.app import Route
from rollmill.serve.http import TEXT, Answer, Request
from rollmill.serve.openapi import Operation


@contextmanager
def profiled(instance: Instance, folder: str, *, worker: str, required_str: str) -> Iterator[Profiler | None]:
    """Measures until it is left, however that happens; `worker` ends the name of one of several processes."""
    if not folder:
        yield None
        return
    name = instance.name + worker
    profiler = Profiler(name, Path(folder, f"{class_of(instance)}___{instance.name}"), required_str=required_str)
    profiler.start()
    try:
        yield profiler
    finally:
        profiler.stop()
        profiler.write()


def class_of(instance: Instance) -> str:
    match instance.kind:
        case "resources_servers":
            return environment_kind(instance).__name__
        case "responses_api_models":
            return type(make_model(instance)).__name__
    return type(make_agent(instance)).__name__


def stats(profiler: Profiler) -> Route:
    """`GET /stats`: what was measured so far, written down as well."""

    async def show(_: Request) -> Answer:
        profiler.write()
        return Answer(profiler.page().encode(), content_type=TEXT)

    return Route("GET", "/stats", show, Operation("Where the time goes", content_types=(TEXT.partition(";")[0],)))
