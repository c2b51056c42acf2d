#include "based/train/optimizer.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "based/ops/training/adamw.h"
#include "based/ops/training/gradient_norm.h"

namespace based {
namespace {

constexpr double kMaxLearningRate = 1e6, kMinEps = 1e-30;
constexpr const char* kDecayRange = "weight_decay must be 0 to 1/learning_rate: more would turn the weights' signs at each step";

void check_group(const OptimizerGroup& group, const OptimizerOptions& options) {
  const auto require = [&](bool right, const std::string& what) {
    if (!right) throw UsageError("optimizer: the group with pattern '" + group.pattern + "': " + what);
  };
  require(!group.pattern.empty(), "pattern must name parameters, as layers.*.mixer.*");
  const double rate = options.learning_rate * group.learning_rate_scale;
  require(group.learning_rate_scale >= 0 && rate <= kMaxLearningRate,
          "learning_rate_scale must be at least 0, and times learning_rate at most 1e6");
  require(group.weight_decay == -1 || group.weight_decay >= 0, "weight_decay must be at least 0, or -1 for the optimizer's");
  require((group.weight_decay == -1 ? options.weight_decay : group.weight_decay) * rate <= 1, kDecayRange);
}

}  // namespace

void check_optimizer_options(const OptimizerOptions& options) {
  const auto require = [](bool right, const char* what) {
    if (!right) throw UsageError(std::string("optimizer: ") + what);
  };
  // Each condition is false for NaN. Larger rates, and an eps that fp32 rounds to 0, would overflow.
  require(options.learning_rate > 0 && options.learning_rate <= kMaxLearningRate, "learning_rate must be above 0 and at most 1e6");
  require(options.min_learning_rate >= 0 && options.min_learning_rate <= options.learning_rate,
          "min_learning_rate must be 0 to learning_rate");
  require(options.warmup >= 0 && options.warmup <= 1, "warmup must be 0 to 1, a share of the steps");
  require(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, "beta1 and beta2 must be 0 to below 1");
  require(options.eps >= kMinEps && options.eps <= 1, "eps must be 1e-30 to 1");
  require(options.weight_decay >= 0 && options.weight_decay * options.learning_rate <= 1, kDecayRange);
  require(options.clip >= 0 && std::isfinite(options.clip), "clip must be a number of at least 0; 0 is no clipping");
  require(options.schedule == "step" || options.schedule == "epoch", "schedule must be step or epoch");
  require(options.schedule == "step" || options.warmup == 0, "warmup must be 0 with schedule = \"epoch\", whose cosine begins at its peak");
  for (const OptimizerGroup& group : options.groups) check_group(group, options);
}

double learning_rate(const OptimizerOptions& options, int64_t step, int64_t steps, int64_t epoch_steps) {
  const double range = options.learning_rate - options.min_learning_rate;
  const auto cosine = [&](double done) { return options.min_learning_rate + range / 2 * (1 + std::cos(std::numbers::pi * done)); };
  if (options.schedule == "epoch") {
    if (epoch_steps < 1) throw UsageError("optimizer: schedule = \"epoch\" needs epochs, which this training has none of; use \"step\"");
    const int64_t epochs = (steps + epoch_steps - 1) / epoch_steps;
    return cosine(static_cast<double>(step / epoch_steps) / static_cast<double>(std::max<int64_t>(epochs, 1)));
  }
  const double warmup = std::round(options.warmup * static_cast<double>(steps)), at = static_cast<double>(step);
  if (at < warmup) return options.learning_rate * (at + 1) / warmup;
  return cosine((at - warmup) / std::max(1.0, static_cast<double>(steps) - warmup));
}

AdamW::AdamW(const torch::nn::Module& module, const OptimizerOptions& options, std::shared_ptr<Collectives> ranks, bool shard,
             int64_t bucket_bytes)
    : options_(options), ranks_(std::move(ranks)) {
  check_optimizer_options(options);
  std::vector<std::string> names;
  std::vector<bool> used(options.groups.size());
  for (const auto& item : module.named_parameters()) {
    const Tensor& parameter = item.value();
    if (!parameter.requires_grad()) continue;
    double decay = options.decay_all || parameter.dim() >= 2 ? options.weight_decay : 0, rate_scale = 1;
    const auto group = std::find_if(options.groups.begin(), options.groups.end(),
                                    [&](const OptimizerGroup& one) { return fnmatch(one.pattern.c_str(), item.key().c_str(), 0) == 0; });
    if (group != options.groups.end()) {
      used[static_cast<size_t>(group - options.groups.begin())] = true;
      if (group->weight_decay >= 0) decay = group->weight_decay;
      rate_scale = group->learning_rate_scale;
    }
    members_of(decay, rate_scale).push_back(parameters_.size());
    parameters_.push_back(parameter);
    names.push_back(item.key());
  }
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      throw UsageError("optimizer: the pattern '" + options.groups[i].pattern + "' matches no parameter that no group before it matches" +
                       (names.empty() ? "" : "; names are like '" + names.back() + "'"));
  if (world() > 1) {
    const std::vector<FlatBucket> layout = make_flat_buckets(parameters_, world(), bucket_bytes);
    if (shard) shards_ = std::make_unique<WeightShards>(parameters_, layout, ranks_);
    buckets_ = std::make_unique<GradientBuckets>(parameters_, layout, ranks_, shard);
  }
  add_slots(names);
}

void AdamW::add_slots(const std::vector<std::string>& names) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    Slot& slot = slots_.emplace_back();
    slot.name = names[i], slot.steps = torch::zeros({}, torch::dtype(torch::kFloat).device(parameter.device()));
    if (shards_) {
      const WeightShards::Owned own = shards_->owned(i);
      slot.parameter = own.weights, slot.master = own.masters, slot.first = own.first;
      slot.first_moment = own.first_moments, slot.second_moment = own.second_moments;
    } else {
      slot.parameter = parameter, slot.master = parameter.element_size() == 2 ? parameter.detach().to(torch::kFloat) : parameter;
      slot.first_moment = torch::zeros_like(slot.master), slot.second_moment = torch::zeros_like(slot.master);
    }
  }
  collected_.resize(slots_.size());
}

std::vector<size_t>& AdamW::members_of(double decay, double rate_scale) {
  for (Group& group : groups_)
    if (group.decay == decay && group.rate_scale == rate_scale) return group.members;
  return groups_.emplace_back(Group{decay, rate_scale, {}}).members;
}

void AdamW::zero_grad(int64_t passes) {
  for (const Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  for (Tensor& gradient : collected_) gradient.reset();
  scale_.reset();
  if (buckets_) buckets_->begin(passes);
}

void AdamW::collect_gradients() {
  if (buckets_) return buckets_->end_pass();
  const torch::NoGradGuard no_grad;
  std::vector<size_t> more;
  std::vector<Tensor> sums, first;  // each sum starts as the gradient of the first backward pass
  for (size_t i = 0; i < slots_.size(); ++i) {
    Tensor &gradient = slots_[i].parameter.mutable_grad(), &collected = collected_[i];
    if (!slots_[i].has_master() || !gradient.defined()) continue;
    if (!collected.defined()) {
      collected = gradient;
      gradient.reset();
      continue;
    }
    more.push_back(i);
    if (collected.scalar_type() == slots_[i].master.scalar_type()) continue;
    first.push_back(collected);
    sums.push_back(torch::empty_like(slots_[i].master));
    collected = sums.back();
  }
  if (!sums.empty()) torch::_foreach_copy_(sums, first);
  for (const size_t i : more) {
    Tensor& gradient = slots_[i].parameter.mutable_grad();
    collected_[i].add_(gradient);
    gradient.reset();
  }
}

const Tensor& AdamW::gradient(size_t slot) const {
  if (buckets_) return buckets_->gradient(slot);
  return slots_[slot].has_master() ? collected_[slot] : slots_[slot].parameter.grad();
}

void AdamW::sum_over_ranks(ops::GradientNormOf& inputs) const {
  if (!shards_) {  // all ranks have all gradients
    const Tensor loss = inputs.loss.to(torch::kDouble).reshape({1}).clone();
    ranks_->all_reduce(loss)->wait();
    inputs.loss = loss[0];
    return;
  }
  // A loss or a norm that is not finite on one rank is not finite in the sum either.
  const Tensor sums = ops::gradient_norm(inputs).loss_and_norm;
  sums[1].square_();
  ranks_->all_reduce(sums)->wait();
  inputs.loss = sums[0];
  inputs.gradients = {sums[1].sqrt().to(slots_[0].master.scalar_type())};  // one number, whose norm is that of all gradients
}

AdamW::Findings AdamW::clip_gradients(const Tensor& loss, const Tensor& enabled) {
  const torch::NoGradGuard no_grad;
  if (buckets_) buckets_->reduce();
  ops::GradientNormOf inputs{{}, loss.detach(), {}, options_.clip};
  for (size_t i = 0; i < slots_.size(); ++i)
    if (has_gradient(i)) inputs.gradients.push_back(gradient(i));
  if (buckets_) sum_over_ranks(inputs);
  if (enabled.defined()) inputs.enabled = enabled;
  const auto [loss_and_norm, update_enabled, scale] = ops::gradient_norm(inputs);
  scale_ = scale;
  return {loss_and_norm, update_enabled};
}

Tensor AdamW::make_rate(double rate) const {
  return torch::full({}, rate, torch::dtype(device().is_cpu() ? torch::kDouble : torch::kFloat).device(device()));
}

void AdamW::step(const Tensor& rate, const Tensor& update_enabled) {
  const torch::NoGradGuard no_grad;
  if (buckets_) buckets_->reduce();
  for (const Group& group : groups_) {
    ops::AdamwStep update;
    for (const size_t member : group.members) {
      const Slot& slot = slots_[member];
      if (!has_gradient(member)) continue;
      update.masters.push_back(slot.master);
      update.rounded.push_back(slot.parameter);
      update.gradients.push_back(gradient(member));
      update.first_moments.push_back(slot.first_moment);
      update.second_moments.push_back(slot.second_moment);
      update.steps.push_back(slot.steps);
    }
    if (update.masters.empty()) continue;
    update.rate = group.rate_scale == 1 ? rate : rate * group.rate_scale, update.scale = scale_;
    if (update_enabled.defined()) update.update_enabled = update_enabled;
    update.beta1 = options_.beta1, update.beta2 = options_.beta2, update.eps = options_.eps, update.decay = group.decay;
    ops::adamw_(update);
  }
  if (shards_) shards_->gather_weights();
  scale_.reset();
}

}  // namespace based
