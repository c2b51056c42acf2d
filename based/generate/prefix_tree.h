// Prefixes that several token sequences share. A model reads each prefix once, and the sequences continue from copies of its state.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace based {

struct PrefixTree {
  struct Node {
    size_t example = 0;          // the node's prefix is the first `length` tokens of this sequence
    int64_t length = 0;          // at least 2, and longer than the parent's
    std::vector<size_t> nodes;   // indices of longer prefixes
    std::vector<size_t> leaves;  // sequences that continue from this prefix
  };
  std::vector<Node> nodes;  // a parent is before its children
  std::vector<size_t> root_nodes, root_leaves;
};

// Costs of sharing a prefix, in tokens that could be read in the same time.
struct SharingCosts {
  int64_t least_saved = 1;  // a prefix must save at least as many after its copies are paid
  int64_t copy = 0;         // the price of one copy of a state
};

// A tree with every sequence as one leaf. A prefix is at most `most_shared[i]` tokens of sequence i, and each sequence must have as many. A
// state that has read a prefix lacks its last token (generate/sequence.h), so a prefix of n tokens saves n − 1 of them for every sequence
// but one. It costs one copy for each sequence; where its parent's state would be copied for these anyway, one copy more. Prefixes that are
// not worth `costs` are left out.
PrefixTree share_prefixes(const std::vector<std::span<const int64_t>>& sequences, const std::vector<int64_t>& most_shared,
                          const SharingCosts& costs);

}  // namespace based
