"""Decodes answers of SGLang's `/generate`, whole or as a stream; refuses values that cannot be trusted. (pure)

A stream's events hold all tokens so far (the default), or only new ones (--incremental-streaming-output). Which one it
is can be told from every event: `completion_tokens` counts all.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import cast

import msgspec
import orjson

from sandgate.contract.errors import EngineFailed, SandgateError
from sandgate.gateway.engine.api import Finish, Prompt
from sandgate.gateway.engine.responses import SENTINEL, Step, check_values
from sandgate.gateway.engine.sglang.refusals import is_abort, refused
from sandgate.gateway.journal.top_logprobs import Top

Entry = tuple[float | None, int, str | None]
"""[logprob, id, text]."""

NAN_HAPPENED = "NaN happened"
"""What SGLang says it matched when it sampled an id that does not exist, and put another one in its place."""


class _Span(msgspec.Struct, gc=False):
    version: str | int
    start: int
    end: int


class _Finish(msgspec.Struct, gc=False):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None
    output_token_logprobs: list[Entry] | None = None
    output_top_logprobs: list[list[Entry] | None] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    weight_versions: list[_Span] | None = None


class _Error(msgspec.Struct):
    message: str = ""
    code: int = 500


class _Answer(msgspec.Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    error: _Error | str | None = None


_DECODER = msgspec.json.Decoder(_Answer)


class Answers:
    """Reads one answer: call it with the body, or with each event of the stream."""

    __slots__ = ("_asked", "_have", "_prompt", "_vocab_size")

    def __init__(self, prompt: Prompt, asked: int, vocab_size: int) -> None:
        """`asked`: ids that were sent."""
        self._prompt, self._asked, self._vocab_size = prompt, asked, vocab_size
        self._have = 0

    def __call__(self, payload: bytes) -> Step:
        """See `Reader.__call__`."""
        try:
            answer = _DECODER.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EngineFailed(f"the engine's answer cannot be read: {error}") from error
        if answer.error is not None:
            said = answer.error if isinstance(answer.error, _Error) else _Error(answer.error)
            raise self._refused(said.code, said.message)
        meta = answer.meta_info
        if meta is None:
            raise EngineFailed("the engine's answer has no meta_info")
        if self._is_abort(meta.finish_reason):
            return Step(finish="abort")  # its prompt was cut to one id meanwhile
        finish, reason = self._finish(meta.finish_reason)
        if meta.prompt_tokens is not None and meta.prompt_tokens != self._asked:
            raise EngineFailed(
                f"the engine read {meta.prompt_tokens} of {self._asked} prompt ids: start SGLang without "
                "--allow-auto-truncate"
            )
        step = self._fresh(answer.output_ids or [], meta)
        step.finish, step.stop_reason = finish, reason
        if finish is not None and meta.weight_versions is not None:
            step.labels = tuple((span.version, span.start, span.end) for span in meta.weight_versions)
        step.cached_tokens = meta.cached_tokens or 0
        return step

    def together(self, payloads: Sequence[bytes]) -> Iterator[Step]:
        """See `Reader.together`. Each event counts on the one before it."""
        return map(self, payloads)

    def _is_abort(self, told: _Finish | None) -> bool:
        return told is not None and not self._have and is_abort(told.status_code, told.message or "")

    def _finish(self, told: _Finish | None) -> tuple[Finish | None, str | int | None]:
        if told is None:
            return None, None
        match told.type:
            case "length":
                return "length", None
            case "stop":
                return "stop", self._matched(told.matched)
            case "abort":
                # An error of one request has a status; an abort (weight update) has none. Behind the first token
                # there is nothing to refuse any more: what was sampled stands, and the rest is asked for again.
                if told.status_code is not None and not self._have:
                    raise self._refused(told.status_code, told.message or "aborted")
                return "abort", None
        raise EngineFailed(f"the engine ended with {told.type!r}, which is none of stop, length, abort")

    def _matched(self, matched: int | str | list[int] | None) -> str | int | None:
        """What ended it, if not the model's own end: SGLang names that, too."""
        if isinstance(matched, str):
            if matched == NAN_HAPPENED and matched not in self._prompt.sampling.stop:
                raise EngineFailed("the engine sampled an id that does not exist, and says NaN happened")
            return matched
        return matched if isinstance(matched, int) and matched in self._prompt.stop_ids else None

    def _refused(self, status: int, message: str) -> SandgateError:
        return refused(status, orjson.dumps({"error": {"message": message}}), prompt_tokens=self._asked)

    def _fresh(self, output_ids: list[int], meta: _Meta) -> Step:
        """The tokens that were not told before."""
        have, entries = self._have, meta.output_token_logprobs or []
        total = len(output_ids) if meta.completion_tokens is None else meta.completion_tokens
        if total == 0:
            return Step()  # the logprob of a token that an abort took back may still be there
        twice = 0  # tokens at the front that are told again behind them
        if len(entries) > total and meta.finish_reason is not None and meta.finish_reason.type == "abort":
            twice = len(entries) - total
            entries, output_ids = entries[twice:], self._behind_queued(entries, output_ids, twice)
        if len(entries) == total:
            skip = have
        elif have + len(entries) == total:
            skip = 0
        else:
            raise EngineFailed(
                f"the engine counts {total} tokens, of which {have} were told, and answered {len(entries)} logprobs"
            )
        if total < have:
            raise EngineFailed(f"the engine told {have} tokens, and now counts {total}")
        fresh = entries[skip:]
        ids = [entry[1] for entry in fresh]
        self._same(ids, output_ids, total)
        numbers = [entry[0] for entry in fresh]
        check_values(ids, numbers, self._vocab_size)
        top = self._top(meta, twice + skip, len(ids)) if self._prompt.top_logprobs else ()
        self._have = total
        return Step(array("i", ids), array("f", cast(Sequence[float], numbers)), top)

    def _behind_queued(self, entries: list[Entry], output_ids: list[int], twice: int) -> list[int]:
        """Of an abort that SGLang joined with the new tokens that stood in its queue: those come first, then what an
        abort has, which is all logprobs and the last id. Returns that."""
        queued = [entry[1] for entry in entries[twice + self._have :][:twice]]
        if queued != [entry[1] for entry in entries[:twice]] or output_ids[:-1] != queued:
            raise EngineFailed(
                f"the engine aborted behind {twice} tokens that it had not told, and they are not those of its logprobs"
            )
        return output_ids[-1:]

    def _same(self, ids: list[int], output_ids: list[int], total: int) -> None:
        """`output_ids` names the same tokens. It may hold all, the new ones, or, at an abort of a stream of new ones,
        the last one only."""
        count = min(len(output_ids), len(ids))
        if len(output_ids) not in (total, len(ids)) and count > 1:
            raise EngineFailed(f"the engine answered {len(output_ids)} ids and {len(ids)} logprobs")
        for at in range(-count, 0):
            if ids[at] != output_ids[at]:
                raise EngineFailed(f"a token's id is {output_ids[at]}, but its logprob is of id {ids[at]}")

    def _top(self, meta: _Meta, skip: int, count: int) -> tuple[Top, ...]:
        rows = (meta.output_top_logprobs or [])[skip:]
        if len(rows) != count:
            raise EngineFailed(f"the engine answered {count} tokens and top logprobs of {len(rows)}")
        named = ([(i, SENTINEL if p is None else p) for p, i, _ in row or ()] for row in rows)
        return tuple(tuple(sorted(row, key=lambda pair: -pair[1])) for row in named)
