#include "based/train/step.h"

#include <cmath>

#include "based/core/error.h"
#include "based/core/log.h"
#include "based/models/device.h"
#include "based/runtime/profile.h"

namespace based {

int64_t recordings_of_graph(bool graph, torch::Device device, bool logs) {
  if (graph && device.is_cpu() && logs) log_info("train.graph: on a CPU nothing is recorded, and each step is run as usual");
  return graph ? 1 : 0;
}

TrainStep::TrainStep(LanguageModel& model, AdamW& optimizer, TrainStepOptions options)
    : model_(model), optimizer_(optimizer), options_(std::move(options)) {
  BASED_ASSERT(optimizer.world() == (options_.ranks ? options_.ranks->world() : 1));
  BASED_ASSERT(optimizer.world() == 1 || options_.recordings <= 1);
  draws_ = {options_.seed, torch::zeros({}, torch::dtype(torch::kInt64).device(model.device()))};
}

Tensor TrainStep::run(const std::vector<Batch>& batches, int64_t step, double rate, bool look) {
  const int64_t draw = batches[0].first_token < 0 ? step * static_cast<int64_t>(batches.size()) : step;
  if (options_.recordings == 0) {
    draws_.step.fill_(draw);
    return launch(batches, optimizer_.make_rate(rate), look);
  }
  Recording& recording = recording_of(batches);
  recording.copy_in(batches);
  draws_.step.fill_(draw);
  rate_.fill_(rate);
  {
    const runtime::DeviceRange range(ProfileLevel::phases, "recorded step", model_.device());
    recording.replay->run();
  }
  return loss_and_norm_.clone();
}

ops::Draws TrainStep::draws_for(const Batch& batch, size_t index) const {
  if (batch.first_token >= 0) return {draws_.seed, draws_.step, batch.first_token};
  return {draws_.seed, index == 0 ? draws_.step : draws_.step + static_cast<int64_t>(index)};
}

Tensor TrainStep::launch(const std::vector<Batch>& batches, const Tensor& rate, bool look) {
  const bool has_other_ranks = optimizer_.world() > 1, divided = batches.size() > 1 || has_other_ranks;
  std::vector<int64_t> counts;
  int64_t labels = 0;
  for (const Batch& batch : batches) {
    const bool known = batch.labelled >= 0 || !divided;
    counts.push_back(known ? batch.labelled : (batch.labels >= 0).sum().item<int64_t>());
    labels += counts.back();
  }
  BASED_ASSERT(batches[0].step_labels >= 0 || !has_other_ranks);
  if (batches[0].step_labels >= 0) labels = batches[0].step_labels;
  Tensor total;  // the loss itself if the step is one batch; otherwise this rank's addend of the mean over all labels, in double
  if (divided) total = torch::zeros({}, torch::dtype(torch::kDouble).device(model_.device()));
  optimizer_.zero_grad(static_cast<int64_t>(batches.size()));
  for (size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = batches[i];
    if (counts[i] != 0 || !divided) {
      const auto run_forward = [&] {
        const runtime::DeviceRange range(ProfileLevel::phases, "forward", model_.device(), {{"tokens", batch.ids.numel()}});
        return model_.loss(batch.ids, batch.labels, batch.rows, counts[i], draws_for(batch, i), batch.places);
      };
      Tensor loss = run_forward();
      if (divided) loss = loss * (static_cast<double>(counts[i]) / static_cast<double>(labels));
      total = total.defined() ? total + loss.detach() : loss.detach();
      // With other ranks the step goes through, because they wait for this rank's gradients.
      if (look && !has_other_ranks && !std::isfinite(total.item<double>()))
        return torch::stack({total, torch::zeros_like(total)}).to(torch::kDouble);
      const runtime::DeviceRange range(ProfileLevel::phases, "backward", model_.device());
      loss.backward();
    }
    optimizer_.collect_gradients();
  }
  const runtime::DeviceRange range(ProfileLevel::phases, "optimizer", model_.device());
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
    recording.batches.push_back(
        {batch.ids.clone(), batch.labels.clone(), batch.rows, {}, batch.labelled, places, batch.step_labels, batch.first_token});
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
  optimizer_.zero_grad(static_cast<int64_t>(recording.batches.size()));  // allocates what outlives a step
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
    same = others[i].labelled == batches[i].labelled && others[i].step_labels == batches[i].step_labels &&
           others[i].first_token == batches[i].first_token && others[i].places.defined() == batches[i].places.defined() &&
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
