#include "based/train/gradient_buckets.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>

#include "based/core/error.h"
#include "based/core/profile.h"

namespace based {
namespace {

constexpr int64_t kFlatAlignment = 256;  // bytes; kernels' vector accesses and cuBLAS need at most this

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool has_16_bits(torch::Dtype dtype) { return c10::elementSize(dtype) == 2; }

}  // namespace

FlatBucket::Range FlatBucket::owned(const Member& member, int64_t rank) const {
  const int64_t first = std::max(member.begin, rank * part), end = std::min(member.begin + member.count, (rank + 1) * part);
  if (first >= end) return {};
  return {first - member.begin, first - rank * part, end - first};
}

int64_t default_bucket_bytes(const torch::Device& device, bool one_host) {
  return device.is_cuda() && one_host ? std::numeric_limits<int64_t>::max() : int64_t{25} << 20;
}

std::vector<FlatBucket> make_flat_buckets(const std::vector<Tensor>& parameters, int64_t world, int64_t bytes) {
  std::vector<FlatBucket> buckets;
  int64_t size = 0;  // elements of the last bucket
  const auto close = [&] {
    if (buckets.empty()) return;
    const int64_t alignment = kFlatAlignment / static_cast<int64_t>(c10::elementSize(buckets.back().dtype));
    buckets.back().part = rounded_up(size, world * alignment) / world;
  };
  for (size_t i = parameters.size(); i-- > 0;) {
    const torch::Dtype dtype = parameters[i].scalar_type();
    const auto element_size = static_cast<int64_t>(c10::elementSize(dtype));
    if (buckets.empty() || buckets.back().dtype != dtype || (size + parameters[i].numel()) * element_size > bytes) {
      close();
      buckets.emplace_back().dtype = dtype;
      size = 0;
    }
    buckets.back().members.push_back({i, size, parameters[i].numel()});
    size += rounded_up(parameters[i].numel(), kFlatAlignment / element_size);
  }
  close();
  return buckets;
}

struct GradientBuckets::Hook final : torch::autograd::PostAccumulateGradHook {
  Hook(GradientBuckets& owner_, size_t bucket_, size_t member_) : owner(owner_), bucket(bucket_), member(member_) {}
  void operator()(const Tensor& /*parameter*/) override { owner.receive(bucket, member); }
  GradientBuckets& owner;
  const size_t bucket, member;
};

GradientBuckets::GradientBuckets(std::vector<Tensor> parameters, const std::vector<FlatBucket>& layout, std::shared_ptr<Collectives> ranks,
                                 bool shard)
    : parameters_(std::move(parameters)), ranks_(std::move(ranks)), shard_(shard), gradients_(parameters_.size()) {
  for (const FlatBucket& flat : layout) {
    for (size_t m = 0; m < flat.members.size(); ++m)
      torch::autograd::impl::set_post_acc_grad_hooks(parameters_[flat.members[m].parameter],
                                                     std::make_unique<Hook>(*this, buckets_.size(), m));
    buckets_.emplace_back().layout = flat;
  }
}

GradientBuckets::~GradientBuckets() {
  for (const Tensor& parameter : parameters_) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

void GradientBuckets::allocate(Bucket& bucket, torch::Dtype dtype) {
  const int64_t rank = ranks_->rank(), part = bucket.layout.part;
  bucket.flat = torch::zeros({ranks_->world() * part}, parameters_[bucket.layout.members[0].parameter].options().dtype(dtype));
  bucket.views.clear();
  for (const FlatBucket::Member& member : bucket.layout.members) {
    const Tensor view = bucket.flat.narrow(0, member.begin, member.count).view(parameters_[member.parameter].sizes());
    bucket.views.push_back(view);
    const FlatBucket::Range own = bucket.layout.owned(member, rank);
    gradients_[member.parameter] = shard_ ? bucket.flat.narrow(0, rank * part + own.in_part, own.count) : view;
  }
}

void GradientBuckets::begin(int64_t passes) {
  const torch::NoGradGuard no_grad;
  passes_ = passes, finished_passes_ = 0, next_ = 0;
  for (Bucket& bucket : buckets_) {
    const torch::Dtype dtype = passes > 1 && has_16_bits(bucket.layout.dtype) ? torch::kFloat : bucket.layout.dtype;
    if (!bucket.flat.defined() || bucket.flat.scalar_type() != dtype) allocate(bucket, dtype);
    bucket.filled.assign(bucket.views.size(), false);
    bucket.is_known.assign(bucket.views.size(), false);
    bucket.known = 0, bucket.started = false, bucket.sum = nullptr;
  }
  for (const Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void GradientBuckets::receive(size_t index, size_t member) {
  if (finished_passes_ + 1 != passes_) return;
  Bucket& bucket = buckets_[index];
  BASED_ASSERT(!bucket.started);  // autograd adds up a parameter's gradients before it calls the hook
  if (!bucket.is_known[member]) ++bucket.known;
  bucket.is_known[member] = true;
  const torch::NoGradGuard no_grad;
  while (next_ < buckets_.size() && buckets_[next_].known == buckets_[next_].views.size()) start_sum(buckets_[next_++]);
}

void GradientBuckets::take_gradients(Bucket& bucket) {
  std::vector<Tensor> first, first_views, more, more_views;
  for (size_t m = 0; m < bucket.views.size(); ++m) {
    Tensor& gradient = parameters_[bucket.layout.members[m].parameter].mutable_grad();
    if (!gradient.defined()) continue;
    (bucket.filled[m] ? more : first).push_back(gradient);
    (bucket.filled[m] ? more_views : first_views).push_back(bucket.views[m]);
    bucket.filled[m] = true;
    gradient.reset();
  }
  if (!first.empty()) torch::_foreach_copy_(first_views, first);
  if (!more.empty()) torch::_foreach_add_(more_views, more);
}

void GradientBuckets::start_sum(Bucket& bucket) {
  const ProfileRange range(ProfileLevel::phases, "start all-reduce", {{"bytes", static_cast<int64_t>(bucket.flat.nbytes())}});
  take_gradients(bucket);
  for (size_t m = 0; m < bucket.views.size(); ++m)
    if (!bucket.filled[m]) bucket.views[m].zero_();
  bucket.started = true;
  const int64_t part = bucket.layout.part;
  bucket.sum =
      shard_ ? ranks_->reduce_scatter(bucket.flat.narrow(0, ranks_->rank() * part, part), bucket.flat) : ranks_->all_reduce(bucket.flat);
}

void GradientBuckets::end_pass() {
  const torch::NoGradGuard no_grad;
  if (++finished_passes_ >= passes_) return;
  for (Bucket& bucket : buckets_) take_gradients(bucket);
}

void GradientBuckets::reduce() {
  if (passes_ == 0) return;
  const ProfileRange range(ProfileLevel::phases, "all-reduce");
  const torch::NoGradGuard no_grad;
  passes_ = 0;
  for (; next_ < buckets_.size(); ++next_) start_sum(buckets_[next_]);
  for (Bucket& bucket : buckets_) std::exchange(bucket.sum, nullptr)->wait();
}

}  // namespace based
