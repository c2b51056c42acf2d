#include "based/generate/prefix_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace based {
namespace prefix_tree_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Ids = std::vector<int64_t>;

PrefixTree tree_of(const std::vector<Ids>& sequences, const std::vector<int64_t>& most_shared, int64_t least_saved = 1, int64_t copy = 0) {
  return share_prefixes({sequences.begin(), sequences.end()}, most_shared, {least_saved, copy});
}

TEST(PrefixTree, SharesAContextUpToItsEnd) {
  // The choices share a token more than the context, which is no part of the prefix.
  const PrefixTree tree = tree_of({{1, 2, 3, 7, 8}, {1, 2, 3, 7, 9}, {1, 2, 3, 7}}, {3, 3, 3});
  ASSERT_EQ(tree.nodes.size(), 1U);
  EXPECT_EQ(tree.nodes[0].length, 3);
  EXPECT_THAT(tree.nodes[0].leaves, UnorderedElementsAre(0, 1, 2));
  EXPECT_THAT(tree.root_nodes, ElementsAre(0));
  EXPECT_THAT(tree.root_leaves, IsEmpty());
}

TEST(PrefixTree, NestsLongerPrefixes) {
  const PrefixTree tree = tree_of({{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 7}, {1, 2, 8}, {9, 9, 9}}, {5, 5, 2, 2});
  ASSERT_EQ(tree.nodes.size(), 2U);
  EXPECT_EQ(tree.nodes[0].length, 2);
  EXPECT_THAT(tree.nodes[0].nodes, ElementsAre(1));
  EXPECT_THAT(tree.nodes[0].leaves, ElementsAre(2));
  EXPECT_EQ(tree.nodes[1].length, 5);
  EXPECT_THAT(tree.nodes[1].leaves, UnorderedElementsAre(0, 1));
  EXPECT_THAT(tree.root_leaves, ElementsAre(3));
}

TEST(PrefixTree, LeavesOutPrefixesThatSaveLittle) {
  const std::vector<Ids> sequences{{1, 2, 3, 4, 5}, {1, 2, 3, 4, 6}};
  EXPECT_EQ(tree_of(sequences, {4, 4}, 3).nodes.size(), 1U) << "a prefix of 4 tokens saves 3 for one of the two";
  EXPECT_THAT(tree_of(sequences, {4, 4}, 4).nodes, IsEmpty());
  EXPECT_THAT(tree_of({{1, 2}, {1, 3}}, {1, 1}).nodes, IsEmpty()) << "a state never reads the last token of its prefix";
  EXPECT_THAT(tree_of({}, {}).root_leaves, IsEmpty());
}

TEST(PrefixTree, LeavesOutPrefixesThatAreNotWorthTheirCopies) {
  const std::vector<Ids> three{{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 7}, {1, 2, 3, 4, 5, 8}};  // a prefix of 5 tokens saves 8
  EXPECT_EQ(tree_of(three, {5, 5, 5}, 2, 2).nodes.size(), 1U) << "three copies cost 6";
  EXPECT_THAT(tree_of(three, {5, 5, 5}, 3, 2).nodes, IsEmpty());
  // The inner prefix saves 2 and adds one copy to those of its leaves, which the outer prefix needs anyway.
  const std::vector<Ids> nested{{1, 2, 3, 4, 5, 6, 8}, {1, 2, 3, 4, 5, 6, 9}, {1, 2, 3, 4, 7}};
  EXPECT_EQ(tree_of(nested, {6, 6, 4}, 1, 1).nodes.size(), 2U);
  EXPECT_EQ(tree_of(nested, {6, 6, 4}, 2, 1).nodes.size(), 1U);
}

TEST(PrefixTree, SharesEqualSequences) {
  const PrefixTree tree = tree_of({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}, {3, 3, 3});
  ASSERT_EQ(tree.nodes.size(), 1U);
  EXPECT_EQ(tree.nodes[0].length, 3);
  EXPECT_EQ(tree.nodes[0].leaves.size(), 3U);
}

void check_below(const PrefixTree& tree, const std::vector<Ids>& sequences, const std::vector<int64_t>& most_shared, size_t node,
                 int64_t parent_length, std::vector<int>& visits) {
  const PrefixTree::Node& here = tree.nodes[node];
  EXPECT_GE(here.length, 2);
  EXPECT_GT(here.length, parent_length);
  const Ids& example = sequences[here.example];
  for (const size_t leaf : here.leaves) {
    ++visits[leaf];
    EXPECT_LE(here.length, most_shared[leaf]);
    EXPECT_TRUE(std::equal(example.begin(), example.begin() + here.length, sequences[leaf].begin()));
  }
  for (const size_t child : here.nodes) {
    EXPECT_TRUE(std::equal(example.begin(), example.begin() + here.length, sequences[tree.nodes[child].example].begin()));
    check_below(tree, sequences, most_shared, child, here.length, visits);
  }
}

TEST(PrefixTree, HasEverySequenceOnceBelowItsOwnPrefixes) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<Ids> sequences;
    std::vector<int64_t> most_shared;
    for (int i = 0; i < 40; ++i) {
      Ids& ids = sequences.emplace_back(1 + random() % 9);
      for (int64_t& id : ids) id = static_cast<int64_t>(random() % 2);
      most_shared.push_back(1 + static_cast<int64_t>(random() % ids.size()));
    }
    const PrefixTree tree = tree_of(sequences, most_shared, 1 + round % 3);
    std::vector<int> visits(sequences.size());
    for (const size_t leaf : tree.root_leaves) ++visits[leaf];
    for (const size_t node : tree.root_nodes) check_below(tree, sequences, most_shared, node, 0, visits);
    EXPECT_EQ(visits, std::vector<int>(sequences.size(), 1));
  }
}

}  // namespace prefix_tree_test
}  // namespace based
