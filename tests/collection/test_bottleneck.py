import msgspec
import pytest

from rollmill.collection.bottleneck import Evidence, name_bottleneck
from rollmill.collection.worker import Pressure

WAITS = Evidence(
    seconds={"setup": 0.01, "model": 2.0, "tools": 0.1, "verify": 0.1},
    cpu_share=0.2,
    workers_cpu_share=0.0,
    cores=8,
    pressure=Pressure(),
    running=64,
    fixed=None,
    elapsed_s=60,
)


def seen(**changes) -> str:
    return name_bottleneck(msgspec.structs.replace(WAITS, **changes))


def stage(name: str) -> dict[str, float]:
    return {"setup": 0.1, "model": 0.1, "tools": 0.1, "verify": 0.1} | {name: 3.0}


@pytest.mark.parametrize(
    ("changes", "what", "change"),
    [
        ({}, "the model: 90 % of a rollout's time", ""),
        ({"fixed": 64}, "all 64 places taken", "raise num_samples_in_parallel"),
        ({"seconds": stage("verify")}, "verification: 91 %", "@reward(cpu=True)"),
        ({"seconds": stage("tools")}, "the tools: 91 %", "asynchronous"),
        ({"seconds": stage("setup")}, "the environment's setup: 91 %", "shared()"),
        ({"cpu_share": 0.97}, "this process: 97 % of a core", "+workers=2"),
        ({"cpu_share": 0.97, "seconds": stage("verify")}, "perhaps in verify (91 %", "+workers=2"),
        ({"cpu_share": 0.97, "cores": 1}, "this process: 97 % of a core", "no more than 1"),
        (
            {"workers_cpu_share": 0.97, "pressure": Pressure(workers=3)},
            "the workers: 97 % of a core each",
            "+workers=4",
        ),
        ({"workers_cpu_share": 0.97, "pressure": Pressure(workers=8)}, "the workers: 97 %", "no more than 8"),
        ({"cpu_share": 0.9, "pressure": Pressure(workers=3)}, "plans and records: 90 % of a core", "rollmill merge"),
        ({"workers_cpu_share": 0.6, "pressure": Pressure(workers=12)}, "its 8 cores are busy", "use one with more"),
        ({"workers_cpu_share": 0.3, "pressure": Pressure(workers=3)}, "the model: 90 %", ""),
        ({"pressure": Pressure(calls=30, limit=32, waiting=9)}, "it serves about 32 calls at once", "a replica"),
        (
            {"pressure": Pressure(calls=30, limit=32, waiting=9, retries={"rate_limit": 1200})},
            "the model's rate limit: 1,200 calls were refused",
            "about 32 at once",
        ),
        ({"pressure": Pressure(permit_s=1, rate_s=90)}, "the rate that limits.models sets", "raise it"),
        ({"pressure": Pressure(paused="m asked for a pause, 20 s more")}, "the model: m asked for a pause", "20 s"),
    ],
)
def test_it_is_named_with_what_to_change(changes, what, change):
    sentence = seen(**changes)
    assert what in sentence
    assert change in sentence
    assert "\n" not in sentence


def test_places_that_are_free_are_not_what_is_too_few():
    assert "num_samples_in_parallel" not in seen(fixed=64, running=40)


def test_nothing_is_said_while_there_is_too_little_to_say():
    assert seen(elapsed_s=2) == ""
    assert seen(seconds={}) == ""


def test_a_pause_is_said_at_once():
    assert seen(elapsed_s=2, pressure=Pressure(paused="429 for 60 s")) == "the model: 429 for 60 s"
