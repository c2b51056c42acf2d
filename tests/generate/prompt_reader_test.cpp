// The order, the pieces and the budget in which prompts are read. No model runs here: the pieces are only recorded.
#include "based/generate/prompt_reader.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/generate/texts.h"

namespace based {
namespace prompt_reader_test {

// A table and a reader whose pieces are recorded and counted as read.
class RecordedReader {
 public:
  RecordedReader(int64_t slots, const PromptReaderOptions& options, std::optional<PagePool> pages = {})
      : table(config_, slots, std::move(pages)), reader(table, options) {}

  int64_t add(int64_t tokens, int64_t max_tokens = 1) {
    SequenceTable::Sequence sequence;
    sequence.tokens = some_text(tokens, 3);
    sequence.options.max_tokens = max_tokens;
    const int64_t id = table.add(std::move(sequence));
    reader.push_back(id);
    return id;
  }

  // The pieces of a round: "0+1:7,3 " are 7 tokens of sequence 0 and 3 of sequence 1 by one call; "(" and ")" enclose a piece in the
  // staging state, "(new " the first piece there.
  std::string round() {
    std::string pieces;
    int64_t tokens = 0;
    const bool has_read = reader.read_round([&](const PromptReader::Piece& piece) {
      using Target = PromptReader::Piece::Target;
      std::string ids, counts;
      for (const int64_t id : piece.ids) {
        SequenceTable::Sequence& sequence = table.at(id);
        EXPECT_GE(sequence.slot, 0) << id;
        EXPECT_EQ(table.owner(sequence.slot), id);
        const int64_t count = std::min(reader.to_read(sequence), piece.most_tokens);
        sequence.seen += count;
        tokens += count;
        ids += (ids.empty() ? "" : "+") + std::to_string(id);
        counts += (counts.empty() ? "" : ",") + std::to_string(count);
        if (reader.to_read(sequence) == 0) table.begin_decoding(sequence);
      }
      const std::string text = ids + ":" + counts;
      pieces += piece.target == Target::slots ? text : (piece.target == Target::staging_state ? "(" : "(new ") + text + ")";
      pieces += " ";
    });
    EXPECT_EQ(has_read, tokens > 0);
    return pieces;
  }

  void finish(int64_t id) { table.finish(table.at(id), Finish::length); }

 private:
  ModelConfig config_ = find_preset("based-tiny");

 public:
  SequenceTable table;
  PromptReader reader;
};

TEST(PromptReader, ReadsPromptsTogetherAsFarAsTheBudgetGoes) {
  RecordedReader test(8, {.prefill_tokens = 20});
  for (const int64_t tokens : {6, 9, 8, 3, 1, 1}) test.add(tokens);  // one token less each is read
  EXPECT_EQ(test.round(), "0+1+2:5,8,7 ");                           // 20: the budget is used up
  EXPECT_EQ(test.round(), "3+4+5:2,0,0 ");
  EXPECT_EQ(test.round(), "");
  EXPECT_TRUE(test.reader.idle());
  EXPECT_EQ(test.table.decoding_count(), 6);
}

TEST(PromptReader, APromptThatDoesNotFitIntoTheRestWaitsForAWholeBudget) {
  RecordedReader test(8, {.prefill_tokens = 20});
  for (const int64_t tokens : {6, 31, 3}) test.add(tokens);
  EXPECT_EQ(test.round(), "0:5 ");  // 15 tokens are left, which would cut sequence 1 badly; sequence 2 does not overtake it
  EXPECT_EQ(test.round(), "1:20 ");
  EXPECT_EQ(test.round(), "2+1:2,10 ");  // after a piece of sequence 1 it is sequence 2's turn
  EXPECT_TRUE(test.reader.idle());
}

TEST(PromptReader, LongPromptsTakeTurns) {
  RecordedReader test(8, {.prefill_tokens = 10});
  test.add(31), test.add(26), test.add(4);
  EXPECT_EQ(test.round(), "0:10 ");
  EXPECT_EQ(test.round(), "1:10 ");
  EXPECT_EQ(test.round(), "2:3 ");  // 7 tokens are left, which would cut sequence 0 badly
  EXPECT_EQ(test.round(), "0:10 ");
  EXPECT_EQ(test.round(), "1:10 ");
  EXPECT_EQ(test.round(), "0:10 ");
  EXPECT_EQ(test.round(), "1:5 ");
  EXPECT_TRUE(test.reader.idle());
}

TEST(PromptReader, BegunPromptsContinueWhileNoSlotIsFree) {
  RecordedReader test(2, {.prefill_tokens = 10});
  test.add(21), test.add(16), test.add(4);
  EXPECT_EQ(test.round(), "0:10 ");
  EXPECT_EQ(test.round(), "1:10 ");
  EXPECT_EQ(test.round(), "0:10 ");  // it is sequence 2's turn, which has no slot
  EXPECT_EQ(test.round(), "1:5 ");
  EXPECT_EQ(test.round(), "");
  test.finish(0);
  EXPECT_EQ(test.round(), "2:3 ");
}

TEST(PromptReader, PromptsOfOneTokenTakeNoBudget) {
  RecordedReader test(4, {.prefill_tokens = 5});
  for (const int64_t tokens : {1, 1, 6}) test.add(tokens);
  EXPECT_EQ(test.round(), "0+1+2:0,0,5 ");
  test.add(1);
  EXPECT_EQ(test.round(), "3:0 ");  // the round has read no token
}

TEST(PromptReader, WaitsForSlotsAndKeepsTheOrder) {
  RecordedReader test(2, {.prefill_tokens = 100});
  for (const int64_t tokens : {4, 5, 6, 7}) test.add(tokens);
  EXPECT_EQ(test.round(), "0+1:3,4 ");
  EXPECT_EQ(test.round(), "");
  EXPECT_FALSE(test.reader.idle());
  test.finish(1);
  EXPECT_EQ(test.round(), "2:5 ");
  EXPECT_EQ(test.table.at(2).slot, 1);
  test.reader.remove(3);
  EXPECT_TRUE(test.reader.idle());
}

TEST(PromptReader, WaitsForRoomInTheCacheAndLetsNoSmallerPromptPass) {
  RecordedReader test(3, {.prefill_tokens = 100}, PagePool(3, 50, torch::kCPU));
  test.add(21, 10), test.add(31, 1), test.add(3, 1);
  EXPECT_EQ(test.round(), "0:20 ");  // 30 of 50 reserved; sequence 1 needs 31
  EXPECT_EQ(test.round(), "");
  test.finish(0);
  EXPECT_EQ(test.round(), "1+2:30,2 ");
}

TEST(PromptReader, AnExtendedSequenceIsReadFirst) {
  RecordedReader test(2, {.prefill_tokens = 100});
  test.add(4), test.add(5), test.add(6);
  EXPECT_EQ(test.round(), "0+1:3,4 ");
  SequenceTable::Sequence& extended = test.table.at(0);
  test.table.append(extended, some_text(7, 1));
  test.table.return_to_prefill(extended);
  test.reader.push_front(0);
  test.finish(1);
  EXPECT_EQ(test.round(), "0+2:7,5 ");  // sequence 0 keeps its slot
  EXPECT_EQ(extended.slot, 0);
}

TEST(PromptReader, OnePromptAtATimeIsReadInTheStagingState) {
  RecordedReader test(8, {.prefill_tokens = 20, .stages_long_prompts = true});
  test.add(46), test.add(6), test.add(51), test.add(4);
  EXPECT_EQ(test.round(), "(new 0:20) ");
  EXPECT_EQ(test.reader.staged_id(), 0);
  EXPECT_EQ(test.round(), "1+3:5,3 ");  // the turn of shorter prompts; sequence 2 needs the staging state
  EXPECT_EQ(test.round(), "(0:20) ");
  test.add(6);
  EXPECT_EQ(test.round(), "4:5 ");
  EXPECT_EQ(test.round(), "(0:5) ");  // 15 tokens are left, and sequence 2 is longer
  EXPECT_EQ(test.reader.staged_id(), -1);
  EXPECT_EQ(test.round(), "(new 2:20) ");
  EXPECT_EQ(test.round(), "(2:20) ");
  test.add(6);
  EXPECT_EQ(test.round(), "5:5 ");
  test.add(6);
  EXPECT_EQ(test.round(), "(2:10) 6:5 ");
  EXPECT_TRUE(test.reader.idle());
}

TEST(PromptReader, AStagedPromptContinuesWhileTheOthersHaveNoSlot) {
  RecordedReader test(1, {.prefill_tokens = 20, .stages_long_prompts = true});
  test.add(46), test.add(6);
  EXPECT_EQ(test.round(), "(new 0:20) ");
  EXPECT_EQ(test.round(), "(0:20) ");
  EXPECT_EQ(test.round(), "(0:5) ");
  EXPECT_EQ(test.round(), "");
  test.finish(0);
  EXPECT_EQ(test.round(), "1:5 ");
}

TEST(PromptReader, AStagedPieceIsReadBeforeThePromptsThatAreReadTogether) {
  RecordedReader test(8, {.prefill_tokens = 20, .stages_long_prompts = true});
  test.add(1), test.add(46);
  EXPECT_EQ(test.round(), "(new 1:20) 0:0 ");
}

TEST(PromptReader, AStagedPromptThatFinishesEarlyMakesRoomForTheNext) {
  RecordedReader test(8, {.prefill_tokens = 20, .stages_long_prompts = true});
  test.add(46), test.add(51);
  EXPECT_EQ(test.round(), "(new 0:20) ");
  test.reader.remove(0);
  test.finish(0);
  EXPECT_FALSE(test.reader.idle());
  EXPECT_EQ(test.round(), "(new 1:20) ");
  EXPECT_EQ(test.table.at(1).slot, 0);
  test.reader.remove(1);
  EXPECT_TRUE(test.reader.idle());
}

TEST(PromptReader, CellsAreReadWholeAndEachPromptByItself) {
  RecordedReader test(8, {.prefill_tokens = 25, .cell = 8});
  test.add(20), test.add(8), test.add(9), test.add(40);
  EXPECT_EQ(test.round(), "0:16 1:0 2:8 ");  // a budget of three cells; the last token of a prompt is read by a step
  EXPECT_EQ(test.round(), "3:24 ");
  EXPECT_EQ(test.round(), "3:8 ");
  EXPECT_TRUE(test.reader.idle());
  EXPECT_EQ(test.table.at(0).seen, 16);
}

TEST(PromptReader, ACellIsReadHoweverSmallTheBudget) {
  RecordedReader test(2, {.prefill_tokens = 3, .cell = 8});
  test.add(18);
  EXPECT_EQ(test.round(), "0:8 ");
  EXPECT_EQ(test.round(), "0:8 ");
  EXPECT_EQ(test.round(), "");
}

TEST(PromptReader, ALongPromptUsesTheRestOfTheBudgetOnlyInCells) {
  RecordedReader test(8, {.prefill_tokens = 24, .cell = 8});
  test.add(12), test.add(60);
  EXPECT_EQ(test.round(), "0:8 1:16 ");
  RecordedReader staged(8, {.prefill_tokens = 24, .cell = 8, .stages_long_prompts = true});
  staged.add(12), staged.add(60), staged.add(40);
  EXPECT_EQ(staged.round(), "0:8 (new 1:16) ");
  EXPECT_EQ(staged.round(), "(1:24) ");
  EXPECT_EQ(staged.round(), "(1:16) (new 2:8) ");  // one cell of the budget is left, and the staging state is free again
  EXPECT_EQ(staged.round(), "(2:24) ");
}

TEST(PromptReader, DefersRoundsUntilSlotsHaveBeenIdleForLong) {
  RecordedReader test(4, {.prefill_tokens = 100, .max_idle_slot_steps = 2});
  test.add(4);
  EXPECT_FALSE(test.reader.defers_round());  // no other sequence is decoding
  EXPECT_EQ(test.round(), "0:3 ");
  test.add(5), test.add(6);
  // Two sequences wait for three free slots: two idle slots a step, and 2 x 4 are allowed.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(test.reader.defers_round()) << i;
  EXPECT_FALSE(test.reader.defers_round());
  EXPECT_TRUE(test.reader.defers_round());  // the count begins again

  RecordedReader at_once(4, {.prefill_tokens = 100});
  at_once.add(4), at_once.round(), at_once.add(5);
  EXPECT_FALSE(at_once.reader.defers_round());
}

TEST(PromptReader, IdleSlotsCountOnlyWhileSequencesWait) {
  RecordedReader test(4, {.prefill_tokens = 100, .max_idle_slot_steps = 1});
  test.add(4), test.round();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(test.reader.defers_round()) << i;  // three slots are free, and no sequence waits
  test.add(5);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(test.reader.defers_round()) << i;
  EXPECT_FALSE(test.reader.defers_round());
}

TEST(PromptReader, APromptIsDeferredForALimitedNumberOfSteps) {
  RecordedReader test(4, {.prefill_tokens = 100, .max_idle_slot_steps = 100, .max_deferred_steps = 3});
  test.add(4), test.round();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(test.reader.defers_round()) << i;  // no sequence waits
  test.add(5);
  for (int round = 0; round < 2; ++round) {  // the count begins again
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(test.reader.defers_round()) << i;
    EXPECT_FALSE(test.reader.defers_round());
  }
}

TEST(PromptReader, AStagedPromptIsNeverDeferred) {
  RecordedReader test(4, {.prefill_tokens = 10, .max_idle_slot_steps = 100, .stages_long_prompts = true});
  test.add(4), test.round(), test.add(30);
  EXPECT_TRUE(test.reader.defers_round());
  EXPECT_EQ(test.round(), "(new 1:10) ");
  EXPECT_FALSE(test.reader.defers_round());
}

}  // namespace prompt_reader_test
}  // namespace based
