// ZeRO-1 (Rajbhandari et al., 2020): each rank holds an equal part of the optimizer's state, updates that part of the weights, and receives
// the other parts of the weights from their ranks.
#pragma once
#include <memory>
#include <vector>

#include "based/train/gradient_buckets.h"

namespace based {

// A copy on the CPU that shares no memory with the tensor; in pinned memory, to which a GPU copies fastest, if the tensor is on a GPU.
Tensor copy_to_host(const Tensor& tensor);

class WeightShards {
 public:
  // Moves the weights of the parameters, which must be contiguous, into the flat tensors of `layout`; the parameters become views of these.
  // Masters are copies of the weights, moments are 0.
  WeightShards(const std::vector<Tensor>& parameters, const std::vector<FlatBucket>& layout, std::shared_ptr<Collectives> ranks);

  // The elements of one parameter that this rank owns, as views; maybe none.
  struct Owned {
    int64_t first = 0;                                       // index of the first one in the parameter
    Tensor weights, masters, first_moments, second_moments;  // [count]; masters: the same tensor as weights unless these have 16 bits
  };
  Owned owned(size_t parameter) const;

  // Call after an update on all ranks: exchanges the parts of the weights.
  void gather_weights();

  struct State {
    std::vector<Tensor> masters, first_moments, second_moments;  // by parameter, whole, on the CPU; a master only for 16-bit weights
  };
  // All ranks must call it. Only rank 0 gets the result, others empty lists.
  State gather_state() const;

 private:
  struct Bucket {
    FlatBucket layout;
    Tensor weights;                                 // [world · part]
    Tensor masters, first_moments, second_moments;  // [part]; masters undefined unless the weights have 16 bits
    Tensor own_weights;                             // this rank's part of weights
  };
  std::vector<Tensor> gather(Tensor Bucket::*values) const;

  const std::vector<Tensor> parameters_;
  const std::shared_ptr<Collectives> ranks_;
  std::vector<Bucket> buckets_;
};

}  // namespace based
