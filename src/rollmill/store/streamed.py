"""A file too large to be held, written piece by piece and there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rollmill.errors import StoreError


@contextmanager
def replacing(path: Path, folder: Path) -> Iterator[BinaryIO]:
    """What is written within replaces the file at the end; after an error the old one stays.

    `folder` is on the same disk, and belongs to the one who writes: what a killed process leaves there lies where the
    next one writes over it.
    """
    part = folder / f"{path.name}.part"
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
