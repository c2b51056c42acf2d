#include "based/kernels/delta_rule/delta_rule.h"

#include <cmath>
#include <memory>

#include "based/kernels/norm/rms_norm.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::GatedDeltaRule;
using kernels::on_stream;
namespace gpu = kernels::cuda;

struct Member {
  const char* name;
  int32_t heads, key_heads, key_dim, value_dim, decay_dim;  // decay_dim 0: no decay
  bool delta;                                               // with queries and keys normalised to length 1 in the timed region
  bool beta;
};
constexpr Member kMembers[] = {{"gla", 4, 4, 128, 256, 128, false, false},
                               {"delta_net", 8, 8, 128, 128, 0, true, true},
                               {"gated_delta_net", 8, 8, 128, 128, 1, true, true},
                               {"mamba2", 32, 1, 128, 64, 1, false, true}};

// Decays and betas in the range of newly initialised models.
Buffer gate(int64_t count, float least, float most, uint64_t seed) {
  std::vector<float> to;
  for (const double x : download(random_buffer(count, DType::f32, 1, seed).as(), DType::f32, count))
    to.push_back(least + (most - least) / (1 + std::exp(-static_cast<float>(x))));
  return upload_floats(to);
}

struct Problem {
  Buffer q, k, v, decay, beta, y, state, starts, slots, scratch;
  Buffer unit_q, unit_k, inverse_lengths, length;  // normalised q and k; `length` is the norm's weight
  GatedDeltaRule p;
  const Member m;

  Problem(const Member& member, int64_t rows, int64_t tokens_of_row, uint64_t seed) : m(member) {
    const int64_t tokens = rows * tokens_of_row, keys = tokens * m.key_heads * m.key_dim, values = tokens * m.heads * m.value_dim;
    const double small = 1 / std::sqrt(m.key_dim);
    q = random_buffer(keys, DType::bf16, 1, seed), k = random_buffer(keys, DType::bf16, small, seed + 1);
    v = random_buffer(values, DType::bf16, 1, seed + 2), y = Buffer(values * 2);
    decay = gate(tokens * m.heads * std::max(1, m.decay_dim), -0.1F, 0, seed + 3), beta = gate(tokens * m.heads, 0, 1, seed + 4);
    state = zeros(rows * m.heads * m.key_dim * m.value_dim * 4);
    std::vector<int64_t> offsets, numbers;
    for (int64_t r = 0; r <= rows; ++r) offsets.push_back(r * tokens_of_row), numbers.push_back(r);
    starts = upload(offsets), slots = upload(numbers);
    p.q = q.as(), p.k = k.as(), p.v = v.as(), p.y = y.as(), p.state = state.as<float>();
    if (m.decay_dim > 0) p.log_decay = decay.as<float>(), p.decay_dim = m.decay_dim;
    if (m.beta) p.beta = beta.as<float>();
    p.row_start = starts.as<int64_t>(), p.slot = slots.as<int64_t>(), p.tokens = tokens, p.rows = rows;
    p.heads = m.heads, p.key_heads = m.key_heads, p.key_dim = m.key_dim, p.value_dim = m.value_dim;
    p.delta = m.delta, p.scale = static_cast<float>(small), p.dtype = DType::bf16;
    scratch = Buffer(gpu::gated_delta_rule_scratch(p));
    if (!m.delta) return;
    unit_q = Buffer(keys * 2), unit_k = Buffer(keys * 2), inverse_lengths = Buffer(2 * norm_rows() * 4);
    length = random_buffer(m.key_dim, DType::bf16, small, seed + 5);
    p.q = unit_q.as(), p.k = unit_k.as();
  }
  int64_t norm_rows() const { return p.tokens * m.key_heads; }
  kernels::RmsNorm norm(bool of_q) const {
    kernels::RmsNorm to;
    to.x = of_q ? q.as() : k.as(), to.weight = length.as(), to.y = of_q ? unit_q.as() : unit_k.as();
    to.inverse_rms = inverse_lengths.as<float>() + (of_q ? 0 : norm_rows());
    to.rows = norm_rows(), to.width = m.key_dim, to.eps = 1e-6F, to.x_dtype = to.dtype = DType::bf16;
    return to;
  }
  void forward(kernels::Queue stream) const {
    if (m.delta) check(gpu::rms_norm_forward(norm(true), stream)), check(gpu::rms_norm_forward(norm(false), stream));
    check(gpu::gated_delta_rule_forward(p, scratch.as(), stream));
  }
  int64_t inputs_and_outputs() const {
    return q.bytes() + k.bytes() + v.bytes() + (p.log_decay != nullptr ? decay.bytes() : 0) + y.bytes();
  }
  std::string shape() const {
    return " heads " + std::to_string(m.heads) + " key " + std::to_string(m.key_dim) + " value " + std::to_string(m.value_dim) + " bf16" +
           (m.delta ? ", norms of q and k included" : "");
  }
};

std::vector<std::unique_ptr<Problem>> problems(int count, const Member& m, int64_t rows, int64_t length) {
  std::vector<std::unique_ptr<Problem>> all;
  for (int i = 0; i < count; ++i) all.push_back(std::make_unique<Problem>(m, rows, length, 100 + 10 * i));
  return all;
}

void time_forward(Report& report, const Member& m) {
  const auto all = problems(2, m, 4, 2048);
  const double ms = median_ms(2, [&](int set, cudaStream_t stream) { all[set]->forward(on_stream(stream)); });
  report.add({std::string(m.name) + "_forward_b4_n2048", std::string(m.name) + " forward B4 N2048" + all[0]->shape(), ms, "ms",
              static_cast<double>(all[0]->inputs_and_outputs()) / bytes_per_ms()});
}

// Without the delta rule the backward has no beta: v is expected to be multiplied by it already.
void time_forward_backward(Report& report, Member m) {
  m.beta = m.delta;
  const auto all = problems(2, m, 4, 2048);
  const Problem& first = *all[0];
  const int64_t gradients_of_keys = first.p.tokens * m.heads * m.key_dim * 2;
  const Buffer grad_y = random_buffer(first.y.bytes() / 2, DType::bf16, 1, 300);
  const Buffer q(gradients_of_keys), k(gradients_of_keys), v(first.v.bytes()), decay(first.decay.bytes()), beta(first.beta.bytes()),
      state = zeros(first.state.bytes()), grad_length(m.key_dim * 4);
  const auto arguments = [&](int set) {
    kernels::GatedDeltaRuleBackward p;
    p.forward = all[set]->p;
    p.forward.state = state.as<float>(), p.grad_y = grad_y.as(), p.grad_q = q.as(), p.grad_k = k.as(), p.grad_v = v.as();
    if (m.decay_dim > 0) p.grad_log_decay = decay.as<float>();
    if (m.beta) p.grad_beta = beta.as<float>();
    return p;
  };
  const auto norm_arguments = [&](int set, bool of_q) {
    kernels::RmsNormBackward p;
    p.forward = all[set]->norm(of_q);
    p.grad_y = p.grad_x = of_q ? q.as() : k.as(), p.grad_weight = grad_length.as<float>();
    return p;
  };
  const Buffer scratch(gpu::gated_delta_rule_backward_scratch(arguments(0)));
  const Buffer norm_scratch(m.delta ? gpu::rms_norm_backward_scratch(norm_arguments(0, true)) : 0);
  const double ms = median_ms(2, [&](int set, cudaStream_t stream) {
    all[set]->forward(on_stream(stream));
    check(gpu::gated_delta_rule_backward(arguments(set), scratch.as(), on_stream(stream)));
    for (const bool of_q : {true, false})
      if (m.delta) check(gpu::rms_norm_backward(norm_arguments(set, of_q), norm_scratch.as(), on_stream(stream)));
  });
  const int64_t backward = 2 * first.inputs_and_outputs() - first.y.bytes();  // reads grad_y, writes a gradient of each input
  report.add({std::string(m.name) + "_forward_backward_b4_n2048", std::string(m.name) + " forward + backward B4 N2048" + first.shape(), ms,
              "ms", static_cast<double>(first.inputs_and_outputs() + backward) / bytes_per_ms()});
}

// The sets are independent, as the layers of a decode step are: with `settled` a call reads its states while the previous call still runs.
void time_step(Report& report, const Member& m, bool settled) {
  const auto all = problems(4, m, 128, 1);
  for (const auto& problem : all) problem->p.state_is_private = settled;
  const double ms = median_ms(4, [&](int set, cudaStream_t stream) { check(gpu::gated_delta_rule_step(all[set]->p, on_stream(stream))); });
  report.add({settled ? std::string(m.name) + "_step_b128" : "",
              std::string(m.name) + " step B128, fp32 state read and written" + (settled ? ", settled" : ""), ms, "ms",
              2 * static_cast<double>(all[0]->state.bytes()) / bytes_per_ms()});
}

void time_gated_delta_rule(Report& report) {
  for (const Member& m : kMembers) {
    time_forward(report, m), time_forward_backward(report, m);
    for (const bool settled : {false, true}) time_step(report, m, settled);
  }
}

const DefineFamily<Report> kGatedDeltaRule("gated_delta_rule", time_gated_delta_rule);

}  // namespace
}  // namespace based::bench
