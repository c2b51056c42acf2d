#include "tests/kernels/delta_rule/cuda/gated_delta_rule.cuh"

namespace based::tests {
namespace {

namespace gpu = kernels::cuda;
using Reals = std::vector<double>;

struct Gradients {
  Reals q, k, v, decay, beta, initial;
};

// The forward of one token of one head: the decayed state D, Dᵀk, u, and the state after the token.
struct TokenForward {
  Reals decayed, predicted, added, after;
};

// Forward and backward of one head of one row by the formula.
struct HeadOfRow {
  const RuleProblem& problem;
  const RuleInputs& in;
  const int64_t row, head, keys = problem.c.key_dim, values = problem.c.value_dim;

  int64_t line(int64_t t) const { return t * problem.c.heads + head; }
  const double* key_line(const Reals& x, int64_t t) const {
    return x.data() + (t * problem.c.key_heads + head * problem.c.key_heads / problem.c.heads) * keys;
  }
  int64_t decay_at(int64_t t, int64_t i) const { return line(t) * problem.c.decay_dim + (problem.c.decay_dim == 1 ? 0 : i); }
  double decay(int64_t t, int64_t i) const { return problem.c.decay_dim > 0 ? std::exp(in.decay[decay_at(t, i)]) : 1; }
  double beta(int64_t t) const { return problem.c.beta ? in.beta[line(t)] : 1; }

  TokenForward step_forward(Reals state, int64_t t) const {
    TokenForward to{std::move(state), Reals(values), Reals(values), {}};
    const double* k = key_line(in.k, t);
    for (int64_t i = 0; i < keys; ++i)
      for (int64_t j = 0; j < values; ++j) to.predicted[j] += k[i] * (to.decayed[i * values + j] *= decay(t, i));
    to.after = to.decayed;
    for (int64_t j = 0; j < values; ++j) {
      to.added[j] = beta(t) * (in.v[line(t) * values + j] - (problem.c.delta ? to.predicted[j] : 0));
      for (int64_t i = 0; i < keys; ++i) to.after[i * values + j] += k[i] * to.added[j];
    }
    return to;
  }

  // grad: on entry the gradient of the state after the token, on return of the state before it.
  void step_backward(const TokenForward& at, const double* grad_y, Reals& grad, int64_t t, Gradients& to) const {
    const double *q = key_line(in.q, t), *k = key_line(in.k, t);
    Reals grad_added(values);
    for (int64_t i = 0; i < keys; ++i) {
      for (int64_t j = 0; j < values; ++j) {
        const int64_t ij = i * values + j;
        to.q[line(t) * keys + i] += 0.5 * at.after[ij] * grad_y[j];
        grad[ij] += 0.5 * q[i] * grad_y[j];
        grad_added[j] += grad[ij] * k[i];
        to.k[line(t) * keys + i] += grad[ij] * at.added[j];
      }
    }
    for (int64_t j = 0; j < values; ++j) {
      to.v[line(t) * values + j] = beta(t) * grad_added[j];
      to.beta[line(t)] += grad_added[j] * (in.v[line(t) * values + j] - (problem.c.delta ? at.predicted[j] : 0));
    }
    for (int64_t i = 0; i < keys; ++i) {
      for (int64_t j = 0; j < values; ++j) {
        const int64_t ij = i * values + j;
        if (problem.c.delta) {
          to.k[line(t) * keys + i] -= beta(t) * grad_added[j] * at.decayed[ij];
          grad[ij] -= k[i] * beta(t) * grad_added[j];
        }
        if (problem.c.decay_dim > 0) to.decay[decay_at(t, i)] += grad[ij] * at.decayed[ij];
        grad[ij] *= decay(t, i);
      }
    }
  }

  void run(const Reals& grad_y, const Reals& grad_state, Gradients& to) const {
    const int64_t at = (row * problem.c.heads + head) * keys * values, begin = problem.c.starts[row], end = problem.c.starts[row + 1];
    std::vector<TokenForward> tokens;
    for (int64_t t = begin; t < end; ++t)
      tokens.push_back(
          step_forward(t == begin ? Reals(in.before.begin() + at, in.before.begin() + at + keys * values) : tokens.back().after, t));
    Reals grad(grad_state.begin() + at, grad_state.begin() + at + keys * values);
    for (int64_t t = end - 1; t >= begin; --t) step_backward(tokens[t - begin], grad_y.data() + line(t) * values, grad, t, to);
    std::copy(grad.begin(), grad.end(), to.initial.begin() + at);
  }
};

void verify(Report& report, const RuleCase& c) {
  const DType dtype = DType::bf16;
  const RuleProblem problem(c, dtype);
  const int64_t keys = problem.tokens * c.heads * c.key_dim, gates = problem.tokens * c.heads, states = problem.states;
  const Buffer grad_y = random_buffer(problem.values, dtype, 1, 21), grad_state = random_buffer(states, DType::f32, 1, 22);
  const Buffer q(keys * 2), k(keys * 2), v(problem.values * 2), decay(gates * std::max(1, c.decay_dim) * 4), beta(gates * 4),
      initial(states * 4);
  kernels::GatedDeltaRuleBackward p;
  p.forward = problem.p;
  p.forward.y = nullptr, p.forward.slot = nullptr;
  p.grad_y = grad_y.as(), p.grad_state = grad_state.as<float>(), p.grad_q = q.as(), p.grad_k = k.as(), p.grad_v = v.as();
  if (c.decay_dim > 0) p.grad_log_decay = decay.as<float>();
  if (c.beta) p.grad_beta = beta.as<float>();
  p.grad_initial_state = initial.as<float>();
  if (!gpu::gated_delta_rule_has_backward(p.forward)) return report.no_kernel(problem.name("gated_delta_rule_backward"));
  const Buffer scratch(gpu::gated_delta_rule_backward_scratch(p));
  const RuleInputs in = inputs_of(problem);
  check(gpu::gated_delta_rule_backward(p, scratch.as(), {}));
  Gradients expected{Reals(keys), Reals(keys), Reals(problem.values), Reals(gates * std::max(1, c.decay_dim)), Reals(gates), Reals(states)};
  const Reals grad_ys = download(grad_y.as(), dtype, problem.values), grad_states = download(grad_state.as(), DType::f32, states);
  for (int64_t row = 0; row < problem.rows; ++row)
    for (int64_t head = 0; head < c.heads; ++head) HeadOfRow{problem, in, row, head}.run(grad_ys, grad_states, expected);
  const auto expect = [&](const char* what, const Buffer& found, DType type, Reals wanted) {
    wanted.resize(type == DType::f32 && &found == &initial ? problem.rows * c.heads * c.key_dim * c.value_dim : wanted.size());
    report.expect(problem.name("gated_delta_rule_backward") + ": " + what,
                  relative_error(download(found.as(), type, static_cast<int64_t>(wanted.size())), wanted), 1e-2);
  };
  expect("q", q, dtype, expected.q), expect("k", k, dtype, expected.k), expect("v", v, dtype, expected.v);
  if (c.decay_dim > 0) expect("decay", decay, DType::f32, expected.decay);
  if (c.beta) expect("beta", beta, DType::f32, expected.beta);
  expect("initial state", initial, DType::f32, expected.initial);
}

void verify_gated_delta_rule_backward(Report& report) {
  const std::vector<int64_t> odd{0, 0, 1, 64, 128, 193, 193, 195, 212, 342, 342}, two{0, 150, 400};
  for (const RuleCase& c : std::vector<RuleCase>{{odd, 2, 2, 128, 128, 128, false, false, false},
                                                 {odd, 1, 2, 64, 64, 64, false, false, false},
                                                 {two, 1, 1, 128, 256, 128, false, false, false, -30},
                                                 {odd, 2, 2, 128, 128, 0, true, true, false},
                                                 {odd, 2, 2, 128, 128, 1, true, true, false},
                                                 {two, 1, 1, 64, 192, 1, true, true, false, -30},
                                                 {two, 1, 2, 64, 128, 1, true, false, false},
                                                 {odd, 1, 4, 128, 64, 1, false, false, false},
                                                 {two, 1, 1, 64, 64, 0, false, false, false}})
    verify(report, c);
}

const DefineFamily<Report> kGatedDeltaRuleBackward("gated_delta_rule_backward", verify_gated_delta_rule_backward);

}  // namespace
}  // namespace based::tests
