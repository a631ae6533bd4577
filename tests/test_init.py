"""The public names."""

import rollmill as rm


def test_every_public_name_is_there() -> None:
    assert rm.__all__ == sorted(rm.__all__)
    assert all(getattr(rm, name) is not None for name in rm.__all__)


def test_a_name_that_is_not_there_is_an_ordinary_mistake() -> None:
    assert not hasattr(rm, "colect")


def test_a_name_of_above_means_the_same_before_and_after_it_was_used() -> None:
    assert rm.collect is rm.collect
    assert callable(rm.collect)
