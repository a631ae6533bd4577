"""Who may speak to a service."""

import pytest

import rollmill as rm
from rollmill.model import Secret
from rollmill.serve.guard import Guard, is_loopback
from rollmill.serve.http import Problem

OPEN = Guard("127.0.0.1", names=("Gym.Internal",))
CLOSED = Guard("0.0.0.0", Secret("tökén-of-tests"))


def refused(guard: Guard, **headers: str) -> str:
    """The code with which a request of these headers is refused, nothing where it is not."""
    try:
        guard.check({name.replace("_", "-"): value for name, value in headers.items()})
    except Problem as problem:
        return f"{problem.status} {problem.code}"
    return ""


@pytest.mark.parametrize("host", ["127.0.0.1:12000", "127.0.0.1", "localhost:1", "LOCALHOST", "127.8.9.1", "[::1]:80"])
def test_on_loopback_it_is_called_as_loopback_is(host):
    assert not refused(OPEN, host=host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "",
        "127.1",
        "0x7f000001",
        "[::1",
        "a b",
        "@",
    ],
)
def test_a_name_that_somebody_else_gave_us_is_refused(host):
    assert refused(OPEN, host=host) == "421 wrong_host"


def test_names_that_are_allowed_in_whatever_case():
    assert not refused(OPEN, host="gym.internal:8000")
    assert not refused(OPEN, host="GYM.internal", origin="https://gym.INTERNAL")


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "http://127.0.0.1.evil.example",
        "http://[::1",
        "http://[bad]/",
        "evil",
        "://",
    ],
)
def test_pages_of_other_sites_are_refused(origin):
    assert refused(OPEN, host="127.0.0.1", origin=origin) == "403 wrong_origin"


def test_pages_of_this_machine_may():
    assert not refused(OPEN, host="127.0.0.1:1", origin="http://localhost:3000")


def test_without_a_token_nobody_listens_beyond_loopback():
    for host in ("0.0.0.0", "::", "192.168.1.4", "gym.internal", ""):
        for token in (None, Secret("")):
            with pytest.raises(rm.ConfigError, match="needs a token: set access_token"):
                Guard(host, token)


def test_a_token_that_no_header_can_carry_is_refused():
    with pytest.raises(rm.ConfigError, match="access_token holds a line break"):
        Guard("127.0.0.1", Secret("pasted\n"))


@pytest.mark.parametrize("given", ["Bearer tökén-of-tests", "bearer  tökén-of-tests"])
def test_who_shows_the_token_may_from_everywhere(given):
    # As headers arrive: bytes, one a character.
    assert not refused(
        CLOSED, host="gym.example", origin="https://a.page", authorization=given.encode().decode("latin-1")
    )


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer x", "tökén-of-tests", "Basic tökén-of-tests", "Bearer tökén-of-test", "\xff"],
)
def test_who_shows_no_token_or_a_wrong_one_may_nothing(given):
    given = given.encode().decode("latin-1")
    assert refused(CLOSED, host="127.0.0.1", authorization=given) == "401 no_token"


def test_an_empty_token_is_none():
    assert refused(Guard("127.0.0.1", Secret("")), host="evil.example") == "421 wrong_host"


def test_what_loopback_is():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost", "ip6-localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.example")))
