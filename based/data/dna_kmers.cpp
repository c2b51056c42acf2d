#include "based/data/dna_kmers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "based/core/error.h"
#include "based/data/dna.h"

namespace based {
namespace {

constexpr int64_t kPowerIterations = 50;

// Counts of k-mers of a set, one sparse row a sequence.
struct KmerCounts {
  std::vector<size_t> starts{0};  // [sequences + 1]
  std::vector<uint32_t> features;
  std::vector<float> counts;
  std::vector<int64_t> labels;

  size_t size() const { return labels.size(); }
};

size_t feature_count(const std::vector<int64_t>& sizes) {
  size_t sum = 0;
  for (const int64_t size : sizes) sum += size_t{1} << (2 * size);
  return sum;
}

void append_counts(std::span<const int32_t> ids, const std::vector<int64_t>& sizes, KmerCounts& out) {
  std::vector<uint32_t> found;
  uint32_t base = 0;
  for (const int64_t size : sizes) {
    const uint32_t mask = (uint32_t{1} << (2 * size)) - 1;
    uint32_t kmer = 0;
    int64_t known = 0;
    for (const int32_t id : ids) {
      const bool letter = id >= kDnaA && id <= kDnaT;
      known = letter ? known + 1 : 0;
      if (letter) kmer = (kmer << 2 | static_cast<uint32_t>(id - kDnaA)) & mask;
      if (known >= size) found.push_back(base + kmer);
    }
    base += mask + 1;
  }
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i < found.size();) {
    const size_t first = i;
    while (i < found.size() && found[i] == found[first]) ++i;
    out.features.push_back(found[first]);
    out.counts.push_back(static_cast<float>(i - first));
  }
  out.starts.push_back(out.features.size());
}

KmerCounts count_kmers(const LabelledTokens& data, const std::vector<int64_t>& sizes) {
  KmerCounts counts;
  for (int64_t i = 0; i < data.size(); ++i) {
    append_counts(data.sequence(i), sizes, counts);
    counts.labels.push_back(data.label(i));
  }
  return counts;
}

class KmerRegression {
 public:
  KmerRegression(const KmerCounts& train, size_t features, size_t classes)
      : train_(train), classes_(classes), means_(features), weights_(features * classes), bias_(classes) {
    for (size_t i = 0; i < train.features.size(); ++i) means_[train.features[i]] += train.counts[i] / static_cast<double>(train.size());
    curvature_ = 0.5 * largest_variance();
  }

  void fit(double strength, int64_t iterations) {
    // The bias has its own coordinate: the counts are centred, so its curvature is at most 1/2.
    const double rate = 1 / (std::max(curvature_, 0.5) + strength);
    std::vector<double> ahead = weights_, ahead_bias = bias_, gradient(weights_.size()), bias_gradient(classes_);
    double momentum = 1;
    for (int64_t i = 0; i < iterations; ++i) {
      differentiate(ahead, ahead_bias, strength, gradient, bias_gradient);
      const double next = (1 + std::sqrt(1 + 4 * momentum * momentum)) / 2;
      double uphill = 0;  // the gradient along the last move: above 0, the momentum starts again
      for (size_t k = 0; k < weights_.size(); ++k) uphill += gradient[k] * (ahead[k] - rate * gradient[k] - weights_[k]);
      const double factor = uphill > 0 ? 0 : (momentum - 1) / next;
      move(weights_, ahead, gradient, rate, factor);
      move(bias_, ahead_bias, bias_gradient, rate, factor);
      momentum = uphill > 0 ? 1 : next;
    }
  }

  ConfusionMatrix measure(const KmerCounts& data) const {
    ConfusionMatrix confusion(static_cast<int64_t>(classes_));
    const std::vector<double> offset = offsets(weights_, bias_);
    std::vector<double> scores(classes_);
    for (size_t row = 0; row < data.size(); ++row) {
      score(data, row, weights_, offset, scores);
      confusion.add(data.labels[row], std::max_element(scores.begin(), scores.end()) - scores.begin());
    }
    return confusion;
  }

 private:
  static void move(std::vector<double>& current, std::vector<double>& ahead, const std::vector<double>& gradient, double rate,
                   double factor) {
    for (size_t k = 0; k < current.size(); ++k) {
      const double moved = ahead[k] - rate * gradient[k];
      ahead[k] = moved + factor * (moved - current[k]);
      current[k] = moved;
    }
  }

  // bias − meansᵀ·weights: with it, scores are those of centred counts.
  std::vector<double> offsets(const std::vector<double>& weights, const std::vector<double>& bias) const {
    std::vector<double> offset = bias;
    for (size_t f = 0; f < means_.size(); ++f)
      for (size_t c = 0; c < classes_; ++c) offset[c] -= means_[f] * weights[f * classes_ + c];
    return offset;
  }

  void score(const KmerCounts& data, size_t row, const std::vector<double>& weights, const std::vector<double>& offset,
             std::vector<double>& scores) const {
    scores = offset;
    for (size_t i = data.starts[row]; i < data.starts[row + 1]; ++i)
      for (size_t c = 0; c < classes_; ++c) scores[c] += static_cast<double>(data.counts[i]) * weights[data.features[i] * classes_ + c];
  }

  void differentiate(const std::vector<double>& weights, const std::vector<double>& bias, double strength, std::vector<double>& gradient,
                     std::vector<double>& bias_gradient) const {
    const std::vector<double> offset = offsets(weights, bias);
    for (size_t k = 0; k < weights.size(); ++k) gradient[k] = strength * weights[k];
    std::fill(bias_gradient.begin(), bias_gradient.end(), 0.0);
    std::vector<double> scores(classes_);
    for (size_t row = 0; row < train_.size(); ++row) {
      score(train_, row, weights, offset, scores);
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& each : scores) sum += each = std::exp(each - most);
      for (double& each : scores) each /= sum * static_cast<double>(train_.size());
      scores[static_cast<size_t>(train_.labels[row])] -= 1 / static_cast<double>(train_.size());
      for (size_t i = train_.starts[row]; i < train_.starts[row + 1]; ++i)
        for (size_t c = 0; c < classes_; ++c)
          gradient[train_.features[i] * classes_ + c] += static_cast<double>(train_.counts[i]) * scores[c];
      for (size_t c = 0; c < classes_; ++c) bias_gradient[c] += scores[c];
    }
    for (size_t f = 0; f < means_.size(); ++f)
      for (size_t c = 0; c < classes_; ++c) gradient[f * classes_ + c] -= means_[f] * bias_gradient[c];
  }

  // The largest eigenvalue of the counts' covariance, by power iteration.
  double largest_variance() const {
    const size_t features = means_.size();
    std::vector<double> direction(features, 1 / std::sqrt(static_cast<double>(features)));
    double value = 0;
    for (int64_t i = 0; i < kPowerIterations; ++i) {
      const double mean = std::inner_product(means_.begin(), means_.end(), direction.begin(), 0.0);
      std::vector<double> image(features);
      double sum = 0;
      for (size_t row = 0; row < train_.size(); ++row) {
        double product = -mean;
        for (size_t k = train_.starts[row]; k < train_.starts[row + 1]; ++k)
          product += static_cast<double>(train_.counts[k]) * direction[train_.features[k]];
        product /= static_cast<double>(train_.size());
        sum += product;
        for (size_t k = train_.starts[row]; k < train_.starts[row + 1]; ++k)
          image[train_.features[k]] += static_cast<double>(train_.counts[k]) * product;
      }
      for (size_t f = 0; f < features; ++f) image[f] -= means_[f] * sum;
      value = std::sqrt(std::inner_product(image.begin(), image.end(), image.begin(), 0.0));
      if (value == 0) return 0;
      for (size_t f = 0; f < features; ++f) direction[f] = image[f] / value;
    }
    return value;
  }

  const KmerCounts& train_;
  size_t classes_;
  std::vector<double> means_;           // [features]
  std::vector<double> weights_, bias_;  // [features, classes], [classes]
  double curvature_ = 0;                // an upper bound of the largest eigenvalue of the cross entropy's Hessian
};

}  // namespace

KmerFloor measure_kmer_floor(const LabelledTokens& train, const LabelledTokens& dev, const LabelledTokens& test, int64_t classes,
                             const KmerOptions& options) {
  for (const int64_t size : options.sizes)
    if (size < 1 || size > 8) throw UsageError("k-mers must have from 1 to 8 bases, got " + std::to_string(size));
  const KmerCounts counts = count_kmers(train, options.sizes), dev_counts = count_kmers(dev, options.sizes),
                   test_counts = count_kmers(test, options.sizes);
  KmerRegression regression(counts, feature_count(options.sizes), static_cast<size_t>(classes));
  std::optional<KmerFloor> best;
  for (const double strength : options.strengths) {
    regression.fit(strength, options.iterations);
    const ConfusionMatrix found = regression.measure(dev_counts);
    if (!best || found.mcc() > best->dev.mcc()) best = KmerFloor{strength, found, regression.measure(test_counts)};
  }
  BASED_ASSERT(best);
  return *best;
}

}  // namespace based
