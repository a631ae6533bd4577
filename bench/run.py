"""The benchmark: `run.py [one-turn tools services latency … profiling]`, all of its parts by default.

Each part prints its section, and puts it in the place of the last one in `results.md`.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
from pathlib import Path

import report
from contest import Bench, Contender, Work, contest, floor, ours, ratios, say
from journal import journal
from measure import MeasurementError, Rate
from million import million
from report import Bar, Section, spread
from server import Server
from where import profile

from services import services

HERE = Path(__file__).parent
AGAINST_THE_FLOOR: dict[str, Contender] = {"floor": floor("aiohttp"), "rollmill": ours(), "raw floor": floor("raw")}
HEADER = ["", "rollouts/s", "CPU ms a rollout", "start s"]


def one_turn(bench: Bench) -> Section:
    about = "One model call a rollout, 2 kB in, 1 kB out, answered at once."
    works = [Work("single", "single-0", "Boxed", count, few=2_000, many=32_000) for count in (128, 1024)]
    return _against_the_floor(bench, "one-turn", about, works)


def tools(bench: Bench) -> Section:
    about = "Five model calls a rollout, four of which call a tool, 11 kB in and growing, answered at once."
    script = "tools4.get_synonym_value-0"
    works = [Work("tools", script, "Synonyms", count, few=1_100, many=7_100, calls=5) for count in (128, 1024)]
    return _against_the_floor(bench, "tools", about, works)


def _against_the_floor(bench: Bench, part: str, about: str, works: list[Work]) -> Section:
    bars: list[Bar] = []
    rows: list[list[str]] = []
    for work in works:
        rates = contest(bench, work, AGAINST_THE_FLOOR)
        speed, cpu = _ratios(rates)
        place = f"{work.in_flight:,} in flight"
        bars.append(Bar(f"rollouts/s against the floor's, {place}", speed, 0.7, at_least=True))
        bars.append(Bar(f"CPU a rollout against the floor's, {place}", cpu, 1.5))
        rows += _absolutes(rates, place)
    return Section(part, about, bars, HEADER, rows)


def latency(bench: Bench) -> Section:
    work = Work("single", "single-200", "Boxed", 1024, few=2_048, many=22_528)
    rates = contest(bench, work, AGAINST_THE_FLOOR)
    return Section(
        "latency",
        "One model call a rollout, answered after 200 ms: 1,024 in flight cannot give more than 5,120 rollouts/s.",
        [Bar("rollouts/s against the floor's, 1,024 in flight", _ratios(rates)[0], 0.9, at_least=True)],
        HEADER,
        _absolutes(rates, "1,024 in flight"),
    )


def workers(bench: Bench) -> Section:
    work = Work("single", "single-0", "Costly", 128, few=400, many=4_400)
    rates = contest(bench, work, {f"workers={count}": ours(f"+workers={count}") for count in (1, 2)})
    gain = ratios(rates["workers=2"], rates["workers=1"], _per_s)
    return Section(
        "workers",
        "One model call a rollout, answered at once, and a reward that takes 2 ms of CPU.",
        [Bar("rollouts/s of two workers against one", gain, 1.6, at_least=True)],
        HEADER,
        _absolutes(rates, "128 in flight"),
    )


def profiling(bench: Bench) -> Section:
    profiled = ours("+profiling_enabled=true", f"+profiling_results_dirpath={bench.folder / 'profiling'}")
    script = "tools4.get_synonym_value-0"
    works = {
        "one turn": Work("single", "single-0", "Boxed", 128, few=2_000, many=14_000),
        "tools": Work("tools", script, "Synonyms", 128, few=1_100, many=4_100, calls=5),
        "latency": Work("single", "single-200", "Boxed", 128, few=1_280, many=6_400),
    }
    rows: list[list[str]] = []
    for name, work in works.items():
        rates = contest(bench, work, {"off": ours(), "on": profiled})
        speed, cpu = (ratios(rates["on"], rates["off"], number) for number in (_per_s, _cpu_ms))
        rows += _absolutes(rates, name)
        rows.append([f"on against off, {name}", spread(speed), spread(cpu), ""])
    return Section(
        "profiling",
        "The same collection with profiling_enabled and without, 128 in flight: one model call answered at once, five "
        "with tools, and one that is answered after 200 ms.",
        [],
        HEADER,
        rows,
    )


PARTS = {
    "one-turn": one_turn,
    "tools": tools,
    "services": services,
    "latency": latency,
    "workers": workers,
    "journal": journal,
    "million": million,
    "profile": profile,
    "profiling": profiling,
}


def _ratios(rates: dict[str, list[Rate]]) -> tuple[list[float], list[float]]:
    us, them = rates["rollmill"], rates["floor"]
    return ratios(us, them, _per_s), ratios(us, them, _cpu_ms)


def _per_s(rate: Rate) -> float:
    return rate.per_s


def _cpu_ms(rate: Rate) -> float:
    return rate.cpu_ms


def _absolutes(rates: dict[str, list[Rate]], place: str) -> list[list[str]]:
    return [
        [
            f"{name}, {place}",
            spread([rate.per_s for rate in of_one]),
            spread([rate.cpu_ms for rate in of_one]),
            f"{statistics.median(rate.start_s for rate in of_one):.2f}",
        ]
        for name, of_one in rates.items()
    ]


def _allow_many_connections() -> None:
    """For everybody who is started here: 1,024 in flight are as many files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3, help="how often everybody plays (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="play so much more or less, for a trial")
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many rows are many (%(default)s)")
    parser.add_argument("--folder", type=Path, default=HERE.parent / "build" / "bench", help="for inputs and outputs")
    parser.add_argument("--results", type=Path, default=HERE / "results.md", help="(%(default)s)")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    _allow_many_connections()
    passed = True
    with Server(given.folder) as server:
        bench = Bench(server, given.folder, given.rounds, given.scale, given.rows)
        for part in given.parts or PARTS:
            say(part)
            try:
                section = PARTS[part](bench)
            except MeasurementError as failed:
                print(f"{part}: {failed}", file=sys.stderr)
                passed = False
                continue
            report.write(section, given.results, list(PARTS))
            print(section.text(), end="\n\n", flush=True)
            passed &= all(bar.passed for bar in section.bars)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
