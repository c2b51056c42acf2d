#include "based/kernels/gated_delta_rule.h"

#include <cmath>
#include <memory>

#include "bench/cuda/cases.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::GatedDeltaRule;
using kernels::Stream;
namespace gpu = kernels::cuda;

struct Member {
  const char* name;
  int32_t heads, key_dim, value_dim, decay_dim;  // decay_dim 0: no decay
  bool delta;
};
constexpr Member kMembers[] = {
    {"gla", 4, 128, 256, 128, false}, {"delta_net", 8, 128, 128, 0, true}, {"gated_delta_net", 8, 128, 128, 1, true}};

// Decays and betas as models begin with.
Buffer gate(int64_t count, float least, float most, uint64_t seed) {
  std::vector<float> to;
  for (const double x : download(random_buffer(count, DType::f32, 1, seed).as(), DType::f32, count))
    to.push_back(least + (most - least) / (1 + std::exp(-static_cast<float>(x))));
  return upload_floats(to);
}

struct Problem {
  Buffer q, k, v, decay, beta, y, state, starts, slots, scratch;
  GatedDeltaRule p;

  Problem(const Member& m, int64_t rows, int64_t length, uint64_t seed) {
    const int64_t tokens = rows * length, keys = tokens * m.heads * m.key_dim, values = tokens * m.heads * m.value_dim;
    const double small = 1 / std::sqrt(m.key_dim);
    q = random_buffer(keys, DType::bf16, 1, seed), k = random_buffer(keys, DType::bf16, small, seed + 1);
    v = random_buffer(values, DType::bf16, 1, seed + 2), y = Buffer(values * 2);
    decay = gate(tokens * m.heads * std::max(1, m.decay_dim), -0.1F, 0, seed + 3), beta = gate(tokens * m.heads, 0, 1, seed + 4);
    state = zeros(rows * m.heads * m.key_dim * m.value_dim * 4);
    std::vector<int64_t> offsets, numbers;
    for (int64_t r = 0; r <= rows; ++r) offsets.push_back(r * length), numbers.push_back(r);
    starts = upload(offsets), slots = upload(numbers);
    p.q = q.as(), p.k = k.as(), p.v = v.as(), p.y = y.as(), p.state = state.as<float>();
    if (m.decay_dim > 0) p.log_decay = decay.as<float>(), p.decay_dim = m.decay_dim;
    if (m.delta) p.beta = beta.as<float>();
    p.row_start = starts.as<int64_t>(), p.slot = slots.as<int64_t>(), p.tokens = tokens, p.rows = rows;
    p.key_heads = p.heads = m.heads, p.key_dim = m.key_dim, p.value_dim = m.value_dim;
    p.delta = m.delta, p.scale = static_cast<float>(small), p.dtype = DType::bf16;
    scratch = Buffer(gpu::gated_delta_rule_scratch(p));
  }
  int64_t inputs_and_outputs() const {
    return q.bytes() + k.bytes() + v.bytes() + (p.log_decay != nullptr ? decay.bytes() : 0) + y.bytes();
  }
};

void time_forward(Report& report, const Member& m) {
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < 2; ++i) problems.push_back(std::make_unique<Problem>(m, 4, 2048, 100 + 10 * i));
  const double ms = median_ms(2, [&](int set, cudaStream_t stream) {
    check(gpu::gated_delta_rule_forward(problems[set]->p, problems[set]->scratch.as(), Stream{stream}));
  });
  const std::string name = std::string(m.name) + " forward B4 N2048 heads " + std::to_string(m.heads) + " key " +
                           std::to_string(m.key_dim) + " value " + std::to_string(m.value_dim) + " bf16";
  report.add(
      {std::string(m.name) + "_forward_b4_n2048", name, ms, "ms", static_cast<double>(problems[0]->inputs_and_outputs()) / kBytesPerMs});
}

void time_forward_backward(Report& report, const Member& m) {
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < 2; ++i) problems.push_back(std::make_unique<Problem>(m, 4, 2048, 100 + 10 * i));
  const Problem& first = *problems[0];
  const Buffer grad_y = random_buffer(first.y.bytes() / 2, DType::bf16, 1, 300);
  const Buffer q(first.q.bytes()), k(first.q.bytes()), v(first.v.bytes()), decay(first.decay.bytes()), beta(first.beta.bytes()),
      state = zeros(first.state.bytes());
  const auto arguments = [&](int set) {
    kernels::GatedDeltaRuleBackward p;
    p.forward = problems[set]->p;
    p.forward.state = state.as<float>(), p.grad_y = grad_y.as(), p.grad_q = q.as(), p.grad_k = k.as(), p.grad_v = v.as();
    if (m.decay_dim > 0) p.grad_log_decay = decay.as<float>();
    if (m.delta) p.grad_beta = beta.as<float>();
    return p;
  };
  const Buffer scratch(gpu::gated_delta_rule_backward_scratch(arguments(0)));
  const double ms = median_ms(2, [&](int set, cudaStream_t stream) {
    check(gpu::gated_delta_rule_forward(problems[set]->p, problems[set]->scratch.as(), Stream{stream}));
    check(gpu::gated_delta_rule_backward(arguments(set), scratch.as(), Stream{stream}));
  });
  const int64_t backward = 2 * first.inputs_and_outputs() - first.y.bytes();  // grad_y in, and a gradient of each input out
  report.add({std::string(m.name) + "_forward_backward_b4_n2048", std::string(m.name) + " forward + backward B4 N2048 bf16", ms, "ms",
              static_cast<double>(first.inputs_and_outputs() + backward) / kBytesPerMs});
}

void time_step(Report& report, const Member& m) {
  const int64_t rows = 128;
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < 4; ++i) problems.push_back(std::make_unique<Problem>(m, rows, 1, 100 + 10 * i));
  const double ms =
      median_ms(4, [&](int set, cudaStream_t stream) { check(gpu::gated_delta_rule_step(problems[set]->p, Stream{stream})); });
  report.add({std::string(m.name) + "_step_b128", std::string(m.name) + " step B128, fp32 state read and written", ms, "ms",
              2 * static_cast<double>(problems[0]->state.bytes()) / kBytesPerMs});
}

}  // namespace

void time_gated_delta_rule(Report& report) {
  for (const Member& m : kMembers) time_forward(report, m), time_forward_backward(report, m), time_step(report, m);
}

}  // namespace based::bench
