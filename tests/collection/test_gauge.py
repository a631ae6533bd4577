import pytest
from tests.collection.parts import FAILED, entry

from rollmill.collection.gauge import WINDOW_S, Gauge, Running
from rollmill.collection.snapshot import Oldest
from rollmill.collection.worker import Pressure


class Watch:
    """A gauge, and the clock that it looks at."""

    def __init__(self, planned: int | None = 1000, held: int = 0, running: Running | None = None) -> None:
        self.at = 100.0
        self.pressure = Pressure()
        self.running = running or Running(0, 0, None, draining=False)
        self.gauge = Gauge(
            "run",
            durability="os",
            fixed=None,
            now=lambda: self.running,
            pressure=lambda: self.pressure,
            plan=lambda: (planned, held),
            clock=lambda: self.at,
        )

    def ended(self, *entries) -> None:
        for one in entries:
            self.gauge.ended(one)

    def second(self, lag_s: float = 0.0) -> list[str]:
        self.at += 1
        return [warned.name for warned in self.gauge.tick(lag_s)]


def rewards(*values: float, **fields) -> list:
    return [entry(value, **fields) for value in values]


def test_what_has_ended_is_counted():
    watch = Watch(planned=100, held=10)
    watch.ended(*rewards(1.0, 0.0, 0.5, input_tokens=30, output_tokens=12), entry(failure=FAILED, input_tokens=6))
    watch.second()
    now = watch.gauge.snapshot()
    assert (now.planned, now.held, now.ended, now.failed, now.done, now.rewarded) == (100, 10, 4, 1, 14, 3)
    assert now.reward_mean == pytest.approx(0.5)
    assert now.reward_std == pytest.approx(0.5)
    assert now.tokens_per_s == 3 * 42 + 6
    assert now.state == "running"
    assert now.durability == "os"


def test_rewards_that_are_placeholders_count_for_nothing():
    watch = Watch()
    watch.ended(*[entry(None)] * 3)
    now = watch.gauge.snapshot()
    assert (now.ended, now.rewarded, now.reward_mean) == (3, 0, None)


def test_rates_are_of_the_last_seconds_and_overall():
    watch = Watch(planned=1300)
    for _ in range(100):
        watch.ended(*rewards(1.0))
        watch.second()
    for _ in range(int(WINDOW_S) + 2):
        watch.ended(*rewards(*[1.0] * 10))
        watch.second()
    now = watch.gauge.snapshot()
    assert now.rollouts_per_s == pytest.approx(10)
    assert now.rollouts_per_s_overall == pytest.approx((100 + 320) / 132, abs=0.001)
    assert now.eta_s == pytest.approx((1300 - 420) / 10, abs=0.1)
    assert now.elapsed_s == 132


def test_a_run_that_stands_still_says_so_and_its_end_is_reckoned_from_all_of_it():
    watch = Watch(planned=100)
    watch.ended(*rewards(*[1.0] * 50))
    for _ in range(100):
        watch.second()
    now = watch.gauge.snapshot()
    assert now.rollouts_per_s == 0
    assert now.eta_s == pytest.approx(100)


def test_without_a_plan_there_is_no_end():
    watch = Watch(planned=None)
    watch.ended(*rewards(1.0))
    watch.second()
    now = watch.gauge.snapshot()
    assert (now.planned, now.eta_s) == (None, None)


def test_nothing_ended_has_no_rate_and_no_end():
    now = Watch().gauge.snapshot()
    assert (now.rollouts_per_s, now.rollouts_per_s_overall, now.eta_s) == (0, 0, None)


def test_memory_of_it_is_constant():
    watch = Watch()
    for _ in range(500):
        watch.ended(*rewards(1.0))
        watch.second()
    assert len(watch.gauge._samples) <= WINDOW_S + 2
    assert len(watch.gauge._lags) <= WINDOW_S + 2
    assert len(watch.gauge._recent) == 100


def test_the_tokens_of_attempts_that_failed_were_spent_too():
    watch = Watch()
    watch.gauge.retrying(entry(failure=FAILED, input_tokens=100), 1.0)
    watch.ended(*rewards(1.0, input_tokens=50))
    watch.second()
    assert watch.gauge.snapshot().tokens_per_s_overall == 150


def test_time_is_split_by_stage_over_all_that_ended():
    watch = Watch()
    watch.ended(*rewards(1.0, 1.0, seconds={"model": 3.0, "verify": 1.0}))
    watch.ended(entry(failure=FAILED, seconds={"model": 3.0}), entry(failure=FAILED))
    assert watch.gauge.snapshot().seconds == {"model": 2.25, "verify": 0.5}


def test_what_runs_and_what_stands_between_it_and_the_model_is_said():
    oldest = Oldest(3, 0, "agent", 1, 12.0)
    watch = Watch(running=Running(7, 9, oldest, draining=True))
    watch.pressure = Pressure(calls=5, limit=6, waiting=2, retries={"overload": 4}, paused="later")
    now = watch.gauge.snapshot()
    assert (now.running, now.most_running, now.oldest, now.state) == (7, 9, oldest, "draining")
    assert (now.model_calls, now.model_limit, now.waiting_calls) == (5, 6, 2)
    assert (now.retries, now.paused) == ({"overload": 4}, "later")
    assert now.bottleneck == "the model: later"
    assert watch.gauge.snapshot("finished").state == "finished"


def test_the_cpu_of_workers_is_that_of_the_last_seconds():
    watch = Watch()
    for _ in range(10):
        before = watch.pressure.workers_cpu_s
        watch.pressure = Pressure(workers=2, workers_cpu_s=before + 1.5)
        watch.second()
    now = watch.gauge.snapshot()
    assert (now.workers, now.workers_cpu_share) == (2, 0.75)


def test_the_longest_lag_of_the_last_seconds_is_kept():
    watch = Watch()
    watch.second(0.2)
    for _ in range(5):
        watch.second(0.01)
    assert watch.gauge.snapshot().loop_lag_ms == 200
    for _ in range(40):
        watch.second(0.01)
    assert watch.gauge.snapshot().loop_lag_ms == 10


@pytest.mark.parametrize(
    ("entries", "name", "words"),
    [
        (rewards(*[0.0] * 100), "equal_rewards", "all 100 rewards are 0"),
        (rewards(*[0.0, 1.0] * 50, empty=True), "empty_answers", "100 of 100 answers are empty"),
        (rewards(*[0.0, 1.0] * 50, stop="length"), "truncated", "100 of 100 rollouts were cut by a limit"),
        ([*rewards(*[0.0, 1.0] * 37), *[entry(failure=FAILED)] * 26], "failures", "26 of the last 100 slots failed"),
    ],
)
def test_what_looks_wrong_is_said_once(entries, name, words):
    watch = Watch()
    watch.ended(*entries[:99])
    assert watch.second() == []
    watch.ended(*entries[99:])
    watch.at += 1
    (warned,) = watch.gauge.tick(0.0)
    assert warned.name == name
    assert words in warned.text
    assert watch.second() == []
    assert watch.gauge.snapshot().warnings == [warned.text]


def test_what_is_usual_is_no_warning():
    watch = Watch()
    usual = [
        *rewards(*[0.0, 1.0] * 30),
        *rewards(*[1.0] * 40, empty=True),
        *rewards(*[0.5] * 20, stop="length"),
        *[entry(failure=FAILED)] * 20,
    ]
    watch.ended(*usual)
    assert watch.second() == []


def test_failures_long_ago_are_no_warning():
    watch = Watch()
    watch.ended(*[entry(failure=FAILED)] * 60, *rewards(*[0.0, 1.0] * 50))
    assert watch.second() == []
