#include "based/ops/running_sums.h"

#include "based/ops/arguments.h"
#include "based/ops/rows.h"

namespace based::ops {

AttentionSums over_runs(const PackedSums& in, const RunForm& form) {
  const at::ScalarType type = sum_type(in.v);
  const Tensor values = in.v.to(type), v = at::cat({values, at::ones_like(values.narrow(-1, 0, 1))}, -1);
  const std::vector<int64_t> starts = row_starts(in.op, "cu_seqlens", in.cu_seqlens, in.q.size(0));
  const int64_t rows = in.cu_seqlens.size(0) - 1, heads = in.q.size(1), head_dim = in.v.size(2);
  const Tensor initial = in.initial_kv_state ? at::cat({*in.initial_kv_state, in.initial_k_state->unsqueeze(-1)}, -1)
                                             : at::zeros({rows, heads, in.features, head_dim + 1}, v.options());
  std::vector<Tensor> sums, states;
  for (const Run& run : equal_runs(starts)) {
    const auto heads_first = [&](const Tensor& packed) { return tokens_of(packed, run).transpose(1, 2); };
    const RunResult result = form({heads_first(in.q), heads_first(in.k), heads_first(v), initial.narrow(0, run.first_row, run.rows)});
    sums.push_back(result.sums.transpose(1, 2).reshape({run.rows * run.length, heads, head_dim + 1}));
    states.push_back(result.state);
  }
  const Tensor all = join(sums, v.sizes(), v.options()), state = join(states, initial.sizes(), initial.options());
  const Tensor denominator = all.select(-1, head_dim), divisor = in.eps == 0 ? denominator : denominator + in.eps;
  return {(all.narrow(-1, 0, head_dim) / divisor.unsqueeze(-1)).to(in.v.scalar_type()), state.narrow(-1, 0, head_dim),
          state.select(-1, head_dim), denominator};
}

RunResult by_chunks(const SumsOfRun& in, int64_t chunk, const RunForm& form) {
  const int64_t length = in.q.size(2);
  RunResult all{{}, in.state};
  std::vector<Tensor> sums;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const auto part = [&](const Tensor& of) { return of.narrow(2, begin, std::min(chunk, length - begin)); };
    const RunResult one = form({part(in.q), part(in.k), part(in.v), all.state});
    sums.push_back(one.sums);
    all.state = one.state;
  }
  all.sums = sums.empty() ? at::zeros_like(in.v) : at::cat(sums, 2);
  return all;
}

}  // namespace based::ops
