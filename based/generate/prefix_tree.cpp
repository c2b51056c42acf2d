#include "based/generate/prefix_tree.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace based {
namespace {

int64_t common_prefix(std::span<const int64_t> a, std::span<const int64_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()).first - a.begin();
}

// Sequences order_[begin … end), of which the closest prefix so far is that of a node.
struct SharingGroup {
  size_t begin, end;
  size_t parent;  // index of a node, or kNoParent
  int64_t parent_length;
};
constexpr size_t kNoParent = std::numeric_limits<size_t>::max();

}  // namespace

PrefixTree share_prefixes(const std::vector<std::span<const int64_t>>& sequences, const std::vector<int64_t>& most_shared,
                          const SharingCosts& costs) {
  std::vector<size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::lexicographical_compare(sequences[a].begin(), sequences[a].end(), sequences[b].begin(), sequences[b].end());
  });
  std::vector<int64_t> common(order.size());  // common[i]: tokens that sequences order[i − 1] and order[i] share
  for (size_t i = 1; i < order.size(); ++i) common[i] = common_prefix(sequences[order[i - 1]], sequences[order[i]]);

  PrefixTree tree;
  const auto leaves_of = [&](size_t node) -> std::vector<size_t>& {
    return node == kNoParent ? tree.root_leaves : tree.nodes[node].leaves;
  };
  std::vector<SharingGroup> groups;
  if (!order.empty()) groups.push_back({0, order.size(), kNoParent, 0});
  while (!groups.empty()) {
    const SharingGroup group = groups.back();
    groups.pop_back();
    if (group.end - group.begin == 1) {
      leaves_of(group.parent).push_back(order[group.begin]);
      continue;
    }
    const auto at = [](auto& list, size_t i) { return list.begin() + static_cast<std::ptrdiff_t>(i); };
    const int64_t shared = *std::min_element(at(common, group.begin + 1), at(common, group.end));
    int64_t length = shared;
    for (size_t i = group.begin; i < group.end; ++i) length = std::min(length, most_shared[order[i]]);
    size_t parent = group.parent;
    int64_t parent_length = group.parent_length;
    const auto size = static_cast<int64_t>(group.end - group.begin);
    const int64_t saved = (size - 1) * (length - std::max<int64_t>(parent_length, 1));
    const int64_t copies = parent == kNoParent ? size : 1;
    if (length >= 2 && saved - copies * costs.copy >= std::max<int64_t>(costs.least_saved, 1)) {
      parent = tree.nodes.size();
      parent_length = length;
      (group.parent == kNoParent ? tree.root_nodes : tree.nodes[group.parent].nodes).push_back(parent);
      tree.nodes.push_back({order[group.begin], length, {}, {}});
    }
    // Pushed in reverse, so that children are in the order of the sequences.
    for (size_t end = group.end, i = group.end; i-- > group.begin;) {
      if (i > group.begin && common[i] > shared) continue;
      groups.push_back({i, end, parent, parent_length});
      end = i;
    }
  }
  return tree;
}

}  // namespace based
