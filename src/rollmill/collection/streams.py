"""Standard output and errors of a process that goes on when nobody reads them any more."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO


def outlive_readers() -> None:
    """From here on, what is written when the terminal or the reader has gone is lost, and nobody fails by it.

    It matters most to authors' code: an environment that prints must not lose its rollouts with its terminal.
    """
    sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)


def _outliving(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    raw = _Outliving(stream.fileno(), "w", closefd=False)
    # Without a buffer where Python was told to use none.
    buffer: Any = raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Outliving(io.FileIO):
    """A descriptor that takes whatever is written, and loses what it cannot write."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                # It will not come back, and programs that are started write there, too.
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fileno())
                os.close(nowhere)
            return len(content)
