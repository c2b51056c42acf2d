// What is timed of each CUDA kernel.
#pragma once
#include "bench/cuda/timing.cuh"

namespace based::bench {

constexpr int64_t kTrainedTokens = 16 * 2048;  // of a batch in training

void time_taylor(Report& report);
void time_linear_attention(Report& report);
void time_causal_attention(Report& report);
void time_causal_attention_step(Report& report);
void time_rms_norm(Report& report);
void time_swiglu(Report& report);
void time_short_conv(Report& report);
void time_selective_scan(Report& report);
void time_gated_delta_rule(Report& report);
void time_gated_long_conv(Report& report);
void time_column_sums(Report& report);
void time_cross_entropy(Report& report);
void time_rotary(Report& report);
void time_rms_norm_backward(Report& report);
void time_short_conv_backward(Report& report);
void time_embedding(Report& report);
// The layers of a step of decoding: few tokens, so that launches and weights count.
void time_step_layers(Report& report);
void time_sample(Report& report, int64_t rows);
void time_gated_mlp(Report& report);
void time_adamw(Report& report);
void time_gradient_norm(Report& report);
void time_dropout(Report& report);
void time_layer_norm(Report& report);
void time_layer_norm_twice(Report& report);

}  // namespace based::bench
