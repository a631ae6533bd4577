"""A model behind Chat Completions: vLLM, SGLang, llama.cpp, or any server that speaks as they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rollmill.errors import ModelError
from rollmill.model import Conversation, Secret
from rollmill.models import chat
from rollmill.models.http import UNREADABLE, ContextOverflowError, HttpClient, HttpModel
from rollmill.net.connection import CallDeadlines
from rollmill.types import Reply, Stop, Tokens, decode, encode


class Fields(Struct, frozen=True, forbid_unknown_fields=True):
    base_url: str | list[str]
    api_key: Secret
    model: str
    return_token_id_information: bool = False
    uses_reasoning_parser: bool = True
    replace_developer_role_with_system: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    extra_body: dict[str, Any] = {}
    deadlines: CallDeadlines = CallDeadlines()


def make(fields: Fields) -> VLLM:
    template = {"chat_template_kwargs": fields.chat_template_kwargs} if fields.chat_template_kwargs else {}
    return VLLM(
        fields.model,
        fields.base_url,
        fields.api_key.reveal(),
        token_ids=fields.return_token_id_information,
        reasoning_parser=fields.uses_reasoning_parser,
        developer_role=not fields.replace_developer_role_with_system,
        extra_body={**fields.extra_body, **template},
        deadlines=fields.deadlines,
    )


class VLLM(HttpModel):
    """Turns conversations into chat completions, and with `token_ids` brings the engine's own tokens along."""

    def __init__(
        self,
        model: str,
        base_url: str | Sequence[str],
        api_key: str = "",
        *,
        token_ids: bool = False,
        reasoning_parser: bool = True,
        developer_role: bool = False,
        extra_body: Mapping[str, Any] | None = None,
        deadlines: CallDeadlines = CallDeadlines(),
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        super().__init__(model, HttpClient(base_url, headers=headers, secret=api_key, deadlines=deadlines))
        self._dialect = chat.Dialect(think_tags=not reasoning_parser, tokens=token_ids, developer=developer_role)
        self._fixed = dict(extra_body or {})

    async def reply(self, conversation: Conversation) -> Reply:
        request = self._request(conversation)
        try:
            body = await self._client.post("/chat/completions", encode(request), conversation=conversation.id)
            completion = chat.read_completion(body)
            tokens = await self._tokens(completion, request, conversation.id) if self._dialect.tokens else None
        except ContextOverflowError:
            return Reply((), stop=Stop.CONTEXT)
        return chat.to_reply(completion, tokens, self._dialect, self.name)

    def _request(self, conversation: Conversation) -> dict[str, Any]:
        asked = chat.to_request(conversation.items, conversation.params, self._dialect)
        request = _merged({"model": self.name}, self._fixed, asked)
        # Newer servers return the ids themselves; older ones write them in place of the tokens' texts.
        wanted = {"logprobs": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
        return {**request, "model": self.name, **(wanted if self._dialect.tokens else {})}

    async def _tokens(self, completion: chat.Completion, request: dict[str, Any], conversation: str) -> Tokens:
        choice = completion.choices[0]
        log_probs = (choice.logprobs.content if choice.logprobs else None) or []
        generated = choice.token_ids or [_token_id(entry.token, entry.id) for entry in log_probs]
        if not generated or len(generated) != len(log_probs):
            detail = (
                f"{len(generated)} generated tokens but {len(log_probs)} log probabilities: the server returns none"
            )
            raise ModelError("malformed", f"token ids were asked for: {detail}")
        prompt = completion.prompt_token_ids or await self._prompt_tokens(request, conversation)
        return Tokens(prompt, generated, [entry.logprob for entry in log_probs])

    async def _prompt_tokens(self, request: dict[str, Any], conversation: str) -> list[int]:
        """The prompt's tokens from the server's tokenizer, where the completion did not bring them."""
        wanted = ("model", "messages", "tools", "chat_template_kwargs")
        body = encode({key: request[key] for key in wanted if key in request} | {"add_generation_prompt": True})
        answer = await self._client.post("/tokenize", body, conversation=conversation, root=True)
        try:
            tokens: list[int] = decode(answer, type=_Tokenized).tokens
        except UNREADABLE as error:
            raise ModelError("malformed", f"token ids were asked for: /tokenize answers without any: {error}") from None
        return tokens


class _Tokenized(Struct):
    tokens: list[int]


def _token_id(token: str, id: int | None) -> int:
    if id is not None:
        return id
    number = token.removeprefix("token_id:")
    if number != token and number.isdecimal():
        return int(number)
    raise ModelError("malformed", f"token ids were asked for, but the server answers with text such as {token!r}")


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; the template's arguments are merged one by one."""
    body: dict[str, Any] = {}
    for layer in layers:
        template = {**body.get("chat_template_kwargs", {}), **layer.get("chat_template_kwargs", {})}
        body |= layer
        if template:
            body["chat_template_kwargs"] = template
    return body
