// A floor for classifiers of DNA: logistic regression on counts of k-mers.
#pragma once
#include <cstdint>
#include <vector>

#include "based/data/class_metrics.h"
#include "based/data/labelled_sequences.h"

namespace based {

struct KmerOptions {
  std::vector<int64_t> sizes = {3, 5, 6};                          // 1 to 8 bases
  std::vector<double> strengths = {1e-1, 3e-2, 1e-2, 3e-3, 1e-3};  // tried penalties, descending
  int64_t iterations = 200;                                        // gradient steps for each penalty
};

struct KmerFloor {
  double strength = 0;  // the one with the highest MCC on dev
  ConfusionMatrix dev, test;
};

// Minimises mean cross entropy + strength/2 · ‖W‖² over the weights W of the counts and a bias, by Nesterov's accelerated gradient, from
// the strongest penalty to the weakest. Counts are those of a sequence's k-mers of A, C, G and T, upper or lower case, less their mean over
// `train`. The sets have the ids of DnaTokenizer. The result is the same in each run.
KmerFloor measure_kmer_floor(const LabelledTokens& train, const LabelledTokens& dev, const LabelledTokens& test, int64_t classes,
                             const KmerOptions& options = {});

}  // namespace based
