#include "based/train/weight_shards.h"

#include "based/core/error.h"

namespace based {

Tensor copy_to_host(const Tensor& tensor) {
  const Tensor copy = torch::empty(tensor.sizes(), tensor.options().device(torch::kCPU).pinned_memory(tensor.is_cuda()));
  return copy.copy_(tensor.detach());
}

WeightShards::WeightShards(const std::vector<Tensor>& parameters, const std::vector<FlatBucket>& layout, std::shared_ptr<Collectives> ranks)
    : parameters_(parameters), ranks_(std::move(ranks)) {
  const torch::NoGradGuard no_grad;
  for (const FlatBucket& flat : layout) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.layout = flat;
    bucket.weights = torch::zeros({ranks_->world() * flat.part}, parameters_[flat.members[0].parameter].options());
    for (const FlatBucket::Member& member : flat.members) {
      Tensor parameter = parameters_[member.parameter];
      BASED_ASSERT(parameter.is_contiguous());
      const Tensor view = bucket.weights.narrow(0, member.begin, member.count).view(parameter.sizes());
      view.copy_(parameter);
      parameter.set_data(view);
    }
    bucket.own_weights = bucket.weights.narrow(0, ranks_->rank() * flat.part, flat.part);
    const bool rounded = bucket.weights.element_size() == 2;
    if (rounded) bucket.masters = bucket.own_weights.to(torch::kFloat);
    const Tensor& like = rounded ? bucket.masters : bucket.own_weights;
    bucket.first_moments = torch::zeros_like(like), bucket.second_moments = torch::zeros_like(like);
  }
}

WeightShards::Owned WeightShards::owned(size_t parameter) const {
  for (const Bucket& bucket : buckets_)
    for (const FlatBucket::Member& member : bucket.layout.members) {
      if (member.parameter != parameter) continue;
      const FlatBucket::Range range = bucket.layout.owned(member, ranks_->rank());
      const auto part = [&](const Tensor& values) { return values.narrow(0, range.in_part, range.count); };
      Owned own{range.in_parameter, part(bucket.own_weights), {}, part(bucket.first_moments), part(bucket.second_moments)};
      own.masters = bucket.masters.defined() ? part(bucket.masters) : own.weights;
      return own;
    }
  BASED_ASSERT(!"a parameter without a bucket");
  return {};
}

void WeightShards::gather_weights() {
  std::vector<std::unique_ptr<PendingCollective>> pending;
  for (const Bucket& bucket : buckets_) pending.push_back(ranks_->all_gather(bucket.weights, bucket.own_weights));
  for (const auto& one : pending) one->wait();
}

std::vector<Tensor> WeightShards::gather(Tensor Bucket::*values) const {
  std::vector<Tensor> gathered(ranks_->rank() == 0 ? parameters_.size() : 0);
  for (const Bucket& bucket : buckets_) {
    const Tensor& part = bucket.*values;
    if (!part.defined()) continue;
    const Tensor whole = torch::empty({bucket.weights.numel()}, part.options());
    ranks_->all_gather(whole, part)->wait();
    if (gathered.empty()) continue;
    for (const FlatBucket::Member& member : bucket.layout.members)
      gathered[member.parameter] = copy_to_host(whole.narrow(0, member.begin, member.count).view(parameters_[member.parameter].sizes()));
  }
  return gathered;
}

WeightShards::State WeightShards::gather_state() const {
  const torch::NoGradGuard no_grad;
  return {gather(&Bucket::masters), gather(&Bucket::first_moments), gather(&Bucket::second_moments)};
}

}  // namespace based
