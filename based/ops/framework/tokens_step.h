// Operators that read several consecutive tokens of one sequence at once, with the bits of a step of one token for each of them. Their
// inputs have rows of `tokens` tokens, followed by padding: no state reads it, and the output there repeats that of the last token.
#pragma once
#include <utility>
#include <vector>

#include "based/ops/framework/arguments.h"

namespace based::ops {

// A state [slots, …] and memory for its row of the sequence after each token but the last, [tokens − 1 or more, …]; no rows: it is not
// kept.
struct KeptState {
  const char* name;
  const Tensor &state, &kept;
};

// `rows`: of the inputs. Throws Error.
void check_tokens_step(const char* op, int64_t tokens, int64_t most, int64_t rows, const Tensor& slots,
                       const std::vector<KeptState>& states);

// The outputs one after another, followed by `padding` rows that repeat the last one.
Tensor cat_with_padding(std::vector<Tensor> outputs, int64_t padding);

// One token after another. step(row) returns the output [1, …] of a step of one token, where row(x) is the token's row of an input.
template <class Step>
Tensor step_each_token(int64_t tokens, int64_t rows, const Tensor& slots, const std::vector<KeptState>& states, const Step& step) {
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < tokens; ++t) {
    // A copy on a GPU, since the order of ATen's sums may depend on the alignment of the row's begin.
    const auto row = [t](const Tensor& x) {
      const Tensor one = x.narrow(0, t, 1);
      return one.is_cpu() ? one : one.clone(at::MemoryFormat::Contiguous);
    };
    outputs.push_back(step(row));
    for (const KeptState& one : states) {
      if (t + 1 == tokens || one.kept.size(0) == 0) continue;
      Tensor to = one.kept.narrow(0, t, 1);
      at::index_select_out(to, one.state, 0, slots);
    }
  }
  return cat_with_padding(std::move(outputs), rows - tokens);
}

// The memory of a KeptState in fp32 for a kernel; null where nothing is kept, and in a plan, whose tensors have no memory.
inline float* kept_memory(const Tensor& kept) { return kept.size(0) == 0 ? nullptr : static_cast<float*>(kept.mutable_data_ptr()); }

}  // namespace based::ops
