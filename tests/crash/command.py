"""`rollmill collect` as a process of its own: started, killed, and started again with the same words."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from tests.conftest import BIN
from tests.crash.check import content_of, run_folder

HERE = Path(__file__).parent
MARK = "ROLLMILL_CRASH_TEST"
"""Set in the environment of everything that a test starts, so that what outlives it is found."""

_MODEL = """\
policy_model:
  responses_api_models:
    openai_model:
      openai_base_url: {url}
      openai_api_key: key
      openai_model: mock
      deadlines: {{connect_s: {connect_s}, first_byte_s: {first_byte_s}, idle_s: {idle_s}, total_s: {total_s}}}
"""
_DEADLINES = {"connect_s": 2.0, "first_byte_s": 10.0, "idle_s": 10.0, "total_s": 20.0}
_COUNTED = re.compile(r"(\d+)/(\d+)")


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Collect:
    """The words of one collection."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *words: str,
        rows: Path | str = "rows.jsonl",
        output: str = "out.jsonl",
        environment: str = f"{HERE / 'errands.py'}:Errands",
        concurrency: int = 32,
        deadlines: Mapping[str, float] | None = None,
        model: str = "mock",
    ) -> None:
        self.folder = folder
        self.output = folder / output
        self.run_folder = run_folder(self.output)
        self.mark = uuid4().hex
        self.started: list[float] = []
        """When it was started each time, on the clock of `time.monotonic`."""
        text = _MODEL.format(url=url, **{**_DEADLINES, **(deadlines or {})}).replace("model: mock", f"model: {model}")
        config = folder / f"model-{uuid4().hex[:8]}.yaml"
        config.write_text(text)
        self.words = (
            *("rollmill", "collect", environment, f"+config_paths=[{config}]"),
            *("--input", str(rows), "--out", output, "--concurrency", str(concurrency)),
            *words,
        )

    def start(self, *more: str, env: Mapping[str, str] | None = None, **options: Any) -> Running:
        """In a process group of its own, its streams in files, which nobody has to read."""
        self.started.append(time.monotonic())
        own = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "POLICY_"))}
        own |= {MARK: self.mark, "COLUMNS": "100", **(env or {})}
        streams = [self.folder / f"run-{len(self.started)}.{name}" for name in ("out", "err")]
        words = (str(BIN / self.words[0]), *self.words[1:], *more)
        with streams[0].open("wb") as out, streams[1].open("wb") as err:
            options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, "start_new_session": True} | options
            process = subprocess.Popen(words, cwd=self.folder, env=own, **options)
        return Running(process, self, *streams)

    def run(self, *more: str, timeout: float = 90, **options: Any) -> Ended:
        return self.start(*more, **options).wait(timeout)

    def finish(self, *more: str) -> Ended:
        """Run it to its end, which must be a good one."""
        ended = self.run(*more)
        assert ended.code == 0, ended
        return ended

    def lines(self) -> list[bytes]:
        """The whole lines that the output holds."""
        *whole, _half = content_of(self.output).split(b"\n")
        return whole

    def left_behind(self) -> list[str]:
        """Processes of this collection that are still there."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes()
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"{MARK}={self.mark}".encode() in environment and state != "Z":
                found.append((process / "cmdline").read_text().replace("\0", " "))
        return found

    def none_left(self, within_s: float = 5.0) -> bool:
        try:
            wait_until(lambda: not self.left_behind(), within_s)
        except TimeoutError:
            return False
        return True


class Running:
    def __init__(self, process: subprocess.Popen, collect: Collect, out: Path, err: Path) -> None:
        self.process = process
        self._collect, self._out, self._err = collect, out, err

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """What it has written to stderr."""
        return self._err.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> Ended:
        """`kill -9`, as the machine does it: this process alone, whatever it has started."""
        self.process.kill()
        return self.wait(10)

    def wait(self, timeout: float = 90) -> Ended:
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"it did not end in {timeout:g} s; it said:\n{self.said[-2000:]}") from None
        return Ended(code, self._out.read_text(errors="replace"), self.said)

    def wait_for_lines(self, count: int, timeout: float = 60) -> None:
        def enough() -> bool:
            assert self.process.poll() is None, f"it ended before {count} lines: {self.said[-2000:]}"
            return len(self._collect.lines()) >= count

        wait_until(enough, timeout)

    def wait_for_words(self, words: str, timeout: float = 60) -> None:
        def there() -> bool:
            assert words in self.said or self.process.poll() is None, f"no {words!r} in {self.said[-2000:]}"
            return words in self.said

        wait_until(there, timeout)


def acknowledged(said: str) -> int:
    """The largest count of ended slots that the progress has shown."""
    counts = [
        int(done) for line in re.split(r"[\r\n]", said) if "Collecting" in line for done, _ in _COUNTED.findall(line)
    ]
    return max(counts, default=0)


def wait_until(true: Callable[[], bool], timeout: float, every: float = 0.01) -> None:
    end = time.monotonic() + timeout
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {timeout:g} s")
        time.sleep(every)
