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
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self._seen, self._mark = b"", 0
        # The first terminal that the leader of a session opens is the session's.
        self._bash = subprocess.Popen(
            ("bash", "-c", "PS1='$ ' exec bash --norc --noprofile -i <>$0 >&0 2>&0", os.ttyname(self._theirs)),
            cwd=shell.folder,
            env={key: value for key, value in shell.env.items() if key != "COLUMNS"} | {"TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed:
            self.press(CTRL_C)  # services would not mind the hang-up
        self.close()

    def close(self) -> None:
        """As a window is closed: what does not ignore the hang-up ends."""
        self._bash.kill()
        self._bash.wait()
        os.close(self._theirs)
        self._reader.join(_PATIENCE_S)
        os.close(self._ours)

    def run(self, script: str) -> None:
        """Paste a script. What is shown from now on is what `until` looks at."""
        self._mark = len(self._seen)
        os.write(self._ours, (script if script.endswith("\n") else f"{script}\n").encode())

    def press(self, *keys: str) -> None:
        """Key after key, as slowly as a person: what comes faster is a paste to tmux, and no command."""
        self._mark = len(self._seen)
        for key in keys:
            os.write(self._ours, key.encode())
            time.sleep(0.1)

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
