#include "based/mixers/kit/copies.h"

#include "based/core/error.h"

namespace based {

void Copies::add(const Tensor& to, const Tensor& from) {
  BASED_ASSERT(to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes());
  OfType& copies = by_type_[to.scalar_type()];
  copies.to.push_back(to), copies.from.push_back(from);
}

Tensor Copies::add_clone(const Tensor& from) {
  Tensor to = torch::empty_like(from);
  add(to, from);
  return to;
}

void Copies::run() const {
  for (const auto& [type, copies] : by_type_) at::_foreach_copy_(copies.to, copies.from);
}

}  // namespace based
