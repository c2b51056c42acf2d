#include "based/parallel/agree.h"

#include <algorithm>

#include "based/core/error.h"
#include "based/core/text.h"

namespace based {

void agree(Collectives& ranks, const std::string& name, const std::string& value) {
  const std::vector<std::string> values = ranks.gather_text(value);
  const auto count = [&](const std::string& wanted) { return std::count(values.begin(), values.end(), wanted); };
  const std::string& usual =
      *std::max_element(values.begin(), values.end(), [&](const auto& left, const auto& right) { return count(left) < count(right); });
  std::string odd;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != usual) odd += (odd.empty() ? "rank " : ", rank ") + std::to_string(i) + " has " + in_quotes(values[i]);
  if (!odd.empty()) throw Error("the ranks differ in " + name + ": " + odd + ", the others have " + in_quotes(usual));
}

}  // namespace based
