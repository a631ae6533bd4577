import os
import threading

import pytest

import rollmill as rm
from rollmill.collection.piped import STDIN, Piped
from rollmill.collection.source import Player, Reader

ROW = b'{"responses_create_params": {"input": "?"}, "n": %d}\n'
READER = Reader(lambda ref: Player("agent", rm.Task))


@pytest.fixture
def pipe(tmp_path):
    """A named pipe that is read, and its end to write to."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    piped = Piped(path, READER)
    assert piped.stretch() is None
    with path.open("wb", buffering=0) as writing:
        yield piped, writing
    piped.close()


def count(stretch) -> int:
    return 0 if stretch is None else len(stretch)


def test_nothing_is_waited_for_and_a_pipe_without_a_writer_has_not_ended(pipe):
    piped, writing = pipe
    assert not piped.ended
    writing.write(ROW % 1 + (ROW % 2)[:20])
    assert count(piped.stretch()) == 1
    assert piped.stretch() is None
    writing.write((ROW % 2)[20:] + ROW % 3)
    assert count(piped.stretch()) == 2
    assert not piped.ended


def test_the_end_is_the_end_of_its_last_line(pipe):
    piped, writing = pipe
    writing.write(ROW % 1 + b'{"half')
    writing.close()
    stretch = piped.stretch()
    assert (len(stretch), piped.ended) == (2, True)
    with pytest.raises(rm.ConfigError, match="pipe, line 2: not JSON"):
        stretch[1]
    assert piped.stretch() is None


def test_more_than_a_stretch_comes_in_several(pipe):
    piped, writing = pipe

    def write() -> None:
        for number in range(3000):
            writing.write(ROW % number)
        writing.close()

    writer = threading.Thread(target=write)
    writer.start()
    total = 0
    while not piped.ended:
        total += count(piped.stretch())
    writer.join()
    assert total + count(piped.stretch()) == 3000


def test_who_wants_no_more_gets_what_has_come(pipe):
    piped, writing = pipe
    writing.write(ROW % 1 + (ROW % 2)[:-1])
    assert count(piped.stretch(ended=True)) == 2
    assert piped.ended


def test_standard_input_is_not_opened_a_second_time():
    piped = Piped(STDIN, READER)
    descriptor = piped.open()
    assert os.path.sameopenfile(descriptor, 0)
    piped.close()
