// Paired differences between two evaluations of the same documents.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "based/eval/report.h"

namespace based {

struct PairedResult {
  std::string task;  // TaskResults::name
  std::string metric;
  int64_t documents = 0;                 // in both files
  double first = 0, second = 0;          // means over these documents
  double difference = 0;                 // second − first
  std::optional<double> standard_error;  // the mean difference's; none for fewer than two documents

  double low() const;  // the 95 % interval: difference ± 1.96 standard errors
  double high() const;
  bool resolved() const;  // whether the interval excludes 0
};

struct PairedResults {
  std::vector<PairedResult> differences;
  std::vector<std::string> not_compared;  // "<task> <metric>" of metrics that are no mean over documents, such as the F1 of CB
};

// The differences of all metrics whose documents have numbers, and those of perplexities in nats: of a text's log-likelihood a word or byte
// where a document has these, else a document. Throws UsageError if the files have other tasks, options or requests, or no document in
// common, and names what differs. The models themselves may differ.
// other_padding: the padding on the left (left_pad.h) may differ too, which measures its cost.
PairedResults compare_results(const ModelResults& first, const ModelResults& second, bool other_padding = false);

}  // namespace based
