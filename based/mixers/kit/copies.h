// Many copies of tensors at once: a GPU copies all tensors of a type by one launch instead of one launch each.
#pragma once
#include <map>
#include <vector>

#include "based/runtime/torch.h"

namespace based {

using torch::Tensor;

class Copies {
 public:
  // `to` and `from` have the same shape and type. They must be valid, and nothing may write them, until run().
  void add(const Tensor& to, const Tensor& from);
  Tensor add_clone(const Tensor& from);  // returns the new tensor, which has its values after run()
  void run() const;

 private:
  struct OfType {
    std::vector<Tensor> to, from;
  };
  std::map<torch::Dtype, OfType> by_type_;
};

}  // namespace based
