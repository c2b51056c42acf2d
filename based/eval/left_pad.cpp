#include "based/eval/left_pad.h"

#include <algorithm>
#include <numeric>

namespace based {

void pad_left(std::span<GenerationRequest> requests, int64_t batch, int64_t token) {
  BASED_ASSERT(batch > 0);
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return requests[a].context.size() > requests[b].context.size(); });
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t longest = requests[order[i - i % static_cast<size_t>(batch)]].context.size();
    std::vector<int64_t>& context = requests[order[i]].context;
    context.insert(context.begin(), longest - context.size(), token);
  }
}

}  // namespace based
