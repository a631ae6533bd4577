"""Columns in terminals of any width."""

from rollmill.cli.table import table

ROWS = [("a", "short", "some words that need two lines in a narrow terminal"), ("longer", "", "b")]


def test_the_last_column_takes_what_is_left():
    assert list(table(("name", "x", "about"), ROWS, 50)) == [
        "name    x      about",
        "a       short  some words that need two lines in a",
        "               narrow terminal",
        "longer         b",
    ]


def test_without_room_for_it_every_row_is_a_block():
    assert list(table(("name", "x", "about"), ROWS, 30)) == [
        "a",
        "  x: short",
        "  about: some words that need",
        "         two lines in a narrow",
        "         terminal",
        "longer",
        "  about: b",
    ]
