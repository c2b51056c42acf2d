// The figures of single operators: the matrix products of a window (the paper's figure 1, left) and the three micro-benchmarks of its
// appendix B. PyTorch's operators are timed in the same run, in the same way.
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>

#include "based/kernels/taylor/deferred.h"
#include "based/kernels/taylor/taylor.h"
#include "based/ops/attention/causal_attention.h"
#include "based/ops/taylor/taylor_deferred.h"
#include "bench/figures.h"
#include "bench/listing.h"

namespace based::bench {
namespace operator_figure {

// The paper's sizes.
constexpr int64_t kHeads = 16, kFeatureDim = 16, kHeadDim = 64, kWindow = 64;
constexpr int64_t kListingFeatures = 1 + kFeatureDim + kFeatureDim * kFeatureDim;
constexpr double kBytes = 2;  // a bf16 number has two bytes

constexpr double kFeatureScale = 0.5;  // feature_dim^-1/4

torch::TensorOptions bf16_on(const Context& context) { return torch::dtype(torch::kBFloat16).device(context.device); }

torch::Tensor sdpa(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, bool causal, std::optional<double> scale = {}) {
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0, causal, scale);
}

int repeats(const Context& context) { return context.quick ? 2 : 10; }

// --- Taylor attention, forward

struct TaylorInputs {
  int64_t batch, length;
  torch::Tensor q, k, v;  // [batch, length, heads, …]; q and k not scaled
  torch::Tensor cu_seqlens;

  TaylorInputs(const Context& context, int64_t rows, int64_t tokens)
      : batch(rows),
        length(tokens),
        q(torch::randn({rows, tokens, kHeads, kFeatureDim}, bf16_on(context))),
        k(torch::randn({rows, tokens, kHeads, kFeatureDim}, bf16_on(context))),
        v(torch::randn({rows, tokens, kHeads, kHeadDim}, bf16_on(context))),
        cu_seqlens((torch::arange(rows + 1) * tokens).to(context.device)) {}

  // [batch, length, heads, dim] -> [batch · length, heads, dim]
  static torch::Tensor packed(const torch::Tensor& x) { return x.flatten(0, 1); }
  // [batch, length, heads, dim] -> [batch, heads, length, dim]
  static torch::Tensor by_heads(const torch::Tensor& x) { return x.transpose(1, 2).contiguous(); }
};

using TaylorCall = std::function<torch::Tensor()>;

TaylorCall our_forward(const TaylorInputs& in) {
  const torch::Tensor q = TaylorInputs::packed(in.q * kFeatureScale), k = TaylorInputs::packed(in.k * kFeatureScale),
                      v = TaylorInputs::packed(in.v), cu_seqlens = in.cu_seqlens;
  return [=] { return ops::taylor_attention_without_state(q, k, v, cu_seqlens); };
}

TaylorCall listing_forward(const TaylorInputs& in) {
  const torch::Tensor q = TaylorInputs::by_heads(in.q), k = TaylorInputs::by_heads(in.k), v = TaylorInputs::by_heads(in.v);
  return [=] { return listing::taylor_attention(q, k, v); };
}

TaylorCall quadratic_forward(const TaylorInputs& in) {
  const torch::Tensor q = TaylorInputs::by_heads(in.q), k = TaylorInputs::by_heads(in.k), v = TaylorInputs::by_heads(in.v);
  return [=] { return listing::taylor_attention_quadratic(q, k, v); };
}

TaylorCall softmax_forward(const TaylorInputs& in) {  // queries and keys of 64 dimensions, as in a Transformer
  const torch::Tensor v = TaylorInputs::by_heads(in.v), q = torch::randn_like(v), k = torch::randn_like(v);
  return [=] { return sdpa(q, k, v, /*causal=*/true); };
}

// Compares every form of Taylor attention with the quadratic form in double precision.
void verify_forward(const Context& context) {
  const TaylorInputs in(context, 2, 48);
  const auto exact = [](const torch::Tensor& x) { return TaylorInputs::packed(x).cpu().to(torch::kDouble); };
  const torch::Tensor reference =
      ops::taylor_attention_quadratic(exact(in.q) * kFeatureScale, exact(in.k) * kFeatureScale, exact(in.v), in.cu_seqlens.cpu());
  const auto packed = [](const torch::Tensor& y) { return TaylorInputs::packed(y.transpose(1, 2)).cpu(); };
  verify(our_forward(in)().cpu(), reference, 0.05, "Taylor attention, forward");
  verify(packed(listing_forward(in)()), reference, 0.2, "the listing's Taylor attention, forward");
  verify(packed(quadratic_forward(in)()), reference, 0.2, "the quadratic Taylor attention, forward");
}

Measured time_forward(FigureRun& run, const TaylorInputs& in, TaylorCall (*form)(const TaylorInputs&), double numbers, double operations) {
  const int64_t tokens = in.batch * in.length, calls = run.context.quick ? 1 : std::clamp<int64_t>((int64_t{1} << 16) / tokens, 1, 16);
  const TaylorCall call = form(in);
  const double seconds = seconds_per_call(run.context.device, calls, repeats(run.context), [&](int64_t) { call(); });
  return time_with_floor(run, seconds, numbers * kBytes, operations);
}

Figure measure_forward(FigureRun& run, Figure figure, const std::vector<int64_t>& sizes,
                       const std::function<TaylorInputs(int64_t)>& inputs) {
  const torch::InferenceMode inference;
  run.context.ceilings.measure();
  verify_forward(run.context);
  const auto taylor = [&](const char* label, const char* how, TaylorCall (*form)(const TaylorInputs&), bool ours) {
    measure_series(run, figure, {label, how, ours}, sizes, [&](int64_t size) {
      const TaylorInputs in = inputs(size);
      const int64_t tokens = in.batch * in.length;
      // The least of the recurrent and the quadratic form's causal half, which is less for short sequences.
      const int64_t operations = std::min(kernels::taylor_attention_flops(tokens, kHeads, kFeatureDim, kHeadDim),
                                          tokens * kHeads * in.length * (kFeatureDim + kHeadDim));
      return time_forward(run, in, form, static_cast<double>(tokens * kHeads * 2 * (kFeatureDim + kHeadDim)),
                          static_cast<double>(operations));
    });
  };
  taylor("our kernel", "ops::taylor_attention_without_state", our_forward, true);
  taylor("PyTorch listing", "the paper's listing in ATen operators: cumsum over the outer products of features and values", listing_forward,
         false);
  taylor("PyTorch, quadratic", "all weights 1 + s + s^2/2 by ATen's matrix products", quadratic_forward, false);
  measure_series(run, figure, {"softmax attention (SDPA)", "ATen's scaled_dot_product_attention, causal, 64 dimensions"}, sizes,
                 [&](int64_t size) {
                   const TaylorInputs in = inputs(size);
                   const int64_t tokens = in.batch * in.length;
                   return time_forward(run, in, softmax_forward, static_cast<double>(tokens * kHeads * 4 * kHeadDim),
                                       static_cast<double>(2 * tokens * in.length * kHeads * kHeadDim));
                 });
  return figure;
}

std::string at_sizes(const std::string& fixed) { return fixed + ", 16 heads, feature dim 16, head dim 64, bf16"; }

Figure forward_by_batch(FigureRun& run) {
  const int64_t length = run.context.quick ? 32 : 1024;
  return measure_forward(run,
                         {"taylor_forward_batch", "Taylor attention, forward, against the number of sequences",
                          at_sizes(std::to_string(length) + " tokens each"), "sequences", "ms"},
                         run.context.quick ? powers_of_two(0, 1) : powers_of_two(0, 6),
                         [&](int64_t batch) { return TaylorInputs(run.context, batch, length); });
}

Figure forward_by_length(FigureRun& run) {
  const int64_t batch = run.context.quick ? 1 : 4;
  return measure_forward(run,
                         {"taylor_forward_length", "Taylor attention, forward, against the length",
                          at_sizes(std::to_string(batch) + " sequences"), "tokens", "ms"},
                         run.context.quick ? powers_of_two(4, 5) : powers_of_two(9, 16),
                         [&](int64_t length) { return TaylorInputs(run.context, batch, length); });
}

// --- the recurrent update

struct StepInputs {
  torch::Tensor q, k, v, slots;

  StepInputs(const Context& context, int64_t rows)
      : q(torch::randn({rows, kHeads, kFeatureDim}, bf16_on(context))),
        k(torch::randn({rows, kHeads, kFeatureDim}, bf16_on(context))),
        v(torch::randn({rows, kHeads, kHeadDim}, bf16_on(context))),
        slots(torch::arange(rows, torch::dtype(torch::kInt64).device(context.device))) {}
};

ops::TaylorState zero_state(const Context& context, int64_t rows) {
  const auto options = torch::dtype(torch::kFloat).device(context.device);
  const int64_t features = kernels::packed_features(kFeatureDim);
  return {torch::zeros({rows, kHeads, features, kHeadDim}, options), torch::zeros({rows, kHeads, features}, options)};
}

double state_bytes(int64_t rows) { return static_cast<double>(4 * rows * kHeads * kernels::packed_features(kFeatureDim) * (kHeadDim + 1)); }

// Compares all forms of the update, over a few tokens, with the first one in double precision.
void verify_update(const Context& context) {
  ops::TaylorState state = zero_state(context, 2), deferred = zero_state(context, 2);
  ops::TaylorPending pending = ops::taylor_pending(deferred, kFeatureDim, torch::kBFloat16);
  listing::Sums sums = listing::zero_sums(2, kHeads, kFeatureDim, kHeadDim, bf16_on(context));
  listing::Sums exact = listing::zero_sums(2, kHeads, kFeatureDim, kHeadDim, torch::dtype(torch::kDouble));
  for (int token = 0; token < 5; ++token) {
    const StepInputs in(context, 2);
    const auto precise = [](const torch::Tensor& x) { return x.cpu().to(torch::kDouble); };
    const torch::Tensor reference = listing::taylor_step(precise(in.q), precise(in.k), precise(in.v), exact);
    verify(ops::taylor_attention_step(in.q, in.k, in.v, state, in.slots, {}, kFeatureScale).cpu(), reference, 0.1, "the Taylor update");
    verify(ops::taylor_deferred_step(in.q, in.k, in.v, deferred, pending, in.slots, {}, kFeatureScale).cpu(), reference, 0.1,
           "the deferred Taylor update");
    verify(listing::taylor_step(in.q, in.k, in.v, sums).cpu(), reference, 0.3, "the listing's Taylor update");
  }
}

Figure update(FigureRun& run) {
  const torch::InferenceMode inference;
  Context& context = run.context;
  context.ceilings.measure();
  verify_update(context);
  Figure figure{"taylor_update", "Taylor attention, the recurrent update, against the number of sequences", at_sizes("one token each"),
                "sequences", "ms"};
  const std::vector<int64_t> sizes = context.quick ? powers_of_two(0, 1) : powers_of_two(0, 9);
  const auto rounded_up = [&](double bytes) { return copies_beyond_cache(context, static_cast<int64_t>(bytes)); };
  measure_series(run, figure, {"our kernel", "ops::taylor_attention_step, fp32 state of 153 features", true}, sizes, [&](int64_t rows) {
    const StepInputs in(context, rows);
    std::vector<ops::TaylorState> states;
    const int64_t copies = rounded_up(state_bytes(rows));
    for (int64_t i = 0; i < copies; ++i) states.push_back(zero_state(context, rows));
    const double seconds = seconds_per_call(context.device, copies, repeats(context), [&](int64_t i) {
      ops::taylor_attention_step(in.q, in.k, in.v, states[static_cast<size_t>(i)], in.slots, {}, kFeatureScale);
    });
    return time_with_floor(run, seconds, 2 * state_bytes(rows), 0);
  });
  measure_series(run, figure, {"our kernel, deferred", "ops::taylor_deferred_step: the state is written once in 12 tokens", true}, sizes,
                 [&](int64_t rows) {
                   const StepInputs in(context, rows);
                   std::vector<ops::TaylorState> states;
                   std::vector<ops::TaylorPending> pending;
                   const int64_t copies = rounded_up(state_bytes(rows));
                   for (int64_t i = 0; i < copies; ++i) {
                     states.push_back(zero_state(context, rows));
                     pending.push_back(ops::taylor_pending(states.back(), kFeatureDim, torch::kBFloat16));
                   }
                   const double seconds =
                       seconds_per_call(context.device, copies * kernels::kTaylorPending, repeats(context), [&](int64_t i) {
                         const auto copy = static_cast<size_t>(i % copies);
                         ops::taylor_deferred_step(in.q, in.k, in.v, states[copy], pending[copy], in.slots, {}, kFeatureScale);
                       });
                   return time_with_floor(run, seconds, (1 + 1.0 / kernels::kTaylorPending) * state_bytes(rows), 0);
                 });
  measure_series(
      run, figure, {"PyTorch listing", "the paper's listing in ATen operators, bf16 state of 273 features"}, sizes, [&](int64_t rows) {
        const StepInputs in(context, rows);
        const double bytes = kBytes * static_cast<double>(rows * kHeads * kListingFeatures * (kHeadDim + 1));
        std::vector<listing::Sums> states;
        const int64_t copies = rounded_up(bytes);
        for (int64_t i = 0; i < copies; ++i) states.push_back(listing::zero_sums(rows, kHeads, kFeatureDim, kHeadDim, bf16_on(context)));
        const double seconds = seconds_per_call(context.device, copies, repeats(context),
                                                [&](int64_t i) { listing::taylor_step(in.q, in.k, in.v, states[static_cast<size_t>(i)]); });
        return time_with_floor(run, seconds, 2 * bytes, 0);
      });
  return figure;
}

// --- the window

// One token of `rows` sequences, and full windows of keys and values.
struct WindowInputs {
  torch::Tensor q, k, v;           // [rows, heads, head_dim]
  torch::Tensor k_ring, v_ring;    // [rows, window, heads, head_dim]
  torch::Tensor keys, values;      // [rows, heads, window, head_dim], for PyTorch's operators
  torch::Tensor positions, slots;  // int64 [rows]

  WindowInputs(const Context& context, int64_t rows, int64_t window)
      : q(torch::randn({rows, kHeads, kHeadDim}, bf16_on(context)) * 0.125),  // the listing does not scale the scores
        k(torch::randn({rows, kHeads, kHeadDim}, bf16_on(context))),
        v(torch::randn({rows, kHeads, kHeadDim}, bf16_on(context))),
        k_ring(torch::randn({rows, window, kHeads, kHeadDim}, bf16_on(context))),
        v_ring(torch::randn({rows, window, kHeads, kHeadDim}, bf16_on(context))),
        positions(torch::full({rows}, 2 * window, torch::dtype(torch::kInt64).device(context.device))),
        slots(torch::arange(rows, positions.options())) {}

  void keep_as_pytorch() {
    keys = k_ring.transpose(1, 2).contiguous(), values = v_ring.transpose(1, 2).contiguous();
    k_ring = torch::Tensor(), v_ring = torch::Tensor();
  }
  static double bytes(int64_t rows, int64_t window) { return kBytes * static_cast<double>(rows * kHeads * kHeadDim * 2 * (window + 1)); }
};

torch::Tensor our_window(WindowInputs& in) {
  return ops::causal_attention_step(in.q, in.k, in.v, in.k_ring, in.v_ring, in.positions, in.slots, 1);
}
torch::Tensor listing_window(WindowInputs& in) { return listing::window_step(in.q, in.keys, in.values); }
torch::Tensor sdpa_window(WindowInputs& in) { return sdpa(in.q.unsqueeze(2), in.keys, in.values, /*causal=*/false, 1.0).squeeze(2); }

void verify_window(const Context& context) {
  WindowInputs in(context, 2, 16);
  const torch::Tensor y = our_window(in);
  in.keep_as_pytorch();
  const auto precise = [](const torch::Tensor& x) { return x.cpu().to(torch::kDouble); };
  const torch::Tensor reference = listing::window_step(precise(in.q), precise(in.keys), precise(in.values));
  verify(y.cpu(), reference, 0.05, "the window's step");
  verify(listing_window(in).cpu(), reference, 0.05, "the listing's window step");
  verify(sdpa_window(in).cpu(), reference, 0.05, "scaled_dot_product_attention over a window");
}

Measured time_window(FigureRun& run, int64_t rows, int64_t window, torch::Tensor (*step)(WindowInputs&)) {
  const double bytes = WindowInputs::bytes(rows, window);
  const int64_t copies = copies_beyond_cache(run.context, static_cast<int64_t>(bytes));
  std::vector<WindowInputs> inputs;
  inputs.reserve(static_cast<size_t>(copies));
  for (int64_t i = 0; i < copies; ++i) {
    inputs.emplace_back(run.context, rows, window);
    if (step != our_window) inputs.back().keep_as_pytorch();
  }
  const double seconds =
      seconds_per_call(run.context.device, copies, repeats(run.context), [&](int64_t i) { step(inputs[static_cast<size_t>(i)]); });
  return time_with_floor(run, seconds, bytes, 0);
}

Figure window_decode(FigureRun& run) {
  const torch::InferenceMode inference;
  run.context.ceilings.measure();
  verify_window(run.context);
  const int64_t window = run.context.quick ? 8 : kWindow;
  Figure figure{"window_decode", "Sliding window attention, one token, against the number of sequences",
                "window of " + std::to_string(window) + ", 16 heads, head dim 64, bf16", "sequences", "ms"};
  const std::vector<int64_t> sizes = run.context.quick ? powers_of_two(0, 1) : powers_of_two(0, 10);
  const auto add = [&](FigureSeries series, torch::Tensor (*step)(WindowInputs&)) {
    measure_series(run, figure, std::move(series), sizes, [&](int64_t rows) { return time_window(run, rows, window, step); });
  };
  add({"our kernel", "ops::causal_attention_step, which also stores the new key and value", true}, our_window);
  add({"PyTorch listing", "the paper's listing: einsum, softmax, einsum"}, listing_window);
  add({"SDPA", "ATen's scaled_dot_product_attention of one query"}, sdpa_window);
  return figure;
}

// Figure 1, left. The paper states neither the products' inner sizes nor the number of heads; here a window of w tokens has w queries.
Figure window_products(FigureRun& run) {
  const torch::InferenceMode inference;
  run.context.ceilings.measure();
  verify_window(run.context);
  const int64_t sequences = run.context.quick ? 2 : 512;
  Figure figure{"window_products", "The matrix products of a window against its size", std::to_string(sequences) + " sequences, bf16",
                "window", "ms"};
  const std::vector<int64_t> sizes = run.context.quick ? powers_of_two(2, 4) : powers_of_two(4, 12);
  const auto calls = [&](int64_t window) { return run.context.quick || window > 512 ? 1 : 16; };
  const auto options = bf16_on(run.context);
  measure_series(
      run, figure, {"products of w queries, one head", "ATen's bmm: q [w, 64] by k, weights [w, w] by v"}, sizes, [&](int64_t w) {
        const torch::Tensor q = torch::randn({sequences, w, kHeadDim}, options), k = torch::randn({sequences, kHeadDim, w}, options),
                            v = torch::randn({sequences, w, kHeadDim}, options);
        torch::Tensor weights = torch::empty({sequences, w, w}, options), y = torch::empty_like(v);
        const double seconds = seconds_per_call(run.context.device, calls(w), repeats(run.context), [&](int64_t) {
          torch::bmm_out(weights, q, k);
          torch::bmm_out(y, weights, v);
        });
        return time_with_floor(run, seconds, kBytes * static_cast<double>(sequences * (4 * w * kHeadDim + 2 * w * w)),
                               static_cast<double>(4 * sequences * w * w * kHeadDim));
      });
  measure_series(run, figure, {"square products, w x w", "ATen's bmm: [w, w] by [w, w]"}, sizes, [&](int64_t w) {
    const torch::Tensor a = torch::randn({sequences, w, w}, options), b = torch::randn({sequences, w, w}, options);
    torch::Tensor c = torch::empty_like(a);
    const double seconds = seconds_per_call(run.context.device, calls(w), repeats(run.context), [&](int64_t) { torch::bmm_out(c, a, b); });
    return time_with_floor(run, seconds, kBytes * static_cast<double>(3 * sequences * w * w),
                           static_cast<double>(2 * sequences * w * w) * static_cast<double>(w));
  });
  measure_series(run, figure, {"our window step, 16 heads", "ops::causal_attention_step: one query of each sequence", true}, sizes,
                 [&](int64_t w) { return time_window(run, sequences, w, our_window); });
  return figure;
}

}  // namespace operator_figure

std::vector<FigurePart> operator_figures() {
  using namespace operator_figure;
  return {{"window_products", "the window's matrix products against its size (figure 1, left), and our window step", window_products},
          {"taylor_forward_batch", "Taylor attention, forward, against the number of sequences", forward_by_batch},
          {"taylor_forward_length", "Taylor attention, forward, against the length", forward_by_length},
          {"taylor_update", "Taylor attention, the recurrent update, against the number of sequences", update},
          {"window_decode", "sliding window attention, one token, against the number of sequences", window_decode}};
}

}  // namespace based::bench
