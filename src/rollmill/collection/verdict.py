"""When the faults of calls are the fault of everything: the key, the model's name, or a server that is gone."""

from __future__ import annotations

from rollmill.collection.retry import RetryPolicy
from rollmill.errors import CallerError, ConfigError, OutageError
from rollmill.types import Failure

REFUSALS = 3
"""How many refusals of the key or the model's name, with no answer between, stop a run."""
WRONG_REQUESTS = 20
"""How many requests that the model calls wrong stop a run, if it never answered one."""
_SUSPECT_CALLS = 2
_GONE = 5


class Row:
    """Faults of one kind with no answer between."""

    def __init__(self) -> None:
        self.faults = 0
        self.since = 0.0
        self._witnesses: set[int] = set()

    def add(self, now: float, who: int) -> None:
        if not self.faults:
            self.since = now
        self.faults += 1
        self._witnesses.add(who)

    @property
    def calls(self) -> int:
        """A call that fails again is no other witness than when it failed first."""
        return len(self._witnesses)


class Verdict:
    """One fault may be a stray; many in a row, more than calls are still under way, are everybody's."""

    def __init__(self, name: str, *, retry: RetryPolicy, outage_s: float, busy_s: float) -> None:
        self._name = name
        self._retry = retry
        self._outage_s, self._busy_s = outage_s, busy_s
        self.fault: CallerError | OutageError | None = None
        self.answers = 0
        self._clear()

    def _clear(self) -> None:
        self._refused, self._wrong, self._gone, self._busy = Row(), Row(), Row(), Row()

    def answered(self) -> None:
        self.answers += 1
        if self._refused.faults or self._wrong.faults or self._gone.faults or self._busy.faults:
            self._clear()

    @property
    def suspects(self) -> bool:
        """Whether the server may be away for everybody."""
        return self._gone.calls >= _SUSPECT_CALLS

    def left(self, now: float) -> float | None:
        """Seconds until it counts as gone, if nothing answers."""
        left = self._gone.since + self._outage_s - now
        return left if self.suspects and left > 0 else None

    def failed(self, failure: Failure, now: float, *, who: int, in_flight: int) -> None:
        """`who` tells one call from another; `in_flight` are those that may yet be answered."""
        if failure.kind == "denied" or self._retry.asks_too_much(failure):
            self._heed_refusal(failure, now, who=who, in_flight=in_flight)
        elif failure.kind == "caller":
            self._wrong.add(now, who)
            if not self.answers and self._wrong.faults >= max(WRONG_REQUESTS, in_flight):
                self._trip(ConfigError(f"the model {self._name!r} calls every request wrong: {failure.detail}"))
        elif failure.kind == "rate_limit" or failure.retry_after_s:
            # It says itself that it is there.
            self._heed_absence(self._busy, failure, now, self._busy_s, who=who, in_flight=in_flight)
        else:
            self._heed_absence(self._gone, failure, now, self._outage_s, who=who, in_flight=in_flight)

    def _heed_refusal(self, failure: Failure, now: float, *, who: int, in_flight: int) -> None:
        self._refused.add(now, who)
        # Who has answered before may refuse what one request says, as often as it is made.
        refused = self._refused.calls if self.answers else self._refused.faults
        if refused < max(REFUSALS, in_flight):
            return
        if failure.kind == "denied":
            self._trip(ConfigError(f"the model {self._name!r} refuses every request: {failure.detail}"))
        else:
            asked = f"asks to wait for {failure.retry_after_s:.0f} s"
            self._trip(OutageError(f"the model {self._name!r} {asked}: {failure.detail}; give the command again then"))

    def _heed_absence(
        self, row: Row, failure: Failure, now: float, longest_s: float, *, who: int, in_flight: int
    ) -> None:
        row.add(now, who)
        if row.calls >= _SUSPECT_CALLS and row.faults >= max(_GONE, in_flight) and now - row.since >= longest_s:
            how_long = "" if row is self._busy else " (outage_s says how long to wait)"
            self._trip(
                OutageError(
                    f"no call of the model {self._name!r} has succeeded for {now - row.since:.0f} s: {failure.detail}; "
                    f"the same command goes on when one does{how_long}"
                )
            )

    def _trip(self, fault: CallerError | OutageError) -> None:
        self.fault = self.fault or fault
