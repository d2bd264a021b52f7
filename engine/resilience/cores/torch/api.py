"""The OpenAI-style API: completions and chat, whole or as a stream, models, health, metrics.

Every error is OpenAI's error object. A client that leaves takes its request with it.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from resilience.cores.torch.generation import DeadError, Generator, Job, QueueFullError
from resilience.cores.torch.requests import Ask, BadRequestError, read
from resilience.cores.torch.text import Detokenizer
from resilience.model import Json

RETRY_AFTER_S = "1"


class ClientLeftError(Exception):
    """The client left before its answer was whole."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What both forms of an answer are made of."""

    ask: Ask
    job: Job
    text: Detokenizer
    name: str
    created: int

    def chunk(self, piece: str, *, finish: str | None, first: bool) -> Json:
        """Return one event of a stream."""
        choice: dict[str, Json] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.ask.chat:
            role = {"role": "assistant"} if first else {}
            choice["delta"] = {**role, "content": piece}
        else:
            choice["text"] = piece
        kind = "chat.completion.chunk" if self.ask.chat else "text_completion"
        return {**self._head(kind), "choices": [choice]}

    def whole(self, text: str) -> Json:
        """Return the answer as one object."""
        choice: dict[str, Json] = {
            "index": 0, "logprobs": None, "finish_reason": self.job.finish
        }
        if self.ask.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.ask.chat else "text_completion"
        return {**self._head(kind), "choices": [choice], "usage": self.usage()}

    def last(self) -> Json:
        """Return the event that tells the usage, for those who asked for it."""
        kind = "chat.completion.chunk" if self.ask.chat else "text_completion"
        return {**self._head(kind), "choices": [], "usage": self.usage()}

    def usage(self) -> Json:
        done = len(self.job.tokens)
        return {
            "prompt_tokens": self.job.prompt, "completion_tokens": done,
            "total_tokens": self.job.prompt + done,
        }

    def _head(self, kind: str) -> dict[str, Json]:
        return {"id": self.name, "object": kind, "created": self.created, "model": self.ask.model}


class Api:
    """The handlers. Starlette calls them; `generator` does the work."""

    def __init__(self, generator: Generator, tokenizer: Any, names: Sequence[str]) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._names = tuple(names)
        self._started = int(time.time())

    def routes(self) -> list[Any]:
        from starlette.routing import Route

        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
        ]

    async def completions(self, request: Any) -> Any:
        return await self._serve(request, chat=False)

    async def chat(self, request: Any) -> Any:
        return await self._serve(request, chat=True)

    async def models(self, _request: Any) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [
            {"id": name, "object": "model", "created": self._started, "owned_by": "resilience",
             "max_model_len": self._generator.context}
            for name in self._names
        ]})

    async def health(self, _request: Any) -> Any:
        from starlette.responses import Response

        return Response(status_code=200 if self._generator.alive else 503)

    async def _serve(self, request: Any, *, chat: bool) -> Any:
        from starlette.responses import JSONResponse, Response, StreamingResponse

        try:
            answer = self._begin(await _body(request), chat)
        except BadRequestError as bad:
            return error(bad.status, str(bad), bad.param, bad.code)
        except QueueFullError as full:
            return error(
                503, f"the server is overloaded: {full}", code="overloaded", retry=True
            )
        except DeadError as dead:
            return error(500, str(dead), code="engine_dead")
        if answer.ask.stream:
            return StreamingResponse(self._events(answer), media_type="text/event-stream")
        try:
            text = await self._text(answer, request)
        except ClientLeftError:
            return Response(status_code=499)
        if answer.job.finish == "error":
            return error(500, str(answer.job.error), code="generation_failed")
        return JSONResponse(answer.whole(text))

    def _begin(self, body: Any, chat: bool) -> Answer:
        """Read, tokenize and submit; raises what the caller turns into an error object."""
        ask = read(body, chat=chat, models=self._names)
        tokens = self._tokens(ask)
        room = self._generator.context - len(tokens)
        wanted = ask.max_tokens if ask.max_tokens is not None else room
        if room < max(1, wanted):
            raise BadRequestError(
                f"This model's maximum context length is {self._generator.context} tokens. "
                f"However, you requested {max(1, wanted)} output tokens and your prompt contains "
                f"{len(tokens)} input tokens.", "max_tokens", code="context_length_exceeded",
            )
        job = self._generator.submit(tokens, replace(ask.sampling, max_tokens=wanted))
        prefix = "chatcmpl" if chat else "cmpl"
        return Answer(
            ask, job, Detokenizer(self._tokenizer, ask.stops), f"{prefix}-{uuid.uuid4().hex}",
            int(time.time()),
        )

    def _tokens(self, ask: Ask) -> list[int]:
        if ask.chat:
            return self._chat_tokens(ask.prompt)
        if isinstance(ask.prompt, str):
            found = list(self._tokenizer(ask.prompt)["input_ids"])
        else:
            found = list(ask.prompt)
            if any(not 0 <= token < self._generator.vocabulary for token in found):
                raise BadRequestError("`prompt` holds a token that the model lacks", "prompt")
        if not found:
            raise BadRequestError("`prompt` is empty", "prompt")
        return found

    def _chat_tokens(self, messages: list[dict[str, str]]) -> list[int]:
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as wrong:
            raise BadRequestError(
                f"the chat template of this model does not take these messages: {wrong}",
                "messages",
            ) from None
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    # --- the answer ------------------------------------------------------------------------------

    async def _pieces(self, answer: Answer) -> AsyncIterator[str]:
        """Yield the text as it grows, until the request has ended; leaving early aborts it."""
        job = answer.job
        try:
            while True:
                await job.changed.wait()
                job.changed.clear()
                piece = answer.text.add(job.tokens, last=job.finish is not None)
                if answer.text.stopped:
                    self._generator.complete(job)
                if piece:
                    yield piece
                if job.finish is not None:
                    return
        finally:
            self._generator.abort(job)

    async def _text(self, answer: Answer, request: Any) -> str:
        """Return the whole text; raises ClientLeftError when nobody waits for it any more."""
        whole = asyncio.ensure_future(self._collected(answer))
        gone = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({whole, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not whole.done():
                raise ClientLeftError
            return whole.result()
        finally:
            for task in (whole, gone):
                task.cancel()
            self._generator.abort(answer.job)

    async def _collected(self, answer: Answer) -> str:
        return "".join([piece async for piece in self._pieces(answer)])

    async def _events(self, answer: Answer) -> AsyncIterator[str]:
        """Yield the stream's events; an error is one too, because the status is long out."""
        job, first = answer.job, True
        async for piece in self._pieces(answer):
            yield _event(answer.chunk(piece, finish=None, first=first))
            first = False
        if job.finish == "error":
            yield _event(error_body(500, str(job.error), code="generation_failed"))
        else:
            yield _event(answer.chunk("", finish=job.finish, first=first))
            if answer.ask.usage:
                yield _event(answer.last())
        yield "data: [DONE]\n\n"


async def _left(request: Any) -> None:
    """Return when the client has left; the body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _body(request: Any) -> Any:
    with suppress(ValueError, RecursionError):
        raw = await request.body()
        text = raw.decode(json.detect_encoding(raw))
        body = json.loads(text)
        if "\\u" in text:  # half a surrogate pair is no text: no tokenizer and no answer takes it
            json.dumps(body, ensure_ascii=False).encode()
        return body
    raise BadRequestError("the body is not JSON, or holds text that is not Unicode")


def _event(body: Json) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> Json:
    """Return OpenAI's error object."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error(
    status: int, message: str, param: str | None = None, code: str | None = None,
    *, retry: bool = False,
) -> Any:
    """Return an answer that holds an error object."""
    from starlette.responses import JSONResponse

    headers = {"retry-after": RETRY_AFTER_S} if retry else None
    return JSONResponse(error_body(status, message, param, code), status, headers)
