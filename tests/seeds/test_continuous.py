"""The recipe of seed 004 for collections of days: a session that is left, and looked at from elsewhere."""

import json
import re
import tempfile
import time
from collections.abc import Iterator

import pytest
from tests.seeds.documents import block, needs_documents, quoted
from tests.seeds.place import Place, installed, needs, row, wait_for
from tests.seeds.terminal import CTRL_B, CTRL_C, Terminal

pytestmark = [pytest.mark.slow, needs_documents]


@pytest.fixture
def tmux(place) -> Iterator[Place]:
    """The place, where `tmux` is a server of the test's own, whose shells are plain."""
    with tempfile.TemporaryDirectory() as socket:
        place.env |= {"HOME": str(place.folder), "TMUX_TMPDIR": socket}
        place.env.pop("TMUX", None)
        (place.folder / ".tmux.conf").write_text("set -g default-command 'bash --norc --noprofile'\n")
        yield place
        place.run("tmux", "kill-server")


def pane(tmux: Place) -> str:
    """What the session shows, whether or not anybody looks at it."""
    return tmux.run("tmux", "capture-pane", "-p", "-t", "rollout_gen").stdout


@needs("tmux")
def test_a_run_in_tmux_goes_on_when_its_terminal_is_gone(tmux):
    # The last task waits, so that the run ends only when it is told to.
    tmux.write("huge_dataset.jsonl", *map(row, range(39)), row(39) | {"gate": "open"})
    start, collect, detach = block("004", "bash", "# Start tmux session").strip().split("\n\n")
    attach, count, gpu, system = block("004", "bash", "# Reattach to session").strip().split("\n\n")
    bar = r"Collecting rollouts: +\d+%\|█.* 39/40 "
    with Terminal(tmux) as terminal:
        terminal.run(start)
        terminal.until(r"\[rollout_g")
        terminal.run(collect)
        wait_for(lambda: re.search(bar, pane(tmux)))
        assert detach == "# Detach: Ctrl+b, then d"
        terminal.press(CTRL_B, "d")
        terminal.until(r"\[detached \(from session rollout_gen\)\]")

        # As printed it is refused: `attach` has no -s, of which this would be one.
        terminal.run(attach)
        terminal.until("unknown flag -s|usage: attach-session")
        corrected = attach.replace("-session", "-t")
        terminal.run(corrected)
        terminal.until("Collecting rollouts")
        terminal.press(CTRL_B, "d")
        terminal.until("detached")

        for command, program, shown in (
            (count, "watch", "39 rollouts.jsonl"),
            (gpu, "nvidia-smi", "NVIDIA-SMI"),
            (system, "htop", "Load average"),
        ):
            if installed(program):
                terminal.run(command)
                terminal.until(shown)
                terminal.press(CTRL_C)
                terminal.until(r"\$ $")
        terminal.run(corrected)
        terminal.until("Collecting rollouts")
    # The terminal was closed with the session on it.
    assert re.search(bar, pane(tmux))
    (tmux.folder / "open").touch()
    wait_for(lambda: "Slots: 40 asked for = 40 rewarded" in pane(tmux))
    assert tmux.numbers("rollouts.jsonl") == list(range(40))


def test_the_log_is_searched(place):
    place.write("tasks.jsonl", *map(row, range(12)))
    out = place.said(block("004", "bash", "tee collection.log"))
    log = (place.folder / "collection.log").read_text().splitlines()
    progress = [line for line in log if "Collecting rollouts" in line]
    assert progress, log
    assert "12/12" in progress[-1]
    # What was written to the terminal, then what was found in the log.
    assert out.splitlines() == [*log, *progress]
    assert place.numbers("rollouts.jsonl") == list(range(12))


def test_lines_are_whole_while_it_runs(place):
    place.write("huge_dataset.jsonl", *map(row, range(40)))
    _, collect, _ = block("004", "bash", "# Start tmux session").split("\n\n")
    _, count, _, _ = block("004", "bash", "# Reattach to session").split("\n\n")
    watched = quoted(count)
    path = place.folder / "rollouts.jsonl"
    counts: list[int] = []
    with place.bash(collect.replace("=20", "=2")) as process:
        while process.poll() is None:
            if path.exists():
                content = path.read_bytes()
                counts.append(int(place.said(watched).split()[0]))
                assert content.endswith(b"\n") or not content
                assert len([json.loads(line) for line in content.splitlines()]) <= counts[-1]
            time.sleep(0.1)
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert counts == sorted(counts)
    assert any(0 < count < 40 for count in counts), counts
    assert place.numbers("rollouts.jsonl") == list(range(40))
