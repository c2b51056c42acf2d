#include "based/eval/slices.h"

#include "based/core/safetensors.h"

namespace based {

Json sum_json(const SliceSum& sum) {
  const std::optional<double> perplexity = sum.perplexity();
  return {{"tokens", sum.tokens}, {"nats", sum.nats}, {"perplexity", perplexity ? Json(*perplexity) : Json(nullptr)}};
}

Json slice_json(const SliceFigures& figures) {
  const std::optional<double> share = figures.ar_share();
  return {{"threshold", figures.threshold},
          {"ar_share", share ? Json(*share) : Json(nullptr)},
          {"all", sum_json(figures.all)},
          {"ar", sum_json(figures.ar)},
          {"other", sum_json(figures.other)}};
}

ScoreSums::ScoreSums(const Slices* slices, const std::vector<int64_t>& thresholds, std::vector<std::string> document_sources)
    : slices_(slices), document_sources_(std::move(document_sources)) {
  for (const int64_t threshold : thresholds) empty_.push_back({.threshold = threshold});
  if (slices_ == nullptr) empty_.resize(1);
  BASED_ASSERT(!empty_.empty());
  figures_ = empty_;
}

std::vector<int64_t> ScoreSums::add(const ScoredTokens& tokens) {
  const std::span<const int32_t> labels = tokens.pairs.next;
  BASED_ASSERT(tokens.nats.size() == labels.size() && tokens.documents.size() == labels.size());
  std::vector<int64_t> counts;
  if (slices_ != nullptr) counts = slices_->training_counts(tokens.pairs);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0) continue;
    const int64_t count = slices_ != nullptr ? counts[i] : kNewPair;
    for (SliceFigures& each : figures_) each.add(tokens.nats[i], count);
    if (document_sources_.empty()) continue;
    const std::string& name = document_sources_.at(static_cast<size_t>(tokens.documents[i]));
    for (SliceFigures& each : sources_.try_emplace(name, empty_).first->second) each.add(tokens.nats[i], count);
  }
  return counts;
}

TokenTable::TokenTable(int64_t rows, bool slices) : slices_(slices) {
  const auto size = static_cast<size_t>(rows);
  ids_.resize(size), documents_.resize(size), nats_.resize(size);
  if (slices) training_counts_.resize(size);
}

int64_t TokenTable::set(int64_t row, const ScoredTokens& tokens, std::span<const int64_t> training_counts) {
  auto at = static_cast<size_t>(row);
  for (size_t i = 0; i < tokens.nats.size(); ++i) {
    if (tokens.pairs.next[i] < 0) continue;
    BASED_ASSERT(at < ids_.size());
    ids_[at] = tokens.pairs.next[i], nats_[at] = tokens.nats[i], documents_[at] = tokens.documents[i];
    if (slices_) training_counts_[at] = training_counts[i];
    ++at;
  }
  return static_cast<int64_t>(at);
}

void TokenTable::write(const std::string& path, int64_t threshold) const {
  const auto rows = static_cast<int64_t>(ids_.size());
  std::vector<TensorView> tensors{{"id", DType::I32, {rows}, std::as_bytes(std::span(ids_))},
                                  {"nats", DType::F32, {rows}, std::as_bytes(std::span(nats_))},
                                  {"document", DType::I32, {rows}, std::as_bytes(std::span(documents_))}};
  std::vector<uint8_t> slice;
  std::map<std::string, std::string> metadata;
  if (slices_) {
    const SliceFigures rule{.threshold = threshold};
    for (const int64_t count : training_counts_) slice.push_back(rule.is_ar(count) ? 1 : 0);
    tensors.push_back({"slice", DType::U8, {rows}, std::as_bytes(std::span(slice))});
    tensors.push_back({"training_count", DType::I64, {rows}, std::as_bytes(std::span(training_counts_))});
    metadata = {{"threshold", std::to_string(threshold)}, {"slice", "1: AR, 0: Other"}};
  }
  write_safetensors(path, std::move(tensors), metadata);
}

}  // namespace based
