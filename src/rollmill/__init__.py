"""Verified rollouts for training language-model agents: tasks, environments, models and agents, played and recorded."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollmill.agent import Agent, ToolAgent
    from rollmill.environment import Environment, reward
    from rollmill.errors import (
        ConfigError,
        ContractError,
        ModelError,
        RollmillError,
        RolloutError,
        StoreError,
        ToolError,
    )
    from rollmill.model import Conversation, Model, Sampling, Scripted
    from rollmill.rollout import Deadlines, play, verify_again
    from rollmill.stream import collect
    from rollmill.taskset import Taskset, from_hub, from_jsonl, from_rows
    from rollmill.tools import tool
    from rollmill.types import (
        Failure,
        FunctionCall,
        FunctionCallOutput,
        Item,
        Message,
        Reasoning,
        Reply,
        Response,
        Reward,
        Rollout,
        Slot,
        Stop,
        Task,
        Tokens,
        Trajectory,
        Usage,
        assistant,
        call,
        read_item,
        read_task,
        user,
    )

__version__ = "0.1.0"

# Where the public names live, the lowest layer first. They are imported when a name is first used: `import rollmill` is
# free for a program that may not play anything.
_HOMES = ("types", "errors", "tools", "model", "environment", "agent", "rollout", "taskset", "stream")


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        for home in _HOMES:
            module = import_module(f"rollmill.{home}")
            if hasattr(module, name):
                globals()[name] = value = getattr(module, name)
                return value
    raise AttributeError(f"module 'rollmill' has no attribute {name!r}")


__all__ = [
    "Agent",
    "ConfigError",
    "ContractError",
    "Conversation",
    "Deadlines",
    "Environment",
    "Failure",
    "FunctionCall",
    "FunctionCallOutput",
    "Item",
    "Message",
    "Model",
    "ModelError",
    "Reasoning",
    "Reply",
    "Response",
    "Reward",
    "RollmillError",
    "Rollout",
    "RolloutError",
    "Sampling",
    "Scripted",
    "Slot",
    "Stop",
    "StoreError",
    "Task",
    "Taskset",
    "Tokens",
    "ToolAgent",
    "ToolError",
    "Trajectory",
    "Usage",
    "assistant",
    "call",
    "collect",
    "from_hub",
    "from_jsonl",
    "from_rows",
    "play",
    "read_item",
    "read_task",
    "reward",
    "tool",
    "user",
    "verify_again",
]
