"""Whether outputs come from one experiment, and the manifest of all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from rollmill.errors import ConfigError
from rollmill.store.manifest import Identity, Manifest, Run, Segment, changes

_MIXED = "give --mixed (or +mixed=true) to join them nevertheless"


def join_manifests(manifests: Mapping[str, Manifest], *, mixed: bool) -> Manifest | None:
    """One manifest from those of several files: every run, and a segment for each experiment.

    Raises `ConfigError` where an agent played in more than one experiment, unless they are to be `mixed`.
    """
    segments: list[dict[str, Identity]] = []
    runs: dict[str, Run] = {}
    for file, manifest in manifests.items():
        numbers = [_place(segment.agents, segments) for segment in manifest.segments]
        if len(segments) > 1 and not mixed:
            raise ConfigError(_refusal(file, segments))
        for run in manifest.runs:
            runs.setdefault(run.id, replace(run, segment=numbers[run.segment - 1] if numbers else 1))
    if not segments:
        return None
    # A run that goes on is compared with the last one, which therefore knows every agent.
    for earlier in segments[:-1]:
        segments[-1] = earlier | segments[-1]
    config = list(manifests.values())[-1].config
    return Manifest(
        [Segment(agents) for agents in segments], sorted(runs.values(), key=lambda run: run.started), config
    )


def refuse_models(models: Mapping[str, Mapping[str, Sequence[str]]], manifest: Manifest | None) -> None:
    """Raise `ConfigError` where rows without a manifest, by file and agent, name another model than the rest."""
    known = {name: one.model for name, one in manifest.segments[-1].agents.items()} if manifest else {}
    for file, agents in models.items():
        for agent, names in agents.items():
            for name in names:
                if known.setdefault(agent, name) != name:
                    raise ConfigError(
                        f"{file} is of another experiment of {agent}: model was {known[agent]!r}, is {name!r}; {_MIXED}"
                    )


def _place(agents: Mapping[str, Identity], segments: list[dict[str, Identity]]) -> int:
    """The number of the segment, from 1, that these identities fit into."""
    for number, known in enumerate(segments, 1):
        if all(known.get(name, one) == one for name, one in agents.items()):
            known.update(agents)
            return number
    segments.append(dict(agents))
    return len(segments)


def _refusal(file: str, segments: Sequence[Mapping[str, Identity]]) -> str:
    first, second = segments[:2]
    agent = next(name for name in second if name in first and first[name] != second[name])
    return f"{file} is of another experiment of {agent}: {changes(first[agent], second[agent])}; {_MIXED}"
