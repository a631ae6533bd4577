"""What must not be printed or stored."""

import copy
import json
import pickle

import msgspec
import pytest

from rollmill.config import convert, masked
from rollmill.config.secrets import is_secret, mask_text
from rollmill.model import MASK, Secret


@pytest.mark.parametrize(
    "key",
    [
        "api_key", "apikey", "apiKey", "policy_api_key", "OPENAI_API_KEY", "x-api-key", "api_keys", "token", "hf_token",
        "access_token", "secret", "client_secret", "secret_key", "AWS_SECRET_ACCESS_KEY", "password", "db_password",
        "Authorization", "credentials", "private_key",
    ],
)  # fmt: skip
def test_called_like_a_secret(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "max_tokens", "max_output_tokens", "max_completion_tokens", "total_tokens", "token_id_capture", "tokenizer",
        "return_token_id_information", "prompt_token_ids", "eos_token", "pad_token", "sort_key", "key", "answer_key",
        "api_key_env", "secret_name", "password_file", "author", "keyword",
    ],
)  # fmt: skip
def test_not_a_secret(key: str) -> None:
    assert not is_secret(key)


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("sk-12345")
    assert f"{secret} {secret!r} {secret:>5} {[secret]}" == "*** ***   *** [***]"
    assert secret.reveal() == "sk-12345"
    assert secret == Secret("sk-12345")
    assert secret != "sk-12345"
    assert len({secret, Secret("sk-12345")}) == 1
    assert not Secret("")
    assert pickle.loads(pickle.dumps(secret)) == copy.deepcopy(secret) == secret
    with pytest.raises(TypeError):
        msgspec.json.encode(secret)


def test_a_struct_may_hold_secrets() -> None:
    class Backend(msgspec.Struct):
        api_key: Secret | None = None

    assert convert({"api_key": "sk-12345"}, Backend).api_key == Secret("sk-12345")
    assert convert({"api_key": 12345}, Backend).api_key == Secret("12345")
    assert convert({"api_key": None}, Backend).api_key is None
    assert "sk-12345" not in repr(convert({"api_key": Secret("sk-12345")}, Backend))


def test_masking_by_key() -> None:
    tree = {"api_key": "k", "headers": {"Authorization": "Bearer x"}, "api_keys": ["a", "b"], "hf_token": None, "n": 1}
    assert masked(tree) == {
        "api_key": "***",
        "headers": {"Authorization": "***"},
        "api_keys": ["***", "***"],
        "hf_token": None,
        "n": 1,
    }
    assert tree["api_key"] == "k"


def test_masking_by_value() -> None:
    tree = {
        "api_key": "sk-123456",
        "base": {"token": "sk-123456-long"},
        "url": "http://host/v1?key=sk-123456",
        "list": ["x sk-123456-long y"],
        "login": "https://me:hunter22@host/v1",
    }
    assert masked(tree) == {
        "api_key": "***",
        "base": {"token": "***"},
        "url": "http://host/v1?key=***",
        "list": ["x *** y"],
        "login": "https://***@host/v1",
    }


def test_a_bearer_token_is_found_elsewhere_too() -> None:
    assert masked({"authorization": "Bearer abcdefgh", "note": "uses abcdefgh"})["note"] == "uses ***"


def test_a_short_secret_leaves_other_words_alone() -> None:
    assert masked({"api_key": "EMPTY", "note": "not EMPTY"}) == {"api_key": "***", "note": "not EMPTY"}


@pytest.mark.parametrize("secret", ['sk-"quoted"\\key', "sk-'single'-key", "sk-both-\"-and-'", "sk-tab\tand-é"])
def test_a_secret_is_found_in_the_forms_that_json_and_python_give_it(secret):
    told = {"error": f"said {secret}!"}
    for text in (secret, json.dumps(told), msgspec.json.encode(told).decode(), repr(told), repr(secret)):
        masked = mask_text(text, [secret])
        assert MASK in masked
        assert "sk-" not in masked
