#include "based/data/dna_context.h"

#include <cmath>
#include <string>

#include "based/core/error.h"

namespace based {
namespace {

constexpr int64_t kMostOrder = 12;

}  // namespace

DnaContextModel::DnaContextModel(int64_t order) : order_(order) {
  if (order < 0 || order > kMostOrder)
    throw UsageError("the order of a context model must be from 0 to " + std::to_string(kMostOrder) + ", got " + std::to_string(order));
  counts_.resize(size_t{4} << (2 * order));
}

double DnaContextModel::Score::perplexity() const { return std::exp2(bits_per_base()); }

void DnaContextModel::add(std::string_view letters, Score& score) {
  constexpr std::string_view bases = "ACGT";
  const size_t mask = (size_t{1} << (2 * order_)) - 1;
  size_t context = 0;
  int64_t known = 0;  // bases of the context that were read since the last start
  for (const char letter : letters) {
    const size_t base = bases.find(letter);
    if (base == std::string_view::npos) {
      known = 0;
      continue;
    }
    ++score.bases;
    if (known < order_) {
      score.bits += 2;
      ++known;
    } else {
      uint32_t* counts = counts_.data() + 4 * context;
      const double all = static_cast<double>(counts[0]) + counts[1] + counts[2] + counts[3];
      score.bits -= std::log2((static_cast<double>(counts[base]) + 1) / (all + 4));
      ++counts[base];
    }
    context = (context << 2 | base) & mask;
  }
}

}  // namespace based
