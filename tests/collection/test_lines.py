import random

import pytest

from rollmill.collection.lines import Lines


def whole(lines: Lines) -> list[tuple[int, bytes]]:
    return list(iter(lines.next, None))


def test_a_line_waits_for_its_end():
    lines = Lines()
    lines.feed(b'{"a": 1}\n{"b":')
    assert whole(lines) == [(1, b'{"a": 1}\n')]
    assert lines.left
    assert lines.last(ended=False) is None
    lines.feed(b" 2}\n")
    assert whole(lines) == [(2, b'{"b": 2}\n')]
    assert not lines.left


def test_blank_lines_count_and_are_no_rows():
    lines = Lines()
    lines.feed(b"\n \r\n{}\n\n")
    assert whole(lines) == [(3, b"{}\n")]
    assert not lines.left


def test_a_byte_order_mark_is_no_part_of_the_first_row():
    lines = Lines()
    lines.feed(b"\xef\xbb\xbf{}\n\xef\xbb\xbf{}\n")
    assert whole(lines) == [(1, b"{}\n"), (2, b"\xef\xbb\xbf{}\n")]


@pytest.mark.parametrize("rest", [b'{"a"', b'{"a": 1} {', b"12", b'"text"', b"[1]", b'{"a": 1}x'])
def test_what_could_go_on_is_taken_only_at_the_end(rest):
    lines = Lines()
    lines.feed(rest)
    assert lines.last(ended=False) is None
    assert lines.last(ended=True) == (1, rest)
    assert lines.last(ended=True) is None


@pytest.mark.parametrize("more", [b"\n", b"\r\n", b"  \n"])
def test_an_object_that_is_whole_needs_no_line_break_and_its_break_is_no_line(more):
    lines = Lines()
    lines.feed(b'{}\n{"a": 1}')
    assert whole(lines) == [(1, b"{}\n")]
    assert lines.last(ended=False) == (2, b'{"a": 1}')
    lines.feed(more + b"{}\n")
    assert whole(lines) == [(3, b"{}\n")]


def test_however_the_bytes_come_the_rows_are_the_same():
    content = b"".join(b'{"n": %d, "pad": "%s"}\n' % (n, b"x" * (n % 50)) + b"\n" * (n % 7 == 0) for n in range(300))
    expected = [(number, line + b"\n") for number, line in enumerate(content.split(b"\n"), 1) if line]
    chance = random.Random(1)
    for _ in range(20):
        lines, found, rest = Lines(), [], content
        while rest:
            size = chance.choice((1, 3, 20, 1000))
            lines.feed(rest[:size])
            rest = rest[size:]
            if chance.random() < 0.3:
                found += whole(lines)
        assert found + whole(lines) == expected
