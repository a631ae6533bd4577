"""Where the CPU of a rollout goes."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import measure
import msgspec
from contest import Bench, Work, check, forget, ours
from report import Section

SAMPLER = Path(__file__).with_name("sampler.py")
SHOWN = 15


def profile(bench: Bench) -> Section:
    count = round(bench.scale * 60_000)
    work = Work("single", "single-0", "Boxed", in_flight=128, few=0, many=count)
    out, result = bench.folder / "profile.jsonl", bench.folder / "samples.json"
    forget(out)
    bench.server.reset()
    _, *words = ours()(work, bench.server.url(work.script), bench.input(work.kind, count), count, out)
    measure.run([sys.executable, SAMPLER, result, *words], bench.folder / "profile.log")
    check(bench, out, count, count)
    forget(out)
    samples = Counter(msgspec.json.decode(result.read_bytes(), type=dict[str, int]))
    return Section(
        "profile",
        f"The same as one-turn at 128 in flight, {count:,} rollouts, sampled {samples.total():,} times by CPU.",
        [],
        ["", "share of the CPU", "of which"],
        [_row(samples, module, taken) for module, taken in _by_module(samples).most_common(SHOWN)],
    )


def _by_module(samples: Counter[str]) -> Counter[str]:
    modules: Counter[str] = Counter()
    for place, taken in samples.items():
        modules[_module(place)] += taken
    return modules


def _row(samples: Counter[str], module: str, taken: int) -> list[str]:
    """A module with its most expensive functions."""
    whole = samples.total()
    parts = Counter({place: one for place, one in samples.items() if _module(place) == module}).most_common(3)
    named = [f"{place.rpartition(' ')[2]} {100 * one / whole:.1f} %" for place, one in parts if ".py " in place]
    return [module, f"{100 * taken / whole:.1f} %", ", ".join(named)]


def _module(place: str) -> str:
    return place.rpartition(" ")[0] if ".py " in place else place
