"""A terminal with a shell in it, as a person has one: keys are typed, and what is shown is read."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from contextlib import suppress
from typing import Self

from tests.conftest import Shell

CTRL_B, CTRL_C = "\x02", "\x03"
_LINES, _COLUMNS = 40, 120
_PATIENCE_S = 60


class Terminal:
    """An interactive bash in a scratch folder; closing the terminal hangs up on all that runs in it."""

    def __init__(self, shell: Shell) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self._seen, self._mark = b"", 0
        self._bash = subprocess.Popen(
            ("bash", "--norc", "--noprofile", "-i"),
            cwd=shell.folder,
            env={key: value for key, value in shell.env.items() if key != "COLUMNS"} | {"TERM": "xterm", "PS1": "$ "},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As the window is closed. What ignores the hang-up goes on."""
        if self._ours >= 0:
            self._bash.kill()
            self._bash.wait()
            ours, self._ours = self._ours, -1
            os.close(ours)

    def type(self, keys: str) -> None:
        """What is shown from now on is what `until` looks at."""
        self._mark = len(self._seen)
        os.write(self._ours, keys.encode())

    def run(self, script: str) -> None:
        self.type(script if script.endswith("\n") else f"{script}\n")

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until that is shown."""
        deadline = time.monotonic() + _PATIENCE_S
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < deadline, f"{pattern!r} is not shown, but:\n{self.shown}"
            time.sleep(0.02)
        return found

    @property
    def shown(self) -> str:
        return self._seen[self._mark :].decode(errors="replace")

    def _read(self) -> None:
        with suppress(OSError):
            while chunk := os.read(self._ours, 4096):
                self._seen += chunk
