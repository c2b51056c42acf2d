#include "based/generate/logit_adjustments.h"

#include <limits>

#include "based/ops/sampling/adjusted_logits.h"
#include "based/runtime/transfer.h"

namespace based {

using torch::Tensor;

LogitAdjustments::LogitAdjustments(int64_t slots, int64_t vocab_size, torch::Device device)
    : vocab_size_(vocab_size), device_(device), rows_(static_cast<size_t>(slots)) {}

// Returns the memory of [slots, vocab_size], which is allocated by the first call.
Tensor& LogitAdjustments::allocated(Tensor& all, at::ScalarType type) const {
  if (!all.defined()) all = torch::zeros({static_cast<int64_t>(rows_.size()), vocab_size_}, torch::dtype(type).device(device_));
  return all;
}

void LogitAdjustments::set(int64_t slot, const SamplingOptions& sampling, std::span<const int64_t> generated) {
  Row& row = rows_[static_cast<size_t>(slot)];
  const bool counts = sampling.presence_penalty != 0 || sampling.frequency_penalty != 0, biases = !sampling.logit_bias.empty();
  row.logit_bias = sampling.logit_bias;
  row.adjusts = counts || biases;
  if (counts || row.has_counts) load_counts(slot, sampling, counts ? generated : std::span<const int64_t>());
  if (biases || row.has_biases) {
    const std::vector<float> none(static_cast<size_t>(vocab_size_));
    load_biases(slot, none);
  }
  row.has_counts = counts, row.has_biases = biases;
}

void LogitAdjustments::load_counts(int64_t slot, const SamplingOptions& sampling, std::span<const int64_t> generated) {
  if (!penalties_.defined())
    penalties_ = torch::zeros({2, static_cast<int64_t>(rows_.size())}, torch::dtype(torch::kFloat).device(device_));
  const auto pair = torch::tensor({static_cast<float>(sampling.presence_penalty), static_cast<float>(sampling.frequency_penalty)});
  penalties_.select(1, slot).copy_(runtime::to_device(pair, device_));
  const Tensor counts = torch::zeros({vocab_size_}, torch::kInt);
  auto* const count = counts.mutable_data_ptr<int32_t>();
  for (const int64_t id : generated) ++count[id];
  allocated(counts_, torch::kInt).select(0, slot).copy_(runtime::to_device(counts, device_));
}

// Loads `first`, a number for each token, plus the slot's biases.
void LogitAdjustments::load_biases(int64_t slot, std::vector<float> first) {
  for (const auto& [id, bias] : rows_[static_cast<size_t>(slot)].logit_bias) first[static_cast<size_t>(id)] += static_cast<float>(bias);
  allocated(biases_, torch::kFloat).select(0, slot).copy_(runtime::to_device(torch::tensor(first), device_));
}

bool LogitAdjustments::allow(int64_t slot, std::span<const uint64_t> allowed) {
  std::vector<float> biases(static_cast<size_t>(vocab_size_), -std::numeric_limits<float>::infinity());
  bool some = false;
  for (size_t id = 0; id < biases.size(); ++id)
    if ((allowed[id / 64] >> (id % 64) & 1) != 0) biases[id] = 0, some = true;
  if (!some) return false;
  load_biases(slot, std::move(biases));
  Row& row = rows_[static_cast<size_t>(slot)];
  row.adjusts = row.has_biases = true;
  return true;
}

Tensor LogitAdjustments::adjusted(const Tensor& logits, const Tensor& slots, const Tensor& penalty, const Tensor& seen) const {
  const auto of_slots = [&](const Tensor& all) { return all.defined() ? ops::OptionalTensor(all.index_select(0, slots)) : std::nullopt; };
  const auto of_penalty = [&](int64_t which) {
    return penalties_.defined() ? penalties_.select(0, which).index_select(0, slots) : torch::zeros_like(penalty);
  };
  return ops::adjusted_logits({logits, of_penalty(0), of_penalty(1), penalty, seen, of_slots(biases_), of_slots(counts_)});
}

void LogitAdjustments::count(const Tensor& slots, const Tensor& tokens) {
  if (!counts_.defined()) return;
  counts_.view(-1).index_add_(0, slots * vocab_size_ + tokens.clamp_min(0), (tokens >= 0).to(torch::kInt));
}

}  // namespace based
