#include "based/train/step.h"

#include <cmath>

#include "based/models/device.h"

namespace based {

TrainStep::TrainStep(LanguageModel& model, AdamW& optimizer, bool recorded) : model_(model), optimizer_(optimizer), recorded_(recorded) {}

Tensor TrainStep::run(const std::vector<Batch>& batches, double rate, bool look) {
  if (!recorded_) return launch(batches, optimizer_.make_rate(rate), look);
  if (!replay_) record_step(batches);
  copy_in(batches);
  rate_.fill_(rate);
  replay_->run();
  return figures_.clone();
}

Tensor TrainStep::launch(const std::vector<Batch>& batches, const Tensor& rate, bool look) {
  std::vector<int64_t> counts;
  int64_t labels = 0;
  for (const Batch& batch : batches) {
    const bool known = batch.labelled >= 0 || batches.size() == 1;
    counts.push_back(known ? batch.labelled : (batch.labels >= 0).sum().item<int64_t>());
    labels += counts.back();
  }
  Tensor total = torch::zeros({}, torch::dtype(torch::kDouble).device(model_.device()));
  optimizer_.zero_grad();
  for (size_t i = 0; i < batches.size(); ++i) {
    if (counts[i] == 0 && batches.size() > 1) continue;
    Tensor loss = model_.loss(batches[i].ids, batches[i].labels, batches[i].rows, counts[i]);
    if (batches.size() > 1) loss = loss * (static_cast<double>(counts[i]) / static_cast<double>(labels));
    total = total + loss.detach();
    if (look && !std::isfinite(total.item<double>())) return torch::stack({total, torch::zeros_like(total)});
    loss.backward();
    optimizer_.collect_gradients();
  }
  const Tensor figures = torch::stack({total, optimizer_.clip_gradients()});
  const Tensor usable = figures.isfinite().all().to(torch::kFloat);
  optimizer_.step(rate, enabled_.defined() ? usable * enabled_ : usable);
  return figures;
}

void TrainStep::record_step(const std::vector<Batch>& batches) {
  const torch::Device device = model_.device();
  for (const Batch& batch : batches) {
    BASED_ASSERT(batch.labelled >= 0);
    fixed_.push_back({batch.ids.clone(), batch.labels.clone(), batch.rows, {}, batch.labelled});
  }
  rate_ = optimizer_.make_rate(0);
  figures_ = torch::zeros({2}, torch::dtype(torch::kDouble).device(device));
  // Recording runs the step a few times: these update nothing, and the random numbers that they drew are drawn again.
  enabled_ = torch::zeros({}, torch::dtype(torch::kFloat).device(device));
  const Tensor random = random_state(device);
  try {
    replay_ = ops::record(device, [this] { figures_.copy_(launch(fixed_, rate_, false)); });
  } catch (const Error& error) {
    throw Error(std::string(error.what()) + "; train without the recording (train.graph = false)");
  }
  set_random_state(device, random);
  enabled_.fill_(1);
}

void TrainStep::copy_in(const std::vector<Batch>& batches) {
  bool fits = batches.size() == fixed_.size();
  for (size_t i = 0; fits && i < batches.size(); ++i)
    fits = batches[i].rows.starts() == fixed_[i].rows.starts() && batches[i].labelled == fixed_[i].labelled;
  if (!fits) throw Error("training: a recorded step takes batches of the same rows and as many labels only; train without the recording");
  for (size_t i = 0; i < batches.size(); ++i) {
    fixed_[i].ids.copy_(batches[i].ids, /*non_blocking=*/true);
    fixed_[i].labels.copy_(batches[i].labels, /*non_blocking=*/true);
  }
}

}  // namespace based
