"""Language models of this project in Python: text generation, scores, and states that can be saved, forked and continued.

    from based_cpp.engine import Model

    model = Model.load("out/demo")
    for piece in model.generate("Once upon a time", max_tokens=100, temperature=0.8):
        print(piece, end="", flush=True)

    state = model.read("A long text that is read once ...")   # a state has a fixed size, however long the text is
    state.save("text.state")                                  # the file of `based state save`
    answer = "".join(model.generate(" And so", state=state))  # `state` does not change

The engine is libbased.so, through the C functions of based/c/based.h. It links LibTorch, so it only loads beside the version of torch that
it was built with. A model may be used from several threads; its calls run one after the other, and release Python's lock meanwhile.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ._c_interface import (
    Error,
    UsageError,
    _DONE,
    _Event,
    _GenerationOptions,
    _LoadOptions,
    _ModelInfo,
    _Prompt,
    _Result,
    _ScoreRequest,
    _TEXT,
    _check,
    _interruptible,
    _library,
)

__all__ = ["Error", "Generation", "Model", "ModelInfo", "Score", "State", "UsageError"]

Text = Union[str, bytes, Sequence[int]]
"""A text, or its token ids."""


def _ids(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _utf8(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8")


def _c_string(name: str, value: bytes) -> bytes:
    """The bytes for a C function, for which a NUL character would end them."""
    if b"\0" in value:
        raise UsageError(f"{name} must not contain a NUL character")
    return value


def _is_text(text: Text) -> bool:
    return isinstance(text, (str, bytes))


class _Prompts:
    """An array of based_prompt. It keeps the memory that the prompts point to."""

    def __init__(self, prompts: Sequence[tuple[Text, State | None]]) -> None:
        self._kept: list[Any] = []
        self.array = (_Prompt * len(prompts))()
        for prompt, (text, state) in zip(self.array, prompts):
            if state is not None:
                prompt.state = state._handle
            if _is_text(text):
                data: Any = _utf8(text)  # type: ignore[arg-type]
                prompt.text, prompt.bytes = data, len(data)
            else:
                data = _ids(text)  # type: ignore[arg-type]
                prompt.ids, prompt.count = data, len(data)
            self._kept += [data, state]


@dataclass(frozen=True)
class ModelInfo:
    """Facts of a loaded model."""

    vocab_size: int
    """Token ids are 0 to vocab_size - 1."""
    parameters: int
    """The number of weights."""
    state_bytes: int
    """Bytes of the state of one sequence, without keys and values that grow with it; -1: the model has no recurrent form."""
    state_grows: bool
    """Whether the state grows with the sequence (full attention)."""
    end_of_text: int
    """The token that ends a text; -1: none."""
    max_tokens: int
    """The longest sequence, where positions are learned; 0: no limit."""
    hash: str
    """32 hex digits of config, weights and tokenizer, which state files record."""
    device: str
    dtype: str


@dataclass(frozen=True)
class Score:
    """The probabilities of a continuation's tokens."""

    ids: list[int]
    """[tokens], the scored tokens."""
    log_probabilities: list[float]
    """[tokens], in nats: log p(token | all tokens before it)."""
    log_likelihood: float
    """The sum of log_probabilities."""
    greedy: bool
    """Whether each token is the most likely one."""


class Model:
    """A model's folder (the --out of `based train` or `based convert`) in memory. Made by Model.load()."""

    def __init__(self, handle: ctypes.c_void_p, info: ModelInfo) -> None:
        self._handle = handle
        self.info = info
        weakref.finalize(self, _library().based_model_free, handle)

    @staticmethod
    def load(folder: str | os.PathLike[str], *, device: str = "cpu", dtype: str | None = None, invariant: bool = False) -> Model:
        """Loads a model's folder.

        device: "cpu", "cuda" or "cuda:1". dtype: "fp32", "bf16" or "fp64"; None: the type of the stored weights, fp32 for fp16.
        invariant: tokens, log-probabilities and states depend, to the bit, only on a sequence's tokens and the model, not on other
        sequences nor on how the text was divided among calls; slower.
        """
        library = _library()
        options = _LoadOptions(ctypes.sizeof(_LoadOptions),
            _c_string("device", device.encode()),
            _c_string("dtype", dtype.encode()) if dtype else None,
            int(invariant),
        )
        handle = ctypes.c_void_p()
        _check(library.based_model_load(_c_string("folder", os.fsencode(folder)), ctypes.byref(options), ctypes.byref(handle)))
        info = _ModelInfo(size=ctypes.sizeof(_ModelInfo))
        status = library.based_model_describe(handle, ctypes.byref(info))
        facts = ModelInfo(
            vocab_size=info.vocab_size,
            parameters=info.parameters,
            state_bytes=info.state_bytes,
            state_grows=bool(info.state_grows),
            end_of_text=info.end_of_text,
            max_tokens=info.max_tokens,
            hash=(info.hash or b"").decode(),
            device=(info.device or b"").decode(),
            dtype=(info.dtype or b"").decode(),
        )
        model = Model(handle, facts)
        _check(status)
        return model

    def encode(self, text: str | bytes) -> list[int]:
        """The token ids of a text. Special tokens are not recognised."""
        library, data = _library(), _utf8(text)
        ids, count = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_size_t()
        _check(library.based_encode(self._handle, data, len(data), ctypes.byref(ids), ctypes.byref(count)))
        try:
            return ids[: count.value]
        finally:
            library.based_free(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids. Bytes that are not UTF-8 become U+FFFD."""
        library, array = _library(), _ids(ids)
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        _check(library.based_decode(self._handle, array, len(array), ctypes.byref(text), ctypes.byref(size)))
        try:
            return ctypes.string_at(text, size.value).decode("utf-8", "replace")
        finally:
            library.based_free(text)

    def read(self, text: Text, state: State | None = None) -> State:
        """Reads a text, after the text of `state` if it is given, and returns the state after it. `state` does not change."""
        library, prompts, handle = _library(), _Prompts([(text, state)]), ctypes.c_void_p()
        _interruptible(lambda callback: library.based_state_read(self._handle, prompts.array, callback, None, ctypes.byref(handle)))
        return State(self, handle)

    def load_state(self, path: str | os.PathLike[str]) -> State:
        """Loads a state file of this model: of State.save(), `based state save`, `based generate --save-state` or the server."""
        handle = ctypes.c_void_p()
        _check(_library().based_state_load(self._handle, _c_string("path", os.fsencode(path)), ctypes.byref(handle)))
        return State(self, handle)

    def state_from_bytes(self, data: bytes | bytearray | memoryview) -> State:
        """The inverse of State.bytes()."""
        content, handle = bytes(data), ctypes.c_void_p()
        _check(_library().based_state_from_bytes(self._handle, content, len(content), ctypes.byref(handle)))
        return State(self, handle)

    def generate(
        self,
        prompt: Text = "",
        *,
        state: State | None = None,
        max_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        logit_bias: Mapping[int, float] | None = None,
        log_probabilities: bool = False,
        cache_tokens: int = 0,
    ) -> Generation:
        """Continues a prompt. Returns an iterator of pieces of text; its attributes have the result.

        prompt: text or token ids, after the text of `state` if it is given; `state` does not change. temperature: 0: always the most likely
        token. top_k, top_p, min_p: keep the k most likely tokens; the most likely ones up to a total probability; those with at least this
        share of the most likely one's. seed: equal seeds and texts give equal tokens. stop: the text ends before the first of these
        strings. logit_bias: numbers that are added to the logits of tokens. log_probabilities: keep the log-probability of each token.
        cache_tokens: for states that grow; 0: as many as the text may need.
        """
        options = _options_of(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            seed=seed,
            cache_tokens=cache_tokens,
            log_probabilities=int(log_probabilities),
            keep_states=1,
        )
        return Generation(self, prompt, state, _with_arrays(options, stop, logit_bias))

    def generate_batch(
        self,
        prompts: Sequence[Text],
        *,
        slots: int = 0,
        max_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
    ) -> list[str]:
        """Continues many prompts at the same time, up to `slots` at once (0: 8 on a CPU, 128 on a GPU), and returns their continuations.

        The prompt number i is sampled with seed + i. The other options are those of generate().
        """
        if not prompts:
            return []
        options = _options_of(
            slots=slots,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        handle, event = _start(self, _Prompts([(prompt, None) for prompt in prompts]), _with_arrays(options, stop, None)), _Event()
        library = _library()
        try:
            while event.kind != _DONE:
                _check(library.based_generation_next(handle, ctypes.byref(event)))
            results = [_result_of(handle, i) for i in range(len(prompts))]
        finally:
            library.based_generation_free(handle)
        for i, result in enumerate(results):
            _require_finite(result, f"the prompt number {i}: ")
        return [result.text for result in results]

    def score(self, continuation: Text, context: Text | None = None) -> Score:
        """The log-probability of each token of `continuation` after `context`.

        Without a context, the first token of the continuation is the context of the others, and is not scored itself.
        """
        return self.score_many([(context, continuation)])[0]

    def score_many(self, requests: Sequence[tuple[Text | None, Text]]) -> list[Score]:
        """score() of many pairs (context, continuation), several at a time. Prefixes that contexts share are read once."""
        array = (_ScoreRequest * len(requests))()
        scored: list[list[int]] = []
        outputs: list[Any] = []
        for request, (context, continuation) in zip(array, requests):
            first = self._ids_of(context) if context is not None else []
            rest = self._ids_of(continuation)
            if context is None:
                first, rest = rest[:1], rest[1:]
            request.context, request.context_count = _ids(first), len(first)
            request.continuation, request.continuation_count = _ids(rest), len(rest)
            outputs.append((ctypes.c_float * len(rest))())
            request.log_probabilities = outputs[-1]
            scored.append(rest)
        _interruptible(lambda callback: _library().based_score(self._handle, array, len(array), callback, None))
        return [
            Score(ids, list(nats), request.log_likelihood, bool(request.greedy)) for ids, nats, request in zip(scored, outputs, array)
        ]

    def _ids_of(self, text: Text) -> list[int]:
        return self.encode(text) if _is_text(text) else list(text)  # type: ignore[arg-type]


class State:
    """What a model remembers of a text, and the text's token ids. Made by Model.read(), Model.load_state() and Generation.state()."""

    def __init__(self, model: Model, handle: ctypes.c_void_p) -> None:
        self.model = model
        self._set(handle)

    def _set(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self._free = weakref.finalize(self, _library().based_state_free, handle)

    @property
    def ids(self) -> list[int]:
        """[tokens], the token ids of the text."""
        ids, count = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_size_t()
        _check(_library().based_state_ids(self._handle, ctypes.byref(ids), ctypes.byref(count)))
        return ids[: count.value]

    @property
    def text(self) -> str:
        return self.model.decode(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, text: Text) -> None:
        """Reads more text. Forks of this state do not change."""
        longer, free = self.model.read(text, self), self._free
        longer._free.detach()
        self._set(longer._handle)
        free()

    def fork(self) -> State:
        """A second state of the same text, in the same memory. Both continue independently."""
        handle = ctypes.c_void_p()
        _check(_library().based_state_fork(self._handle, ctypes.byref(handle)))
        return State(self.model, handle)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a state file, whole or not at all; `based generate --state` and load_state() continue from it."""
        _check(_library().based_state_save(self._handle, _c_string("path", os.fsencode(path))))

    def bytes(self) -> builtins.bytes:
        """The bytes of the file that save() writes."""
        library, data, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
        _check(library.based_state_bytes(self._handle, ctypes.byref(data), ctypes.byref(size)))
        try:
            return ctypes.string_at(data, size.value)
        finally:
            library.based_free(data)


@dataclass(frozen=True)
class _Completion:
    text: str
    ids: list[int]
    log_probabilities: list[float] | None
    prompt_tokens: int
    finish_reason: str | None


class Generation(Iterator[str]):
    """A generation in progress: an iterator of pieces of text, whole characters each. The attributes have the result at its end."""

    def __init__(self, model: Model, prompt: Text, state: State | None, options: _GenerationOptions) -> None:
        self.model = model
        self._handle = _start(model, _Prompts([(prompt, state)]), options)
        weakref.finalize(self, _library().based_generation_free, self._handle)

    def __next__(self) -> str:
        event = _Event()
        while True:  # one step each, between which Ctrl-C is handled
            _check(_library().based_generation_next(self._handle, ctypes.byref(event)))
            if event.kind == _TEXT:
                return ctypes.string_at(event.text, event.bytes).decode("utf-8", "replace")
            if event.kind == _DONE:
                _require_finite(_result_of(self._handle, 0), "")
                raise StopIteration

    def stop(self) -> None:
        """Ends the generation; the iterator returns the rest of the text, if there is any. May be called from another thread."""
        _check(_library().based_generation_stop(self._handle, 0))

    def state(self) -> State:
        """The state of the prompt and all tokens so far. At the end it has the tokens of a stop string and the end of text, too."""
        handle = ctypes.c_void_p()
        _check(_library().based_generation_state(self._handle, 0, ctypes.byref(handle)))
        return State(self.model, handle)

    @property
    def text(self) -> str:
        """The whole text; empty before the end."""
        return _result_of(self._handle, 0).text

    @property
    def ids(self) -> list[int]:
        """[tokens], the sampled tokens, also the one that ended the text; empty before the end."""
        return _result_of(self._handle, 0).ids

    @property
    def log_probabilities(self) -> list[float] | None:
        """[tokens], in nats, under the model's softmax; None before the end, and without log_probabilities=True."""
        return _result_of(self._handle, 0).log_probabilities

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens before the first sampled one, those of the given state included."""
        return _result_of(self._handle, 0).prompt_tokens

    @property
    def finish_reason(self) -> str | None:
        """length, end_of_text, stop, cache_full, positions, not_finite or interrupted; None: the generation has not ended."""
        return _result_of(self._handle, 0).finish_reason


def _options_of(**values: float) -> _GenerationOptions:
    options = _GenerationOptions()
    _library().based_generation_options_init(ctypes.byref(options))
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _with_arrays(options: _GenerationOptions, stop: str | Sequence[str], logit_bias: Mapping[int, float] | None) -> _GenerationOptions:
    stops = [_c_string("a stop string", _utf8(each)) for each in ([stop] if isinstance(stop, str) else stop)]
    options.stops, options.stop_count = (ctypes.c_char_p * len(stops))(*stops), len(stops)
    bias = dict(logit_bias or {})
    options.bias_ids, options.bias_count = _ids(list(bias)), len(bias)
    options.bias_values = (ctypes.c_double * len(bias))(*bias.values())
    return options


def _start(model: Model, prompts: _Prompts, options: _GenerationOptions) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _check(
        _library().based_generation_start(
            model._handle, prompts.array, len(prompts.array), ctypes.byref(options), ctypes.byref(handle)
        )
    )
    return handle


def _result_of(generation: ctypes.c_void_p, prompt: int) -> _Completion:
    result = _Result(size=ctypes.sizeof(_Result))
    _check(_library().based_generation_describe(generation, prompt, ctypes.byref(result)))
    return _Completion(
        text=ctypes.string_at(result.text, result.bytes).decode("utf-8", "replace") if result.text else "",
        ids=result.ids[: result.count] if result.ids else [],
        log_probabilities=result.log_probabilities[: result.count] if result.log_probabilities else None,
        prompt_tokens=result.prompt_tokens,
        finish_reason=result.finish_reason.decode() if result.finish_reason else None,
    )


def _require_finite(result: _Completion, where: str) -> None:
    if result.finish_reason == "not_finite":
        raise Error(f"{where}the model's logits are not finite: its weights may be damaged, or the training diverged")
