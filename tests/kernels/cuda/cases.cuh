// What is verified of each CUDA kernel: small shapes against sums in double on the host.
#pragma once
#include <cmath>

#include "bench/cuda/problems/device_memory.cuh"
#include "tests/kernels/cuda/report.cuh"

namespace based::tests {

using namespace bench;  // device memory and problems

// The error of results that are rounded once to `dtype`, at most.
inline double allowed(kernels::DType dtype) { return dtype == kernels::DType::bf16 ? 2.5e-3 : 2e-6; }
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Ragged rows, states, decay, all types. `quick`: those that fit a sanitizer's patience.
void verify_taylor(Report& report, bool quick);
void verify_linear_attention(Report& report);
void verify_causal_attention(Report& report);
void verify_causal_attention_step(Report& report);
void verify_rms_norm(Report& report);
void verify_swiglu(Report& report);
void verify_activation(Report& report);
void verify_rotary(Report& report);
void verify_short_conv(Report& report);
void verify_short_conv_step(Report& report);
void verify_selective_scan(Report& report);
void verify_selective_scan_step(Report& report);
void verify_gated_delta_rule(Report& report);
void verify_gated_delta_rule_backward(Report& report);
void verify_diagonal_filter(Report& report);
void verify_embedding(Report& report);
void verify_embedding_step(Report& report);
void verify_column_sums(Report& report);
// Of few rows.
void verify_linear(Report& report);
void verify_sample(Report& report);
// Norms whose halves are in the layers before and after.
void verify_step_norms(Report& report);
void verify_gated_long_conv(Report& report);
void verify_gated_mlp(Report& report);
void verify_adamw(Report& report);
void verify_gradient_norm(Report& report);
void verify_dropout(Report& report);
void verify_layer_norm(Report& report);
void verify_cross_entropy(Report& report);

}  // namespace based::tests
