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
  for (auto& slot : slots_) {
    Tensor& from = slot.parameter.mutable_grad();
    if (!slot.has_master() || !from.defined()) continue;
    Tensor& sum = slot.master.mutable_grad();
    sum.defined() ? sum.add_(from) : sum = from.to(torch::kFloat);
    from.reset();
  }
}

std::vector<Tensor> AdamW::gradients() const {
  std::vector<Tensor> found;
  for (const auto& slot : slots_)
    if (slot.master.grad().defined()) found.push_back(slot.master.grad());
  return found;
}

double AdamW::clip_gradients() {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> found = gradients();
  if (found.empty()) return 0;
  const double norm = torch::stack(torch::_foreach_norm(found, 2)).norm().item<double>();
  if (options_.clip > 0 && norm > options_.clip) torch::_foreach_mul_(found, options_.clip / (norm + 1e-6));
  return norm;
}

void AdamW::step(double rate) {
  const torch::NoGradGuard no_grad;
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
    torch::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, grads, first, second, {}, steps, rate, options_.beta1, options_.beta2, group.decay, options_.eps, false,
                      false);
    if (!rounded.empty()) torch::_foreach_copy_(rounded, masters);
  }
}

}  // namespace based
