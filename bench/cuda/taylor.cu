#include "bench/cuda/taylor.cuh"

#include <array>
#include <cmath>
#include <memory>
#include <numeric>

#include "based/kernels/taylor_deferred.h"
#include "bench/cuda/taylor_reference.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::packed_features;
using kernels::Stream;
using kernels::TaylorAttention;
namespace gpu = kernels::cuda;

struct Shape {
  std::vector<int64_t> lengths;
  int32_t heads = 2, feature_dim = 16, head_dim = 64;
  DType dtype = DType::bf16;
  bool state = false, decay = false, settled = false;
  std::string name() const {
    char text[80];
    std::snprintf(text, sizeof text, "%s H%d f%d d%d%s%s%s rows", dtype == DType::bf16 ? "bf16" : "fp32", heads, feature_dim, head_dim,
                  state ? " state" : "", decay ? " decay" : "", settled ? " settled" : "");
    std::string s = text;
    for (size_t i = 0; i < lengths.size() && i < 5; ++i) {
      s += ' ';
      s += std::to_string(lengths[i]);
    }
    if (lengths.size() > 5) s += " …";
    return s;
  }
};

__global__ void to_float(const double* from, float* to, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    to[i] = static_cast<float>(from[i]);
}

// One problem with its buffers. States are those after some random tokens, in slots that are a permutation of the rows.
struct Problem {
  TaylorAttention p;
  Buffer q, k, v, y, denominator, kv_state, k_state, decay, row_start, slot, scratch;

  Problem(const Shape& shape, uint64_t seed, int64_t states = 0) {
    std::vector<int64_t> starts{0}, slots;
    for (const int64_t n : shape.lengths) starts.push_back(starts.back() + n);
    p.rows = static_cast<int64_t>(shape.lengths.size()), p.tokens = starts.back();
    p.heads = shape.heads, p.feature_dim = shape.feature_dim, p.head_dim = shape.head_dim, p.dtype = shape.dtype;
    p.state_is_settled = shape.settled;
    const int64_t narrow = p.tokens * p.heads * p.feature_dim, wide = p.tokens * p.heads * p.head_dim;
    const double scale = 1.2 / std::pow(p.feature_dim, 0.25);
    q = random_buffer(narrow, p.dtype, scale, 5 * seed), k = random_buffer(narrow, p.dtype, scale, 5 * seed + 1);
    v = random_buffer(wide, p.dtype, 1, 5 * seed + 2);
    y = Buffer(wide * kernels::dtype_size(p.dtype)), denominator = Buffer(p.tokens * p.heads * 4);
    row_start = upload(starts);
    p.q = q.as(), p.k = k.as(), p.v = v.as(), p.y = y.as(), p.denominator = denominator.as<float>();
    p.row_start = row_start.as<int64_t>();
    if (shape.decay) {
      std::vector<float> rates(p.heads);
      for (int h = 0; h < p.heads; ++h) rates[h] = 1 - 0.5F / static_cast<float>(2 << (h % 6));
      decay = upload_floats(rates);
      p.decay = decay.as<float>();
    }
    if (shape.state) make_states(shape, seed, states);
    scratch = Buffer(gpu::taylor_attention_scratch(p));
  }

  void make_states(const Shape& shape, uint64_t seed, int64_t states) {
    const int64_t features = packed_features(p.feature_dim), count = p.rows * p.heads * features;
    kv_state = Buffer(count * p.head_dim * 4), k_state = Buffer(count * 4);
    std::vector<int64_t> slots(p.rows);
    for (int64_t r = 0; r < p.rows; ++r) slots[r] = p.rows - 1 - r;
    slot = upload(slots);
    if (states == 0) {
      Shape history = shape;
      history.lengths.assign(p.rows, 7), history.state = false;
      Problem past(history, seed + 1000);
      Buffer kv(count * p.head_dim * 8), sums(count * 8);
      taylor_reference_state(past.p, kv.as<double>(), sums.as<double>());
      to_float<<<256, 256>>>(kv.as<double>(), kv_state.as<float>(), count * p.head_dim);
      to_float<<<256, 256>>>(sums.as<double>(), k_state.as<float>(), count);
      check(cudaDeviceSynchronize(), "states");
    } else {
      kv_state = random_buffer(count * p.head_dim, DType::f32, 1, seed), k_state = random_buffer(count, DType::f32, 0.01, seed + 7);
    }
    p.kv_state = kv_state.as<float>(), p.k_state = k_state.as<float>(), p.slot = slot.as<int64_t>();
  }
};

// bf16: inputs are exact, features are rounded once on either side, y is rounded once.
double allowed(DType dtype) { return dtype == DType::bf16 ? 5e-3 : 2e-6; }

// States in slot order compared with the reference's, in row order.
double state_error(const Problem& problem, const float* state, const double* reference, int64_t per_row) {
  double worst = 0;
  for (int64_t r = 0; r < problem.p.rows; ++r) {
    worst = std::max(worst, relative_error(state + (problem.p.rows - 1 - r) * per_row, DType::f32, reference + r * per_row, per_row));
  }
  return worst;
}

void verify_forward(Report& report, const Shape& shape, uint64_t seed) {
  Problem problem(shape, seed);
  const TaylorAttention& p = problem.p;
  const int64_t heads = p.tokens * p.heads, features = packed_features(p.feature_dim), state = p.heads * features;
  Buffer y(heads * p.head_dim * 8), denominator(heads * 8), kv(p.rows * state * p.head_dim * 8), k(p.rows * state * 8);
  taylor_reference_forward(p, 0, 1, y.as<double>(), denominator.as<double>());
  if (shape.state) taylor_reference_state(p, kv.as<double>(), k.as<double>());
  check(gpu::taylor_attention_forward(p, problem.scratch.as(), {}));
  check(cudaDeviceSynchronize(), "forward");
  const std::string name = "forward " + shape.name();
  report.expect(name + ": y", relative_error(p.y, p.dtype, y.as<double>(), heads * p.head_dim), allowed(p.dtype));
  report.expect(name + ": denominator", relative_error(p.denominator, DType::f32, denominator.as<double>(), heads), 2e-5);
  if (!shape.state) return;
  report.expect(name + ": kv state", state_error(problem, p.kv_state, kv.as<double>(), state * p.head_dim), allowed(p.dtype));
  report.expect(name + ": k state", state_error(problem, p.k_state, k.as<double>(), state), 2e-6);
}

void verify_step(Report& report, Shape shape, uint64_t seed) {
  shape.lengths.assign(shape.lengths.size(), 1), shape.state = true;
  Problem problem(shape, seed);
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

// Steps whose tokens wait beside the sums, beside plain steps: every y against the sums in double, and the states bit for bit once nothing
// waits. Half of the rows are some tokens ahead. With another scale than 1, which the sums in double do not know, the states alone.
void verify_deferred(Report& report, Shape shape, uint64_t seed, float scale) {
  shape.lengths.assign(shape.lengths.size(), 1), shape.state = true;
  Problem plain(shape, seed);
  const int64_t rows = plain.p.rows, heads = rows * plain.p.heads, width = heads * plain.p.head_dim;
  const int64_t features = packed_features(plain.p.feature_dim), size = kernels::dtype_size(plain.p.dtype);
  const Buffer kv = copy_of(plain.kv_state), sums = copy_of(plain.k_state), y(width * size), denominator(heads * 4);
  const Buffer pending_k(heads * kernels::kTaylorPending * plain.p.feature_dim * size), pending_v(width * kernels::kTaylorPending * size);
  const Buffer count = zeros(heads * 4), exact(width * 8), exact_denominator(heads * 8);
  kernels::TaylorDeferred deferred{plain.p, pending_k.as(), pending_v.as(), count.as<int32_t>()};
  deferred.step.kv_state = kv.as<float>(), deferred.step.k_state = sums.as<float>(), deferred.step.y = y.as();
  deferred.step.denominator = denominator.as<float>(), deferred.step.scale = plain.p.scale = scale;
  const std::string name = "deferred " + shape.name();
  if (!kernels::taylor_deferred_takes(deferred.step, gpu::this_gpu())) return report.no_kernel(name);
  const auto expect_same_states = [&](const char* when) {
    check(cudaDeviceSynchronize(), "deferred");
    const bool same = download(kv.as(), DType::f32, heads * features * plain.p.head_dim) ==
                          download(plain.p.kv_state, DType::f32, heads * features * plain.p.head_dim) &&
                      download(sums.as(), DType::f32, heads * features) == download(plain.p.k_state, DType::f32, heads * features);
    report.expect(name + when, same ? 0 : 1, 0);
  };
  const int ahead = rows <= 8 ? 5 : 1, steps = kernels::kTaylorPending + ahead + 1;
  double worst = 0, worst_denominator = 0;
  for (int step = 0; step < steps; ++step) {
    const Problem token(shape, seed + 100 + step);
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
  if (scale == 1) report.expect(name + ": y", worst, shape.dtype == DType::bf16 ? 2.5e-3 : 2e-6);
  if (scale == 1) report.expect(name + ": denominator", worst_denominator, 2e-6);
  check(gpu::taylor_deferred_flush(deferred, {}));
  expect_same_states(": states, settled");
  report.expect(name + ": what waits then", download(count.as(), DType::f32, heads) == std::vector<double>(heads) ? 0 : 1, 0);
}

// A problem's gradients by the kernel, from a forward by the kernel.
struct Gradients {
  kernels::TaylorAttentionBackward p;
  Buffer grad_y, grad_kv, grad_k_sums, initial_kv, initial_k, q, k, v, kv, k_sums, scratch;

  Gradients(const Problem& problem, const Shape& shape, uint64_t seed) {
    const TaylorAttention& f = problem.p;
    const int64_t size = kernels::dtype_size(f.dtype), narrow = f.tokens * f.heads * f.feature_dim, wide = f.tokens * f.heads * f.head_dim;
    const int64_t state = f.rows * f.heads * packed_features(f.feature_dim);
    p.forward = f;
    grad_y = random_buffer(wide, f.dtype, 1, seed + 31), q = Buffer(narrow * size), k = Buffer(narrow * size), v = Buffer(wide * size);
    p.grad_y = grad_y.as(), p.grad_q = q.as(), p.grad_k = k.as(), p.grad_v = v.as();
    if (shape.state) {
      initial_kv = copy_of(problem.kv_state), initial_k = copy_of(problem.k_state);
      grad_kv = random_buffer(state * f.head_dim, DType::f32, 0.02, seed + 32),
      grad_k_sums = random_buffer(state, DType::f32, 0.02, seed + 33);
      kv = Buffer(state * f.head_dim * 4), k_sums = Buffer(state * 4);
      p.initial_kv_state = initial_kv.as<float>(), p.initial_k_state = initial_k.as<float>();
      p.grad_kv_state = grad_kv.as<float>(), p.grad_k_state = grad_k_sums.as<float>();
      p.grad_initial_kv_state = kv.as<float>(), p.grad_initial_k_state = k_sums.as<float>();
    }
    scratch = Buffer(gpu::taylor_attention_backward_scratch(p));
  }
};

void verify_backward(Report& report, const Shape& shape, uint64_t seed) {
  Problem problem(shape, seed);
  problem.p.slot = nullptr;  // states are given by row here
  Gradients g(problem, shape, seed);
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
  const double limit = f.dtype == DType::bf16 ? 1e-2 : 1e-5;
  report.expect(name + ": q", relative_error(g.p.grad_q, f.dtype, q.as<double>(), narrow), limit);
  report.expect(name + ": k", relative_error(g.p.grad_k, f.dtype, k.as<double>(), narrow), limit);
  report.expect(name + ": v", relative_error(g.p.grad_v, f.dtype, v.as<double>(), wide), limit);
  if (!shape.state) return;
  report.expect(name + ": kv state", relative_error(g.p.grad_initial_kv_state, DType::f32, kv.as<double>(), state * f.head_dim), limit);
  report.expect(name + ": k state", relative_error(g.p.grad_initial_k_state, DType::f32, k_sums.as<double>(), state), limit);
}

void time_forward_backward(Report& report, int64_t batch, int64_t length, const std::string& headline) {
  const Shape shape{std::vector<int64_t>(batch, length), 16, 16, 64, DType::bf16, false, false};
  const int64_t bytes = batch * length * 16 * 320;
  std::vector<std::unique_ptr<Problem>> problems;
  std::vector<std::unique_ptr<Gradients>> gradients;
  for (int i = 0; i < working_sets(3 * bytes); ++i) {
    problems.push_back(std::make_unique<Problem>(shape, 300 + i));
    gradients.push_back(std::make_unique<Gradients>(*problems.back(), shape, 300 + i));
  }
  const double ms = median_ms(static_cast<int>(problems.size()), [&](int set, cudaStream_t stream) {
    check(gpu::taylor_attention_forward(problems[set]->p, problems[set]->scratch.as(), Stream{stream}));
    check(gpu::taylor_attention_backward(gradients[set]->p, gradients[set]->scratch.as(), Stream{stream}));
  });
  // q, k, v in and y out; then q, k, v, y, dy in and dq, dk, dv out.
  const double floor = static_cast<double>(bytes + batch * length * 16 * (4 * 16 + 4 * 64) * 2) / kBytesPerMs;
  report.add({headline, "taylor_forward_backward B" + std::to_string(batch) + " N" + std::to_string(length), ms, "ms", floor});
}

void time_forward(Report& report, int64_t batch, int64_t length, const std::string& headline, int32_t head_dim = 64, int32_t heads = 16) {
  Shape shape{std::vector<int64_t>(batch, length), heads, 16, head_dim, DType::bf16, false, false};
  const int64_t bytes = batch * length * heads * (2 * 16 + 2 * head_dim) * 2;
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < working_sets(bytes); ++i) problems.push_back(std::make_unique<Problem>(shape, 100 + i));
  const double ms = median_ms(static_cast<int>(problems.size()), [&](int set, cudaStream_t stream) {
    check(gpu::taylor_attention_forward(problems[set]->p, problems[set]->scratch.as(), Stream{stream}));
  });
  // Every 97th token against the definition.
  const TaylorAttention& p = problems[0]->p;
  const int64_t step = std::max<int64_t>(97, p.tokens / 500), count = (p.tokens - 5 + step - 1) / step, row = p.heads * p.head_dim;
  Buffer y(count * row * 8), denominator(count * p.heads * 8), sampled(count * row * 2);
  taylor_reference_forward(p, 5, step, y.as<double>(), denominator.as<double>());
  check(
      cudaMemcpy2D(sampled.as(), row * 2, static_cast<char*>(p.y) + 5 * row * 2, step * row * 2, row * 2, count, cudaMemcpyDeviceToDevice),
      "sample");
  const double error = relative_error(sampled.as(), DType::bf16, y.as<double>(), count * row);
  const std::string name = "taylor_forward B" + std::to_string(batch) + " N" + std::to_string(length) + " d" + std::to_string(head_dim);
  report.add({headline, name, ms, "ms", static_cast<double>(bytes) / kBytesPerMs, error});
  if (!(error <= allowed(DType::bf16))) report.fail(name);
}

// With `settled` a call requests its states while the one before it, which is of another set, runs: as the layers of a decode step do.
void time_step(Report& report, int64_t batch, bool settled, const std::string& headline, int32_t head_dim = 64) {
  Shape shape{std::vector<int64_t>(batch, 1), 16, 16, head_dim, DType::bf16, true, false, settled};
  const int64_t state = batch * 16 * packed_features(16) * (head_dim + 1) * 4;
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < working_sets(state); ++i) problems.push_back(std::make_unique<Problem>(shape, 200 + i, 1));
  const double ms = median_ms(static_cast<int>(problems.size()),
                              [&](int set, cudaStream_t stream) { check(gpu::taylor_attention_step(problems[set]->p, Stream{stream})); });
  report.add({headline, "taylor_update B" + std::to_string(batch) + " d" + std::to_string(head_dim) + (settled ? " settled" : ""), ms, "ms",
              static_cast<double>(2 * state) / kBytesPerMs});
}

// The same where tokens wait: the mean of a whole round of steps, of which one writes the sums. Floor: the sums read once and written once
// a round, what waits read, on the mean, and the token's key and value written.
void time_deferred(Report& report, int64_t batch, int32_t head_dim) {
  const Shape shape{std::vector<int64_t>(batch, 1), 16, 16, head_dim, DType::bf16, true, false, true};
  const int64_t heads = batch * 16, state = heads * packed_features(16) * (head_dim + 1) * 4, token = heads * (16 + head_dim) * 2;
  std::vector<std::unique_ptr<Problem>> problems;
  std::vector<std::array<Buffer, 3>> buffers;
  std::vector<kernels::TaylorDeferred> calls;
  for (int i = 0; i < working_sets(state); ++i) {
    problems.push_back(std::make_unique<Problem>(shape, 200 + i, 1));
    const int64_t room = heads * kernels::kTaylorPending;
    buffers.push_back(
        {random_buffer(room * 16, DType::bf16, 0.5, 300 + i), random_buffer(room * head_dim, DType::bf16, 1, 400 + i), zeros(heads * 4)});
    calls.push_back({problems.back()->p, buffers.back()[0].as(), buffers.back()[1].as(), buffers.back()[2].as<int32_t>()});
  }
  const int sets = static_cast<int>(calls.size());
  const double ms = median_ms(kernels::kTaylorPending * sets,
                              [&](int call, cudaStream_t stream) { check(gpu::taylor_deferred_step(calls[call % sets], Stream{stream})); });
  const double bytes = static_cast<double>(state) * (1 + 1.0 / kernels::kTaylorPending) +
                       static_cast<double>(token) * (1 + (kernels::kTaylorPending - 1) / 2.0);
  report.add({"", "taylor_deferred B" + std::to_string(batch) + " d" + std::to_string(head_dim), ms, "ms", bytes / kBytesPerMs});
}

}  // namespace

void verify_taylor(Report& report, bool quick) {
  std::vector<Shape> shapes = {
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
      {{500}, 1},
  };
  if (!quick) {
    shapes.push_back({{1000, 517, 4096}, 4, 16, 64, DType::bf16, true});
    shapes.push_back({{5000}, 3, 16, 64, DType::bf16, true});
    shapes.push_back({{3000, 100}, 5, 16, 112, DType::bf16, true});
    shapes.push_back({std::vector<int64_t>(40, 193), 16, 16, 64, DType::bf16, true});
    shapes.push_back({{100}, 1, 64, 64, DType::f32, true});
    shapes.push_back({{77}, 2, 3, 5, DType::f32, true});
  }
  uint64_t seed = 1;
  for (const Shape& shape : shapes) verify_forward(report, shape, seed++);
  // The reference takes every pair of tokens again for every element: short rows only. A row of one token has y = v and dq = dk = 0.
  for (const Shape& shape : shapes) {
    const int64_t tokens = std::accumulate(shape.lengths.begin(), shape.lengths.end(), int64_t{0});
    if (tokens > 1 && tokens < 600) verify_backward(report, shape, seed++);
  }
  for (Shape shape : std::vector<Shape>{{{1, 1, 1, 1, 1}},
                                        {{1, 1}, 3, 16, 112},
                                        {{1, 1}, 2, 16, 64, DType::f32, true, true},
                                        {{1, 1, 1}, 2, 7, 5, DType::f32},
                                        {{1}, 2, 32, 128, DType::bf16},
                                        {std::vector<int64_t>(40, 1), 16, 16, 64, DType::bf16},
                                        {std::vector<int64_t>(20, 1), 16, 16, 112, DType::bf16, true, true}}) {
    verify_step(report, shape, seed++);
    shape.settled = true;
    verify_step(report, shape, seed++);
  }
  for (Shape shape : std::vector<Shape>{{{1}, 2, 16, 112},
                                        {{1, 1, 1}, 3, 16, 64, DType::bf16, true, true},
                                        {{1, 1}, 2, 8, 64, DType::f32, true, true},
                                        {{1, 1}, 1, 24, 48, DType::bf16},
                                        {{1}, 1, 24, 128, DType::bf16}}) {
    verify_deferred(report, shape, seed++, 1);
    shape.settled = true;
    verify_deferred(report, shape, seed++, 0.7F);
  }
  // More states than blocks run at once, of which 132 multiprocessors hold four and three each.
  verify_deferred(report, {std::vector<int64_t>(34, 1), 16, 16, 64}, seed++, 1);
  verify_deferred(report, {std::vector<int64_t>(26, 1), 16, 16, 112, DType::bf16, true, true, true}, seed++, 1);
}

void time_taylor(Report& report) {
  time_forward(report, 1, 1024, "taylor_forward_b1_n1024");
  time_forward(report, 2, 4096, "taylor_forward_b2_n4096");
  time_forward(report, 16, 1024, "taylor_forward_b16_n1024");
  time_forward(report, 4, 16384, "taylor_forward_b4_n16384");
  time_forward(report, 1, 131072, "taylor_forward_b1_n131072");
  time_forward(report, 4, 2048, "");
  time_forward(report, 2, 4096, "", 112);
  time_forward_backward(report, 4, 2048, "taylor_forward_backward_b4_n2048");
  time_forward_backward(report, 8, 2048, "");
  for (const bool settled : {false, true}) {
    time_step(report, 1, settled, "");
    time_step(report, 16, settled, "");
    time_step(report, 128, settled, settled ? "taylor_update_b128" : "");
    time_step(report, 128, settled, "", 112);
  }
  for (const int32_t head_dim : {64, 112}) time_deferred(report, 128, head_dim);
}

}  // namespace based::bench
