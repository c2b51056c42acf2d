// The gradients of a data-parallel training step, summed over the ranks. Parameters are grouped into buckets in the reverse of their order,
// which is about the order in which the backward pass computes gradients. When all gradients of a bucket are known, its sum over the ranks
// is started, and it runs while the backward pass computes other gradients (Li et al., "PyTorch Distributed", 2020).
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "based/parallel/collectives.h"

namespace based {

// Parameters of one type, stored one after another in a flat tensor of world · part elements. Rank r owns the elements r·part … (r +
// 1)·part − 1, so a rank's part may begin or end within a parameter. The elements after a parameter, up to a multiple of 256 bytes, are
// unused.
struct FlatBucket {
  struct Member {
    size_t parameter = 0;          // index in the list of parameters
    int64_t begin = 0, count = 0;  // its elements in the flat tensor
  };
  std::vector<Member> members;
  int64_t part = 0;
  torch::Dtype dtype = torch::kFloat;

  // The elements of a member that a rank owns.
  struct Range {
    int64_t in_parameter = 0, in_part = 0;  // index of the first one in the parameter and in the rank's part
    int64_t count = 0;
  };
  Range owned(const Member& member, int64_t rank) const;
};

// A bucket of several parameters has at most `bytes` bytes.
std::vector<FlatBucket> make_flat_buckets(const std::vector<Tensor>& parameters, int64_t world, int64_t bytes);

// The default size of a bucket, in bytes. Between GPUs of one host a sum is so fast that one after the backward pass is best: an all-reduce
// that runs during the pass takes multiprocessors from its products (experiments/gpu-training). Otherwise 25 MiB, as PyTorch's
// DistributedDataParallel, so that the sums overlap with the backward pass.
int64_t default_bucket_bytes(const torch::Device& device, bool one_host);

class GradientBuckets {
 public:
  // Sets a hook on each parameter, which lasts as long as this object. With `shard` each rank receives only the elements that it owns.
  GradientBuckets(std::vector<Tensor> parameters, const std::vector<FlatBucket>& layout, std::shared_ptr<Collectives> ranks, bool shard);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Begins a step of this many backward passes, the same number on all ranks, and clears the gradients. The gradients of one pass are
  // summed over the ranks in the parameters' type; those of several passes are added up, and summed over the ranks, in at least fp32.
  // Memory is allocated if the type changed.
  void begin(int64_t passes);
  // Call after each pass, also for one that was left out because its batch has no labels. Only the last pass communicates.
  void end_pass();
  // Starts the sums that have not started, with zeros for parameters without a gradient, and waits for all. Does nothing the second time.
  void reduce();
  // The sum over the ranks, valid after reduce(): the parameter's shape, or with `shard` [number of owned elements]. Undefined before the
  // first begin().
  const Tensor& gradient(size_t parameter) const { return gradients_[parameter]; }

 private:
  struct Bucket {
    FlatBucket layout;
    Tensor flat;                 // [world · part]
    std::vector<Tensor> views;   // each member's elements, with the parameter's shape
    std::vector<bool> filled;    // members whose view has a gradient of this step
    std::vector<bool> is_known;  // members whose gradient of the last pass is known
    size_t known = 0;            // number of these
    bool started = false;
    std::unique_ptr<PendingCollective> sum;
  };
  struct Hook;
  void allocate(Bucket& bucket, torch::Dtype dtype);
  void receive(size_t bucket, size_t member);  // called by the hook: the parameter's gradient is known
  void take_gradients(Bucket& bucket);         // moves them from the parameters to the flat tensor
  void start_sum(Bucket& bucket);

  const std::vector<Tensor> parameters_;
  const std::shared_ptr<Collectives> ranks_;
  const bool shard_;
  std::vector<Bucket> buckets_;
  std::vector<Tensor> gradients_;             // by parameter
  size_t next_ = 0;                           // the bucket whose sum is started next: all ranks start them in the same order
  int64_t passes_ = 0, finished_passes_ = 0;  // passes_ is 0 outside of a step
};

}  // namespace based
