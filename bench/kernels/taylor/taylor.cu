#include <array>
#include <memory>

#include "based/kernels/common/device_code.h"
#include "based/kernels/taylor/deferred.h"
#include "bench/kernels/common/timing.cuh"
#include "bench/kernels/taylor/problems/taylor.cuh"
#include "bench/kernels/taylor/problems/taylor_reference.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
using kernels::packed_features;
using kernels::TaylorAttention;
namespace gpu = kernels::cuda;

// Training of small models: fp32, one head, no states.
void time_pairs(Report& report, int64_t batch, int64_t length, int32_t feature_dim, bool single_tf32) {
  TaylorShape shape{std::vector<int64_t>(batch, length), 1, feature_dim, 128, DType::f32};
  shape.single_tf32 = single_tf32;
  const int64_t narrow = batch * length * feature_dim * 4, wide = batch * length * shape.head_dim * 4;
  std::vector<std::unique_ptr<TaylorProblem>> problems;
  std::vector<std::unique_ptr<TaylorBackwardProblem>> gradients;
  for (int i = 0; i < working_sets(4 * narrow + 5 * wide); ++i) {
    problems.push_back(std::make_unique<TaylorProblem>(shape, 300 + i));
    gradients.push_back(std::make_unique<TaylorBackwardProblem>(*problems.back(), shape, 300 + i));
  }
  const std::string name = " B" + std::to_string(batch) + " N" + std::to_string(length) + " f" + std::to_string(feature_dim) + " d128" +
                           (single_tf32 ? " tf32" : " fp32");
  const int sets = static_cast<int>(problems.size());
  report.time("taylor_forward" + name, 2 * narrow + 2 * wide, sets, [&](int set, cudaStream_t stream) {
    check(gpu::taylor_attention_forward(problems[set]->p, problems[set]->scratch.as(), on_stream(stream)));
  });
  report.time("taylor_backward" + name, 4 * narrow + 4 * wide, sets, [&](int set, cudaStream_t stream) {
    check(gpu::taylor_attention_backward(gradients[set]->p, gradients[set]->scratch.as(), on_stream(stream)));
  });
}

// A batch of rows in bf16 without states, 16 heads.
TaylorShape batch_shape(int64_t batch, int64_t length, int32_t head_dim = 64, int32_t feature_dim = 16, bool decay = false) {
  return {std::vector<int64_t>(batch, length), 16, feature_dim, head_dim, DType::bf16, false, decay};
}
std::string rows_name(const TaylorShape& shape) {
  return " B" + std::to_string(shape.lengths.size()) + " N" + std::to_string(shape.lengths[0]);
}
std::string kind_name(const TaylorShape& shape) {
  return (shape.feature_dim == 16 ? "" : " f" + std::to_string(shape.feature_dim)) + (shape.decay ? " decay" : "");
}

void time_forward_backward(Report& report, const TaylorShape& shape, const std::string& headline) {
  const int64_t tokens = static_cast<int64_t>(shape.lengths.size()) * shape.lengths[0] * shape.heads;
  const int64_t bytes = tokens * (shape.feature_dim + shape.head_dim) * 4;
  std::vector<std::unique_ptr<TaylorProblem>> problems;
  std::vector<std::unique_ptr<TaylorBackwardProblem>> gradients;
  for (int i = 0; i < working_sets(3 * bytes); ++i) {
    problems.push_back(std::make_unique<TaylorProblem>(shape, 300 + i));
    gradients.push_back(std::make_unique<TaylorBackwardProblem>(*problems.back(), shape, 300 + i));
  }
  const double ms = median_ms(static_cast<int>(problems.size()), [&](int set, cudaStream_t stream) {
    check(gpu::taylor_attention_forward(problems[set]->p, problems[set]->scratch.as(), on_stream(stream)));
    check(gpu::taylor_attention_backward(gradients[set]->p, gradients[set]->scratch.as(), on_stream(stream)));
  });
  // The forward reads q, k, v and writes y; the backward reads q, k, v, y, dy and writes dq, dk, dv.
  const double floor = static_cast<double>(3 * bytes) / bytes_per_ms();
  report.add({headline, "taylor_forward_backward" + rows_name(shape) + kind_name(shape), ms, "ms", floor});
}

void time_forward(Report& report, const TaylorShape& shape, const std::string& headline) {
  const int64_t tokens = static_cast<int64_t>(shape.lengths.size()) * shape.lengths[0] * shape.heads;
  const int64_t bytes = tokens * (shape.feature_dim + shape.head_dim) * 4;
  std::vector<std::unique_ptr<TaylorProblem>> problems;
  for (int i = 0; i < working_sets(bytes); ++i) problems.push_back(std::make_unique<TaylorProblem>(shape, 100 + i));
  const double ms = median_ms(static_cast<int>(problems.size()), [&](int set, cudaStream_t stream) {
    check(gpu::taylor_attention_forward(problems[set]->p, problems[set]->scratch.as(), on_stream(stream)));
  });
  // Compares every 97th token with the definition.
  const TaylorAttention& p = problems[0]->p;
  const int64_t step = std::max<int64_t>(97, p.tokens / 500), count = (p.tokens - 5 + step - 1) / step, row = p.heads * p.head_dim;
  Buffer y(count * row * 8), denominator(count * p.heads * 8), sampled(count * row * 2);
  taylor_reference_forward(p, 5, step, y.as<double>(), denominator.as<double>());
  check(
      cudaMemcpy2D(sampled.as(), row * 2, static_cast<char*>(p.y) + 5 * row * 2, step * row * 2, row * 2, count, cudaMemcpyDeviceToDevice),
      "sample");
  const double error = relative_error(sampled.as(), DType::bf16, y.as<double>(), count * row);
  const std::string name = "taylor_forward" + rows_name(shape) + " d" + std::to_string(shape.head_dim) + kind_name(shape);
  report.add({headline, name, ms, "ms", static_cast<double>(bytes) / bytes_per_ms(), error});
  if (!(error <= taylor_limit(DType::bf16))) report.fail(name);
}

// One token of each row, from states in fp32.
TaylorShape step_shape(int64_t batch, bool settled, int32_t head_dim = 64, int32_t feature_dim = 16, bool decay = false) {
  return {std::vector<int64_t>(batch, 1), 16, feature_dim, head_dim, DType::bf16, true, decay, settled};
}

// With `settled` a call loads its states while the previous call, which is of another set, still runs, as the layers of a decode step do.
void time_step(Report& report, const TaylorShape& shape, const std::string& headline) {
  const auto batch = static_cast<int64_t>(shape.lengths.size());
  const int64_t state = batch * shape.heads * packed_features(shape.feature_dim) * (shape.head_dim + 1) * 4;
  std::vector<std::unique_ptr<TaylorProblem>> problems;
  for (int i = 0; i < working_sets(state); ++i) problems.push_back(std::make_unique<TaylorProblem>(shape, 200 + i, 1));
  const double ms = median_ms(static_cast<int>(problems.size()), [&](int set, cudaStream_t stream) {
    check(gpu::taylor_attention_step(problems[set]->p, on_stream(stream)));
  });
  const std::string name = "taylor_update B" + std::to_string(batch) + " d" + std::to_string(shape.head_dim) + kind_name(shape);
  report.add({headline, name + (shape.settled ? " settled" : ""), ms, "ms", static_cast<double>(2 * state) / bytes_per_ms()});
}

// Times steps with pending tokens: the mean over kTaylorPending steps, one of which writes the states. Floor: each step reads the states,
// the pending tokens (their mean number) and writes the token's key and value; one step of kTaylorPending writes the states. `rounds`: the
// other steps read rounded states, which that step writes too.
void time_deferred(Report& report, int64_t batch, int32_t head_dim, bool rounds) {
  if (!gpu::runs_hopper_code()) return;  // plans defer steps on Hopper only
  const TaylorShape shape{std::vector<int64_t>(batch, 1), 16, 16, head_dim, DType::bf16, true, false, true};
  const int64_t heads = batch * 16, state = heads * packed_features(16) * (head_dim + 1) * 4, token = heads * (16 + head_dim) * 2;
  std::vector<std::unique_ptr<TaylorProblem>> problems;
  const int64_t rounded = rounds ? heads * packed_features(16) * head_dim * 2 : 0;
  std::vector<std::array<Buffer, 4>> buffers;
  std::vector<kernels::TaylorDeferred> calls;
  for (int i = 0; i < working_sets(state); ++i) {
    problems.push_back(std::make_unique<TaylorProblem>(shape, 200 + i, 1));
    const int64_t room = heads * kernels::kTaylorPending;
    buffers.push_back({random_buffer(room * 16, DType::bf16, 0.5, 300 + i), random_buffer(room * head_dim, DType::bf16, 1, 400 + i),
                       zeros(heads * 4), Buffer(rounded)});
    const auto& [k, v, count, copy] = buffers.back();
    calls.push_back({problems.back()->p, k.as(), v.as(), count.as<int32_t>(), rounds ? copy.as() : nullptr});
  }
  const int sets = static_cast<int>(calls.size());
  const double ms = median_ms(kernels::kTaylorPending * sets, [&](int call, cudaStream_t stream) {
    check(gpu::taylor_deferred_step(calls[call % sets], on_stream(stream)));
  });
  constexpr double round = kernels::kTaylorPending;
  const auto sums = static_cast<double>(heads * packed_features(16) * 4);  // the denominator's states, of which there is no copy
  const double states = rounds ? (static_cast<double>(state) - sums) * 2 / round + static_cast<double>(rounded) + sums * (1 + 1 / round)
                               : static_cast<double>(state) * (1 + 1 / round);
  const double bytes = states + static_cast<double>(token) * (1 + (round - 1) / 2);
  const std::string name = "taylor_deferred B" + std::to_string(batch) + " d" + std::to_string(head_dim) + (rounds ? " rounded" : "");
  report.add({"", name, ms, "ms", bytes / bytes_per_ms()});
}

void time_taylor(Report& report) {
  time_forward(report, batch_shape(1, 1024), "taylor_forward_b1_n1024");
  time_forward(report, batch_shape(2, 4096), "taylor_forward_b2_n4096");
  time_forward(report, batch_shape(16, 1024), "taylor_forward_b16_n1024");
  time_forward(report, batch_shape(4, 16384), "taylor_forward_b4_n16384");
  time_forward(report, batch_shape(1, 131072), "taylor_forward_b1_n131072");
  time_forward(report, batch_shape(2, 4096, 112), "");
  time_forward_backward(report, batch_shape(8, 2048), "");
  for (const int32_t feature_dim : {16, 24, 32}) {
    for (const bool decay : {false, true}) {
      const TaylorShape shape = batch_shape(4, 2048, 64, feature_dim, decay);
      time_forward(report, shape, "");
      time_forward_backward(report, shape, feature_dim == 16 && !decay ? "taylor_forward_backward_b4_n2048" : "");
    }
  }
  for (const int64_t length : {256, 64})
    for (const int32_t feature_dim : {16, 24})
      for (const bool single_tf32 : {false, true}) time_pairs(report, 256, length, feature_dim, single_tf32);
  for (const bool settled : {false, true}) {
    time_step(report, step_shape(1, settled), "");
    time_step(report, step_shape(16, settled), "");
    time_step(report, step_shape(128, settled), settled ? "taylor_update_b128" : "");
    time_step(report, step_shape(128, settled, 112), "");
  }
  for (const int64_t batch : {1, 128})
    for (const int32_t feature_dim : {16, 24, 32}) {
      if (feature_dim != 16) time_step(report, step_shape(batch, true, 64, feature_dim), "");
      time_step(report, step_shape(batch, true, 64, feature_dim, true), "");
    }
  for (const bool rounds : {false, true})
    for (const int64_t batch : {16, 128})
      for (const int32_t head_dim : {64, 112}) time_deferred(report, batch, head_dim, rounds);
}

const DefineFamily<Report> kTaylor("taylor", time_taylor);

}  // namespace
}  // namespace based::bench
