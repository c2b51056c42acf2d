// Perplexities by slices (data/slices.h) and by sources of documents, and a file of all predicted tokens.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/data/slices.h"

namespace based {

Json sum_json(const SliceSum& sum);  // {"tokens": …, "nats": …, "perplexity": …}
// {"threshold": 1250, "ar_share": …, "all": {"tokens": …, "nats": …, "perplexity": …}, "ar": {…}, "other": {…}}. The share and perplexities
// of empty slices are null.
Json slice_json(const SliceFigures& figures);

// Predicted tokens with their scores: [n] each.
struct ScoredTokens {
  TokenPairs pairs;                    // next[i] is the predicted token; next[i] < 0: none
  std::span<const float> nats;         // −log p of next[i]
  std::span<const int32_t> documents;  // index of the document of next[i]
};

// Sums over all tokens and over each source of documents (pile_set_name).
class ScoreSums {
 public:
  // The figures of each threshold, in order. Without slices, there is one, in which every token is in Other. `slices` must live as long as
  // this object; null: no slices. `document_sources`: of each document, "" for none; empty: no figures by source.
  ScoreSums(const Slices* slices, const std::vector<int64_t>& thresholds, std::vector<std::string> document_sources = {});

  // Adds the scores and returns the training counts (Slices::training_counts; empty without slices).
  std::vector<int64_t> add(const ScoredTokens& tokens);

  const std::vector<SliceFigures>& figures() const { return figures_; }
  const std::map<std::string, std::vector<SliceFigures>>& sources() const { return sources_; }

 private:
  const Slices* slices_;
  std::vector<SliceFigures> empty_, figures_;
  std::vector<std::string> document_sources_;
  std::map<std::string, std::vector<SliceFigures>> sources_;
};

// The rows of `based perplexity --per-token`: one for each predicted token. They may be set in any order.
class TokenTable {
 public:
  TokenTable(int64_t rows, bool slices);

  // Writes the labelled tokens to the rows from `row` on and returns the row after them. `training_counts` may be empty without slices.
  int64_t set(int64_t row, const ScoredTokens& tokens, std::span<const int64_t> training_counts);

  // A safetensors file, written atomically: id int32 [rows], nats fp32 [rows], document int32 [rows], and with slices slice uint8 [rows]
  // (1 AR, 0 Other, for this threshold) and training_count int64 [rows] (−1: the pair did not occur earlier in the context).
  void write(const std::string& path, int64_t threshold) const;

 private:
  bool slices_;
  std::vector<int32_t> ids_, documents_;
  std::vector<float> nats_;
  std::vector<int64_t> training_counts_;
};

}  // namespace based
