#include "based/ops/linear/split_columns.h"

#include <numeric>

#include "based/ops/framework/arguments.h"

namespace based::ops {
namespace {

struct SplitFunction : torch::autograd::Function<SplitFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context*, const Tensor& x, const std::vector<int64_t>& widths) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return x.split_with_sizes(widths, 1);
  }

  // The view has no base, so that the next function can detect that it is the only owner of this memory.
  static Variables backward(Context*, const Variables& grads) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return {join_columns(grads), Tensor()};
  }
};

}  // namespace

std::optional<Tensor> joined_columns(const std::vector<Tensor>& parts) {
  const Tensor& first = parts.front();
  int64_t columns = 0;
  for (const Tensor& part : parts) {
    if (part.dim() != 2 || part.size(0) != first.size(0) || part.strides() != first.strides() || part.stride(1) != 1 ||
        part.scalar_type() != first.scalar_type() || !part.is_alias_of(first) || part.storage_offset() != first.storage_offset() + columns)
      return std::nullopt;
    columns += part.size(1);
  }
  return first.as_strided({first.size(0), columns}, first.strides(), first.storage_offset());
}

Tensor join_columns(const std::vector<Tensor>& parts) {
  const auto joined = joined_columns(parts);
  return joined ? *joined : at::cat(parts, 1);
}

std::vector<Tensor> split_columns(const Tensor& x, at::IntArrayRef widths) {
  const int64_t columns = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  require_shape("split_columns", "x", x, {-1, columns});
  if (wants_gradient({x})) return SplitFunction::apply(x, widths.vec());
  return x.split_with_sizes(widths, 1);
}

}  // namespace based::ops
