"""The operators torch.ops.based.*, one module a family: documented functions, gradients, and fake kernels for torch.compile.

Sequences are packed: tensors [tokens, …] with the offsets cu_seqlens, int64 [rows + 1], of each row's first token. States are tensors
[slots, …]; a prefill or a step names the slots of its rows and updates them in place.
"""

from ._registration import finish
from .attention import causal_attention, causal_attention_step, paged_attention_step, rotary, rotary_, rotary_attention_step
from .conv import (diagonal_filter, gated_long_conv, long_conv, projected_conv, projected_conv_prefill, short_conv, short_conv_prefill,
                   short_conv_step)
from .delta_rule import gated_delta_rule, gated_delta_rule_prefill, gated_delta_rule_step
from .linear import gated_mlp, linear, linear_swiglu
from .linear_attention import linear_attention, linear_attention_pairs, linear_attention_prefill, linear_attention_step
from .norm import (layer_norm, layer_norm_add, layer_norm_add_, layer_norm_add_twice, rms_norm, rms_norm_add, rms_norm_add_, rms_norm_gated,
                   rms_norm_of_sum)
from .pointwise import rowwise_activation, swiglu
from .sampling import adjusted_logits, most_likely, sample_
from .scan import selective_scan, selective_scan_prefill, selective_scan_step
from .taylor import (packed_features, taylor_attention, taylor_attention_prefill, taylor_attention_quadratic, taylor_attention_step,
                     taylor_features)
from .training import cross_entropy, dropout, token_log_probabilities

finish()
del finish

__all__ = [
    "adjusted_logits", "causal_attention", "causal_attention_step", "cross_entropy", "diagonal_filter", "dropout", "gated_delta_rule",
    "gated_delta_rule_prefill", "gated_delta_rule_step", "gated_long_conv", "gated_mlp", "layer_norm", "layer_norm_add", "layer_norm_add_",
    "layer_norm_add_twice", "linear", "linear_attention", "linear_attention_pairs", "linear_attention_prefill", "linear_attention_step",
    "linear_swiglu", "long_conv", "most_likely", "packed_features", "paged_attention_step", "projected_conv", "projected_conv_prefill",
    "rms_norm", "rms_norm_add", "rms_norm_add_", "rms_norm_gated", "rms_norm_of_sum", "rotary", "rotary_", "rotary_attention_step",
    "rowwise_activation", "sample_", "selective_scan", "selective_scan_prefill", "selective_scan_step", "short_conv", "short_conv_prefill",
    "short_conv_step", "swiglu", "taylor_attention", "taylor_attention_prefill", "taylor_attention_quadratic", "taylor_attention_step",
    "taylor_features", "token_log_probabilities",
]
