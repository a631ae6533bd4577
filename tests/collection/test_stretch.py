import random

from rollmill.collection.stretch import STRETCH, Cutter, none_yet


def cut(cutter: Cutter, rows, waits=lambda: False) -> list:
    found = []
    for row in rows:
        found += [cutter.add(row)]
        if waits():
            found += [cutter.rest()]
    return [one for one in (*found, cutter.rest()) if one is not None]


def rows(count: int, size: int = 10) -> list[tuple[int, bytes]]:
    return [(number, b"%0*d" % (size, number)) for number in range(1, count + 1)]


def test_stretches_are_cut_at_the_same_places_however_rows_come():
    whole = {one.number: one.hash for one in cut(Cutter("a", lambda row: row, salt=b""), rows(1000))}
    assert len(whole) == 4
    chance = random.Random(2)
    for _ in range(20):
        found = cut(Cutter("a", lambda row: row, salt=b""), rows(1000), lambda: chance.random() < 0.01)
        assert [row for one in found for row in (one[place] for place in range(len(one)))] == rows(1000)
        # A part of a stretch is never taken for all of it, nor for another.
        assert {one.number for one in found} == set(whole)
        for one in found:
            assert one.hash in (whole[one.number], b"") or len(one) < STRETCH
        hashed = [one.number for one in found if one.hash]
        assert len(set(hashed)) == len(hashed)


def test_what_has_begun_before_has_no_hash():
    cutter = Cutter("a", lambda row: row, salt=b"")
    first, second = cut(cutter, rows(3)), cut(cutter, rows(3))
    assert [bool(one.hash) for one in (*first, *second)] == [True, False]


def test_without_a_salt_nothing_is_known_again():
    assert [one.hash for one in cut(Cutter("a", lambda row: row), rows(300))] == [b"", b""]


def test_the_first_of_a_stretch():
    (stretch,) = cut(Cutter("a", lambda row: row, salt=b"", part=3), rows(10))
    stretch.gone = (1,)
    some = stretch.first(4)
    assert (len(some), some[3], some.hash, some.part, some.gone) == (4, rows(10)[3], b"", 3, (1,))
    assert stretch.first(10) is stretch
    assert len(none_yet()) == 0
