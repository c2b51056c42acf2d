#include "based/kernels/delta_rule/delta_rule_step.h"
#include "tests/kernels/delta_rule/cuda/gated_delta_rule.cuh"

namespace based::tests {
namespace {

namespace gpu = kernels::cuda;

struct Expected {
  std::vector<double> y, state;
};

// The forward of one head of one row by the formula.
void compute_head(const RuleProblem& problem, const RuleInputs& in, int64_t row, int64_t head, Expected& to) {
  const RuleCase& c = problem.c;
  const auto& [q, k, v, decay, beta, bonus, states] = in;
  double* const state = to.state.data() + ((problem.rows - row) * c.heads + head) * c.key_dim * c.value_dim;
  for (int64_t t = c.starts[row]; t < c.starts[row + 1]; ++t) {
    const int64_t line = t * c.heads + head, key_line = (t * c.key_heads + head * c.key_heads / c.heads) * c.key_dim;
    for (int64_t j = 0; j < c.value_dim; ++j) {
      double before = 0, held = 0, own = 0, after = 0;
      for (int64_t i = 0; i < c.key_dim; ++i) {
        double& s = state[i * c.value_dim + j];
        before += q[key_line + i] * s;
        if (c.bonus) own += q[key_line + i] * bonus[head * c.key_dim + i] * k[key_line + i];
        if (c.decay_dim > 0) s *= std::exp(decay[line * c.decay_dim + (c.decay_dim == 1 ? 0 : i)]);
        held += k[key_line + i] * s;
      }
      const double value = v[line * c.value_dim + j], added = (value - (c.delta ? held : 0)) * (c.beta ? beta[line] : 1);
      for (int64_t i = 0; i < c.key_dim; ++i) {
        double& s = state[i * c.value_dim + j];
        s += k[key_line + i] * added;
        after += q[key_line + i] * s;
      }
      to.y[line * c.value_dim + j] = 0.5 * (c.bonus ? before + own * value : after);
    }
  }
}

Expected expected_of(const RuleProblem& problem) {
  const RuleCase& c = problem.c;
  const RuleInputs in = inputs_of(problem);
  Expected to{std::vector<double>(problem.values), in.before};
  for (int64_t row = 0; row < problem.rows; ++row)
    for (int64_t head = 0; head < c.heads; ++head) compute_head(problem, in, row, head, to);
  return to;
}

void expect_all(Report& report, const std::string& name, const RuleProblem& problem, double limit) {
  const Expected expected = expected_of(problem);
  report.expect(name + ": y", relative_error(download(problem.y.as(), problem.dtype, problem.values), expected.y), limit);
  report.expect(name + ": state", relative_error(download(problem.state.as(), DType::f32, problem.states), expected.state), limit);
}

void verify_forward(Report& report, const RuleCase& c, DType dtype) {
  const RuleProblem problem(c, dtype);
  check(gpu::gated_delta_rule_forward(problem.p, problem.scratch.as(), {}));
  // The chunk kernels also round the operands of sums to bf16.
  expect_all(report, problem.name("gated_delta_rule"), problem, problem.scratch.bytes() > 0 ? 6e-3 : allowed(dtype));
}

std::vector<int64_t> single_tokens(int64_t rows) {
  std::vector<int64_t> starts;
  for (int64_t r = 0; r <= rows; ++r) starts.push_back(r);
  return starts;
}

void verify_step(Report& report, RuleCase c, DType dtype) {
  c.starts = single_tokens(static_cast<int64_t>(c.starts.size()) - 1);
  const RuleProblem problem(c, dtype);
  check(gpu::gated_delta_rule_step(problem.p, {}));
  expect_all(report, problem.name("gated_delta_rule_step"), problem, allowed(dtype));
}

// Expects that single rows give the same bits as with all rows, whose number may select wider slices. `all` has been run before.
void expect_rows_alone(Report& report, const std::string& name, const RuleProblem& problem, const kernels::GatedDeltaRuleOfLayer& all) {
  const RuleCase& c = problem.c;
  const int64_t keys = int64_t{c.key_heads} * c.key_dim * 2, values = int64_t{c.heads} * c.value_dim, size = values * c.key_dim;
  const std::vector<double> ys = download(problem.y.as(), problem.dtype, problem.values),
                            states = download(problem.state.as(), DType::f32, problem.states);
  const auto part = [](const std::vector<double>& from, int64_t row, int64_t count) {
    return std::vector<double>(from.begin() + row * count, from.begin() + (row + 1) * count);
  };
  double worst = 0;
  for (const int64_t row : {int64_t{0}, problem.rows / 3, problem.rows - 1}) {
    const Buffer y(values * 2), state = copy_of(problem.before);
    kernels::GatedDeltaRuleOfLayer one = all;
    GatedDeltaRule& p = one.rule;
    p.q = problem.q.as<char>() + row * keys, p.k = problem.k.as<char>() + row * keys, p.v = problem.v.as<char>() + row * values * 2;
    p.y = y.as(), p.slot += row, p.state = state.as<float>(), p.tokens = p.rows = one.layer.rows = 1;
    one.layer.x = static_cast<const char*>(all.layer.x) + row * all.layer.x_stride * 2;
    check(gpu::gated_delta_rule_step_of_layer(one, {}));
    const int64_t slot = problem.rows - row;
    worst = std::max(worst, relative_error(download(y.as(), problem.dtype, values), part(ys, row, values)));
    worst = std::max(worst, relative_error(part(download(state.as(), DType::f32, problem.states), slot, size), part(states, slot, size)));
  }
  report.expect(name + ": rows alone", worst, 0);
}

// Compares the step that computes its own decays with the formula. The formula's decays come from a layer in double precision, with its
// output rounded to bf16.
void verify_step_of_layer(Report& report, int64_t rows, int32_t heads, int32_t key_dim, int32_t value_dim, bool settled, bool with_bias) {
  constexpr int64_t in = kernels::kRuleStepInputs, x_stride = in + 8;
  const RuleCase c{single_tokens(rows), heads, heads, key_dim, value_dim, key_dim, false, false, false};
  RuleProblem problem(c, DType::bf16);
  const int64_t out = int64_t{heads} * key_dim;
  const Buffer x = random_buffer(problem.rows * x_stride, problem.dtype, 1, 20), weight = random_buffer(out * in, problem.dtype, 0.5, 21),
               bias = random_buffer(out, problem.dtype, 1, 22), logits(problem.rows * out * 2);
  const kernels::Linear layer{
      x.as(), weight.as(), with_bias ? bias.as() : nullptr, logits.as(), problem.rows, in, out, x_stride, in, out, DType::bf16, DType::bf16,
      false,  settled};
  problem.p.state_is_private = settled;
  const kernels::GatedDeltaRuleOfLayer all{problem.p, layer, 1.0F / 4};
  const std::string name = problem.name("gated_delta_rule_step of a layer") + (settled ? " settled" : "") + (with_bias ? " bias" : "");
  if (!kernels::gated_delta_rule_makes_decays(all, gpu::this_gpu())) return report.no_kernel(name);
  const auto xs = download(x.as(), problem.dtype, problem.rows * x_stride), weights = download(weight.as(), problem.dtype, out * in),
             biases = download(bias.as(), problem.dtype, out);
  std::vector<float> decays;
  for (int64_t r = 0; r < problem.rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = with_bias ? biases[o] : 0;
      for (int64_t i = 0; i < in; ++i) sum += xs[r * x_stride + i] * weights[o * in + i];
      const float rounded = __bfloat162float(__float2bfloat16(static_cast<float>(sum)));
      decays.push_back(static_cast<float>(-std::log1p(std::exp(-static_cast<double>(rounded))) / 4));
    }
  }
  problem.decay = upload_floats(decays);
  check(gpu::gated_delta_rule_step_of_layer(all, {}));
  expect_all(report, name, problem, allowed(problem.dtype));
  expect_rows_alone(report, name, problem, all);
}

// Without a state: a row gives the same bits with other rows as alone with a state of zeros.
void verify_rows(Report& report, const RuleCase& c) {
  RuleProblem all(c, DType::bf16);
  all.p.state = nullptr;
  check(gpu::gated_delta_rule_forward(all.p, all.scratch.as(), {}));
  const std::vector<double> together = download(all.y.as(), DType::bf16, all.values);
  const int64_t keys = int64_t{c.key_heads} * c.key_dim * 2, values = int64_t{c.heads} * c.value_dim;
  double worst = 0;
  for (int64_t r = 0; r < all.rows; ++r) {
    const int64_t start = c.starts[r], length = c.starts[r + 1] - start;
    if (length == 0) continue;
    const Buffer y(length * values * 2), own_start = upload({0, length}), state = zeros(int64_t{c.heads} * c.key_dim * c.value_dim * 4);
    GatedDeltaRule p = all.p;
    p.q = all.q.as<char>() + start * keys, p.k = all.k.as<char>() + start * keys, p.v = all.v.as<char>() + start * values * 2;
    if (p.log_decay != nullptr) p.log_decay += start * c.heads * c.decay_dim;
    if (p.beta != nullptr) p.beta += start * c.heads;
    p.y = y.as(), p.row_start = own_start.as<int64_t>(), p.slot = nullptr, p.state = state.as<float>(), p.tokens = length, p.rows = 1;
    check(gpu::gated_delta_rule_forward(p, all.scratch.as(), {}));
    const std::vector<double> alone = download(y.as(), DType::bf16, length * values);
    worst = std::max(worst, relative_error(alone, {together.begin() + start * values, together.begin() + (start + length) * values}));
  }
  report.expect(all.name("gated_delta_rule rows alone"), worst, 0);
}

void verify_gated_delta_rule(Report& report) {
  const std::vector<int64_t> odd{0, 0, 1, 64, 128, 193, 193, 195, 212, 342, 342}, two{0, 150, 400};
  const std::vector<RuleCase> cases = {
      {odd, 2, 2, 128, 128, 128, false, false, false},     {odd, 1, 2, 64, 64, 64, false, false, true},
      {odd, 2, 2, 128, 128, 0, true, true, false},         {odd, 2, 2, 128, 128, 1, true, true, false},
      {odd, 1, 4, 128, 64, 1, false, true, false},         {two, 1, 1, 128, 256, 128, false, true, false, -300},
      {two, 1, 1, 64, 64, 64, false, false, true, -300},   {two, 1, 1, 256, 192, 1, true, true, false, -300},
      {two, 2, 2, 256, 64, 256, false, false, false},      {two, 2, 2, 64, 128, 1, true, false, false},
      {two, 1, 1, 64, 64, 1, false, false, true},          {two, 1, 2, 64, 64, 64, true, true, false},
      {odd, 2, 2, 33, 67, 33, true, true, false},          {odd, 2, 2, 6, 10, 6, false, false, true},
      {two, 1, 1, 250, 33, 1, true, true, false},          {{0, 3, 9}, 1, 1, 1024, 5, 1024, true, true, false},
      {{0, 3, 9}, 1, 1, 1, 1, 0, true, true, false},       {{0, 0}, 1, 1, 64, 64, 1, true, true, false},
      {{0, 5, 9}, 1, 1, 300, 32, 300, false, true, false}, {{0, 450}, 1, 1, 128, 64, 128, false, false, false},
      {{0, 450}, 1, 1, 128, 64, 1, true, true, false},
  };
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const RuleCase& c : cases) verify_forward(report, c, dtype), verify_step(report, c, dtype);
  }
  verify_step_of_layer(report, 5, 4, 128, 64, true, true), verify_step_of_layer(report, 5, 2, 64, 32, false, false);
  verify_step_of_layer(report, 5, 1, 256, 64, true, false), verify_step_of_layer(report, 5, 3, 40, 96, true, true);
  // Enough rows to fill any current GPU.
  verify_step_of_layer(report, 300, 2, 128, 128, true, true), verify_step_of_layer(report, 300, 3, 100, 64, false, false);
  for (const RuleCase& c : {cases[0], cases[3], cases[12]}) verify_rows(report, c);
}

const DefineFamily<Report> kGatedDeltaRule("gated_delta_rule", verify_gated_delta_rule);

}  // namespace
}  // namespace based::tests
