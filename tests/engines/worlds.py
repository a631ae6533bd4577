"""An environment that does to its process what is written in its row."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import rollmill as rm


class Tempered(rm.Task):
    temper: str = "kind"


class World(rm.Environment[Tempered]):
    @classmethod
    @asynccontextmanager
    async def shared(cls, config: Mapping[str, Any]) -> AsyncIterator[Path]:
        """A folder in which every worker notes when it opens and when it closes."""
        folder = Path(config["folder"])
        (folder / f"opened-{os.getpid()}").touch()
        yield folder
        # As long as it takes to stop a container.
        await asyncio.sleep(0.2)
        (folder / f"closed-{os.getpid()}").touch()

    async def setup(self) -> None:
        match self.task.temper:
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leaves a fork":
                self._fork()
                os.kill(os.getpid(), signal.SIGKILL)
            case "leaves a child":
                child = subprocess.Popen(("sleep", "600"), close_fds=False)
                (self.shared_value / "child").write_text(str(child.pid))
                os.kill(os.getpid(), signal.SIGKILL)
            case "breaks its contract":
                raise rm.ContractError("an agent without an end")
            case "stops a child":
                with subprocess.Popen(("sleep", "600")) as child:
                    time.sleep(0.2)
                    child.terminate()
                self.ended_by = -child.returncode

    def _fork(self) -> None:
        """A process that outlives this one with everything that is open, in a session of its own."""
        if (child := os.fork()) == 0:
            os.setsid()
            time.sleep(600)
        (self.shared_value / "fork").write_text(str(child))

    def verify(self, task: Tempered, response: rm.Response) -> dict[str, float]:
        return {"reward": 0.5, "ended_by": getattr(self, "ended_by", 0)}
