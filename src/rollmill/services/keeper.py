"""Runs somebody's program, and kills it with all that it started when the command has gone.

It imports nothing of this package, so that it costs little beside the program: `python keeper.py PIPE WORD …`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

_GRACE_S = 1.0


def main() -> int:
    pipe, words = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(pipe, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        # The command says when; a function, for what is ignored would be ignored by the program, too.
        signal.signal(number, lambda *_: None)
    program = subprocess.Popen(words, start_new_session=True)

    def end() -> None:
        os.read(pipe, 1)
        _kill(program.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(_GRACE_S)
        _kill(program.pid, signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()
    code = program.wait()
    _kill(program.pid, signal.SIGKILL)
    return 128 - code if code < 0 else code


def _kill(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
