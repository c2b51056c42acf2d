#include "based/train/step.h"

#include <cmath>

#include "based/models/device.h"

namespace based {

TrainStep::TrainStep(LanguageModel& model, AdamW& optimizer, TrainStepOptions options)
    : model_(model), optimizer_(optimizer), options_(options) {
  draws_ = {options.seed, torch::zeros({}, torch::dtype(torch::kInt64).device(model.device()))};
}

Tensor TrainStep::run(const std::vector<Batch>& batches, int64_t step, double rate, bool look) {
  if (options_.recordings == 0) {
    draws_.step.fill_(step * static_cast<int64_t>(batches.size()));
    return launch(batches, optimizer_.make_rate(rate), look);
  }
  Recording& recording = recording_of(batches);
  recording.copy_in(batches);
  draws_.step.fill_(step * static_cast<int64_t>(batches.size()));
  rate_.fill_(rate);
  recording.replay->run();
  return loss_and_norm_.clone();
}

Tensor TrainStep::launch(const std::vector<Batch>& batches, const Tensor& rate, bool look) {
  std::vector<int64_t> counts;
  int64_t labels = 0;
  for (const Batch& batch : batches) {
    const bool known = batch.labelled >= 0 || batches.size() == 1;
    counts.push_back(known ? batch.labelled : (batch.labels >= 0).sum().item<int64_t>());
    labels += counts.back();
  }
  Tensor total;  // the loss itself for one batch; a sum in double for more
  if (batches.size() > 1) total = torch::zeros({}, torch::dtype(torch::kDouble).device(model_.device()));
  optimizer_.zero_grad();
  for (size_t i = 0; i < batches.size(); ++i) {
    if (counts[i] == 0 && batches.size() > 1) continue;
    const ops::Draws draws{draws_.seed, i == 0 ? draws_.step : draws_.step + static_cast<int64_t>(i)};
    Tensor loss = model_.loss(batches[i].ids, batches[i].labels, batches[i].rows, counts[i], draws, batches[i].places);
    if (batches.size() > 1) loss = loss * (static_cast<double>(counts[i]) / static_cast<double>(labels));
    total = total.defined() ? total + loss.detach() : loss.detach();
    if (look && !std::isfinite(total.item<double>())) return torch::stack({total, torch::zeros_like(total)}).to(torch::kDouble);
    loss.backward();
    optimizer_.collect_gradients();
  }
  const auto [loss_and_norm, update_enabled] = optimizer_.clip_gradients(total, enabled_);
  optimizer_.step(rate, update_enabled);
  return loss_and_norm;
}

TrainStep::Recording& TrainStep::recording_of(const std::vector<Batch>& batches) {
  for (Recording& recording : recordings_)
    if (recording.fits(batches)) return recording;
  if (static_cast<int64_t>(recordings_.size()) == options_.recordings) {
    throw Error("training: recorded steps need batches of the same rows and numbers of labels (at most " +
                std::to_string(options_.recordings) + " different shapes here); train without recording");
  }
  Recording& recording = recordings_.emplace_back();
  for (const Batch& batch : batches) {
    BASED_ASSERT(batch.labelled >= 0);
    const Tensor places = batch.places.defined() ? batch.places.clone() : Tensor();
    recording.batches.push_back({batch.ids.clone(), batch.labels.clone(), batch.rows, {}, batch.labelled, places});
  }
  record_step(recording);
  return recording;
}

void TrainStep::record_step(Recording& recording) {
  const torch::Device device = model_.device();
  if (!rate_.defined()) {
    rate_ = optimizer_.make_rate(0);
    loss_and_norm_ = torch::zeros({2}, torch::dtype(torch::kDouble).device(device));
    enabled_ = torch::zeros({}, torch::dtype(torch::kFloat).device(device));
  }
  enabled_.fill_(0);  // recording runs the step a few times; these must not update the weights
  // The recordings can share memory: steps run one after another, and only loss_and_norm_ is read after a step.
  const runtime::RecordOptions options{.rewrite = {}, .memory_of = recordings_.front().replay.get()};
  try {
    recording.replay = runtime::record(
        device, [this, &batches = recording.batches] { loss_and_norm_.copy_(launch(batches, rate_, false)); }, options);
  } catch (const Error& error) {
    recordings_.pop_back();
    throw Error(std::string(error.what()) + "; train without the recording (train.graph = false)");
  }
  enabled_.fill_(1);
}

bool TrainStep::Recording::fits(const std::vector<Batch>& others) const {
  bool same = others.size() == batches.size();
  for (size_t i = 0; same && i < others.size(); ++i)
    same = others[i].labelled == batches[i].labelled && others[i].places.defined() == batches[i].places.defined() &&
           others[i].rows.starts() == batches[i].rows.starts();
  return same;
}

void TrainStep::Recording::copy_in(const std::vector<Batch>& others) {
  for (size_t i = 0; i < others.size(); ++i) {
    batches[i].ids.copy_(others[i].ids, /*non_blocking=*/true);
    batches[i].labels.copy_(others[i].labels, /*non_blocking=*/true);
    if (others[i].places.defined()) batches[i].places.copy_(others[i].places, /*non_blocking=*/true);
  }
}

}  // namespace based
