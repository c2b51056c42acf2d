#include "theory/recall.h"

#include <algorithm>

#include "based/core/error.h"

namespace based::theory {

std::vector<int64_t> recall(const RecallInstance& instance, int64_t i, Reach reach, Matches matches) {
  std::vector<int64_t> answer(static_cast<size_t>(instance.width));
  for (int64_t j = 0; j < i + (reach == Reach::up_to_itself ? 1 : 0); ++j) {
    const auto key = static_cast<size_t>(j);
    if (instance.queries[static_cast<size_t>(i)] != instance.keys[key]) continue;
    for (size_t k = 0; k < answer.size(); ++k) answer[k] += instance.values[key][k];
    if (matches == Matches::first) break;
  }
  return answer;
}

BooleanFunction recall_bit(int64_t width, int64_t keys, int64_t bit, Matches matches) {
  return [=](std::span<const int64_t> input) {
    const auto row = [&](int64_t index) { return input.subspan(static_cast<size_t>(index * width), static_cast<size_t>(width)); };
    int64_t answer = 0;
    for (int64_t key = 0; key < keys; ++key) {
      if (!std::ranges::equal(row(0), row(1 + 2 * key))) continue;
      answer += row(2 + 2 * key)[static_cast<size_t>(bit)];
      if (matches == Matches::first) break;
    }
    return answer;
  };
}

BooleanFunction equality(int64_t width) {
  return [width](std::span<const int64_t> input) -> int64_t {
    return std::ranges::equal(input.first(static_cast<size_t>(width)), input.subspan(static_cast<size_t>(width)));
  };
}

RecallInstance equality_instance(std::span<const int64_t> first, std::span<const int64_t> second, std::span<const int64_t> value) {
  const auto row = [](std::span<const int64_t> numbers) { return std::vector<int64_t>(numbers.begin(), numbers.end()); };
  return {static_cast<int64_t>(first.size()), {row(first), row(second)}, {row(value), row(value)}, {row(first), row(second)}};
}

Polynomial equality_polynomial(const PHot& encoding) {
  BASED_ASSERT(encoding.almost);
  const auto width = static_cast<int>(encoding.block_width());
  const auto second = static_cast<int>(encoding.width());
  Polynomial product(1);
  for (int block = 0; block < static_cast<int>(encoding.blocks); ++block) {
    Polynomial both, none_of_first(1), none_of_second(1);
    for (int k = block * width; k < (block + 1) * width; ++k) {
      const Polynomial u = Polynomial::variable(k), v = Polynomial::variable(second + k);
      both += u * v;
      none_of_first = none_of_first - u;
      none_of_second = none_of_second - v;
    }
    product = product * (both + none_of_first * none_of_second);
  }
  return product;
}

}  // namespace based::theory
