#include "based/serve/states/prefix_index.h"

#include <gtest/gtest.h>

#include <set>

#include "based/core/random.h"

namespace based {
namespace prefix_index_test {

using Ids = std::vector<int64_t>;
using Tier = PrefixIndex::Tier;

Ids random_ids(Random& random, int64_t most) {
  Ids ids(static_cast<size_t>(random.between(1, most)));
  for (int64_t& id : ids) id = random.between(0, 2);
  return ids;
}

bool begins_with(const Ids& ids, const Ids& prefix) {
  return prefix.size() <= ids.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
}

// The same by lists and loops.
struct Model {
  struct Entry {
    std::string owner;
    Ids ids;
    int64_t bytes = 0, used = 0;
    Tier tier = Tier::memory;
    bool interval = false;
  };
  std::map<std::string, std::set<Ids>> recorded;
  std::map<int64_t, Entry> entries;
  int64_t clock = 0;

  PrefixIndex::Match match(const std::string& owner, const Ids& ids, int64_t most) {
    PrefixIndex::Match found;
    for (const Ids& other : recorded[owner]) {
      int64_t common = 0;
      while (static_cast<size_t>(common) < std::min(ids.size(), other.size()) &&
             ids[static_cast<size_t>(common)] == other[static_cast<size_t>(common)])
        ++common;
      found.common = std::max(found.common, common);
    }
    for (const auto& [id, entry] : entries) {
      const auto length = static_cast<int64_t>(entry.ids.size());
      if (entry.owner == owner && begins_with(ids, entry.ids) && length <= most && length > found.entry_tokens)
        found.entry = id, found.entry_tokens = length;
    }
    return found;
  }
  int value(const Entry& entry) {
    std::set<int64_t> next;
    for (const Ids& ids : recorded[entry.owner])
      if (ids.size() > entry.ids.size() && begins_with(ids, entry.ids)) next.insert(ids[entry.ids.size()]);
    return next.size() >= 2 ? 2 : entry.interval ? 0 : 1;
  }
  Ids ranked(Tier tier) {
    std::map<std::pair<int, int64_t>, int64_t> order;
    for (const auto& [id, entry] : entries)
      if (entry.tier == tier) order.emplace(std::pair(value(entry), entry.used), id);
    Ids out;
    for (const auto& [rank, id] : order) out.push_back(id);
    return out;
  }
  int64_t bytes(Tier tier) const {
    int64_t sum = 0;
    for (const auto& [id, entry] : entries) sum += entry.tier == tier ? entry.bytes : 0;
    return sum;
  }
  int64_t entry_of(const std::string& owner, const Ids& ids) const {
    for (const auto& [id, entry] : entries)
      if (entry.owner == owner && entry.ids == ids) return id;
    return -1;
  }
  int64_t any_entry(Random& random) const {
    if (entries.empty()) return -1;
    return std::next(entries.begin(), random.between(0, static_cast<int64_t>(entries.size()) - 1))->first;
  }
};

TEST(PrefixIndex, AgreesWithListsAfterRandomOperations) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    PrefixIndex index(1 << 20);
    Model model;
    for (int operation = 0; operation < 300; ++operation) {
      const std::string owner = random.below(4) == 0 ? "b" : "a";
      const Ids ids = random_ids(random, 8);
      const int64_t some = model.any_entry(random);
      switch (random.below(6)) {
        case 0:
          EXPECT_TRUE(index.record(owner, ids).empty());
          model.recorded[owner].insert(ids);
          break;
        case 1:
        case 2: {
          const auto bytes = random.between(1, 100);
          const Tier tier = random.below(2) == 0 ? Tier::memory : Tier::disk;
          const bool interval = random.below(3) == 0;
          const int64_t before = model.entry_of(owner, ids);
          const PrefixIndex::Put put = index.put(owner, ids, bytes, tier, interval);
          ASSERT_EQ(put.is_new, before < 0);
          ASSERT_TRUE(put.forgotten.empty());
          model.recorded[owner].insert(ids);
          Model::Entry& entry = model.entries[put.entry];
          if (put.is_new) entry = {owner, ids, bytes, 0, tier, interval};
          ASSERT_TRUE(put.is_new || put.entry == before);
          entry.used = ++model.clock;
          entry.interval = entry.interval && put.is_new;
          break;
        }
        case 3:
          if (some >= 0) index.use(some), model.entries[some].used = ++model.clock, model.entries[some].interval = false;
          break;
        case 4:
          if (some >= 0) index.move(some, Tier::disk), model.entries[some].tier = Tier::disk;
          break;
        default:
          if (some >= 0) index.erase(some), model.entries.erase(some);
      }
      const Ids query = random_ids(random, 10);
      const int64_t most = random.between(0, 10);
      const PrefixIndex::Match found = index.match(owner, query, most), expected = model.match(owner, query, most);
      ASSERT_EQ(found.entry, expected.entry) << "seed " << seed << ", operation " << operation;
      ASSERT_EQ(found.entry_tokens, expected.entry_tokens);
      ASSERT_EQ(found.common, expected.common) << "seed " << seed << ", operation " << operation;
      for (const Tier tier : {Tier::memory, Tier::disk}) {
        ASSERT_EQ(index.ranked(tier), model.ranked(tier)) << "seed " << seed << ", operation " << operation;
        ASSERT_EQ(index.bytes(tier), model.bytes(tier));
      }
    }
  }
}

TEST(PrefixIndex, EvictsUnusedIntervalsFirstAndBranchPointsLast) {
  PrefixIndex index(1 << 20);
  const int64_t branch = index.put("", Ids{1, 2}, 1, Tier::memory).entry;
  const int64_t interval = index.put("", Ids{1, 2, 3, 4}, 1, Tier::memory, /*interval=*/true).entry;
  const int64_t old = index.put("", Ids{1, 2, 3, 4, 5}, 1, Tier::memory).entry;
  const int64_t recent = index.put("", Ids{7}, 1, Tier::memory).entry;
  index.record("", Ids{1, 2, 9});
  EXPECT_EQ(index.ranked(Tier::memory), (Ids{interval, old, recent, branch}));
  index.use(old);
  EXPECT_EQ(index.ranked(Tier::memory), (Ids{interval, recent, old, branch}));
  index.use(interval);
  EXPECT_EQ(index.ranked(Tier::memory), (Ids{recent, old, interval, branch})) << "an interval that was used is like an end";
}

TEST(PrefixIndex, StaysWithinItsSizeAndForgetsOldSequencesFirst) {
  constexpr int64_t kMost = 600;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed, 1);
    PrefixIndex index(kMost);
    std::map<int64_t, Ids> entries;
    int64_t forgotten = 0;
    const auto forget = [&](const Ids& gone) {
      for (const int64_t entry : gone) ASSERT_EQ(entries.erase(entry), 1u);
      forgotten += static_cast<int64_t>(gone.size());
    };
    for (int operation = 0; operation < 300; ++operation) {
      const Ids ids = random_ids(random, 60);
      if (random.below(2) == 0) {
        forget(index.record("a", ids));
      } else {
        const PrefixIndex::Put put = index.put("a", ids, 1, Tier::memory);
        forget(put.forgotten);
        entries[put.entry] = ids;
      }
      ASSERT_LE(index.tokens(), kMost);
      ASSERT_EQ(index.entries(), static_cast<int64_t>(entries.size()));
      for (const auto& [entry, prefix] : entries)
        ASSERT_EQ(index.match("a", prefix, static_cast<int64_t>(prefix.size())).entry, entry) << "seed " << seed;
    }
    EXPECT_GT(forgotten, 0);
  }
  PrefixIndex index(100);
  index.record("", Ids(50, 1));
  EXPECT_EQ(index.match("", Ids(50, 1), 50).common, 50);
  index.record("", Ids(60, 2));
  EXPECT_EQ(index.match("", Ids(50, 1), 50).common, 0) << "the older sequence is forgotten";
  EXPECT_EQ(index.match("", Ids(60, 2), 50).common, 60);
  EXPECT_EQ(index.put("", Ids(100, 3), 1, Tier::memory).entry, -1) << "longer than all trees may be";
}

TEST(PrefixIndex, HoldsPathsOfManyNodes) {
  // Every prefix of a long prompt is a node of one path. Neither the search nor the destructor may need a stack of this depth.
  constexpr int64_t kLength = 3000;
  PrefixIndex index(int64_t{1} << 30);
  const Ids ids(kLength, 5);
  for (int64_t length = 1; length <= kLength; ++length) index.put("", std::span(ids).first(static_cast<size_t>(length)), 1, Tier::memory);
  EXPECT_EQ(index.match("", ids, kLength - 7).entry_tokens, kLength - 7);
}

}  // namespace prefix_index_test
}  // namespace based
