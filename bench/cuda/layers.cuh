// The softmax attention and the small layers around the mixers: against sums in double on the host, and their speed.
#pragma once
#include "based/kernels/linear.h"
#include "bench/cuda/harness.cuh"

namespace based::bench {

void verify_causal_attention_step(Report& report);
void time_causal_attention_step(Report& report);
void verify_causal_attention(Report& report);
void time_causal_attention(Report& report);
void verify_layers(Report& report);
void time_layers(Report& report);
// The layers of a step of decoding: few tokens, so that launches and weights count.
void verify_linear(Report& report);
void verify_sample(Report& report);
void time_sample(Report& report, int64_t rows);
void time_step_layers(Report& report);
// x·weightᵀ + bias in double, [rows, out], of x [rows, x_stride] on the host.
std::vector<double> exact_outputs(const std::vector<double>& x, const kernels::Linear& p);
// The first half of each row of h [rows, 2·width] times the SiLU of the second.
std::vector<double> exact_swiglu(const std::vector<double>& h, int64_t width);
// Norms whose halves are in the layers before and after.
void verify_step_norms(Report& report);

}  // namespace based::bench
