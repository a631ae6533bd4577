import msgspec

from rollmill.collection.snapshot import NAME, Oldest, Snapshot, read_snapshot, write_snapshot

RUNNING = Snapshot(
    state="running",
    at="2030-01-01T00:00:00+00:00",
    run="r",
    pid=7,
    host="here",
    elapsed_s=12.5,
    planned=100,
    held=10,
    ended=30,
    oldest=Oldest(4, 0, "agent", 1, 3.2),
    retries={"rate_limit": 2},
    warnings=["all 100 rewards are 0"],
)


def test_another_process_reads_what_was_written(tmp_path):
    write_snapshot(tmp_path, RUNNING)
    assert read_snapshot(tmp_path) == RUNNING
    assert RUNNING.done == 40


def test_the_last_one_counts(tmp_path):
    write_snapshot(tmp_path, RUNNING)
    later = msgspec.structs.replace(RUNNING, state="finished", planned=None)
    write_snapshot(tmp_path, later)
    assert read_snapshot(tmp_path) == later
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_where_there_is_none_there_is_none(tmp_path):
    assert read_snapshot(tmp_path) is None
    (tmp_path / NAME).write_text('{"state": "of another version"}')
    assert read_snapshot(tmp_path) is None
