#include "based/eval/selftest_operators.h"

#include <cmath>

#include "based/eval/selftest_models.h"
#include "based/kernels/taylor/deferred.h"
#include "based/ops/attention/causal_attention.h"
#include "based/ops/attention/paged_attention.h"
#include "based/ops/attention/rotary.h"
#include "based/ops/conv/diagonal_filter.h"
#include "based/ops/conv/gated_long_conv.h"
#include "based/ops/conv/long_conv.h"
#include "based/ops/conv/projected_conv.h"
#include "based/ops/conv/short_conv.h"
#include "based/ops/delta_rule/gated_delta_rule.h"
#include "based/ops/linear/gated_mlp.h"
#include "based/ops/linear/linear.h"
#include "based/ops/linear/quantised_linear.h"
#include "based/ops/linear_attention/linear_attention.h"
#include "based/ops/norm/layer_norm.h"
#include "based/ops/norm/rms_norm.h"
#include "based/ops/pointwise/rowwise.h"
#include "based/ops/pointwise/swiglu.h"
#include "based/ops/sampling/adjusted_logits.h"
#include "based/ops/sampling/most_likely.h"
#include "based/ops/sampling/sample.h"
#include "based/ops/scan/selective_scan.h"
#include "based/ops/taylor/taylor_attention.h"
#include "based/ops/taylor/taylor_deferred.h"
#include "based/ops/training/adamw.h"
#include "based/ops/training/cross_entropy.h"
#include "based/ops/training/dropout.h"
#include "based/ops/training/embedding.h"
#include "based/ops/training/gradient_norm.h"

namespace based {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

Tensors as_type(const Tensors& tensors, torch::Device device, torch::Dtype type, bool gradients) {
  Tensors result;
  for (const auto& tensor : tensors) result.push_back(tensor.to(device, type).detach().clone().requires_grad_(gradients));
  return result;
}

Tensor draw(torch::IntArrayRef shape, double scale = 1) { return (torch::randn(shape) * scale).to(torch::kBFloat16).to(torch::kFloat); }

// Row boundaries for `tokens` tokens, on the device of `like`; the second row is empty.
Tensor row_starts(const Tensor& like) {
  return torch::tensor({int64_t{0}, int64_t{65}, int64_t{65}, int64_t{66}, int64_t{196}}).to(like.device());
}
constexpr int64_t kTokens = 196;

// Decodes the first row token by token, with plain steps or with deferred steps, whose pending tokens are flushed into the state once.
Tensor taylor_steps(const Tensors& x, bool deferred) {
  const auto sums = torch::dtype(torch::kFloat).device(x[0].device());
  ops::TaylorState state{torch::zeros({1, 2, kernels::packed_features(16), 24}, sums),
                         torch::zeros({1, 2, kernels::packed_features(16)}, sums)};
  ops::TaylorPending pending{torch::zeros({1, 2, kernels::kTaylorPending, 16}, x[0].options()),
                             torch::zeros({1, 2, kernels::kTaylorPending, 24}, x[0].options()),
                             torch::zeros({1, 2}, sums.dtype(torch::kInt))};
  const Tensor slot = torch::zeros({1}, sums.dtype(torch::kInt64));
  Tensors rows;
  for (int64_t t = 0; t < 65; ++t) {
    if (deferred && t == 41) ops::taylor_deferred_flush_(state, pending, slot);
    const Tensor q = x[0].narrow(0, t, 1), k = x[1].narrow(0, t, 1), v = x[2].narrow(0, t, 1);
    rows.push_back(deferred ? ops::taylor_deferred_step(q, k, v, state, pending, slot) : ops::taylor_attention_step(q, k, v, state, slot));
  }
  return torch::cat(rows);
}

// Decodes the first row token by token; features are positive.
Tensor linear_attention_steps(const Tensors& x) {
  const auto sums = torch::dtype(torch::kFloat).device(x[0].device());
  Tensor kv = torch::zeros({1, 2, 16, 24}, sums), k = torch::zeros({1, 2, 16}, sums), slot = torch::zeros({1}, sums.dtype(torch::kInt64));
  Tensors rows;
  for (int64_t t = 0; t < 65; ++t)
    rows.push_back(
        ops::linear_attention_step(x[0].narrow(0, t, 1).abs(), x[1].narrow(0, t, 1).abs(), x[2].narrow(0, t, 1), kv, k, slot, 1e-6));
  return torch::cat(rows);
}

std::vector<OperatorCheck> linear_attention_checks() {
  const auto qkv = [] { return Tensors{draw({kTokens, 2, 16}), draw({kTokens, 2, 16}), draw({kTokens, 2, 24})}; };
  const auto reference = [](const Tensors& x) {
    return std::get<0>(ops::linear_attention_reference(x[0].abs(), x[1].abs(), x[2], row_starts(x[0]), {}, 1e-6));
  };
  const auto pairs = [](const Tensors& x) { return ops::linear_attention_pairs(x[0].abs(), x[1].abs(), x[2], row_starts(x[0]), 1e-6); };
  return {
      {"linear_attention_pairs", qkv, pairs, reference},
      {"linear_attention", qkv,
       [](const Tensors& x) { return std::get<0>(ops::linear_attention(x[0].abs(), x[1].abs(), x[2], row_starts(x[0]), {}, 1e-6)); },
       reference},
      {"linear_attention_step", qkv, linear_attention_steps, [=](const Tensors& x) { return reference(x).narrow(0, 0, 65); }, false},
  };
}

std::vector<OperatorCheck> attention_checks() {
  const auto qkv = [] { return Tensors{draw({kTokens, 2, 16}, 0.5), draw({kTokens, 2, 16}, 0.5), draw({kTokens, 2, 24})}; };
  const auto qkv_same_width = [] { return Tensors{draw({kTokens, 2, 16}), draw({kTokens, 2, 16}), draw({kTokens, 2, 16})}; };
  const auto dropout = [](const Tensor& like) { return ops::AttentionDropout{0.2, {7, torch::tensor(int64_t{5}).to(like.device())}, 3}; };
  const auto first_row = [](const Tensors& x) {
    return std::get<0>(ops::taylor_attention_reference(x[0].narrow(0, 0, 65), x[1].narrow(0, 0, 65), x[2].narrow(0, 0, 65),
                                                       torch::tensor({int64_t{0}, int64_t{65}})));
  };
  return {
      {"taylor_attention", qkv, [](const Tensors& x) { return std::get<0>(ops::taylor_attention(x[0], x[1], x[2], row_starts(x[0]))); },
       [](const Tensors& x) { return std::get<0>(ops::taylor_attention_reference(x[0], x[1], x[2], row_starts(x[0]))); }},
      {"taylor_attention, without a state", qkv,
       [](const Tensors& x) { return ops::taylor_attention_without_state(x[0], x[1], x[2], row_starts(x[0])); },
       [](const Tensors& x) { return std::get<0>(ops::taylor_attention_reference(x[0], x[1], x[2], row_starts(x[0]))); }},
      {"taylor_attention, decay", qkv,
       [](const Tensors& x) {
         return std::get<0>(ops::taylor_attention(x[0], x[1], x[2], row_starts(x[0]), {}, torch::tensor({0.97F, 0.99F}).to(x[0].device())));
       },
       [](const Tensors& x) {
         return std::get<0>(
             ops::taylor_attention_reference(x[0], x[1], x[2], row_starts(x[0]), {}, torch::tensor({0.97F, 0.99F}).to(torch::kDouble)));
       }},
      {"taylor_attention, decay of the numerator", qkv,
       [](const Tensors& x) {
         const ops::TaylorDecay decay(torch::tensor({0.97F, 0.99F}).to(x[0].device()), /*both=*/false);
         return std::get<0>(ops::taylor_attention(x[0], x[1], x[2], row_starts(x[0]), {}, decay));
       },
       [](const Tensors& x) {
         const ops::TaylorDecay decay(torch::tensor({0.97F, 0.99F}).to(torch::kDouble), /*both=*/false);
         return std::get<0>(ops::taylor_attention_reference(x[0], x[1], x[2], row_starts(x[0]), {}, decay));
       }},
      {"taylor_attention_step", qkv, [](const Tensors& x) { return taylor_steps(x, false); }, first_row, false},
      {"taylor_deferred_step", qkv, [](const Tensors& x) { return taylor_steps(x, true); }, first_row, false},
      {"causal_attention, full",
       [] {
         return Tensors{draw({kTokens, 4, 16}), draw({kTokens, 2, 16}), draw({kTokens, 2, 16})};
       },
       [](const Tensors& x) { return ops::causal_attention(x[0], x[1], x[2], row_starts(x[0]), row_starts(x[0]), 0, 0.25); },
       [](const Tensors& x) { return ops::causal_attention_reference(x[0], x[1], x[2], row_starts(x[0]), row_starts(x[0]), 0, 0.25); }},
      {"causal_attention, window", qkv_same_width,
       [](const Tensors& x) { return ops::causal_attention(x[0], x[1], x[2], row_starts(x[0]), row_starts(x[0]), 17, 0.25); },
       [](const Tensors& x) { return ops::causal_attention_reference(x[0], x[1], x[2], row_starts(x[0]), row_starts(x[0]), 17, 0.25); }},
      {"causal_attention, dropout", qkv_same_width,
       [=](const Tensors& x) {
         return ops::causal_attention(x[0], x[1], x[2], row_starts(x[0]), row_starts(x[0]), 0, 0.25, dropout(x[0]));
       },
       [=](const Tensors& x) {
         return ops::causal_attention_reference(x[0], x[1], x[2], row_starts(x[0]), row_starts(x[0]), 0, 0.25, dropout(x[0]));
       }},
  };
}

// Inputs of one row: q, k, v, log decays, beta, initial state.
Tensors delta_rule_inputs() {
  return {draw({kTokens, 2, 16}),   draw({kTokens, 2, 16}, 0.25), draw({kTokens, 2, 24}), -draw({kTokens, 2, 16}).abs() * 0.25,
          draw({kTokens, 2}).abs(), draw({1, 2, 16, 24})};
}
ops::GatedDeltaRuleInputs delta_rule(const Tensors& x, int64_t begin = 0, int64_t length = kTokens) {
  const auto part = [&](size_t i) { return x[i].narrow(0, begin, length); };
  return {part(0), part(1), part(2), part(3), part(4), {}, true, 0.25};
}
Tensor one_row(const Tensors& x, int64_t length = kTokens) { return torch::tensor({int64_t{0}, length}).to(x[0].device()); }

// Processes a prompt of 100 tokens in two pieces, then the other tokens one by one.
Tensor by_delta_rule_steps(const Tensors& x) {
  Tensor state = x[5].to(ops::sum_type(x[5])).clone();
  const Tensor slot = torch::zeros({1}, torch::dtype(torch::kInt64).device(x[0].device()));
  Tensors rows;
  for (const int64_t begin : {0, 50}) rows.push_back(ops::gated_delta_rule_prefill(delta_rule(x, begin, 50), one_row(x, 50), state, slot));
  for (int64_t t = 100; t < kTokens; ++t) rows.push_back(ops::gated_delta_rule_step(delta_rule(x, t, 1), state, slot));
  return torch::cat(rows);
}

std::vector<OperatorCheck> delta_rule_checks() {
  const auto reference = [](const Tensors& x) { return std::get<0>(ops::gated_delta_rule_reference(delta_rule(x), one_row(x), x[5])); };
  return {
      {"gated_delta_rule", delta_rule_inputs,
       [](const Tensors& x) { return std::get<0>(ops::gated_delta_rule(delta_rule(x), one_row(x), x[5].to(ops::sum_type(x[5])))); },
       reference},
      {"gated_delta_rule, steps", delta_rule_inputs, by_delta_rule_steps, reference, false},
  };
}

// Inputs x[0] to x[7]: x, dt, A_log, B, C, D, z, dt_bias.
Tensor by_selective_scan(const Tensors& x, const Tensor& cu_seqlens, decltype(&ops::selective_scan) op) {
  return std::get<0>(op({x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]}, cu_seqlens, {}));
}

// Scans the first tokens at once, the others one by one.
Tensor by_selective_scan_steps(const Tensors& x) {
  const torch::NoGradGuard no_grad;
  constexpr int64_t at_once = 40;
  Tensor state = torch::zeros({1, x[2].size(0), x[2].size(1)}, x[0].options().dtype(ops::sum_type(x[0])));
  const Tensor slot = torch::zeros({1}, torch::dtype(torch::kInt64).device(x[0].device()));
  Tensors rows;
  for (int64_t t = 0; t < x[0].size(0); t += t == 0 ? at_once : 1) {
    const auto some = [&](size_t i) { return x[i].narrow(0, t, t == 0 ? at_once : 1); };
    const ops::SelectiveScanInputs in{some(0), some(1), x[2], some(3), some(4), x[5], some(6), x[7]};
    rows.push_back(t == 0 ? ops::selective_scan_prefill(in, one_row(x, at_once), state, slot) : ops::selective_scan_step(in, state, slot));
  }
  return torch::cat(rows);
}

std::vector<OperatorCheck> scan_checks() {
  const auto inputs = [](int64_t length) {
    return Tensors{draw({length, 24}),         draw({length, 24}), draw({24, 12}, 0.5), draw({length, 2, 12}),
                   draw({length, 2, 12}, 0.3), draw({24}),         draw({length, 24}),  draw({24})};
  };
  const auto reference = [](const Tensors& x) { return by_selective_scan(x, row_starts(x[0]), ops::selective_scan_reference); };
  return {{"selective_scan", [=] { return inputs(kTokens); },
           [](const Tensors& x) { return by_selective_scan(x, row_starts(x[0]), ops::selective_scan); }, reference},
          {"selective_scan_step", [=] { return inputs(65); }, by_selective_scan_steps,
           [](const Tensors& x) { return by_selective_scan(x, one_row(x, 65), ops::selective_scan_reference); }, false}};
}

// Attention of a sequence whose keys and values are in a shuffled order of pages of 16 tokens.
Tensor by_paged_steps(const Tensors& x) {
  const auto ids = torch::dtype(torch::kInt64).device(x[0].device());
  const Tensor pool = torch::zeros({14, 16, x[1].size(1), x[1].size(2)}, x[1].options());
  const ops::AttentionCache cache{pool, pool.clone(), torch::arange(13, ids).mul(5).remainder(13).add(1).view({1, 13})};
  Tensors rows;
  for (int64_t t = 0; t < kTokens; ++t)
    rows.push_back(ops::paged_attention_step(x[0].narrow(0, t, 1), x[1].narrow(0, t, 1), x[2].narrow(0, t, 1), cache,
                                             torch::full({1}, t, ids), torch::zeros({1}, ids), 0.25));
  return torch::cat(rows);
}

// The master weights of a parameter after two AdamW steps.
Tensor by_adamw(const Tensors& x) {
  const bool own = x[0].element_size() > 2;
  Tensor master = own ? x[0].clone() : x[0].to(torch::kFloat);
  ops::AdamwStep step;
  step.masters = {master}, step.rounded = {own ? master : x[0].clone()}, step.gradients = {x[1]};
  step.first_moments = {torch::zeros_like(master)}, step.second_moments = {torch::zeros_like(master)};
  step.steps = {torch::zeros({}, torch::dtype(torch::kFloat).device(x[0].device()))};
  step.rate = torch::full({}, 0.1, torch::dtype(torch::kFloat).device(x[0].device()));
  step.decay = 0.1;
  for (int i = 0; i < 2; ++i) ops::adamw_(step);
  return master;
}

// The same in closed form: both steps have equal gradients, so the corrected moments are the gradient and its square.
Tensor by_adamw_formula(const Tensors& x) {
  const Tensor move = 0.1 * x[1] / (x[1].abs() + 1e-8);
  return ((x[0] * 0.99 - move) * 0.99) - move;
}

// The gradient norm, the clipping factor for a norm of 1, and the flag whether the gradients are usable.
Tensor by_gradient_norm(const Tensors& x) {
  const Tensor loss = torch::ones({}, torch::dtype(torch::kFloat).device(x[0].device()));
  const auto [loss_and_norm, update_enabled, scale] = ops::gradient_norm({{x[0], x[1]}, loss, {}, 1});
  return torch::stack({loss_and_norm[1], scale.to(torch::kDouble), update_enabled.to(torch::kDouble)});
}

Tensor by_rotary_formula(const Tensors& x) {
  const Tensor angle = torch::outer(torch::arange(kTokens, torch::kDouble), torch::pow(10000.0, -torch::arange(8, torch::kDouble) / 8));
  const Tensor cos = torch::cos(angle).unsqueeze(1), sin = torch::sin(angle).unsqueeze(1);
  const Tensor heads = x[0].view({kTokens, 2, 16}), a = heads.narrow(2, 0, 8), b = heads.narrow(2, 8, 8);
  return torch::cat({a * cos - b * sin, a * sin + b * cos}, 2).flatten(1);
}

// Samples at temperature 0, without a penalty: the most likely token of each row. `of_sequence`: rows are tokens of one sequence.
Tensor by_sampling(const Tensors& x, bool of_sequence) {
  const int64_t rows = x[0].size(0);
  const auto whole = torch::dtype(torch::kInt64).device(x[0].device()), real = whole.dtype(torch::kFloat);
  const Tensor token = torch::empty({rows}, whole), none = torch::zeros({rows}, whole), nothing = torch::zeros({rows}, real);
  const Tensor seen = torch::zeros({rows, kernels::sample_seen_words(x[0].size(1))}, whole.dtype(torch::kInt32));
  const Tensor ones = torch::ones({rows}, real);
  if (!of_sequence) return ops::sample_(token, x[0], {none, none, none, nothing, ones, nothing, ones, seen}), token;
  const auto one = [](const Tensor& all) { return all.narrow(0, 0, 1); };
  ops::sample_tokens_(token, x[0],
                      {none, one(none), one(none), one(nothing), one(ones), one(nothing), one(ones), torch::zeros_like(one(seen))},
                      none.narrow(0, 0, rows - 1), seen);
  return token;
}

// Logits with biases and penalties of tokens that have been generated up to twice: by the formula or by the operator.
Tensor by_adjusting(const Tensors& x, bool formula) {
  const int64_t rows = x[0].size(0), vocab = x[0].size(1);
  const auto real = torch::dtype(torch::kFloat).device(x[0].device()), integer = real.dtype(torch::kInt32);
  const Tensor half = torch::full({rows}, 0.5, real), seen = torch::full({rows, kernels::sample_seen_words(vocab)}, 0x5a5a5a5a, integer);
  const ops::OptionalTensor counts = (torch::arange(rows * vocab, integer) % 3).view({rows, vocab}), bias = x[1].to(torch::kFloat);
  const Tensor presence = half * 0.5, penalty = half + 1;
  const ops::AdjustedLogits in{x[0], presence, half, penalty, seen, bias, counts};
  return formula ? ops::adjusted_logits_reference(in) : ops::adjusted_logits(in);
}

std::vector<OperatorCheck> update_checks() {
  return {
      {"adjusted_logits",
       [] {
         return Tensors{draw({9, 500}), draw({9, 500})};
       },
       [](const Tensors& x) { return by_adjusting(x, false); }, [](const Tensors& x) { return by_adjusting(x, true); }, false},
      {"sample_",
       [] {
         return Tensors{draw({33, 500})};
       },
       [](const Tensors& x) { return by_sampling(x, false); }, [](const Tensors& x) { return x[0].argmax(1).to(torch::kDouble); }, false},
      {"sample_tokens_",
       [] {
         return Tensors{draw({8, 500})};
       },
       [](const Tensors& x) { return by_sampling(x, true); }, [](const Tensors& x) { return x[0].argmax(1).to(torch::kDouble); }, false},
      {"adamw_",
       [] {
         return Tensors{draw({33, 80}), draw({33, 80})};
       },
       by_adamw, by_adamw_formula, false},
      {"gradient_norm",
       [] {
         return Tensors{draw({33, 80}), draw({1025})};
       },
       by_gradient_norm,
       [](const Tensors& x) {
         const Tensor norm = (x[0].square().sum() + x[1].square().sum()).sqrt();
         return torch::stack({norm, 1 / norm, torch::ones_like(norm)});
       },
       false},
      {"paged_attention_step",
       [] {
         return Tensors{draw({kTokens, 4, 16}), draw({kTokens, 2, 16}), draw({kTokens, 2, 16})};
       },
       by_paged_steps,
       [](const Tensors& x) {
         const Tensor cu = torch::tensor({int64_t{0}, kTokens});
         return ops::causal_attention_reference(x[0], x[1], x[2], cu, cu, 0, 0.25);
       },
       false},
  };
}

ops::DiagonalPoles poles(const Tensors& x) { return {x[0], x[1], x[2], x[3], x[4], x[5]}; }
ops::Draws draws_on(torch::Device device) { return {7, torch::tensor(3, at::kLong).to(device)}; }

std::vector<OperatorCheck> other_checks() {
  return {
      {"short_conv",
       [] {
         return Tensors{draw({kTokens, 48}), draw({48, 3}), draw({48}), draw({kTokens, 48})};
       },
       [](const Tensors& x) { return std::get<0>(ops::short_conv(x[0], x[1], x[2], x[3], true, row_starts(x[0]))); },
       [](const Tensors& x) { return std::get<0>(ops::short_conv_reference(x[0], x[1], x[2], x[3], true, row_starts(x[0]))); }},
      {"projected_conv",
       [] {
         return Tensors{draw({kTokens, 40}), draw({96, 40}, 0.16), draw({96}), draw({48, 3}), draw({48})};
       },
       [](const Tensors& x) { return std::get<0>(ops::projected_conv(x[0], x[1], x[2], x[3], x[4], row_starts(x[0]))); },
       [](const Tensors& x) { return std::get<0>(ops::projected_conv_reference(x[0], x[1], x[2], x[3], x[4], row_starts(x[0]))); }},
      {"long_conv",
       [] {
         return Tensors{draw({kTokens, 8}), draw({8, 100}, 0.2)};
       },
       [](const Tensors& x) { return ops::long_conv(x[0], x[1], row_starts(x[0])); },
       [](const Tensors& x) { return ops::long_conv_reference(x[0], x[1], row_starts(x[0])); }},
      {"diagonal_filter",
       [] {
         return Tensors{draw({6}), draw({6, 8}, 0.3), draw({6, 8}), draw({6, 8, 2}), draw({6, 8, 2}), draw({6})};
       },
       [](const Tensors& x) { return ops::diagonal_filter(poles(x), 70); },
       [](const Tensors& x) { return ops::diagonal_filter_reference(poles(x), 70); }},
      {"gated_long_conv",
       [] {
         return Tensors{draw({66, 16}), draw({66, 16}), draw({66, 16}), draw({8, 33}, 0.2)};
       },
       [](const Tensors& x) { return ops::gated_long_conv(x[0], x[1], x[2], x[3].to(ops::sum_type(x[0])), 33); },
       [](const Tensors& x) { return ops::gated_long_conv_reference(x[0], x[1], x[2], x[3], 33); }},
      {"swiglu",
       [] {
         return Tensors{draw({33, 96})};
       },
       [](const Tensors& x) { return ops::swiglu(x[0]); },
       [](const Tensors& x) { return x[0].narrow(1, 0, 48) * torch::silu(x[0].narrow(1, 48, 48)); }},
      {"dropout",
       [] {
         return Tensors{draw({33, 96})};
       },
       [](const Tensors& x) { return ops::dropout(x[0], 0.2, draws_on(x[0].device()), 1); },
       [](const Tensors& x) { return ops::dropout_reference(x[0], 0.2, draws_on(x[0].device()), 1); }},
      {"tied_embedding",
       [] {
         return Tensors{draw({33, 48})};
       },
       [](const Tensors& x) {
         return ops::tied_embedding(x[0], (torch::arange(80) % 31).to(x[0].device()), 0.2, draws_on(x[0].device()), 1).rows;
       },
       [](const Tensors& x) { return ops::dropout_reference(torch::embedding(x[0], torch::arange(80) % 31), 0.2, draws_on(at::kCPU), 1); }},
      {"rowwise_activation",
       [] {
         return Tensors{draw({33, 47}, 2)};
       },
       [](const Tensors& x) { return ops::rowwise::silu(x[0]) + ops::rowwise::sigmoid(x[0]) + ops::rowwise::softplus(x[0]); },
       [](const Tensors& x) { return torch::silu(x[0]) + torch::sigmoid(x[0]) + torch::log1p(torch::exp(x[0])); }},
      {"rotary_",
       [] {
         return Tensors{draw({kTokens, 2 * 16})};
       },
       [](const Tensors& x) {
         return ops::rotary_(x[0].clone(), torch::arange(kTokens).to(x[0].device()), {2, 16, 16});
       },
       by_rotary_formula},
  };
}

std::vector<OperatorCheck> loss_checks() {
  return {
      {"cross_entropy",
       [] {
         return Tensors{draw({64, 32}), draw({100, 32}, 0.3)};
       },
       [](const Tensors& x) { return ops::cross_entropy(x[0], x[1], (torch::arange(64) % 7 * 3).to(x[0].device())); },
       [](const Tensors& x) { return at::cross_entropy_loss(torch::linear(x[0], x[1]), torch::arange(64) % 7 * 3); }},
      {"token_log_probabilities",
       [] {
         return Tensors{draw({64, 32}), draw({100, 32}, 0.3)};
       },
       [](const Tensors& x) { return ops::token_log_probabilities(x[0], x[1], (torch::arange(64) % 7 * 3).to(x[0].device()), 97); },
       [](const Tensors& x) {
         return torch::linear(x[0], x[1].narrow(0, 0, 97)).log_softmax(1).gather(1, (torch::arange(64) % 7 * 3).unsqueeze(1)).squeeze(1);
       },
       false},
      {"most_likely",
       [] {
         return Tensors{draw({64, 32}), draw({100, 32}, 0.3)};
       },
       // Types may disagree between two nearly equal logits, so the logit of the chosen token is compared instead of its index.
       [](const Tensors& x) {
         const Tensor chosen = ops::most_likely(x[0], x[1], 90).unsqueeze(1);
         return torch::linear(x[0], x[1]).gather(1, chosen);
       },
       [](const Tensors& x) { return std::get<0>(torch::linear(x[0], x[1]).narrow(1, 0, 90).max(1, true)); }, false},
  };
}

std::vector<OperatorCheck> norm_checks() {
  const auto centred = [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    const Tensor unit = x - x.mean(-1, true);
    return unit * torch::rsqrt((unit * unit).mean(-1, true) + 1e-5) * weight + bias;
  };
  return {
      {"rms_norm",
       [] {
         return Tensors{draw({33, 80}), draw({80})};
       },
       [](const Tensors& x) { return ops::rms_norm(x[0], x[1], 1e-5); },
       [](const Tensors& x) { return x[0] * torch::rsqrt((x[0] * x[0]).mean(-1, true) + 1e-5) * x[1]; }},
      {"rms_norm_add",
       [] {
         return Tensors{draw({33, 80}), draw({33, 80}), draw({80})};
       },
       [](const Tensors& x) {
         const auto [sum, y] = ops::rms_norm_add(x[0], x[1], x[2], 1e-5);
         return sum + y;
       },
       [](const Tensors& x) {
         const Tensor sum = x[0] + x[1];
         return sum + sum * torch::rsqrt((sum * sum).mean(-1, true) + 1e-5) * x[2];
       }},
      {"layer_norm",
       [] {
         return Tensors{draw({33, 80}), draw({80}), draw({80})};
       },
       [](const Tensors& x) { return ops::layer_norm(x[0], x[1], x[2], 1e-5); },
       [centred](const Tensors& x) { return centred(x[0], x[1], x[2]); }},
      {"layer_norm_add",
       [] {
         return Tensors{draw({33, 80}), draw({33, 80}), draw({80}), draw({80})};
       },
       [](const Tensors& x) {
         const auto [sum, y] = ops::layer_norm_add(x[0], x[1], x[2], x[3], 1e-5);
         return sum + y;
       },
       [centred](const Tensors& x) { return x[0] + x[1] + centred(x[0] + x[1], x[2], x[3]); }},
      {"layer_norm_add_twice",
       [] {
         return Tensors{draw({33, 80}), draw({33, 80}), draw({80}), draw({80}), draw({80}), draw({80})};
       },
       [](const Tensors& x) {
         const auto [sum, y] = ops::layer_norm_add_twice({x[0], x[1], x[2], x[3], x[4], x[5], 1e-5, true});
         return sum + y;
       },
       [centred](const Tensors& x) {
         const Tensor sum = x[0] + x[1] + centred(x[0] + x[1], x[2], x[3]);
         return sum + centred(sum, x[4], x[5]);
       }},
      {"layer_norm_add_",
       [] {
         return Tensors{draw({33, 80}), draw({33, 80}), draw({80}), draw({80})};
       },
       [](const Tensors& x) { return ops::layer_norm_add_(x[0], x[1], x[2], x[3], 1e-5); },
       [centred](const Tensors& x) { return centred(x[0] + x[1], x[2], x[3]); }, false},
  };
}

ops::QuantisedWeight quantised_to_int8(const Tensor& weight) {
  return ops::quantise(weight.cpu().to(torch::kDouble), ops::WeightForm::int8);
}

std::vector<OperatorCheck> product_checks() {
  return {
      {"linear, few rows",
       [] {
         return Tensors{draw({5, 96}), draw({70, 96}, 0.2), draw({70})};
       },
       [](const Tensors& x) {
         const torch::NoGradGuard no_grad;
         return ops::linear(x[0], x[1], x[2]);
       },
       [](const Tensors& x) { return torch::linear(x[0], x[1], x[2]); }, false},
      {"quantised_linear, int8",
       [] {
         return Tensors{draw({5, 96}), draw({70, 96}, 0.2), draw({70})};
       },
       [](const Tensors& x) {
         const ops::QuantisedWeight weight = quantised_to_int8(x[1]);
         return ops::quantised_linear(x[0], {weight.form, weight.values.to(x[0].device()), weight.scales.to(x[0].device())}, x[2]);
       },
       [](const Tensors& x) {
         return torch::linear(x[0], ops::dequantised(quantised_to_int8(x[1]), 0, x[1].size(0), torch::kDouble), x[2]);
       },
       false},
      {"linear_swiglu",
       [] {
         return Tensors{draw({1, 96}), draw({64, 96}, 0.2)};
       },
       [](const Tensors& x) { return ops::linear_swiglu(x[0], x[1]); },
       [](const Tensors& x) {
         const Tensor h = torch::matmul(x[0], x[1].t());
         return h.narrow(1, 0, 32) * torch::silu(h.narrow(1, 32, 32));
       }},
      {"gated_mlp",
       [] {
         return Tensors{draw({300, 64}), draw({512, 64}, 0.2), draw({48, 256}, 0.2)};
       },
       [](const Tensors& x) { return ops::gated_mlp(x[0], x[1], x[2]); },
       [](const Tensors& x) {
         const Tensor h = torch::matmul(x[0], x[1].t());
         return torch::matmul(h.narrow(1, 0, 256) * torch::silu(h.narrow(1, 256, 256)), x[2].t());
       }},
  };
}

}  // namespace

double operator_error(const OperatorCheck& check, torch::Device device, torch::Dtype type) {
  const Tensors inputs = check.inputs();
  const Tensors exact = as_type(inputs, torch::kCPU, torch::kDouble, check.gradients);
  const Tensors given = as_type(inputs, device, type, check.gradients);
  const Tensor reference = check.reference(exact), value = check.op(given);
  double error = relative_error(value, reference);
  if (!check.gradients) return error;
  const Tensor g = torch::randn(reference.sizes()).to(torch::kBFloat16).to(torch::kDouble);
  const Tensors wanted = torch::autograd::grad({reference}, exact, {g}),
                got = torch::autograd::grad({value}, given, {g.to(device, value.scalar_type())});
  for (size_t i = 0; i < wanted.size(); ++i) error = std::max(error, relative_error(got[i], wanted[i]));
  return error;
}

std::vector<OperatorCheck> operator_checks() {
  auto operators = attention_checks();
  for (auto* more :
       {delta_rule_checks, linear_attention_checks, scan_checks, update_checks, other_checks, loss_checks, norm_checks, product_checks})
    for (auto& one : more()) operators.push_back(std::move(one));
  return operators;
}

}  // namespace based
