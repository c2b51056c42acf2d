#include "based/kernels/gated_delta_rule_step.h"
#include "tests/kernels/cuda/gated_delta_rule.cuh"

namespace based::tests {
namespace {

namespace gpu = kernels::cuda;

struct Expected {
  std::vector<double> y, state;
};

// One head of one row by the formula.
void walk(const RuleProblem& of, const RuleInputs& in, int64_t row, int64_t head, Expected& to) {
  const RuleCase& c = of.c;
  const auto& [q, k, v, decay, beta, bonus, states] = in;
  double* const state = to.state.data() + ((of.rows - row) * c.heads + head) * c.key_dim * c.value_dim;
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

Expected expected_of(const RuleProblem& of) {
  const RuleCase& c = of.c;
  const RuleInputs in = inputs_of(of);
  Expected to{std::vector<double>(of.values), in.before};
  for (int64_t row = 0; row < of.rows; ++row)
    for (int64_t head = 0; head < c.heads; ++head) walk(of, in, row, head, to);
  return to;
}

void expect_all(Report& report, const std::string& name, const RuleProblem& of, double limit) {
  const Expected expected = expected_of(of);
  report.expect(name + ": y", relative_error(download(of.y.as(), of.dtype, of.values), expected.y), limit);
  report.expect(name + ": state", relative_error(download(of.state.as(), DType::f32, of.states), expected.state), limit);
}

void verify_forward(Report& report, const RuleCase& c, DType dtype) {
  const RuleProblem of(c, dtype);
  check(gpu::gated_delta_rule_forward(of.p, of.scratch.as(), {}));
  // By chunks operands of sums are bf16 too.
  expect_all(report, of.name("gated_delta_rule"), of, of.scratch.bytes() > 0 ? 6e-3 : allowed(dtype));
}

std::vector<int64_t> single_tokens(int64_t rows) {
  std::vector<int64_t> starts;
  for (int64_t r = 0; r <= rows; ++r) starts.push_back(r);
  return starts;
}

void verify_step(Report& report, RuleCase c, DType dtype) {
  c.starts = single_tokens(static_cast<int64_t>(c.starts.size()) - 1);
  const RuleProblem of(c, dtype);
  check(gpu::gated_delta_rule_step(of.p, {}));
  expect_all(report, of.name("gated_delta_rule_step"), of, allowed(dtype));
}

// A row's bits, alone as with all the others, which may be enough for wider slices; `all` has run.
void expect_rows_alone(Report& report, const std::string& name, const RuleProblem& of, const kernels::GatedDeltaRuleOfLayer& all) {
  const RuleCase& c = of.c;
  const int64_t keys = int64_t{c.key_heads} * c.key_dim * 2, values = int64_t{c.heads} * c.value_dim, size = values * c.key_dim;
  const std::vector<double> ys = download(of.y.as(), of.dtype, of.values), states = download(of.state.as(), DType::f32, of.states);
  const auto part = [](const std::vector<double>& from, int64_t row, int64_t count) {
    return std::vector<double>(from.begin() + row * count, from.begin() + (row + 1) * count);
  };
  double worst = 0;
  for (const int64_t row : {int64_t{0}, of.rows / 3, of.rows - 1}) {
    const Buffer y(values * 2), state = copy_of(of.before);
    kernels::GatedDeltaRuleOfLayer one = all;
    GatedDeltaRule& p = one.rule;
    p.q = of.q.as<char>() + row * keys, p.k = of.k.as<char>() + row * keys, p.v = of.v.as<char>() + row * values * 2;
    p.y = y.as(), p.slot += row, p.state = state.as<float>(), p.tokens = p.rows = one.layer.rows = 1;
    one.layer.x = static_cast<const char*>(all.layer.x) + row * all.layer.x_stride * 2;
    check(gpu::gated_delta_rule_step_of_layer(one, {}));
    const int64_t slot = of.rows - row;
    worst = std::max(worst, relative_error(download(y.as(), of.dtype, values), part(ys, row, values)));
    worst = std::max(worst, relative_error(part(download(state.as(), DType::f32, of.states), slot, size), part(states, slot, size)));
  }
  report.expect(name + ": rows alone", worst, 0);
}

// A step that makes its decays, against the formula with decays of a layer in double, rounded as the layer rounds.
void verify_step_of_layer(Report& report, int64_t rows, int32_t heads, int32_t key_dim, int32_t value_dim, bool settled, bool with_bias) {
  constexpr int64_t in = kernels::kRuleStepInputs, x_stride = in + 8;
  const RuleCase c{single_tokens(rows), heads, heads, key_dim, value_dim, key_dim, false, false, false};
  RuleProblem of(c, DType::bf16);
  const int64_t out = int64_t{heads} * key_dim;
  const Buffer x = random_buffer(of.rows * x_stride, of.dtype, 1, 20), weight = random_buffer(out * in, of.dtype, 0.5, 21),
               bias = random_buffer(out, of.dtype, 1, 22), logits(of.rows * out * 2);
  const kernels::Linear layer{
      x.as(), weight.as(), with_bias ? bias.as() : nullptr, logits.as(), of.rows, in, out, x_stride, in, out, of.dtype, of.dtype,
      false,  settled};
  of.p.state_is_private = settled;
  const kernels::GatedDeltaRuleOfLayer all{of.p, layer, 1.0F / 4};
  const std::string name = of.name("gated_delta_rule_step of a layer") + (settled ? " settled" : "") + (with_bias ? " bias" : "");
  if (!kernels::gated_delta_rule_makes_decays(all, gpu::this_gpu())) return report.no_kernel(name);
  const auto xs = download(x.as(), of.dtype, of.rows * x_stride), weights = download(weight.as(), of.dtype, out * in),
             biases = download(bias.as(), of.dtype, out);
  std::vector<float> decays;
  for (int64_t r = 0; r < of.rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = with_bias ? biases[o] : 0;
      for (int64_t i = 0; i < in; ++i) sum += xs[r * x_stride + i] * weights[o * in + i];
      const float rounded = __bfloat162float(__float2bfloat16(static_cast<float>(sum)));
      decays.push_back(static_cast<float>(-std::log1p(std::exp(-static_cast<double>(rounded))) / 4));
    }
  }
  of.decay = upload_floats(decays);
  check(gpu::gated_delta_rule_step_of_layer(all, {}));
  expect_all(report, name, of, allowed(of.dtype));
  expect_rows_alone(report, name, of, all);
}

// Without a state, rows in any company: the same bits as alone from zeros.
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

}  // namespace

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
  // Rows that fill any GPU of today.
  verify_step_of_layer(report, 300, 2, 128, 128, true, true), verify_step_of_layer(report, 300, 3, 100, 64, false, false);
  for (const RuleCase& c : {cases[0], cases[3], cases[12]}) verify_rows(report, c);
}

}  // namespace based::tests
