#include "based/ops/framework/tokens_step.h"

#include <algorithm>
#include <string>

namespace based::ops {

void check_tokens_step(const char* op, int64_t tokens, int64_t most, int64_t rows, const Tensor& slots,
                       const std::vector<KeptState>& states) {
  require(tokens >= 1 && tokens <= std::min(most, rows), op, "tokens must be 1 to ", std::min(most, rows), ", got ", tokens);
  for (const KeptState& one : states) {
    const std::string name = std::string("kept_") + one.name;
    std::vector<int64_t> shape = one.state.sizes().vec();
    shape[0] = -1;
    require_sizes(op, name.c_str(), one.kept, shape.data(), shape.size());
    require_type(op, name.c_str(), one.kept, one.state.scalar_type());
    require(one.kept.is_contiguous(), op, name, " must be contiguous");
    require(one.kept.size(0) == 0 || one.kept.size(0) >= tokens - 1, op, name, " must have room for ", tokens - 1, " states, got ",
            one.kept.size(0));
    require_state_slots(op, {one.state}, slots, 1);
  }
}

Tensor cat_with_padding(std::vector<Tensor> outputs, int64_t padding) {
  if (padding > 0) {
    const Tensor& last = outputs.back();
    std::vector<int64_t> shape = last.sizes().vec();
    shape[0] = padding;
    outputs.push_back(last.narrow(0, last.size(0) - 1, 1).expand(shape));
  }
  return at::cat(outputs);
}

}  // namespace based::ops
