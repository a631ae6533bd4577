"""Requests, cookies and problems."""

import pytest

import rollmill as rm
from rollmill.serve.http import Problem, Request, cookie_name, set_cookie


def cookie(header: str) -> str:
    return Request("GET", "/", {"cookie": header}).cookie("Shop___shop")


@pytest.mark.parametrize(
    "header",
    [
        "Shop___shop=aB-_9.z",
        "a=1; Shop___shop=aB-_9.z; b=2",
        'json={"a": "b;c"}; Shop___shop=aB-_9.z',
        "broken; =x; ü=y;Shop___shop=aB-_9.z",
        "Shop___shop=; Shop___shop=aB-_9.z",
    ],
)
def test_ours_is_found_among_anybodys(header):
    assert cookie(header) == "aB-_9.z"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Shop___shop",
        "Shop___shop=",
        'Shop___shop="a\\015\\012b"',
        "Shop___shop=a b",
        "shop___shop=a",
        "Shop___shop=" + "x" * 200,
    ],
)
def test_what_a_service_never_gave_is_no_id(header):
    assert cookie(header) == ""


def test_its_name_holds_what_a_cookie_can():
    assert cookie_name(rm.Environment, "my_shop") == "Environment___my_shop"
    assert cookie_name(rm.Environment, "my shop; ü=1") == "Environment___my-shop----1"
    assert set_cookie("A___b", "x") == ("Set-Cookie", "A___b=x; Path=/; HttpOnly; SameSite=Lax")


def test_a_problem_reads_as_openais_errors_do():
    answer = Problem(503, "full", "no room", more={"failure": 1}, headers=[("Retry-After", "1")]).answer()
    assert answer.status == 503
    assert answer.headers == (("Retry-After", "1"),)
    assert answer.body == (
        b'{"error":{"message":"no room","type":"server_error","param":null,"code":"full"},"failure":1}'
    )
    assert b'"type":"invalid_request_error"' in Problem(422, "invalid", "x").answer().body
