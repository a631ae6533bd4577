"""What to change where a stage takes most of a rollout's time: the same words while it is collected and afterwards."""

from __future__ import annotations

from rollmill.profiling.spans import FOR_A_PROCESS

BUSY = 0.85
"""The share of a core from which on a process has no time for more."""
MOST = 0.5

_CHANGE = {
    "setup": ("the environment's setup", "move it into shared()"),
    "tools": ("the tools", "make them faster, or asynchronous"),
    "verify": (
        "verification",
        "let rewards compute in processes (@reward(cpu=True)), cache look-ups, or collect with verify=defer",
    ),
    "model": (
        "the model",
        "raise num_samples_in_parallel if it can serve more, add a replica, or lower max_output_tokens where replies "
        "need not be so long",
    ),
    "store": ("the store", "write to a faster disk, or with another durability"),
    "agent": ("the agent", "it is neither its model calls nor its tools: look for it among the functions"),
}
_PROCESSES = (
    "rewards that compute have one process less than there are cores: make them cheaper, or use a machine with more"
)
_WAIT = {
    "permit": "model calls wait for a permit: raise limits.models.NAME.concurrency if it is set, add a replica, or a "
    "faster one",
    "rate": "model calls wait for the rate that limits.models sets: raise it if the provider allows more",
    "pause": "the model asked for pauses: ask it less often (limits.models), or somewhere else",
    "backoff": "model calls that failed wait to be made again: see what the report says of retries",
    "retry": "rollouts that failed wait to be played again: see why in failures.ndjson",
    "begin": "rollouts wait for this process to begin them: look for what holds it among the functions",
}


def advice(stage: str, share: float, most: str = "") -> str:
    """What takes such a share of a rollout's time, and what to change; `most` is the part that takes most of it."""
    what, change = _CHANGE[stage]
    if most == FOR_A_PROCESS:
        change = _PROCESSES
    return f"{what}: {percent(share)} of a rollout's time{most and f', most of it {most}'}; {change}"


def queue_advice(why: str, share: float) -> str:
    """The same of waiting, by what is waited for most."""
    return f"the queue: {percent(share)} of a rollout's time; {_WAIT[why]}"


def held_advice(what: str, share: float) -> str:
    """Of functions that hold the event loop for such a share of the time, `what` most of all."""
    return (
        f"{what}: it and its like hold the process for {percent(share)} of the time, and nothing goes on beside them; "
        "wait in it with await, or let it compute in another process (@reward(cpu=True)) or thread (asyncio.to_thread)"
    )


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
