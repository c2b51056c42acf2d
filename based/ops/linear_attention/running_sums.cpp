#include "based/ops/linear_attention/running_sums.h"

#include "based/ops/framework/arguments.h"
#include "based/ops/framework/rows.h"

namespace based::ops {

namespace {

// The head_dim columns, `last`, and zeros, `width` columns in all.
Tensor widened(const Tensor& columns, const Tensor& last) {
  const int64_t width = columns.size(-1) + 1, padding = (4 - width % 4) % 4;
  std::vector<int64_t> sizes = columns.sizes().vec();
  sizes.back() = padding;
  return at::cat({columns, last, at::zeros(sizes, columns.options())}, -1);
}

}  // namespace

AttentionSums over_runs(const PackedSums& in, const RunForm& form) {
  const at::ScalarType type = sum_type(in.v);
  const Tensor values = in.v.to(type), v = widened(values, at::ones_like(values.narrow(-1, 0, 1)));
  const std::vector<int64_t> starts = row_starts(in.op, "cu_seqlens", in.cu_seqlens, in.q.size(0));
  const int64_t rows = in.cu_seqlens.size(0) - 1, heads = in.q.size(1), head_dim = in.v.size(2), width = v.size(2);
  const Tensor initial = in.initial_kv_state ? widened(*in.initial_kv_state, in.initial_k_state->unsqueeze(-1)) : Tensor();
  const auto zero_state = [&](int64_t count) { return at::zeros({count, heads, in.features, width}, v.options()); };
  std::vector<Tensor> sums, states;
  for (const Run& run : equal_runs(starts)) {
    const auto heads_first = [&](const Tensor& packed) { return tokens_of(packed, run).transpose(1, 2); };
    const Tensor before = initial.defined() ? initial.narrow(0, run.first_row, run.rows) : Tensor();
    const RunResult result = form({heads_first(in.q), heads_first(in.k), heads_first(v), before, in.final_state});
    sums.push_back(result.sums.transpose(1, 2).reshape({run.rows * run.length, heads, width}));
    if (in.final_state) states.push_back(result.state.defined() ? result.state : zero_state(run.rows));
  }
  const Tensor all = join(sums, v.sizes(), v.options()),
               state = states.empty() ? zero_state(in.final_state ? rows : 0) : join(states, {}, {});
  const Tensor denominator = all.select(-1, head_dim), divisor = in.eps == 0 ? denominator : denominator + in.eps;
  return {(all.narrow(-1, 0, head_dim) / divisor.unsqueeze(-1)).to(in.v.scalar_type()), state.narrow(-1, 0, head_dim),
          state.select(-1, head_dim), denominator};
}

RunResult by_chunks(const SumsOfRun& in, int64_t chunk, const RunForm& form) {
  const int64_t length = in.q.size(2);
  RunResult all{{}, in.state};
  std::vector<Tensor> sums;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const auto part = [&](const Tensor& tokens) { return tokens.narrow(2, begin, std::min(chunk, length - begin)); };
    const RunResult one = form({part(in.q), part(in.k), part(in.v), all.state, in.keeps_state || begin + chunk < length});
    sums.push_back(one.sums);
    all.state = one.state;
  }
  all.sums = sums.empty() ? at::zeros_like(in.v) : at::cat(sums, 2);
  return all;
}

}  // namespace based::ops
