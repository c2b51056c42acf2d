#include <algorithm>
#include <cmath>

#include "bench/kernels/attention/problems/attention.cuh"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::CausalAttention;
using kernels::DType;
namespace gpu = kernels::cuda;

struct Expected {
  std::vector<double> y, log_sum_exp, grad_q, grad_kv;
};

// Inputs and outputs of the reference for one query and head. `kv` and `grad_kv` point to the row's first key.
struct Query {
  int64_t token, head;
  const double *q, *dy, *kv;
  double *y, *log_sum_exp, *grad_q, *grad_kv;
};

// Reference: attends over keys first .. last and adds to the gradients.
void attend(const AttentionProblem& problem, const Query& at, int64_t first, int64_t last) {
  const int64_t dim = problem.b.forward.head_dim, stride = 2 * problem.kv_width, v = problem.kv_width;
  const auto scale = static_cast<double>(problem.b.forward.scale);
  const kernels::AttentionDropout& dropout = problem.b.forward.dropout;
  const uint64_t key = kernels::dropout_key(problem.kSeed, problem.kStep, problem.kPlace);
  const auto kept = [&](int64_t j) {
    const auto element = static_cast<uint64_t>(at.token * problem.b.forward.heads + at.head) << 20 | static_cast<uint64_t>(j);
    return kernels::is_dropped(key, element, dropout.threshold) ? 0.0 : static_cast<double>(dropout.scale);
  };
  std::vector<double> weight;
  double total = 0, mean = 0;
  for (int64_t j = first; j <= last; ++j) {
    double score = 0;
    for (int64_t d = 0; d < dim; ++d) score += at.q[d] * at.kv[j * stride + d];
    weight.push_back(std::exp(score * scale));
    total += weight.back();
  }
  *at.log_sum_exp = std::log(total);
  for (int64_t j = first; j <= last; ++j) {
    const double w = weight[j - first] / total * kept(j);
    for (int64_t d = 0; d < dim; ++d) at.y[d] += w * at.kv[j * stride + v + d], mean += at.dy[d] * w * at.kv[j * stride + v + d];
  }
  for (int64_t j = first; j <= last; ++j) {
    const double w = weight[j - first] / total;
    double product = 0;
    for (int64_t d = 0; d < dim; ++d) product += at.dy[d] * at.kv[j * stride + v + d];
    const double ds = w * (product * kept(j) - mean) * scale;
    for (int64_t d = 0; d < dim; ++d) {
      at.grad_q[d] += ds * at.kv[j * stride + d];
      at.grad_kv[j * stride + d] += ds * at.q[d], at.grad_kv[j * stride + v + d] += w * kept(j) * at.dy[d];
    }
  }
}

Expected reference(const AttentionProblem& problem, const AttentionShape& s) {
  const CausalAttention& p = problem.b.forward;
  const std::vector<double> q = download(p.q, p.dtype, p.q_tokens * p.q_stride),
                            dy = download(problem.b.grad_y, p.dtype, p.q_tokens * problem.q_width),
                            kv = download(p.k, p.dtype, p.k_tokens * 2 * problem.kv_width);
  Expected e;
  e.y.resize(dy.size()), e.log_sum_exp.resize(p.q_tokens * s.heads), e.grad_q.resize(dy.size()), e.grad_kv.resize(kv.size());
  const std::vector<int64_t> q_starts = row_starts(s.queries), k_starts = row_starts(s.keys);
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t i = 0; i < s.queries[r]; ++i) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t token = q_starts[r] + i, last = i + s.keys[r] - s.queries[r], at = (token * s.heads + h) * s.head_dim;
        const int64_t key = k_starts[r] * 2 * problem.kv_width + h / (s.heads / s.kv_heads) * s.head_dim;
        attend(problem,
               {token, h, &q[token * p.q_stride + h * s.head_dim], &dy[at], &kv[key], &e.y[at], &e.log_sum_exp[token * s.heads + h],
                &e.grad_q[at], &e.grad_kv[key]},
               s.window == 0 ? 0 : std::max<int64_t>(0, last - s.window + 1), last);
      }
    }
  }
  return e;
}

std::vector<char> bytes_of(const Buffer& buffer) {
  std::vector<char> bytes(static_cast<size_t>(buffer.bytes()));
  check(cudaMemcpy(bytes.data(), buffer.as(), bytes.size(), cudaMemcpyDeviceToHost), "download");
  return bytes;
}

// Maximum relative errors.
struct Limits {
  double y, log_sum_exp, gradient;
};
Limits limits_of(const CausalAttention& p) {
  if (p.dtype == DType::bf16) return {4e-3, 1e-5, 1e-2};
  return p.single_tf32 ? Limits{3e-3, 1e-3, 6e-3} : Limits{5e-6, 2e-6, 2e-5};
}

void verify_backward(Report& report, AttentionProblem& problem, const Expected& expected, const std::string& name) {
  const CausalAttention& p = problem.b.forward;
  const double limit = limits_of(p).gradient;
  check(gpu::causal_attention_backward(problem.b, problem.scratch.as(), {}));
  check(cudaDeviceSynchronize(), "causal_attention_backward");
  const std::vector<double> wide = download(problem.b.grad_q, p.dtype, p.q_tokens * p.q_stride);
  std::vector<double> grad_q;
  for (size_t i = 0; i < wide.size(); ++i) {
    if (static_cast<int64_t>(i) % p.q_stride < problem.q_width) grad_q.push_back(wide[i]);
  }
  const std::vector<double> grad_kv = download(problem.b.grad_k, p.dtype, static_cast<int64_t>(expected.grad_kv.size()));
  const auto part = [&](const std::vector<double>& all, bool second) {
    std::vector<double> half;
    for (size_t i = 0; i < all.size(); ++i) {
      if ((static_cast<int64_t>(i) / problem.kv_width % 2 == 1) == second) half.push_back(all[i]);
    }
    return half;
  };
  const std::vector<double> grad_v = part(expected.grad_kv, true);
  if (p.window == 1) {  // all weights are 1 for any scores, so grad_q and grad_k contain only rounding errors
    const auto sum = [](std::vector<double> x, const std::vector<double>& y) {
      for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
      return x;
    };
    report.expect(name + ": grad_q", relative_error(sum(grad_v, grad_q), grad_v), limit);
    report.expect(name + ": grad_k", relative_error(sum(grad_v, part(grad_kv, false)), grad_v), limit);
  } else {
    report.expect(name + ": grad_q", relative_error(grad_q, expected.grad_q), limit);
    report.expect(name + ": grad_k", relative_error(part(grad_kv, false), part(expected.grad_kv, false)), limit);
  }
  report.expect(name + ": grad_v", relative_error(part(grad_kv, true), grad_v), limit);
  const std::vector<char> q_bits = bytes_of(problem.grad_q), kv_bits = bytes_of(problem.grad_kv);
  problem.grad_q.poison(), problem.grad_kv.poison(), problem.scratch.poison();
  check(gpu::causal_attention_backward(problem.b, problem.scratch.as(), {}));
  check(cudaDeviceSynchronize(), "causal_attention_backward");
  if (bytes_of(problem.grad_q) != q_bits || bytes_of(problem.grad_kv) != kv_bits) report.fail(name + ": the same bits again");
}

std::string name_of(const AttentionShape& s) {
  std::string name = "causal_attention H" + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " d" + std::to_string(s.head_dim) +
                     " window " + std::to_string(s.window) + (s.dtype == DType::f32 ? s.single_tf32 ? " tf32" : " fp32" : "") +
                     (s.dropout ? " dropout" : "") + " keys";
  for (size_t r = 0; r < s.keys.size(); ++r) name += ' ' + std::to_string(s.keys[r]) + (s.keys[r] > s.queries[r] ? "+" : "");
  return name;
}

void verify_forward(Report& report, const AttentionProblem& problem, const Expected& expected, const std::string& name) {
  const CausalAttention& p = problem.b.forward;
  check(gpu::causal_attention_forward(p, problem.scratch.as(), {}));
  check(cudaDeviceSynchronize(), "causal_attention_forward");
  report.expect(name + ": y", relative_error(download(p.y, p.dtype, p.q_tokens * problem.q_width), expected.y), limits_of(p).y);
  report.expect(name + ": log_sum_exp", relative_error(download(p.log_sum_exp, DType::f32, p.q_tokens * p.heads), expected.log_sum_exp),
                limits_of(p).log_sum_exp);
}

void verify(Report& report, const AttentionShape& s, uint64_t seed) {
  AttentionProblem problem(s, seed);
  const Expected expected = reference(problem, s);
  if (!gpu::causal_attention_supports(problem.b.forward)) return report.no_kernel(name_of(s));
  verify_forward(report, problem, expected, name_of(s));
  verify_backward(report, problem, expected, name_of(s));
}

// The scores of the first half of a row's keys are so large that weights relative to the other scores overflow.
void verify_loud_keys(Report& report, const std::vector<int64_t>& lengths) {
  const AttentionShape s{lengths, lengths, 2, 2, 64, 0};
  AttentionProblem problem(s, 60);
  if (!gpu::causal_attention_supports(problem.b.forward)) return report.no_kernel("loud keys");
  const int64_t token_bytes = 2 * problem.kv_width * 2;
  const Buffer loud = random_buffer(problem.kv.bytes() / 2, DType::bf16, 40, 190);
  int64_t token = 0;
  for (const int64_t n : lengths) {
    check(cudaMemcpy(problem.kv.as<char>() + token * token_bytes, loud.as<char>() + token * token_bytes, n / 2 * token_bytes,
                     cudaMemcpyDeviceToDevice),
          "copy");
    token += n;
  }
  verify_forward(report, problem, reference(problem, s), name_of(s) + ", half of them loud");
}

// The bytes of rows 0, 2, 4, …, with `token_bytes` bytes per token.
std::vector<char> bytes_of_even_rows(const Buffer& buffer, const std::vector<int64_t>& lengths, int64_t token_bytes) {
  const std::vector<char> all = bytes_of(buffer);
  const std::vector<int64_t> start = row_starts(lengths);
  std::vector<char> bytes;
  for (size_t r = 0; r < lengths.size(); r += 2)
    bytes.insert(bytes.end(), all.begin() + start[r] * token_bytes, all.begin() + start[r + 1] * token_bytes);
  return bytes;
}

// Fills rows 1, 3, 5, … with `poison`.
template <typename Bits>
void poison_odd_rows(const Buffer& buffer, const std::vector<int64_t>& lengths, int64_t token_bytes, Bits poison) {
  const std::vector<int64_t> start = row_starts(lengths);
  for (size_t r = 1; r < lengths.size(); r += 2) {
    const std::vector<Bits> bad(static_cast<size_t>(lengths[r] * token_bytes) / sizeof(Bits), poison);
    check(cudaMemcpy(buffer.as<char>() + start[r] * token_bytes, bad.data(), sizeof(Bits) * bad.size(), cudaMemcpyHostToDevice), "poison");
  }
}

// NaN or infinite inputs in a row must not change any bit of the outputs and gradients of other rows.
template <typename Bits>
void verify_poisoned_rows(Report& report, const AttentionShape& s, uint64_t seed) {
  AttentionProblem problem(s, seed);
  const std::string name = name_of(s) + ", every second row ";
  if (!gpu::causal_attention_supports(problem.b.forward)) return report.no_kernel(name);
  const int64_t size = sizeof(Bits);
  const int64_t q_bytes = problem.b.forward.q_stride * size, kv_bytes = problem.kv_width * 2 * size, y_bytes = problem.q_width * size;
  const auto run = [&] {
    problem.y.poison(), problem.log_sum_exp.poison(), problem.grad_q.poison(), problem.grad_kv.poison(), problem.scratch.poison();
    check(gpu::causal_attention_forward(problem.b.forward, problem.scratch.as(), {}));
    check(gpu::causal_attention_backward(problem.b, problem.scratch.as(), {}));
    check(cudaDeviceSynchronize(), "causal_attention");
    return std::vector<std::vector<char>>{
        bytes_of_even_rows(problem.y, s.queries, y_bytes), bytes_of_even_rows(problem.log_sum_exp, s.queries, int64_t{s.heads} * 4),
        bytes_of_even_rows(problem.grad_q, s.queries, q_bytes), bytes_of_even_rows(problem.grad_kv, s.keys, kv_bytes)};
  };
  const auto expected = run();
  constexpr int kLower = 8 * (sizeof(Bits) - 2);  // mantissa bits that fp32 has and bf16 lacks
  constexpr Bits kNan = Bits{0x7fc0} << kLower, kInfinity = Bits{0x7f80} << kLower;
  for (const Bits poison : {kNan, kInfinity}) {
    poison_odd_rows(problem.q, s.queries, q_bytes, poison), poison_odd_rows(problem.kv, s.keys, kv_bytes, poison);
    poison_odd_rows(problem.grad_y, s.queries, y_bytes, poison);
    const auto found = run();
    const char* const what[] = {"y", "log_sum_exp", "grad_q", "gradients of keys and values"};
    for (size_t i = 0; i < found.size(); ++i)
      report.expect(name + (poison == kNan ? "NaN: " : "infinite: ") + what[i], found[i] == expected[i] ? 0 : 1, 0);
  }
}

// fp32, with single and split TF32 products.
void verify_pairs(Report& report) {
  const std::vector<int64_t> lengths{0, 1, 63, 64, 65, 200, 300}, longer{5, 1, 100, 64, 300, 201, 400}, equal(20, 256),
      some{0, 31, 64, 130}, edges{32, 33, 96, 97, 128, 129, 256, 257}, short_rows(9, 64), long_rows(2, 1024);
  uint64_t seed = 200;
  for (const bool single_tf32 : {false, true}) {
    for (AttentionShape s : std::vector<AttentionShape>{{lengths, lengths, 1, 1, 128, 0},
                                                        {lengths, lengths, 1, 1, 128, 64},
                                                        {lengths, lengths, 2, 2, 64, 1},
                                                        {lengths, longer, 4, 2, 48, 0},
                                                        {lengths, longer, 2, 1, 112, 100},
                                                        {lengths, longer, 6, 2, 64, 16},
                                                        {some, some, 2, 1, 22, 0},  // not multiples of 8 or 4
                                                        {some, some, 3, 1, 5, 33},
                                                        {{1000}, {1024}, 1, 1, 72, 0},
                                                        {equal, equal, 1, 1, 128, 0},
                                                        {edges, edges, 2, 1, 48, 0},
                                                        {edges, edges, 1, 1, 80, 64},
                                                        {short_rows, short_rows, 2, 2, 64, 0},
                                                        {short_rows, short_rows, 1, 1, 21, 0},
                                                        {long_rows, long_rows, 1, 1, 48, 64}}) {
      s.dtype = DType::f32, s.single_tf32 = single_tf32;
      verify(report, s, seed++);
      s.dropout = true;
      if (s.window != 1) verify(report, s, seed++);
    }
  }
  const std::vector<int64_t> ragged{40, 33, 1, 100, 65, 1, 191, 70}, more{50, 40, 90, 100, 66, 5, 200, 70};
  for (const AttentionShape& s : std::vector<AttentionShape>{{ragged, more, 2, 1, 128, 0, DType::f32},
                                                             {ragged, more, 2, 2, 64, 48, DType::f32, true},
                                                             {ragged, ragged, 2, 2, 10, 0, DType::f32}})
    verify_poisoned_rows<uint32_t>(report, s, seed++);
}

void verify_causal_attention(Report& report) {
  const std::vector<int64_t> lengths{0, 1, 63, 64, 65, 200, 513}, longer{5, 1, 100, 64, 300, 201, 600};
  std::vector<int64_t> many;  // rows
  for (int64_t i = 0; i < 100; ++i) many.push_back(i * 37 % 90);
  uint64_t seed = 1;
  for (const AttentionShape& s :
       std::vector<AttentionShape>{{lengths, lengths, 2, 2, 64, 0},
                                   {lengths, lengths, 2, 2, 64, 1},
                                   {lengths, lengths, 4, 2, 64, 16},
                                   {lengths, lengths, 2, 2, 64, 64},
                                   {lengths, lengths, 4, 1, 64, 100},
                                   {lengths, longer, 6, 2, 64, 0},
                                   {lengths, longer, 2, 2, 64, 64},
                                   {lengths, longer, 2, 1, 64, 100},
                                   {lengths, longer, 4, 2, 64, 300},
                                   {{100, 1500}, {100, 1700}, 2, 1, 64, 0},
                                   {many, many, 3, 3, 64, 0},
                                   {{1030, 2048, 900}, {1030, 2048, 900}, 6, 6, 64, 0},  // more work items than multiprocessors
                                   {{1000, 1500}, {1200, 1500}, 4, 2, 64, 300},
                                   {{100, 2100, 1}, {150, 3001, 70}, 2, 1, 64, 0},
                                   {{1025, 1090}, {1025, 1090}, 3, 3, 40, 0},
                                   {{300, 200, 129}, {300, 200, 129}, 3, 3, 40, 0},
                                   {lengths, longer, 4, 2, 112, 0},
                                   {lengths, lengths, 2, 2, 112, 64},
                                   {lengths, longer, 2, 2, 128, 100},
                                   {lengths, lengths, 2, 2, 128, 0}}) {
    verify(report, s, seed++);
  }
  verify_loud_keys(report, {400, 1700});
  const std::vector<int64_t> ragged{40, 33, 1, 100, 65, 1, 191, 70, 130, 64}, more{50, 40, 90, 100, 66, 5, 200, 70, 333, 64};
  for (const AttentionShape& s : std::vector<AttentionShape>{{ragged, ragged, 2, 2, 64, 0},
                                                             {ragged, ragged, 4, 2, 64, 16},
                                                             {ragged, more, 4, 1, 64, 100},
                                                             {ragged, more, 6, 2, 40, 0},
                                                             {ragged, ragged, 2, 2, 128, 64},
                                                             {ragged, more, 4, 2, 112, 0},
                                                             {{1030, 900, 1500, 2000}, {1200, 1000, 1500, 2100}, 4, 2, 64, 0},
                                                             {{1030, 900, 1500, 2000}, {1030, 900, 1500, 2000}, 2, 2, 64, 300}}) {
    verify_poisoned_rows<uint16_t>(report, s, seed++);
  }
  verify_pairs(report);
}

const DefineFamily<Report> kCausalAttention("causal_attention", verify_causal_attention);

}  // namespace
}  // namespace based::tests
