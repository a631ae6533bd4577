"""A hidden folder on the disk of a file that is to be written: what is made there becomes the file, or goes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollmill.errors import ConfigError


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """Makes the folder of the file as well, if it is not there."""
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".rollmill-", dir=beside.parent)
    except OSError as error:
        raise ConfigError(f"{beside}: cannot be written: {error.strerror}") from None
    with folder as name:
        yield Path(name)
