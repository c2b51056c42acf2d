#include "based/train/optimizer.h"

#include <cmath>
#include <numbers>

namespace based {

void check_optimizer_options(const OptimizerOptions& options) {
  const auto require = [](bool right, const char* what) {
    if (!right) throw UsageError(std::string("optimizer: ") + what);
  };
  require(options.learning_rate > 0 && std::isfinite(options.learning_rate), "learning_rate must be above 0");
  require(options.min_learning_rate >= 0 && options.min_learning_rate <= options.learning_rate,
          "min_learning_rate must be 0 to learning_rate");
  require(options.warmup >= 0 && options.warmup <= 1, "warmup must be 0 to 1, a share of the steps");
  require(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, "beta1 and beta2 must be 0 to 1");
  require(options.eps > 0, "eps must be above 0");
  require(options.weight_decay >= 0, "weight_decay must not be negative");
  require(options.clip >= 0, "clip must not be negative");
}

double learning_rate(const OptimizerOptions& options, int64_t step, int64_t steps) {
  const double warmup = std::round(options.warmup * static_cast<double>(steps)), at = static_cast<double>(step);
  if (at < warmup) return options.learning_rate * (at + 1) / warmup;
  const double done = (at - warmup) / std::max(1.0, static_cast<double>(steps) - warmup);
  return options.min_learning_rate + (options.learning_rate - options.min_learning_rate) / 2 * (1 + std::cos(std::numbers::pi * done));
}

AdamW::AdamW(const torch::nn::Module& module, const OptimizerOptions& options) : options_(options) {
  check_optimizer_options(options);
  groups_ = {{options.weight_decay, {}}, {0, {}}};
  for (const auto& item : module.named_parameters()) {
    const Tensor& parameter = item.value();
    if (!parameter.requires_grad()) continue;
    groups_[options.decay_all || parameter.dim() >= 2 ? 0 : 1].members.push_back(slots_.size());
    const Tensor master = parameter.element_size() == 2 ? parameter.detach().to(torch::kFloat) : parameter;
    slots_.push_back({item.key(), parameter, master, torch::zeros_like(master), torch::zeros_like(master),
                      torch::zeros({}, torch::dtype(torch::kFloat).device(parameter.device()))});
  }
}

void AdamW::zero_grad() {
  for (auto& slot : slots_) {
    slot.parameter.mutable_grad().reset();
    slot.master.mutable_grad().reset();
  }
}

void AdamW::collect_gradients() {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> first, parts;  // those that have no sum yet
  for (auto& slot : slots_) {
    Tensor& from = slot.parameter.mutable_grad();
    if (!slot.has_master() || !from.defined()) continue;
    Tensor& sum = slot.master.mutable_grad();
    if (sum.defined()) {
      sum.add_(from);
    } else {
      sum = torch::empty_like(slot.master);
      first.push_back(sum);
      parts.push_back(from);
    }
    from.reset();
  }
  if (!first.empty()) torch::_foreach_copy_(first, parts);
}

std::vector<Tensor> AdamW::gradients() const {
  std::vector<Tensor> found;
  for (const auto& slot : slots_)
    if (slot.master.grad().defined()) found.push_back(slot.master.grad());
  return found;
}

Tensor AdamW::clip_gradients() {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> found = gradients();
  if (found.empty()) return torch::zeros({}, torch::dtype(torch::kDouble).device(device()));
  const Tensor norm = torch::stack(torch::_foreach_norm(found, 2)).norm().to(torch::kDouble);
  // Multiplied also where it is 1, which changes no bit: whether it is, the host does not know.
  if (options_.clip > 0) {
    const Tensor scale = (options_.clip / (norm + 1e-6)).masked_fill(norm <= options_.clip, 1.0);
    torch::_foreach_mul_(found, scale.to(found[0].scalar_type()));
  }
  return norm;
}

Tensor AdamW::make_rate(double rate) const {
  return torch::full({}, rate, torch::dtype(device().is_cpu() ? torch::kDouble : torch::kFloat).device(device()));
}

void AdamW::step(const Tensor& rate, const Tensor& usable) {
  const torch::NoGradGuard no_grad;
  const std::optional<Tensor> unusable = usable.defined() ? std::optional(1 - usable) : std::nullopt;
  for (const Group& group : groups_) {
    std::vector<Tensor> parameters, grads, first, second, steps, rounded, masters;
    for (const size_t member : group.members) {
      Slot& slot = slots_[member];
      if (!slot.master.grad().defined()) continue;
      parameters.push_back(slot.master);
      grads.push_back(slot.master.grad());
      first.push_back(slot.first_moment);
      second.push_back(slot.second_moment);
      steps.push_back(slot.steps);
      if (slot.has_master()) {
        rounded.push_back(slot.parameter);
        masters.push_back(slot.master);
      }
    }
    if (parameters.empty()) continue;
    usable.defined() ? torch::_foreach_add_(steps, usable) : torch::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, grads, first, second, {}, steps, rate, options_.beta1, options_.beta2, group.decay, options_.eps, false,
                      false, /*grad_scale=*/{}, /*found_inf=*/unusable);
    if (!rounded.empty()) torch::_foreach_copy_(rounded, masters);
  }
}

}  // namespace based
