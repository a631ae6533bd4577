"""What a person reads when a collection has ended."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from rollmill.collection.options import CollectOptions
from rollmill.collection.report import counted
from rollmill.collection.run import LeftOver, Outcome
from rollmill.store.folder import run_folder

_DURABLE = {
    "process": "they survive this process",
    "os": "they survive a crash of the machine, but for its last moment",
    "power": "they survive a power cut",
}


def show(outcome: Outcome, options: CollectOptions, again: str) -> None:
    report, output = outcome.report, options.output_jsonl_fpath
    totals = report.totals
    if not outcome.ended and outcome.complete:
        if options.follow:
            print(f"Nothing new has come: {output} holds all {counted(outcome.held, 'rollout')}")
        else:
            _show_nothing_to_do(outcome, output)
    if totals.rollouts:
        print(msgspec.json.format(msgspec.json.encode(report.means()), indent=2).decode())
    for line in report.lines():
        print(line)
    folder = run_folder(Path(output))
    if totals.rollouts:
        rows = counted(totals.rollouts, "row")
        print(f"Rollouts: {output} ({rows}; {_DURABLE[options.durability]}); beside it {folder}/")
    if outcome.planned is not None:
        print(_accounts(outcome))
    for left in outcome.left_over:
        print(_owed_elsewhere(left))
    if outcome.skipped_rows:
        print(f"Skipped: {counted(outcome.skipped_rows, 'row')} of the input that cannot be played")
    if totals.failed:
        print(f"Why slots failed: {folder}/failures.ndjson; +retry_failed=true plays them again")
    if outcome.stopped == "stopped" and outcome.complete:
        print("Stopped when all that had come had ended" if options.follow else "Stopped when all had ended")
    elif outcome.stopped:
        why = "Stopped early" if outcome.stopped == "stopped" else f"Stopped: {outcome.stopped}"
        print(f"{why}; {again}")


def _show_nothing_to_do(outcome: Outcome, output: str) -> None:
    failed = f", {outcome.held_failed:,} of them failed for good" if outcome.held_failed else ""
    more = "For more, raise the repeats (--repeats, +num_repeats) or add tasks"
    retry = "; +retry_failed=true plays the failed ones again" if outcome.held_failed else ""
    print(f"Nothing to do: {output} holds all {counted(outcome.held, 'rollout')}{failed}. {more}{retry}.")


def _owed_elsewhere(left: LeftOver) -> str:
    """Lines of an output are no prefix of its input: what ended is known, and so is what has not."""
    more = left.tasks - len(left.first)
    *most, last = [*map(str, left.first), *([f"{more:,} more"] if more else [])]
    named = f"{', '.join(most)} and {last}" if most else last
    slots, tasks = counted(left.slots, "slot"), "task" if left.tasks == 1 else "tasks"
    how = f"this plays them:\n  {shlex.join(left.command)}" if left.command else "the command that asked for them does"
    return f"Owed of an earlier input: {slots}, of {tasks} {named}; {how}"


def _accounts(outcome: Outcome) -> str:
    """Every slot that the input asks for, by what became of it."""
    planned = outcome.planned or 0
    failed = outcome.failed + outcome.held_failed
    done = outcome.held + outcome.ended
    owed = max(0, planned - done)
    share = f"{100 * (done - failed) / planned:.1f} %" if planned else "none"
    return f"Slots: {planned:,} asked for = {done - failed:,} rewarded ({share}) + {failed:,} failed + {owed:,} owed"
