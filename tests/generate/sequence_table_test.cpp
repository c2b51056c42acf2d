// The records of an engine's sequences. No model runs here.
#include "based/generate/sequence_table.h"

#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"
#include "tests/generate/texts.h"

namespace based {
namespace sequence_table_test {

SequenceTable::Sequence sequence_of(int64_t tokens, const SequenceOptions& options = {}) {
  SequenceTable::Sequence sequence;
  sequence.options = options;
  sequence.tokens = some_text(tokens, 3);
  return sequence;
}

class SequenceTableTest : public testing::Test {
 protected:
  SequenceTable table(int64_t slots) const { return {config_, slots, {}}; }
  // All sequences together may have `cache_tokens` tokens.
  SequenceTable table_with_pages(int64_t slots, int64_t cache_tokens) const {
    return {config_, slots, PagePool(slots, cache_tokens, torch::kCPU)};
  }
  ModelConfig config_ = find_preset("based-tiny");
};

TEST_F(SequenceTableTest, SlotsAreAssignedFromTheLowestFreeOne) {
  SequenceTable table = this->table(3);
  std::vector<int64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(table.add(sequence_of(5)));
  EXPECT_EQ(ids, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(table.free_slots(), 3);
  for (const int64_t id : {2, 0, 1}) EXPECT_TRUE(table.assign_slot(id));
  EXPECT_EQ(table.at(2).slot, 0);
  EXPECT_EQ(table.at(0).slot, 1);
  EXPECT_EQ(table.owner(1), 0);
  EXPECT_EQ(table.free_slots(), 0);
  EXPECT_FALSE(table.assign_slot(3));
  EXPECT_EQ(table.at(3).slot, -1);
  EXPECT_TRUE(table.assign_slot(0));  // it keeps the slot that it has
  EXPECT_EQ(table.at(0).slot, 1);

  table.release_slot(table.at(0));
  EXPECT_EQ(table.owner(1), -1);
  EXPECT_EQ(table.free_slots(), 1);
  table.release_slot(table.at(0));  // no effect
  EXPECT_EQ(table.free_slots(), 1);
  EXPECT_TRUE(table.assign_slot(3));
  EXPECT_EQ(table.at(3).slot, 1);
}

TEST_F(SequenceTableTest, ASequenceReservesTheSpaceOfItsPromptAndItsNewTokens) {
  SequenceTable table = table_with_pages(4, 100);
  const int64_t a = table.add(sequence_of(41, {.max_tokens = 30})), b = table.add(sequence_of(31, {.max_tokens = 1})),
                c = table.add(sequence_of(5, {.max_tokens = INT64_MAX}));
  EXPECT_TRUE(table.assign_slot(a));
  EXPECT_EQ(table.at(a).reserved_tokens, 70);
  EXPECT_EQ(table.pages()->tokens(table.at(a).slot), 40);  // pages for the prompt alone
  EXPECT_FALSE(table.assign_slot(b));                      // 31 more than 100
  EXPECT_EQ(table.at(b).slot, -1);
  EXPECT_EQ(table.at(b).reserved_tokens, 0);
  EXPECT_FALSE(table.assign_slot(c));  // the whole cache

  table.release_slot(table.at(a));
  EXPECT_EQ(table.at(a).reserved_tokens, 0);
  EXPECT_EQ(table.pages()->free_tokens(), 100);
  EXPECT_TRUE(table.assign_slot(c));
  EXPECT_EQ(table.at(c).reserved_tokens, 100);
  EXPECT_FALSE(table.assign_slot(b));
}

TEST_F(SequenceTableTest, LimitsAreTheModelsPositionsAndTheCache) {
  config_.max_positions = 12;
  SequenceTable table = table_with_pages(2, 20);
  const int64_t a = table.add(sequence_of(8, {.max_tokens = -1})), b = table.add(sequence_of(11, {.max_tokens = 1}));
  EXPECT_TRUE(table.assign_slot(a));  // 7 tokens and one more
  EXPECT_TRUE(table.assign_slot(b));  // 10 tokens and one more
  EXPECT_EQ(table.limit(table.at(a), 8), Finish::none);
  EXPECT_EQ(table.at(a).reserved_tokens, 8);
  EXPECT_EQ(table.limit(table.at(a), 9), Finish::none);
  EXPECT_EQ(table.at(a).reserved_tokens, 9);
  EXPECT_EQ(table.limit(table.at(a), 5), Finish::none);  // a reservation never shrinks
  EXPECT_EQ(table.at(a).reserved_tokens, 9);
  EXPECT_EQ(table.limit(table.at(a), 10), Finish::cache_full);
  EXPECT_EQ(table.at(a).reserved_tokens, 9);
  table.release_slot(table.at(b));
  EXPECT_EQ(table.limit(table.at(a), 12), Finish::none);
  EXPECT_EQ(table.limit(table.at(a), 13), Finish::positions);
}

TEST_F(SequenceTableTest, AdvanceAppendsASampledTokenOnlyAfterAllKnownTokens) {
  SequenceTable table = this->table(1);
  SequenceTable::Sequence& sequence = table.at(table.add(sequence_of(3, {.max_tokens = 2, .stop_tokens = {50}})));
  const std::vector<int64_t> prompt = sequence.tokens;
  EXPECT_EQ(sequence.unread(), 2);
  EXPECT_EQ(table.advance(sequence, 7), std::nullopt);  // the second prompt token is known
  EXPECT_EQ(table.advance(sequence, -1), std::nullopt);
  EXPECT_EQ(sequence.tokens, prompt);
  EXPECT_EQ(sequence.sampled, 0);
  EXPECT_EQ(table.advance(sequence, 7), Finish::none);
  EXPECT_EQ(sequence.tokens.back(), 7);
  EXPECT_EQ(sequence.seen, 3);
  EXPECT_EQ(table.advance(sequence, 8), Finish::length);
  EXPECT_EQ(sequence.tokens.size(), 5U);
  EXPECT_EQ(sequence.sampled, 2);
}

TEST_F(SequenceTableTest, AStopTokenIsKeptAndEndsTheSequenceBeforeItsLength) {
  SequenceTable table = this->table(1);
  SequenceTable::Sequence& stops = table.at(table.add(sequence_of(1, {.max_tokens = 1, .stop_tokens = {4, 50}})));
  EXPECT_EQ(table.advance(stops, 50), Finish::stop);
  EXPECT_EQ(stops.tokens.back(), 50);
  SequenceTable::Sequence& broken = table.at(table.add(sequence_of(1)));
  EXPECT_EQ(table.advance(broken, -1), Finish::not_finite);
  EXPECT_EQ(broken.tokens.size(), 1U);
  EXPECT_EQ(broken.sampled, 0);
}

TEST_F(SequenceTableTest, StepsInFlightSampleOnlyAfterTheKnownTokens) {
  SequenceTable::Sequence sequence = sequence_of(4);
  sequence.seen = 1;
  const std::vector<int64_t> expected{0, 0, 0, 1, 2};  // the first two steps read known tokens, whose samples are dropped
  for (int64_t steps = 0; steps < 5; ++steps) {
    sequence.steps_in_flight = steps;
    EXPECT_EQ(sequence.samples_in_flight(), expected[static_cast<size_t>(steps)]) << steps;
  }
}

TEST_F(SequenceTableTest, CountsDecodingSequencesInEveryPhase) {
  SequenceTable table = this->table(2);
  const int64_t a = table.add(sequence_of(4)), b = table.add(sequence_of(4));
  ASSERT_TRUE(table.assign_slot(a) && table.assign_slot(b));
  EXPECT_EQ(table.decoding_count(), 0);
  table.begin_decoding(table.at(a));
  EXPECT_EQ(table.decoding_count(), 1);
  table.finish(table.at(b), Finish::stop);  // while it is prefilling
  EXPECT_EQ(table.decoding_count(), 1);
  EXPECT_EQ(table.free_slots(), 1);
  table.return_to_prefill(table.at(a));
  EXPECT_EQ(table.decoding_count(), 0);
  EXPECT_TRUE(table.at(a).is_prefilling);
  table.begin_decoding(table.at(a));
  table.finish(table.at(a), Finish::length);
  EXPECT_EQ(table.decoding_count(), 0);
  EXPECT_EQ(table.free_slots(), 2);
  EXPECT_EQ(table.at(a).finish, Finish::length);
  table.erase(a);
  EXPECT_EQ(table.find(a), nullptr);
  EXPECT_EQ(message_of<Error>([&] { table.require(a); }), "engine: no sequence 0");
}

TEST_F(SequenceTableTest, RefusesSequencesThatCannotRun) {
  config_.max_positions = 16;
  SequenceTable table = table_with_pages(1, 12);
  EXPECT_THROW(table.add(sequence_of(0)), Error);
  EXPECT_THROW(table.add(sequence_of(18)), Error);
  EXPECT_EQ(message_of<Error>([&] { table.add(sequence_of(14)); }),
            "a text of 14 tokens, where the cache of all sequences has room for 12: give it more tokens");
  EXPECT_THROW(table.add(sequence_of(4, {.max_tokens = -2})), UsageError);
  EXPECT_THROW(table.add(sequence_of(4, {.sampling = {.top_p = 0}})), UsageError);
  EXPECT_EQ(table.add(sequence_of(13)), 0);  // refused sequences take no number

  SequenceTable::Sequence& sequence = table.at(0);
  const std::vector<int64_t> before = sequence.tokens;
  EXPECT_THROW(table.append(sequence, {1}), Error);
  EXPECT_EQ(sequence.tokens, before);
  const int64_t shorter = table.add(sequence_of(3));
  EXPECT_THROW(table.append(table.at(shorter), {1, config_.vocab_size}), Error);
  EXPECT_EQ(table.at(shorter).tokens.size(), 3U);
  table.append(table.at(shorter), {1, 2});
  EXPECT_EQ(table.at(shorter).tokens.size(), 5U);
}

}  // namespace sequence_table_test
}  // namespace based
