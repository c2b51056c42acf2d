// Problems for the forward, step and backward of the gated delta rule.
#pragma once
#include "based/kernels/delta_rule/delta_rule.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {

using kernels::DType;
using kernels::GatedDeltaRule;
struct RuleCase {
  std::vector<int64_t> starts;
  int32_t key_heads, heads, key_dim, value_dim;
  int32_t decay_dim;  // 0: no decay
  bool delta, beta, bonus;
  double mean_decay = -0.2;  // mean of the log decays
};

inline std::vector<float> rule_gates(int64_t count, double scale, uint64_t seed, double (*function)(double)) {
  std::vector<float> to;
  for (const double x : download(random_buffer(count, DType::f32, 1, seed).as(), DType::f32, count))
    to.push_back(static_cast<float>(scale * function(x)));
  return to;
}

struct RuleProblem {
  const RuleCase c;
  const DType dtype;
  const int64_t rows, tokens, keys, values, states;  // numbers of elements
  Buffer q, k, v, decay, beta, bonus, before, state, y, starts, slots, scratch;
  GatedDeltaRule p;

  RuleProblem(const RuleCase& rule_case, DType type)
      : c(rule_case),
        dtype(type),
        rows(static_cast<int64_t>(c.starts.size()) - 1),
        tokens(c.starts.back()),
        keys(tokens * c.key_heads * c.key_dim),
        values(tokens * c.heads * c.value_dim),
        states((rows + 1) * c.heads * c.key_dim * c.value_dim),
        q(random_buffer(keys, dtype, 1, 1)),
        k(random_buffer(keys, dtype, 1 / std::sqrt(c.key_dim), 2)),
        v(random_buffer(values, dtype, 1, 3)),
        decay(upload_floats(rule_gates(tokens * c.heads * std::max(1, c.decay_dim), c.mean_decay, 4, std::fabs))),
        beta(upload_floats(rule_gates(tokens * c.heads, 2, 5, sigmoid))),
        bonus(random_buffer(int64_t{c.heads} * c.key_dim, DType::f32, 1, 6)),
        before(random_buffer(states, DType::f32, 1, 7)),
        state(copy_of(before)),
        y(values * 4),
        starts(upload(c.starts)) {
    std::vector<int64_t> all;
    for (int64_t r = 0; r < rows; ++r) all.push_back(rows - r);
    slots = upload(all);
    p.q = q.as(), p.k = k.as(), p.v = v.as(), p.y = y.as(), p.state = state.as<float>();
    if (c.decay_dim > 0) p.log_decay = decay.as<float>(), p.decay_dim = c.decay_dim;
    if (c.beta) p.beta = beta.as<float>();
    if (c.bonus) p.bonus = bonus.as<float>();
    p.row_start = starts.as<int64_t>(), p.slot = slots.as<int64_t>(), p.tokens = tokens, p.rows = rows;
    p.key_heads = c.key_heads, p.heads = c.heads, p.key_dim = c.key_dim, p.value_dim = c.value_dim;
    p.delta = c.delta, p.scale = 0.5F, p.dtype = dtype;
    scratch = Buffer(kernels::cuda::gated_delta_rule_scratch(p));
  }
  std::string name(const char* what) const {
    return std::string(what) + " key " + std::to_string(c.key_dim) + " value " + std::to_string(c.value_dim) + " heads " +
           std::to_string(c.key_heads) + "/" + std::to_string(c.heads) + " rows " + std::to_string(rows) + " decay " +
           std::to_string(c.decay_dim) + " x " + std::to_string(c.mean_decay) + (c.delta ? " delta" : "") + (c.beta ? " beta" : "") +
           (c.bonus ? " bonus" : "") + type_name(dtype);
  }
};

// The inputs on the host.
struct RuleInputs {
  std::vector<double> q, k, v, decay, beta, bonus, before;
};
inline RuleInputs inputs_of(const RuleProblem& problem) {
  const RuleCase& c = problem.c;
  return {download(problem.q.as(), problem.dtype, problem.keys),
          download(problem.k.as(), problem.dtype, problem.keys),
          download(problem.v.as(), problem.dtype, problem.values),
          download(problem.decay.as(), DType::f32, problem.tokens * c.heads * std::max(1, c.decay_dim)),
          download(problem.beta.as(), DType::f32, problem.tokens * c.heads),
          download(problem.bonus.as(), DType::f32, int64_t{c.heads} * c.key_dim),
          download(problem.before.as(), DType::f32, problem.states)};
}

}  // namespace based::tests
