// The tokenizer of DNA, its rows, reverse complements in the loader, and the context model.
#include "based/data/dna.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "based/data/dna_context.h"
#include "based/data/loader.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace dna_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DnaTokenizer, GivesOneIdALetterInUpperCase) {
  const auto dna = make_tokenizer("dna");
  EXPECT_EQ(dna->vocab_size(), 12);
  EXPECT_THAT(dna->encode("ACGTNacgtn"), ElementsAre(7, 8, 9, 10, 11, 7, 8, 9, 10, 11));
  EXPECT_THAT(dna->encode("R.- é"), ElementsAre(6, 6, 6, 6, 6)) << "one id for each character";
  EXPECT_THAT(dna->encode("A[SEP]", Specials::recognised), ElementsAre(7, 1));
  EXPECT_EQ(dna->decode(dna->encode("gattaca")), "GATTACA");
  EXPECT_EQ(dna->end_of_text(), 1);
}

TEST(DnaTokenizer, IsKnownByItsFolderAndHash) {
  const TemporaryFolder folder;
  ByteTokenizer().save(folder.file("a"));
  DnaTokenizer().save(folder.file("a"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("a/merges.txt"))) << "of the tokenizer that was there before";
  const auto again = make_tokenizer(folder.file("a"));
  EXPECT_EQ(again->hash(), dna_tokenizer_hash());
  EXPECT_THAT(again->encode("acN"), ElementsAre(7, 8, 11));
  EXPECT_NE(dna_tokenizer_hash(), ByteTokenizer().hash());
  ByteTokenizer().save(folder.file("b"));
  EXPECT_FALSE(holds_dna_tokenizer(folder.file("b")));
}

TEST(Dna, ReverseComplementKeepsCaseAndOtherCharacters) {
  EXPECT_EQ(reverse_complement("GATTACAn"), "nTGTAATC");
  EXPECT_EQ(reverse_complement("aR-c"), "g-Rt");
  EXPECT_EQ(reverse_complement(""), "");
}

TEST(Dna, RowsArePaddedInFrontAndReversedBetweenTheirEnds) {
  std::vector<int32_t> row = dna_row("GATn", 6);
  EXPECT_THAT(row, ElementsAre(4, 4, 9, 7, 10, 11, 1));
  reverse_complement_ids(row);
  EXPECT_THAT(row, ElementsAre(4, 4, 11, 7, 10, 8, 1)) << "N stays next to the letters that it was next to";
  hide_dna_gaps(row);
  EXPECT_THAT(row, ElementsAre(4, 4, 4, 7, 10, 8, 1));
  EXPECT_THAT(dna_row("ACGT", 2), ElementsAre(7, 8, 1));
  EXPECT_THAT(hyenadna_row("AcN", 5), ElementsAre(4, 7, 6, 11, 1));
}

class DnaLoader : public ::testing::Test {
 protected:
  std::shared_ptr<const TokenDataset> rows(const std::vector<std::string>& sequences, int64_t length) {
    const std::string folder = folder_.file(std::to_string(sets_++));
    ShardWriter writer(folder, DnaTokenizer());
    for (const std::string& letters : sequences) writer.add_document(dna_row(letters, length));
    writer.finish();
    return std::make_shared<TokenDataset>(folder);
  }
  TemporaryFolder folder_;
  int sets_ = 0;
};

TEST_F(DnaLoader, GivesNAndPaddingNoLabel) {
  const auto data = rows({"ACNNNNGTNA", "GATTACA"}, 10);
  const Loader loader(data, {.length = 10, .batch = 2, .shuffle = false, .rows = true});
  ASSERT_EQ(loader.windows(), 2);
  const TokenBatch batch = loader.batch_at({});
  EXPECT_THAT(batch.tokens, ElementsAre(7, 8, 4, 4, 4, 4, 9, 10, 4, 7, 4, 4, 4, 9, 7, 10, 10, 7, 8, 7));
  EXPECT_THAT(batch.targets, ElementsAre(8, -100, -100, -100, -100, 9, 10, -100, 7, 1, -100, -100, 9, 7, 10, 10, 7, 8, 7, 1));
  EXPECT_EQ(loader.step_labels({}), 13);
  // Windows that overlap by a token, as of a genome that is packed whole, have labels by the same rule.
  const Loader joined(data, {.length = 4, .batch = 2, .shuffle = false});
  EXPECT_EQ(joined.step_labels({}), 3);  // C, G and T of the first eight targets
}

TEST_F(DnaLoader, RefusesRowsOfAnotherLength) {
  const auto data = rows({"ACGTA", "GATTA"}, 5);
  const auto refusal = [&](const LoaderConfig& config) { return message_of<Error>([&] { Loader(data, config); }); };
  EXPECT_THAT(refusal({.length = 6, .batch = 1, .rows = true}), HasSubstr("which are no rows of 7 tokens"));
  EXPECT_THAT(refusal({.length = 5, .batch = 1, .rows = true, .reverse_complement = 2}), HasSubstr("must be a chance from 0 to 1"));
  EXPECT_THAT(refusal({.length = 5, .batch = 1, .documents = true, .reverse_complement = 0.5}), HasSubstr("exclude each other"));
  EXPECT_EQ(refusal({.length = 5, .batch = 1, .rows = true}), "");
}

TEST_F(DnaLoader, ReversesWindowsByTheSeedTheWindowAndTheEpoch) {
  std::vector<std::string> sequences;
  for (int i = 0; i < 64; ++i) {
    std::string letters = "AACCGGTTAC";
    std::rotate(letters.begin(), letters.begin() + i % 10, letters.end());
    sequences.push_back("AAA" + letters);  // differs from its reverse complement, which ends in TTT
  }
  const auto data = rows(sequences, 13);
  const LoaderConfig config{.length = 13, .batch = 64, .rows = true, .reverse_complement = 0.5};
  const auto reversed = [](const TokenBatch& batch) {
    std::vector<std::pair<int64_t, bool>> found;
    for (size_t row = 0; row < batch.windows.size(); ++row)
      found.emplace_back(batch.windows[row],
                         batch.tokens[row * 13] != kDnaA || batch.tokens[row * 13 + 1] != kDnaA || batch.tokens[row * 13 + 2] != kDnaA);
    std::sort(found.begin(), found.end());
    return found;
  };
  Loader whole(data, config);
  const auto first = reversed(whole.next()), second = reversed(whole.next());
  const auto count = std::count_if(first.begin(), first.end(), [](const auto& each) { return each.second; });
  EXPECT_GT(count, 16);
  EXPECT_LT(count, 48);
  EXPECT_NE(first, second) << "drawn anew in each epoch";
  // Two ranks, or batches of another size, reverse the same windows.
  std::vector<std::pair<int64_t, bool>> of_ranks;
  for (const int64_t rank : {0, 1})
    for (const auto& each : reversed(Loader(data, config, rank, 2).next())) of_ranks.push_back(each);
  std::sort(of_ranks.begin(), of_ranks.end());
  EXPECT_EQ(of_ranks, first);
  LoaderConfig never = config;
  never.reverse_complement = 0;
  EXPECT_NE(Loader(data, never).order_hash(), Loader(data, config).order_hash());
}

TEST(DnaContext, CountsWhatFollowedTheSameBases) {
  DnaContextModel model(1);
  DnaContextModel::Score score;
  model.add("AAA", score);  // no context: 2 bits; then 1/4, then (1 + 1) / (1 + 4)
  EXPECT_EQ(score.bases, 3);
  EXPECT_DOUBLE_EQ(score.bits, 2 + 2 - std::log2(0.4));
  DnaContextModel::Score gap;
  model.add("ANC", gap);  // N ends the context
  EXPECT_EQ(gap.bases, 2);
  EXPECT_DOUBLE_EQ(gap.perplexity(), 4);
  EXPECT_THAT(message_of<UsageError>([] { DnaContextModel(13); }), HasSubstr("from 0 to 12"));
}

}  // namespace dna_test
}  // namespace based
