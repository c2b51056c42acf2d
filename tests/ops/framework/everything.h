// Calls every operator once, for tests of properties that all operators must have.
#pragma once
#include "based/kernels/taylor/deferred.h"
#include "based/ops/attention/causal_attention.h"
#include "based/ops/attention/rotary.h"
#include "based/ops/attention/rotary_attention_step.h"
#include "based/ops/conv/diagonal_filter.h"
#include "based/ops/conv/gated_long_conv.h"
#include "based/ops/conv/projected_conv.h"
#include "based/ops/conv/short_conv.h"
#include "based/ops/linear/gated_mlp.h"
#include "based/ops/linear/linear.h"
#include "based/ops/linear_attention/linear_attention.h"
#include "based/ops/norm/layer_norm.h"
#include "based/ops/norm/rms_norm.h"
#include "based/ops/pointwise/rowwise.h"
#include "based/ops/pointwise/swiglu.h"
#include "based/ops/sampling/most_likely.h"
#include "based/ops/taylor/taylor_attention.h"
#include "based/ops/taylor/taylor_deferred.h"
#include "based/ops/training/adamw.h"
#include "based/ops/training/cross_entropy.h"
#include "based/ops/training/dropout.h"
#include "based/ops/training/embedding.h"
#include "based/ops/training/gradient_norm.h"
#include "tests/ops/framework/testing.h"

namespace based::ops::testing {

// The arguments on one device. run() calls every operator without gradients and returns all outputs: those of the calls below and of the
// calls that test files register (DefineCalls). everything_test.cpp reports operators that are missing.
struct Everything {
  explicit Everything(at::Device device) {
    torch::manual_seed(51);
    const auto draw = [&](at::IntArrayRef sizes, double scale = 1) { return random(sizes, at::kBFloat16, scale).to(device); };
    q = draw({300, 4, 16}, 0.5), k = draw({300, 4, 16}, 0.5), v = draw({300, 4, 64}), wide = draw({300, 4, 64});
    x = draw({300, 256}), weight = draw({256}), taps = draw({256, 3}), h = draw({300, 512});
    cu = offsets({100, 1, 199}).to(device), slots = torch::tensor({2, 0, 1}, at::kLong).to(device);
    positions = at::arange(300, cu.options());
    const auto sums = at::dtype(at::kFloat).device(device);
    in_weight = draw({512, 256}, 0.06), out_weight = draw({256, 256}, 0.06), qkv = draw({3, 3 * 4 * 64});
    labels = at::arange(x.size(0), cu.options());
    state = {at::zeros({3, 4, kernels::packed_features(16), 64}, sums), at::zeros({3, 4, kernels::packed_features(16)}, sums)};
    deferred = {state.kv.clone(), state.k.clone()};
    waiting = {at::zeros({3, 4, kernels::kTaylorPending, 16}, q.options()), at::zeros({3, 4, kernels::kTaylorPending, 64}, q.options()),
               at::full({3, 4}, kernels::kTaylorPending - 2, sums.dtype(at::kInt))};
    kv_sums = at::zeros({3, 4, 16, 64}, sums), k_sums = at::zeros({3, 4, 16}, sums);
    conv_state = at::zeros({3, 256, 2}, sums);
    A_log = draw({256, 16});
    k_ring = at::zeros({3, 16, 4, 64}, v.options()), v_ring = k_ring.clone(), seen = at::zeros({3}, cu.options());
    for (const int64_t count : {20001, 7, 4096}) {
      update.rounded.push_back(draw({count})), update.gradients.push_back(draw({count}));
      update.masters.push_back(update.rounded.back().to(at::kFloat));
      update.first_moments.push_back(at::zeros({count}, sums)), update.second_moments.push_back(at::zeros({count}, sums));
      update.steps.push_back(at::zeros({}, sums));
    }
    update.rate = at::full({}, 0.1, sums), update.scale = at::full({}, 0.7, sums), update.update_enabled = at::ones({}, sums);
    for (const auto& [name, calls] : DefineCalls::all()) registered.push_back(calls(device));
  }

  std::vector<Tensor> run() {
    const at::NoGradGuard no_grad;
    const auto three = [](const Tensor& t) { return t.narrow(0, 0, 3); };
    const auto kept = [](const Tensor& tensor) { return at::zeros_like(tensor.narrow(0, 0, 1)); };
    const auto [y, last] = taylor_attention(q, k, v, cu);
    const auto [convolved, conv_last] = short_conv(x, taps, {}, {}, true, cu);
    const auto [embedded, in_rings] = embedding_step_(seen, slots, x, cu.narrow(0, 0, 3));
    const auto [loss_and_norm, update_enabled, scale] = gradient_norm({update.gradients, *update.scale, update.update_enabled, 0.5});
    adamw_(update);
    const auto [projected, projected_last] = projected_conv(x, in_weight, {}, taps, {}, cu);
    const Tensor used_up = qkv.clone();
    std::vector<Tensor> written{
        y,
        last.kv,
        convolved,
        conv_last,
        causal_attention(wide, wide, v, cu, cu, 17, 0.125),
        causal_attention(wide.to(at::kFloat), wide.to(at::kFloat), v.to(at::kFloat), cu, cu, 17, 0.125, {0.1, {3, cu[1]}, 2}),
        taylor_attention_without_state(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), cu),
        linear_attention_pairs(q.to(at::kFloat).abs(), k.to(at::kFloat).abs(), v.to(at::kFloat), cu, 1e-6),
        token_log_probabilities(x, x, at::arange(x.size(0), cu.options()).clamp_max(x.size(0) - 8), x.size(0) - 7),
        swiglu(h),
        dropout(h, 0.2, {7, cu.select(0, 1)}, 3),
        tied_embedding(x, labels, 0.2, {7, cu.select(0, 1)}, 3).rows,
        tied_embedding(x, labels).rows,
        rowwise::softplus(h),
        rowwise::l2_norm(h, 1e-6),
        rotary_(wide.flatten(1).clone(), positions, {wide.size(1), wide.size(2), 64}),
        taylor_attention_prefill(q, k, v, cu, state, slots),
        taylor_attention_step(three(q), three(k), three(v), state, slots),
        taylor_deferred_step(three(q), three(k), three(v), deferred, waiting, slots),  // leaves a pending token for the next call
        taylor_deferred_step(three(q), three(k), three(v), deferred, waiting, slots),
        taylor_deferred_step(three(q), three(k), three(v), deferred, waiting, slots),
        deferred.kv.clone(),
        waiting.count.clone(),
        short_conv_prefill(x, taps, {}, {}, true, cu, conv_state, slots),
        short_conv_step(three(x), taps, {}, {}, true, conv_state, slots),
        causal_attention_step(three(wide), three(wide), three(v), k_ring, v_ring, in_rings, slots, 0.125),
        taylor_attention_tokens(three(q), three(k), three(v), 2, state, slots.narrow(0, 0, 1), {kept(state.kv), kept(state.k)}),
        short_conv_tokens(three(x), taps, {}, {}, true, 2, conv_state, slots.narrow(0, 0, 1), kept(conv_state)),
        rotary_attention_tokens(qkv.clone(), k_ring, v_ring, in_rings, slots.narrow(0, 0, 1), {kept(k_ring), kept(v_ring)}, 2, 0.125, 64,
                                10000),
        embedding_tokens_(seen, slots.narrow(0, 0, 1), x, cu.narrow(0, 0, 3), kept(seen).narrow(0, 0, 0), 1).rows,
        state.kv.clone(),
        k_ring.clone(),
        embedded,
        in_rings,
        seen.clone(),
        at::cat(update.masters),
        at::cat(update.rounded),
        at::stack(update.steps),
        loss_and_norm,
        update_enabled,
        scale,
        diagonal_filter({x[0], A_log, A_log, h.narrow(0, 0, 16).view({256, 16, 2}), h.narrow(0, 16, 16).view({256, 16, 2}), x[0]}, 100),
        gated_long_conv(x, x, x, A_log.to(at::kFloat), 100),
        gated_long_conv({}, x, {}, A_log.to(at::kFloat), 100),
        projected,
        projected_last,
        projected_conv_prefill(x, in_weight, {}, taps, {}, cu, conv_state, slots),
        ops::linear(x, in_weight),
        linear_swiglu(x, in_weight),
        gated_mlp(x, in_weight, out_weight),
        cross_entropy(x, x, labels, labels.size(0)),
        cross_entropy(x, x, labels.masked_fill(labels < 100, -100), labels.size(0) - 100),
        cross_entropy(x, x, labels.narrow(0, 7, 90), 90, labels.narrow(0, 20, 90)),
        most_likely(x, x, x.size(0) - 7),
        rotary_attention_step(used_up, k_ring, v_ring, in_rings, slots, 0.125, 64, 1e4),
        linear_attention_step(three(q).abs(), three(k).abs(), three(v), kv_sums, k_sums, slots, 1e-6),
        kv_sums.clone()};
    taylor_deferred_flush_(deferred, waiting, slots);
    written.push_back(deferred.kv.clone());
    for (const Tensor& normed : norms()) written.push_back(normed);
    for (const Calls& calls : registered)
      for (const Tensor& output : calls()) written.push_back(output);
    return written;
  }

  std::vector<Tensor> norms() const {
    const auto [sum, normed] = rms_norm_add(x.to(at::kFloat), x, weight, 1e-5);
    const auto [centred_sum, centred] = layer_norm_add(x.to(at::kFloat), x, weight, weight, 1e-5);
    const auto [twice_sum, twice] = layer_norm_add_twice({x.to(at::kFloat), x, weight, weight, weight, weight, 1e-5, true});
    const Tensor stream = x.to(at::kFloat);
    return {rms_norm(x, weight, 1e-5),
            rms_norm_gated(x, weight, 1e-5, x),
            sum,
            normed,
            centred_sum,
            centred,
            twice_sum,
            twice,
            layer_norm(x, weight, weight, 1e-5),
            layer_norm_add_(centred_sum.clone(), x, weight, weight, 1e-5),
            rms_norm_add_(stream, x, weight, 1e-5, x),
            stream,
            rms_norm_of_sum(stream, x, weight, 1e-5)};
  }

  Tensor q, k, v, wide, x, weight, in_weight, out_weight, taps, h, qkv, labels, cu, slots, positions, conv_state, A_log, kv_sums, k_sums,
      k_ring, v_ring, seen;
  TaylorState state, deferred;
  TaylorPending waiting;
  AdamwStep update;
  std::vector<Calls> registered;
};

}  // namespace based::ops::testing
