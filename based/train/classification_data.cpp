#include "based/train/classification_data.h"

#include <algorithm>
#include <cmath>

#include "based/core/hash.h"
#include "based/core/random.h"
#include "based/core/text.h"
#include "based/data/dna.h"
#include "based/runtime/transfer.h"

namespace based {
namespace {

constexpr uint64_t kDevStream = 0x646576;  // the draw of dev; epochs have the streams 0, 1, …

// Moves a share of the training set to dev.
void hold_out(std::vector<LabelledSequence>& train, std::vector<LabelledSequence>& dev, double fraction, int64_t seed) {
  const auto count = static_cast<uint64_t>(std::ceil(static_cast<double>(train.size()) * fraction));
  const Permutation order(train.size(), static_cast<uint64_t>(seed), kDevStream);
  std::vector<bool> held(train.size());
  for (uint64_t i = 0; i < count; ++i) held[order(i)] = true;
  std::vector<LabelledSequence> kept;
  for (size_t i = 0; i < train.size(); ++i) (held[i] ? dev : kept).push_back(std::move(train[i]));
  train = std::move(kept);
}

}  // namespace

std::string ClassificationData::hash() const { return hex(train->hash()) + hex(dev->hash()) + (test ? hex(test->hash()) : ""); }

ClassificationData load_classification_data(const ClassificationConfig& config, std::shared_ptr<const Tokenizer> tokenizer, int64_t seed,
                                            int64_t most) {
  ClassificationData data;
  data.tokenizer = std::move(tokenizer);
  std::vector<LabelledSequence> train = read_labelled_sequences(config.train), dev, test;
  data.classes = class_names(train, config.train);
  if (config.dev.empty())
    hold_out(train, dev, config.dev_fraction, seed);
  else
    dev = read_labelled_sequences(config.dev);
  if (!config.test.empty()) test = read_labelled_sequences(config.test);
  const auto encode = [&](const std::vector<LabelledSequence>& sequences) {
    return std::make_unique<LabelledTokens>(sequences, data.classes, *data.tokenizer, most);
  };
  if (train.empty() || dev.empty()) throw Error(config.train + ": has too few sequences to hold out a share of them for dev");
  data.train = encode(train), data.dev = encode(dev);
  if (!test.empty()) data.test = encode(test);
  return data;
}

Batch ClassBatches::at(int64_t step) const {
  std::vector<int64_t> indices;
  std::vector<bool> reversed;
  const auto size = static_cast<uint64_t>(data_.size()), seed = static_cast<uint64_t>(options_.seed);
  for (int64_t row = 0; row < options_.batch; ++row) {
    const auto place = static_cast<uint64_t>(step * options_.batch + row), epoch = place / size;
    const uint64_t index = Permutation(size, seed, epoch)(place % size);
    const uint64_t stream[] = {index, epoch};
    indices.push_back(static_cast<int64_t>(index));
    reversed.push_back(options_.reverse_complement > 0 &&
                       Random(seed, xxh3_64(std::as_bytes(std::span(stream)))).uniform() < options_.reverse_complement);
  }
  return class_batch(data_, indices, reversed, device_);
}

Batch class_batch(const LabelledTokens& data, const std::vector<int64_t>& indices, const std::vector<bool>& reversed,
                  torch::Device device) {
  std::vector<int64_t> starts{0}, labels, ids;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::span<const int32_t> stored = data.sequence(indices[i]);
    std::vector<int32_t> sequence(stored.begin(), stored.end());
    if (!reversed.empty() && reversed[i]) reverse_complement_ids(sequence);
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    starts.push_back(static_cast<int64_t>(ids.size()));
    labels.push_back(data.label(indices[i]));
  }
  const auto tokens = static_cast<int64_t>(ids.size()), count = static_cast<int64_t>(indices.size());
  return {runtime::to_device(torch::tensor(ids, torch::kLong), device), runtime::to_device(torch::tensor(labels, torch::kLong), device),
          Sequences::packed(std::move(starts), tokens, device), indices, count};
}

}  // namespace based
