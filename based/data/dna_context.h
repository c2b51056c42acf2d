// The order-k context model of DNA: a floor for perplexities of trained models.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace based {

// Predicts a base from counts of the bases that followed the same `order` bases before: (count + 1) / (all counts + 4). One adaptive pass:
// a base is scored, then counted. Other characters than A, C, G and T (in upper case) are neither predicted nor counted, and like the start
// of a sequence they begin a new context; a base without `order` bases before it has the probability 1/4.
class DnaContextModel {
 public:
  explicit DnaContextModel(int64_t order);  // 0 to 12; throws UsageError for others

  struct Score {
    int64_t bases = 0;
    double bits = 0;
    double bits_per_base() const { return bits / static_cast<double>(bases); }
    double perplexity() const;  // 2^bits_per_base
  };
  // Scores the bases of one sequence, counts them, and adds the result to `score`.
  void add(std::string_view letters, Score& score);

 private:
  int64_t order_;
  std::vector<uint32_t> counts_;  // [4^order, 4]
};

}  // namespace based
