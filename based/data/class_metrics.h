// Metrics of a classification over a whole set.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace based {

class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(int64_t classes);
  void add(int64_t label, int64_t prediction);

  int64_t classes() const { return classes_; }
  int64_t cases() const { return cases_; }
  int64_t count(int64_t label, int64_t prediction) const { return counts_[static_cast<size_t>(label * classes_ + prediction)]; }

  double accuracy() const;
  // Matthews' correlation for K classes: with s cases, c of them right, t_k labels and p_k predictions of class k,
  // (c·s − Σ p_k t_k) / √((s² − Σ p_k²)(s² − Σ t_k²)); 0 where the root is 0.
  double mcc() const;
  // The mean over the classes that occur as a label or as a prediction of 2·tp / (2·tp + fp + fn).
  double macro_f1() const;

 private:
  int64_t labels_of(int64_t k) const;
  int64_t predictions_of(int64_t k) const;

  int64_t classes_, cases_ = 0;
  std::vector<int64_t> counts_;  // [label, prediction]
};

}  // namespace based
