#include "based/data/class_metrics.h"

#include <cmath>

#include "based/core/error.h"

namespace based {

ConfusionMatrix::ConfusionMatrix(int64_t classes) : classes_(classes), counts_(static_cast<size_t>(classes * classes)) {
  BASED_ASSERT(classes >= 1);
}

void ConfusionMatrix::add(int64_t label, int64_t prediction) {
  BASED_ASSERT(label >= 0 && label < classes_ && prediction >= 0 && prediction < classes_);
  ++counts_[static_cast<size_t>(label * classes_ + prediction)];
  ++cases_;
}

int64_t ConfusionMatrix::labels_of(int64_t k) const {
  int64_t sum = 0;
  for (int64_t i = 0; i < classes_; ++i) sum += count(k, i);
  return sum;
}

int64_t ConfusionMatrix::predictions_of(int64_t k) const {
  int64_t sum = 0;
  for (int64_t i = 0; i < classes_; ++i) sum += count(i, k);
  return sum;
}

double ConfusionMatrix::accuracy() const {
  int64_t right = 0;
  for (int64_t k = 0; k < classes_; ++k) right += count(k, k);
  return static_cast<double>(right) / static_cast<double>(cases_);
}

double ConfusionMatrix::mcc() const {
  const auto s = static_cast<double>(cases_);
  double right = 0, products = 0, labels = 0, predictions = 0;
  for (int64_t k = 0; k < classes_; ++k) {
    const auto t = static_cast<double>(labels_of(k)), p = static_cast<double>(predictions_of(k));
    right += static_cast<double>(count(k, k));
    products += p * t, labels += t * t, predictions += p * p;
  }
  const double root = std::sqrt((s * s - predictions) * (s * s - labels));
  return root == 0 ? 0 : (right * s - products) / root;
}

double ConfusionMatrix::macro_f1() const {
  double sum = 0;
  int64_t present = 0;
  for (int64_t k = 0; k < classes_; ++k) {
    const int64_t both = labels_of(k) + predictions_of(k);
    if (both == 0) continue;
    ++present;
    sum += 2 * static_cast<double>(count(k, k)) / static_cast<double>(both);
  }
  return present == 0 ? 0 : sum / static_cast<double>(present);
}

}  // namespace based
