"""Based models for Hugging Face's transformers.

``based convert MODEL --hf --out FOLDER`` writes a folder that loads with these classes::

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

After ``import based_cpp.hf`` the argument ``trust_remote_code`` is not needed. ``based convert FOLDER --out MODEL`` reads a folder that
``save_pretrained`` wrote.
"""

from __future__ import annotations

import copy
import inspect
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from . import nn as mixers

_IGNORED_LABEL = -100
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
_CODE_FILES = ("configuration_based.py", "modeling_based.py")
_AUTO_MAP = {"AutoConfig": "configuration_based.BasedConfig", "AutoModelForCausalLM": "modeling_based.BasedForCausalLM"}
# transformers renamed the argument `past_key_values` to `cache` in version 5.
_CACHE_NAME = "cache" if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters else "past_key_values"

# The fields of the C++ library's ModelConfig and their defaults.
_DEFAULTS: dict[str, Any] = {
    "d_model": 128, "vocab_size": 257, "pad_vocab_multiple": 8, "layers": [], "mixers": {}, "mlp": "swiglu", "mlp_width": 256,
    "norm": "rms_norm", "final_norm": "", "norm_eps": 1e-5, "max_positions": 0, "embedding_dropout": 0.0,
}


class BasedConfig(PretrainedConfig):
    """The configuration of a Based model.

    Args:
        based: the model's config as in config.json of the `based` program: d_model, vocab_size, layers, mixers, …; docs/huggingface.md.
            A key that is missing has the program's default.
        keys: the keys of PretrainedConfig. vocab_size, hidden_size and num_hidden_layers follow from `based`.
    """

    model_type = "based_cpp"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]

    def __init__(self, based: dict[str, Any] | None = None, **keys: Any):
        unknown = set(based or {}) - set(_DEFAULTS)
        if unknown:
            raise ValueError(f"the table 'based' of the config has unknown keys: {', '.join(sorted(unknown))}")
        self.based = copy.deepcopy(_DEFAULTS) | copy.deepcopy(based or {})
        based = self.based
        derived = {"vocab_size": based["vocab_size"], "hidden_size": based["d_model"], "num_hidden_layers": len(based["layers"])}
        for key, value in derived.items():
            if keys.pop(key, value) != value:
                raise ValueError(f"'{key}' of the config does not fit the table 'based', which gives {value}")
        keys.setdefault("auto_map", dict(_AUTO_MAP))
        keys.setdefault("tie_word_embeddings", False)  # there is no second matrix to tie: the logits use the embedding itself
        super().__init__(**keys)
        for key, value in derived.items():
            setattr(self, key, value)

    @property
    def padded_vocab(self) -> int:
        """The rows of the embedding. Rows from vocab_size on are padding without a token."""
        multiple = self.based["pad_vocab_multiple"]
        return -(-self.based["vocab_size"] // multiple) * multiple


@dataclass
class _Group:
    """The sequences of a cache that have had the same number of tokens, so that one state per layer holds all of them."""

    sequences: list[int]  # indices in the batch
    states: list[mixers.State]

    def select(self, places: list[int], sequences: list[int]) -> _Group:
        """The group's members at `places`, which become these sequences of a batch."""
        return _Group(sequences, [state.select(places) for state in self.states])


class BasedCache:
    """The recurrent states of a batch of sequences: one state per layer and sequence, most of them of fixed size.

    ``forward`` fills it and returns it. A call with several tokens on a filled cache gives the logits of one call per token. A copy by
    ``copy.deepcopy`` forks the sequences. Tokens cannot be removed (no ``crop``), so assisted decoding is not available.
    """

    is_compileable = False
    is_linear = (False,)  # generate() then passes only the columns that the cache has not seen

    def __init__(self) -> None:
        self.groups: list[_Group] = []
        self.columns = 0  # columns of input_ids so far, padding included

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of columns of input_ids, padding included, that the cache has seen."""
        return self.columns

    def get_max_cache_shape(self, layer_idx: int = 0) -> None:
        return None

    @property
    def batch_size(self) -> int:
        return sum(len(group.sequences) for group in self.groups)

    @property
    def tokens(self) -> list[int]:
        """The tokens of each sequence, without padding."""
        return [tokens for _, tokens in sorted((i, group.states[0].tokens) for group in self.groups for i in group.sequences)]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the sequences `indices`, int64 [n], in this order. An index may occur several times."""
        wanted = torch.as_tensor(indices).tolist()
        groups = []
        for group in self.groups:
            place = {sequence: i for i, sequence in enumerate(group.sequences)}
            chosen = [new for new, old in enumerate(wanted) if old in place]
            if chosen:
                groups.append(group.select([place[wanted[new]] for new in chosen], chosen))
        self.groups = groups

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Gives each beam the states of the beam that it continues."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def crop(self, max_length: int) -> None:
        raise NotImplementedError("a recurrent state cannot forget tokens; fork the cache by copy.deepcopy before they are read")

    def split(self, lengths: list[int]) -> None:
        """Divides groups whose sequences get different numbers of new tokens."""
        groups = []
        for group in self.groups:
            counts = [lengths[sequence] for sequence in group.sequences]
            if len(set(counts)) == 1:
                groups.append(group)
                continue
            for count in sorted(set(counts)):
                places = [i for i, c in enumerate(counts) if c == count]
                groups.append(group.select(places, [group.sequences[i] for i in places]))
        self.groups = groups


class BasedNorm(nn.Module):
    """RMSNorm or LayerNorm of the residual stream, [..., d_model], which is fp32 in 16-bit models."""

    def __init__(self, kind: str, config: BasedConfig):
        super().__init__()
        if kind not in ("rms_norm", "layer_norm"):
            raise ValueError(f"the norm must be rms_norm or layer_norm, got {kind!r}")
        self.eps = config.based["norm_eps"]
        self.weight = nn.Parameter(torch.ones(config.based["d_model"]))
        self.bias = nn.Parameter(torch.zeros(config.based["d_model"])) if kind == "layer_norm" else None

    def forward(self, stream: Tensor) -> Tensor:
        weight, shape = self.weight.to(stream.dtype), self.weight.shape
        if self.bias is None:
            return F.rms_norm(stream, shape, weight, self.eps).to(self.weight.dtype)
        return F.layer_norm(stream, shape, weight, self.bias.to(stream.dtype), self.eps).to(self.weight.dtype)


class BasedMlp(nn.Module):
    """swiglu: fc2(y · SiLU(gate)) with [y, gate] = fc1(x), without biases; gelu: fc2(GELU(fc1(x))) with biases."""

    def __init__(self, config: BasedConfig):
        super().__init__()
        width, d_model, self.gated = config.based["mlp_width"], config.based["d_model"], config.based["mlp"] == "swiglu"
        self.fc1 = nn.Linear(d_model, (2 if self.gated else 1) * width, bias=not self.gated)
        self.fc2 = nn.Linear(width, d_model, bias=not self.gated)
        layers = len(config.based["layers"])
        for linear, std in ((self.fc1, 0.02), (self.fc2, 0.02 / (2 * layers) ** 0.5)):
            nn.init.normal_(linear.weight, std=std)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.fc2(F.gelu(self.fc1(x)))
        y, gate = self.fc1(x).chunk(2, -1)
        return self.fc2(y * F.silu(gate))


class BasedBlock(nn.Module):
    """stream += mixer(norm1(stream)); stream += mlp(norm2(stream))."""

    def __init__(self, config: BasedConfig, layer: int):
        super().__init__()
        based = config.based
        if based["mlp"] not in ("swiglu", "gelu", "identity", "none"):
            raise ValueError(f"mlp must be swiglu, gelu, identity or none, got {based['mlp']!r}")
        self.norm1 = BasedNorm(based["norm"], config)
        self.mixer = _make_mixer(config, layer)
        self.norm2 = None if based["mlp"] == "none" else BasedNorm(based["norm"], config)
        self.mlp = BasedMlp(config) if based["mlp"] in ("swiglu", "gelu") else None


def _make_mixer(config: BasedConfig, layer: int) -> nn.Module:
    name = config.based["layers"][layer]
    options = dict(config.based["mixers"].get(name, {"type": name}))
    kind = options.pop("type")
    if kind not in mixers.MIXERS:
        raise ValueError(f"layer {layer} has the mixer {kind!r}, for which based_cpp.nn has no module; it has {', '.join(mixers.MIXERS)}")
    options.pop("dropout", None)  # of attention weights: for training, which forward() refuses
    mixer = mixers.MIXERS[kind](config.based["d_model"], layer=layer, layers=len(config.based["layers"]), **options)
    mixer.to(torch.get_default_dtype())  # from_pretrained sets it to the type of the model, and keeps the parameters' types
    if isinstance(mixer, mixers.H3) and torch.get_default_dtype() in _SIXTEEN_BITS:
        mixer.diagonal.float()
    return mixer


class BasedForCausalLM(PreTrainedModel, GenerationMixin):
    """A Based language model: embedding, blocks, norm, and logits by the embedding's matrix.

    The names of parameters are those of the program's model.safetensors, except for ``embedding.weight`` and
    ``position_embedding.weight``, which the program calls ``embedding`` and ``position_embedding``.
    """

    config_class = BasedConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    supports_gradient_checkpointing = False
    _no_split_modules = ["BasedBlock"]
    _is_stateful = True  # no assisted decoding

    def __init__(self, config: BasedConfig):
        super().__init__(config)
        based = config.based
        self.embedding = nn.Embedding(config.padded_vocab, based["d_model"])
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.position_embedding = None
        if based["max_positions"] > 0:
            self.position_embedding = nn.Embedding(based["max_positions"], based["d_model"])
            nn.init.normal_(self.position_embedding.weight, std=0.02)
        self.layers = nn.ModuleList(BasedBlock(config, layer) for layer in range(len(based["layers"])))
        self.norm = BasedNorm(based["final_norm"] or based["norm"], config)
        self.has_attention_dropout = any(options.get("dropout", 0) > 0 for options in based["mixers"].values())
        # The diagonal models of H3 stay in fp32 in 16-bit models, as in the program.
        wide = ["diagonal"] if any(isinstance(block.mixer, mixers.H3) for block in self.layers) else []
        self._keep_in_fp32_modules_strict = wide
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Every module initialises its parameters in its constructor."""

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def set_input_embeddings(self, embedding: nn.Embedding) -> None:
        self.embedding = embedding

    def get_output_embeddings(self) -> None:
        return None  # the logits use the embedding's matrix

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        raise NotImplementedError("the vocabulary of a Based model has a fixed size; convert a model with the tokenizer that is wanted")

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As PreTrainedModel.from_pretrained, but weights that do not fit the config are an error, not a warning."""
        wants_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model._restore_constants()
        faults = {key: sorted(map(str, info.get(key) or ())) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
        if any(faults.values()):
            listed = "; ".join(f"{key.replace('_', ' ')}: {', '.join(names[:8])}" for key, names in faults.items() if names)
            raise ValueError(f"the weights do not fit the config: {listed}")
        return (model, info) if wants_info else model

    def _restore_constants(self) -> None:
        """Computes the mixers' constants again: from_pretrained of transformers 5 leaves buffers undefined that are not in the file."""
        for layer, block in enumerate(self.layers):
            if any(True for _ in block.mixer.buffers()):
                for name, value in _make_mixer(self.config, layer).named_buffers():
                    owner, _, buffer = name.rpartition(".")
                    module = block.mixer.get_submodule(owner)
                    setattr(module, buffer, value.to(next(block.mixer.parameters()).device))

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As PreTrainedModel.save_pretrained, with the Python files that AutoModelForCausalLM loads."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            for name in _CODE_FILES:
                shutil.copyfile(Path(__file__).parent / "hf_folder" / name, Path(save_directory) / name)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: BasedCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: BasedCache | None = None,
    ) -> CausalLMOutputWithPast | tuple:
        """Logits of a batch of sequences, and the mean cross entropy of the labels.

        Args:
            input_ids: int64 [batch, columns]; or inputs_embeds, [batch, columns, d_model].
            attention_mask: [batch, columns], or [batch, columns of the cache + columns], of which the last `columns` count: 0 for padding,
                on the left or on the right or between tokens. Padding is not read: neither states nor positions depend on it, and its
                logits are 0.
            past_key_values or cache: continues the sequences of a BasedCache and updates it. Nothing then has a gradient.
            labels: int64 [batch, columns], −100 for none, as for other causal models of transformers: logits of column t predict column
                t + 1. Padding is never predicted, and predicts nothing.
            use_cache: return a cache; by default config.use_cache where gradients are off.
            logits_to_keep: compute the logits of the last n columns, or of the given columns; 0: of all.

        Returns:
            logits [batch, columns, vocab_size] in the model's type.
        """
        if output_attentions or output_hidden_states:
            raise ValueError("a Based model returns neither attentions nor hidden states")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        cache = past_key_values if cache is None else cache
        if cache is not None and not isinstance(cache, BasedCache):
            raise TypeError(f"the cache of a Based model is a based_cpp.hf.BasedCache, got {type(cache).__name__}")
        if use_cache is None:
            use_cache = cache is not None or (getattr(self.config, "use_cache", True) and not torch.is_grad_enabled())
        if cache is None and use_cache:
            cache = BasedCache()
        if cache is not None and self.training:
            raise ValueError("a cache is for evaluation: call model.eval(), or give use_cache=False")
        if self.training and self.has_attention_dropout:
            raise ValueError("the config has dropout of attention weights, which only the program trains with; set it to 0")
        embeds = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        mask = _token_mask(attention_mask, embeds.shape[:2], cache)
        with torch.set_grad_enabled(torch.is_grad_enabled() and cache is None):
            hidden = self._hidden(embeds, mask, cache)
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep > 0 else logits_to_keep
            kept = slice(None) if isinstance(kept, int) else kept
            logits = F.linear(hidden[:, kept], self.embedding.weight)[..., : self.config.vocab_size]
        loss = None if labels is None else self._loss(logits, labels, mask)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, **{_CACHE_NAME: cache if use_cache else None})
        return output if return_dict is not False else output.to_tuple()

    def _loss(self, logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        if logits.shape[:2] != labels.shape:
            raise ValueError(f"labels are {list(labels.shape)}, the logits {list(logits.shape[:2])}; logits_to_keep must be 0")
        targets = labels[:, 1:]
        if mask is not None:
            targets = targets.masked_fill(~(mask[:, 1:] & mask[:, :-1]), _IGNORED_LABEL)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten().to(logits.device), ignore_index=_IGNORED_LABEL)

    def _hidden(self, embeds: Tensor, mask: Tensor | None, cache: BasedCache | None) -> Tensor:
        """Hidden states after the last norm, [batch, columns, d_model], 0 for padding."""
        batch, columns = embeds.shape[:2]
        lengths = [columns] * batch if mask is None else mask.sum(1).tolist()
        if cache is None:
            groups = [_Group([i for i in range(batch) if lengths[i] == n], []) for n in sorted(set(lengths))]
        else:
            if not cache.groups:
                cache.groups = [_Group(list(range(batch)), [block.mixer.make_state(batch) for block in self.layers])]
            cache.split(lengths)
            groups = cache.groups
            cache.columns += columns
        if mask is None and len(groups) == 1:
            return self._run(embeds, groups[0].states)
        hidden = embeds.new_zeros(batch, columns, embeds.shape[2])
        for group in groups:
            if lengths[group.sequences[0]] == 0:
                continue
            rows = torch.tensor(group.sequences, device=embeds.device)
            # Row and column of each token, [sequences, tokens].
            chosen = torch.ones(len(rows), columns, dtype=torch.bool, device=embeds.device) if mask is None else mask[rows]
            place = chosen.nonzero()[:, 1].view(len(rows), -1)
            row = rows.unsqueeze(1).expand_as(place)
            hidden = hidden.index_put((row, place), self._run(embeds[row, place], group.states))
        return hidden

    def _run(self, embeds: Tensor, states: list[mixers.State]) -> Tensor:
        """All layers and the last norm over sequences of equal length, [sequences, tokens, d_model]. Without states, from the beginning."""
        based = self.config.based
        seen, tokens = states[0].tokens if states else 0, embeds.shape[1]
        if self.position_embedding is not None:
            if seen + tokens > based["max_positions"]:
                raise ValueError(f"a sequence has {seen + tokens} tokens, the model has {based['max_positions']} positions (max_positions)")
            embeds = embeds + self.position_embedding.weight[seen : seen + tokens]
        embeds = F.dropout(embeds, based["embedding_dropout"], self.training)
        stream = embeds.float() if embeds.dtype in _SIXTEEN_BITS else embeds
        for layer, block in enumerate(self.layers):
            x = block.norm1(stream)
            if not states:
                y = block.mixer(x)
            elif tokens == 1 and seen > 0:
                y = block.mixer.step(x, states[layer])
            else:
                y, states[layer] = block.mixer.prefill(x, states[layer])
            stream = stream + y
            if block.norm2 is not None:
                normed = block.norm2(stream)
                stream = stream + (normed if block.mlp is None else block.mlp(normed))
        return self.norm(stream)

    # generate() of transformers calls the following three.

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if generation_config.cache_implementation is not None:
            raise ValueError("cache_implementation is for caches of keys and values; a Based model has recurrent states")
        given = model_kwargs.get("past_key_values", model_kwargs.get("cache"))
        if given is None and generation_config.use_cache:
            model_kwargs[_CACHE_NAME] = BasedCache()

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: BasedCache | None = None,
        cache: BasedCache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache_position: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        cache = past_key_values if cache is None else cache
        if next_sequence_length is None and cache_position is not None:
            next_sequence_length = cache_position.shape[0]
        if next_sequence_length is not None and cache is not None:
            input_ids = input_ids[:, input_ids.shape[1] - next_sequence_length :]
        uses_embeds = inputs_embeds is not None and (cache is None or cache.columns == 0)
        inputs = {"inputs_embeds": inputs_embeds} if uses_embeds else {"input_ids": input_ids.contiguous()}
        return inputs | {
            "attention_mask": attention_mask,
            _CACHE_NAME: cache,
            "use_cache": kwargs.get("use_cache", cache is not None),
            "logits_to_keep": kwargs.get("logits_to_keep", 0),
        }


def _token_mask(attention_mask: Tensor | None, shape: Sequence[int], cache: BasedCache | None) -> Tensor | None:
    """Which of the new columns are tokens, bool [batch, columns]; None: all of them."""
    batch, columns = shape
    seen = 0 if cache is None else cache.columns
    if cache is not None and cache.groups and cache.batch_size != batch:
        raise ValueError(f"the cache has {cache.batch_size} sequences, the input has {batch}")
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] not in (columns, seen + columns):
        raise ValueError(f"attention_mask must be [{batch}, {columns}] or [{batch}, {seen + columns}], got {list(attention_mask.shape)}")
    mask = attention_mask[:, -columns:] != 0
    return None if bool(mask.all()) else mask


AutoConfig.register(BasedConfig.model_type, BasedConfig)
AutoModelForCausalLM.register(BasedConfig, BasedForCausalLM)
