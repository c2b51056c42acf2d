#include <algorithm>
#include <numeric>

#include "based/kernels/taylor/deferred.h"
#include "bench/kernels/taylor/problems/taylor.cuh"
#include "bench/kernels/taylor/problems/taylor_reference.cuh"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
using kernels::packed_features;
using kernels::TaylorAttention;
namespace gpu = kernels::cuda;

// Compares states in slot order with the reference's, in row order.
double state_error(const TaylorProblem& problem, const float* state, const double* reference, int64_t per_row) {
  double worst = 0;
  for (int64_t r = 0; r < problem.p.rows; ++r) {
    worst = std::max(worst, relative_error(state + (problem.p.rows - 1 - r) * per_row, DType::f32, reference + r * per_row, per_row));
  }
  return worst;
}

void verify_forward(Report& report, const TaylorShape& shape, uint64_t seed, double limit) {
  TaylorProblem problem(shape, seed);
  const TaylorAttention& p = problem.p;
  const int64_t heads = p.tokens * p.heads, features = packed_features(p.feature_dim), state = p.heads * features;
  Buffer y(heads * p.head_dim * 8), denominator(heads * 8), kv(p.rows * state * p.head_dim * 8), k(p.rows * state * 8);
  taylor_reference_forward(p, 0, 1, y.as<double>(), denominator.as<double>());
  if (shape.state) taylor_reference_state(p, kv.as<double>(), k.as<double>());
  check(gpu::taylor_attention_forward(p, problem.scratch.as(), {}));
  check(cudaDeviceSynchronize(), "forward");
  const std::string name = "forward " + shape.name();
  report.expect(name + ": y", relative_error(p.y, p.dtype, y.as<double>(), heads * p.head_dim), limit);
  report.expect(name + ": denominator", relative_error(p.denominator, DType::f32, denominator.as<double>(), heads), std::max(limit, 2e-5));
  if (!shape.state) return;
  report.expect(name + ": kv state", state_error(problem, p.kv_state, kv.as<double>(), state * p.head_dim), taylor_limit(p.dtype));
  // With decay the tensor cores multiply keys whose weights are split into two bf16, which keeps 16 bits.
  const double k_limit = p.dtype == DType::bf16 && shape.decay ? 5e-6 : 2e-6;
  report.expect(name + ": k state", state_error(problem, p.k_state, k.as<double>(), state), k_limit);
}

void verify_step(Report& report, TaylorShape shape, uint64_t seed) {
  shape.lengths.assign(shape.lengths.size(), 1), shape.state = true;
  TaylorProblem problem(shape, seed);
  const TaylorAttention& p = problem.p;
  const int64_t heads = p.rows * p.heads, state = p.heads * packed_features(p.feature_dim);
  Buffer y(heads * p.head_dim * 8), denominator(heads * 8), kv(p.rows * state * p.head_dim * 8), k(p.rows * state * 8);
  taylor_reference_forward(p, 0, 1, y.as<double>(), denominator.as<double>());
  taylor_reference_state(p, kv.as<double>(), k.as<double>());
  check(gpu::taylor_attention_step(p, {}));
  check(cudaDeviceSynchronize(), "step");
  const std::string name = "step " + shape.name();
  report.expect(name + ": y", relative_error(p.y, p.dtype, y.as<double>(), heads * p.head_dim), p.dtype == DType::bf16 ? 2.5e-3 : 2e-6);
  report.expect(name + ": kv state", state_error(problem, p.kv_state, kv.as<double>(), state * p.head_dim), 1e-6);
  report.expect(name + ": k state", state_error(problem, p.k_state, k.as<double>(), state), 1e-6);
}

// A row's step has the same bits alone, where the blocks of a cluster may share its states, and among many rows.
void verify_step_of_one_row(Report& report, TaylorShape shape, uint64_t seed) {
  shape.lengths.assign(40, 1), shape.state = true;
  TaylorProblem many(shape, seed, 1), one(shape, seed, 1);
  one.p.rows = one.p.tokens = 1;
  check(gpu::taylor_attention_step(many.p, {}));
  check(gpu::taylor_attention_step(one.p, {}));
  const int64_t sums = one.p.heads * packed_features(one.p.feature_dim), values = sums * one.p.head_dim,
                width = one.p.heads * one.p.head_dim;
  std::remove_cvref_t<decltype(*one.p.slot)> slot = 0;
  if (one.p.slot != nullptr) check(cudaMemcpy(&slot, one.p.slot, sizeof slot, cudaMemcpyDefault), "slot");
  const auto same = [&](const void* a, const void* b, DType dtype, int64_t count) {
    return download(a, dtype, count) == download(b, dtype, count);
  };
  const bool equal = same(many.p.y, one.p.y, one.p.dtype, width) &&
                     same(many.p.kv_state + slot * values, one.p.kv_state + slot * values, DType::f32, values) &&
                     same(many.p.k_state + slot * sums, one.p.k_state + slot * sums, DType::f32, sums);
  report.expect("step " + shape.name() + ": bits of one row", equal ? 0 : 1, 0);
}

// A step of several tokens of one sequence against steps of one token: y, padding, and the states after each token, bit for bit.
void verify_tokens(Report& report, TaylorShape shape, int64_t tokens, uint64_t seed) {
  shape.lengths = {tokens}, shape.state = true;
  TaylorProblem problem(shape, seed);
  constexpr int64_t padding = 2;
  const int64_t heads = problem.p.heads, size = kernels::dtype_size(shape.dtype), row = heads * shape.head_dim;
  const int64_t sums = heads * packed_features(shape.feature_dim), state = sums * shape.head_dim;
  const Buffer kv = copy_of(problem.kv_state), k = copy_of(problem.k_state), y(row * size), all_y((tokens + padding) * row * size);
  const Buffer kept_kv(tokens * state * 4), kept_k(tokens * sums * 4);
  problem.p.scale = 0.5F, problem.p.denominator = nullptr;
  kernels::TaylorTokens all{problem.p, padding, kept_kv.as<float>(), kept_k.as<float>()};
  all.step.y = all_y.as(), all.step.state_is_private = tokens % 2 == 0;
  check(gpu::taylor_attention_tokens(all, {}));
  TaylorAttention one = problem.p;
  one.tokens = one.rows = 1, one.y = y.as(), one.kv_state = kv.as<float>(), one.k_state = k.as<float>();
  const auto token_of = [&](const Buffer& x, int64_t t, int64_t dim) { return x.as<char>() + t * heads * dim * size; };
  const std::vector<double> given = download(all_y.as(), shape.dtype, (tokens + padding) * row);
  bool same_y = true, same_states = true;
  for (int64_t t = 0; t < tokens; ++t) {
    one.q = token_of(problem.q, t, shape.feature_dim), one.k = token_of(problem.k, t, shape.feature_dim);
    one.v = token_of(problem.v, t, shape.head_dim);
    check(gpu::taylor_attention_step(one, {}));
    check(cudaDeviceSynchronize(), "step");
    const std::vector<double> wanted = download(y.as(), shape.dtype, row);
    for (int64_t to = t; to < (t + 1 == tokens ? tokens + padding : t + 1); ++to)
      same_y = same_y && std::equal(wanted.begin(), wanted.end(), given.begin() + to * row);
    const bool is_last = t + 1 == tokens;
    const float *kv_after = is_last ? problem.p.kv_state : kept_kv.as<float>() + t * state,
                *k_after = is_last ? problem.p.k_state : kept_k.as<float>() + t * sums;
    same_states = same_states && download(kv.as(), DType::f32, state) == download(kv_after, DType::f32, state) &&
                  download(k.as(), DType::f32, sums) == download(k_after, DType::f32, sums);
  }
  const std::string name = std::to_string(tokens) + " tokens " + shape.name();
  report.expect(name + ": y", same_y ? 0 : 1, 0);
  report.expect(name + ": states", same_states ? 0 : 1, 0);
}

// Runs deferred steps and plain steps on the same tokens. Compares every y of the deferred steps with the reference in double, and, after
// the flush, the states with those of the plain steps, bit for bit. Half of the rows start with some more pending tokens. The reference has
// no scale, so with a scale other than 1 only the states are compared. `rounds`: with rounded states; the rows are then flushed after their
// second round, half of them without pending tokens.
void verify_deferred(Report& report, TaylorShape shape, uint64_t seed, float scale, bool rounds = false) {
  shape.lengths.assign(shape.lengths.size(), 1), shape.state = true;
  TaylorProblem plain(shape, seed);
  const int64_t rows = plain.p.rows, heads = rows * plain.p.heads, width = heads * plain.p.head_dim;
  const int64_t features = packed_features(plain.p.feature_dim), size = kernels::dtype_size(plain.p.dtype);
  const Buffer kv = copy_of(plain.kv_state), sums = copy_of(plain.k_state), y(width * size), denominator(heads * 4);
  const Buffer pending_k(heads * kernels::kTaylorPending * plain.p.feature_dim * size), pending_v(width * kernels::kTaylorPending * size);
  const Buffer count = zeros(heads * 4), exact(width * 8), exact_denominator(heads * 8), rounded(rounds ? width * features * 2 : 0);
  kernels::TaylorDeferred deferred{plain.p, pending_k.as(), pending_v.as(), count.as<int32_t>(), rounds ? rounded.as() : nullptr};
  deferred.step.kv_state = kv.as<float>(), deferred.step.k_state = sums.as<float>(), deferred.step.y = y.as();
  deferred.step.denominator = denominator.as<float>(), deferred.step.scale = plain.p.scale = scale;
  const std::string name = (rounds ? "deferred, rounded " : "deferred ") + shape.name();
  if (!kernels::taylor_deferred_takes(deferred.step, gpu::this_gpu())) return report.no_kernel(name);
  const auto expect_same_states = [&](const char* when) {
    check(cudaDeviceSynchronize(), "deferred");
    const bool same = download(kv.as(), DType::f32, heads * features * plain.p.head_dim) ==
                          download(plain.p.kv_state, DType::f32, heads * features * plain.p.head_dim) &&
                      download(sums.as(), DType::f32, heads * features) == download(plain.p.k_state, DType::f32, heads * features);
    report.expect(name + when, same ? 0 : 1, 0);
  };
  const int ahead = rows <= 8 ? 5 : 1, steps = ahead + (rounds ? 2 * kernels::kTaylorPending : kernels::kTaylorPending + 1);
  double worst = 0, worst_denominator = 0;
  for (int step = 0; step < steps; ++step) {
    const TaylorProblem token(shape, seed + 100 + step);
    const int64_t now = step < ahead ? (rows + 1) / 2 : rows;
    for (TaylorAttention* p : {&plain.p, &deferred.step}) p->q = token.p.q, p->k = token.p.k, p->v = token.p.v, p->rows = p->tokens = now;
    taylor_reference_forward(plain.p, 0, 1, exact.as<double>(), exact_denominator.as<double>());
    check(gpu::taylor_attention_step(plain.p, {}));
    check(gpu::taylor_deferred_step(deferred, {}));
    check(cudaDeviceSynchronize(), "deferred");
    worst = std::max(worst, relative_error(y.as(), shape.dtype, exact.as<double>(), now * plain.p.heads * plain.p.head_dim));
    worst_denominator =
        std::max(worst_denominator, relative_error(denominator.as(), DType::f32, exact_denominator.as<double>(), now * plain.p.heads));
    if (step + 1 == kernels::kTaylorPending && rows == 1) expect_same_states(": states when full");
  }
  const double limit = rounds ? taylor_limit(DType::bf16) : shape.dtype == DType::bf16 ? 2.5e-3 : 2e-6;
  if (scale == 1) report.expect(name + ": y", worst, limit);
  if (scale == 1) report.expect(name + ": denominator", worst_denominator, 2e-6);
  check(gpu::taylor_deferred_flush(deferred, {}));
  expect_same_states(": states after the flush");
  report.expect(name + ": pending tokens after the flush", download(count.as(), DType::f32, heads) == std::vector<double>(heads) ? 0 : 1,
                0);
}

// The allowed error of the kernel over pairs of tokens.
double pair_limit(const TaylorShape& shape) { return shape.single_tf32 ? 4e-3 : 5e-6; }

// `limit`: the allowed error of the gradients.
void verify_backward(Report& report, const TaylorShape& shape, uint64_t seed, double limit) {
  TaylorProblem problem(shape, seed);
  problem.p.slot = nullptr;  // states are given by row here
  TaylorBackwardProblem g(problem, shape, seed);
  const TaylorAttention& f = problem.p;
  check(gpu::taylor_attention_forward(f, problem.scratch.as(), {}));
  check(gpu::taylor_attention_backward(g.p, g.scratch.as(), {}));
  check(cudaDeviceSynchronize(), "backward");
  const int64_t narrow = f.tokens * f.heads * f.feature_dim, wide = f.tokens * f.heads * f.head_dim;
  const int64_t state = f.rows * f.heads * packed_features(f.feature_dim);
  const Buffer q(narrow * 8), k(narrow * 8), v(wide * 8), kv(shape.state ? state * f.head_dim * 8 : 0), k_sums(state * 8);
  taylor_reference_backward(g.p, 0, 1,
                            {q.as<double>(), k.as<double>(), v.as<double>(), shape.state ? kv.as<double>() : nullptr, k_sums.as<double>()});
  const std::string name = "backward " + shape.name();
  report.expect(name + ": q", relative_error(g.p.grad_q, f.dtype, q.as<double>(), narrow), limit);
  report.expect(name + ": k", relative_error(g.p.grad_k, f.dtype, k.as<double>(), narrow), limit);
  report.expect(name + ": v", relative_error(g.p.grad_v, f.dtype, v.as<double>(), wide), limit);
  const auto gradients = [&] {
    return std::vector<std::vector<double>>{download(g.p.grad_q, f.dtype, narrow), download(g.p.grad_k, f.dtype, narrow),
                                            download(g.p.grad_v, f.dtype, wide)};
  };
  const auto bits = gradients();
  g.q.poison(), g.k.poison(), g.v.poison(), g.scratch.poison();
  check(gpu::taylor_attention_backward(g.p, g.scratch.as(), {}));
  check(cudaDeviceSynchronize(), "backward");
  report.expect(name + ": the same bits again", gradients() == bits ? 0 : 1, 0);
  if (!shape.state) return;
  report.expect(name + ": kv state", relative_error(g.p.grad_initial_kv_state, DType::f32, kv.as<double>(), state * f.head_dim), limit);
  report.expect(name + ": k state", relative_error(g.p.grad_initial_k_state, DType::f32, k_sums.as<double>(), state), limit);
}

// fp32 without states: pairs of tokens on tensor cores, with single and split TF32 products.
void verify_pairs(Report& report, uint64_t& seed) {
  for (const bool single_tf32 : {false, true}) {
    for (TaylorShape shape : std::vector<TaylorShape>{{{256, 64, 0, 1, 63, 128}, 1, 16, 128},
                                                      {{70, 129, 65}, 2, 8, 64},
                                                      {{200, 33}, 1, 24, 128},
                                                      {{130, 64}, 2, 24, 48},
                                                      {{90}, 1, 64, 64},
                                                      {{77, 20}, 2, 3, 5},
                                                      {{100, 40}, 1, 35, 100},
                                                      {{520}, 1, 16, 64},
                                                      {{64, 64, 64}, 1, 16, 128},
                                                      {{128, 128}, 2, 24, 64},
                                                      {{256, 256}, 1, 8, 48},
                                                      {{32, 33, 96, 97, 129}, 1, 8, 48}}) {
      shape.dtype = DType::f32, shape.single_tf32 = single_tf32;
      verify_forward(report, shape, seed++, pair_limit(shape));
      verify_backward(report, shape, seed++, 2 * pair_limit(shape));
    }
  }
}

// The shape with decay of the numerator alone.
TaylorShape numerator_decays(TaylorShape shape) {
  shape.decay = true, shape.decay_denominator = false;
  return shape;
}

// Rows of different lengths, states, decay, all types.
void verify_taylor(Report& report) {
  std::vector<TaylorShape> shapes = {
      {{64}},
      {{1}},
      {{200}},
      {{130, 0, 63, 1, 300}, 3, 16, 64, DType::bf16, true},
      {{70, 129}, 2, 8, 64, DType::bf16, true},
      {{150, 65}, 2, 16, 112, DType::bf16, true},
      {{90}, 2, 16, 48, DType::bf16, true},
      {{130, 20}, 2, 16, 64, DType::f32, true},
      {{70, 33}, 2, 16, 64, DType::bf16, true, true},
      {{70, 33}, 2, 24, 40, DType::f32, true, true},
      {{40}, 1, 32, 128, DType::bf16, true},
      {{130, 0, 1, 257}, 2, 32, 64, DType::bf16, true},
      {{300, 65}, 2, 24, 112, DType::bf16, true},
      {{300}, 3, 24, 64, DType::bf16, false, true},
      {{260, 40}, 2, 32, 72, DType::bf16, true, true},
      {{200, 129}, 2, 8, 64, DType::bf16, true, true},
      {{400}, 2, 16, 112, DType::bf16, true, true},
      {{500}, 1},
      numerator_decays({{70, 33}, 2, 16, 64, DType::bf16, true}),
      numerator_decays({{70, 0, 33}, 2, 24, 40, DType::f32, true}),
      numerator_decays({{100}, 3, 16, 64, DType::f32}),
      numerator_decays({{150, 0, 129}, 2, 24, 64, DType::bf16, true}),
      numerator_decays({{290}, 2, 32, 64, DType::bf16, true}),
  };
  if (!report.quick()) {
    shapes.push_back({{1000, 517, 4096}, 4, 16, 64, DType::bf16, true});
    shapes.push_back({{5000}, 3, 16, 64, DType::bf16, true});
    shapes.push_back({{1000, 517, 4096}, 4, 24, 64, DType::bf16, true, true});
    shapes.push_back({{3000, 100}, 5, 32, 112, DType::bf16, true, true});
    shapes.push_back(numerator_decays({{2000}, 6, 16, 64, DType::bf16, true}));
    shapes.push_back({{3000, 100}, 5, 16, 112, DType::bf16, true});
    shapes.push_back({std::vector<int64_t>(40, 193), 16, 16, 64, DType::bf16, true});
    shapes.push_back({{100}, 1, 64, 64, DType::f32, true});
    shapes.push_back({{77}, 2, 3, 5, DType::f32, true});
  }
  uint64_t seed = 1;
  for (const TaylorShape& shape : shapes) verify_forward(report, shape, seed++, taylor_limit(shape.dtype));
  // The reference recomputes every pair of tokens for every element, so rows are short. A row of one token has y = v and dq = dk = 0.
  for (const TaylorShape& shape : shapes) {
    const int64_t tokens = std::accumulate(shape.lengths.begin(), shape.lengths.end(), int64_t{0});
    if (tokens > 1 && tokens < 600) verify_backward(report, shape, seed++, shape.dtype == DType::bf16 ? 1e-2 : 1e-5);
  }
  verify_pairs(report, seed);
  for (TaylorShape shape : std::vector<TaylorShape>{{{1, 1, 1, 1, 1}},
                                                    {{1, 1}, 3, 16, 112},
                                                    {{1, 1}, 2, 16, 64, DType::f32, true, true},
                                                    {{1, 1, 1}, 2, 7, 5, DType::f32},
                                                    {{1}, 2, 32, 128, DType::bf16},
                                                    {{1}, 16, 32, 64, DType::bf16},
                                                    {{1, 1}, 3, 24, 64, DType::bf16, true, true},
                                                    numerator_decays({{1, 1}, 8, 32, 64, DType::f32}),
                                                    {std::vector<int64_t>(40, 1), 4, 24, 64, DType::bf16},
                                                    {std::vector<int64_t>(40, 1), 4, 32, 64, DType::bf16},
                                                    numerator_decays({{1, 1}, 2, 16, 64, DType::f32}),
                                                    numerator_decays({std::vector<int64_t>(40, 1), 16, 16, 64, DType::bf16}),
                                                    {std::vector<int64_t>(40, 1), 16, 16, 64, DType::bf16},
                                                    {std::vector<int64_t>(20, 1), 16, 16, 112, DType::bf16, true, true}}) {
    verify_step(report, shape, seed++);
    shape.settled = true;
    verify_step(report, shape, seed++);
  }
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const int32_t feature_dim : {16, 24, 32}) {
      TaylorShape shape{{}, 16, feature_dim, 64, dtype};
      verify_step_of_one_row(report, shape, seed++);
      shape.decay = shape.settled = true;
      verify_step_of_one_row(report, shape, seed++);
    }
  for (TaylorShape shape : std::vector<TaylorShape>{{{1}, 2, 16, 112},
                                                    {{1, 1, 1}, 3, 16, 64, DType::bf16, true, true},
                                                    {{1, 1}, 2, 8, 64, DType::f32, true, true},
                                                    numerator_decays({{1, 1, 1}, 3, 16, 64, DType::bf16}),
                                                    numerator_decays({{1, 1}, 2, 24, 64, DType::f32}),
                                                    {{1, 1}, 1, 24, 48, DType::bf16},
                                                    {{1}, 1, 24, 128, DType::bf16}}) {
    for (const bool rounds : {false, true}) {
      shape.settled = false;
      verify_deferred(report, shape, seed++, 1, rounds);
      shape.settled = true;
      verify_deferred(report, shape, seed++, 0.7F, rounds);
    }
  }
  // More states than resident blocks: 132 multiprocessors hold four or three blocks each.
  verify_deferred(report, {std::vector<int64_t>(34, 1), 16, 16, 64}, seed++, 1);
  verify_deferred(report, {std::vector<int64_t>(26, 1), 16, 16, 112, DType::bf16, true, true, true}, seed++, 1);
  // Three or four states a block.
  verify_deferred(report, {std::vector<int64_t>(116, 1), 16, 16, 64}, seed++, 1, /*rounds=*/true);
  verify_deferred(report, {std::vector<int64_t>(90, 1), 16, 16, 112, DType::bf16, true, true, true}, seed++, 1, /*rounds=*/true);
}

// The last shapes have more features than a thread holds, and heads without whole vectors.
void verify_taylor_tokens(Report& report) {
  uint64_t seed = 900;
  for (TaylorShape shape : std::vector<TaylorShape>{{{1}, 16, 16, 64, DType::bf16},
                                                    {{1}, 2, 16, 64, DType::f32},
                                                    {{1}, 3, 16, 64, DType::bf16, true, true, true},
                                                    numerator_decays({{1}, 3, 16, 64, DType::f32}),
                                                    {{1}, 2, 24, 128, DType::bf16},
                                                    {{1}, 2, 32, 64, DType::f32},
                                                    {{1}, 2, 3, 5, DType::bf16}})
    for (const int64_t tokens : {1, 2, 5, 8}) verify_tokens(report, shape, tokens, seed++);
}

const DefineFamily<Report> kTaylor("taylor", verify_taylor);
const DefineFamily<Report> kTaylorTokens("taylor_attention_tokens", verify_taylor_tokens);

}  // namespace
}  // namespace based::tests
