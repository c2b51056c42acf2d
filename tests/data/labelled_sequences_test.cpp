// Sets of labelled sequences, metrics of classification, and the k-mer floor.
#include "based/data/labelled_sequences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "based/data/class_metrics.h"
#include "based/data/dna.h"
#include "based/data/dna_kmers.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace labelled_sequences_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LabelledSets : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(folder_.file(name)).parent_path());
    std::ofstream(folder_.file(name)) << content;
    return folder_.file(name);
  }
  std::string refusal(const std::string& content) {
    const std::string path = write("bad.csv", content);
    return message_of<Error>([&] { class_names(read_labelled_sequences(path), path); });
  }
  TemporaryFolder folder_;
};

TEST_F(LabelledSets, CsvColumnsAreFoundByName) {
  const auto read = read_labelled_sequences(write("a.csv", "label,id,sequence\r\n1,x,ACGT\r\n0,y, acn \r\n\r\n"));
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[0].letters, "ACGT");
  EXPECT_EQ(read[1].letters, "acn");
  EXPECT_EQ(read[1].label, "0");
  EXPECT_EQ(read[1].place, folder_.file("a.csv") + ":3");
}

TEST_F(LabelledSets, FoldersAreClassesInSortedOrder) {
  write("set/positive/2.txt", "ACGT\n");
  write("set/positive/10.txt", "AC");
  write("set/negative/all.fa", ">a\nGG\nTT\n>b\nCC\n");
  write("set/readme.txt", "not a class");
  const auto read = read_labelled_sequences(folder_.file("set"));
  ASSERT_EQ(read.size(), 4U);
  EXPECT_THAT(class_names(read, "set"), ElementsAre("negative", "positive"));
  EXPECT_EQ(read[0].letters, "GGTT");
  const LabelledTokens tokens(read, class_names(read, "set"), DnaTokenizer(), 0);
  EXPECT_EQ(tokens.size(), 4);
  EXPECT_THAT(std::vector<int32_t>(tokens.sequence(1).begin(), tokens.sequence(1).end()), ElementsAre(8, 8));
  EXPECT_EQ(tokens.label(0), 0);
  EXPECT_EQ(tokens.label(3), 1);
}

TEST_F(LabelledSets, FaultsNameTheLineAndTheField) {
  EXPECT_THAT(refusal("sequence,class\nACGT,1\n"), HasSubstr("bad.csv:1: label: the first line must name this column"));
  EXPECT_THAT(refusal("sequence,label\nACGT\n"), HasSubstr("bad.csv:2: has 1 fields, the first line 2"));
  EXPECT_THAT(refusal("sequence,label\nAC GT,1\n"), HasSubstr("bad.csv:2: sequence: ' ' is no letter"));
  EXPECT_THAT(refusal("sequence,label\n,1\n"), HasSubstr("bad.csv:2: sequence: is empty"));
  EXPECT_THAT(refusal("sequence,label\nACGT,\n"), HasSubstr("bad.csv:2: label: is empty"));
  EXPECT_THAT(refusal("sequence,label\n\"ACGT\",1\n"), HasSubstr("bad.csv:2: quotes are not read"));
  EXPECT_THAT(refusal("sequence,label\nACGT,1\nGG,1\n"), HasSubstr("bad.csv: label: all sequences have the label '1'"));
  EXPECT_THAT(refusal("sequence,label\n"), HasSubstr("bad.csv: has no sequences"));
  EXPECT_THAT(refusal(""), HasSubstr("bad.csv: has no sequences"));
  std::filesystem::create_directories(folder_.file("empty/a"));
  EXPECT_THAT(message_of<Error>([&] { read_labelled_sequences(folder_.file("empty")); }), HasSubstr("the class has no sequences"));
  const std::vector<LabelledSequence> other{{"ACGT", "2", "dev.csv:7"}};
  EXPECT_THAT(message_of<Error>([&] {
                LabelledTokens(other, {"0", "1"}, DnaTokenizer(), 0);
              }),
              HasSubstr("dev.csv:7: label: '2' is no class of the training set"));
  EXPECT_THAT(message_of<Error>([&] { LabelledTokens(other, {"2"}, DnaTokenizer(), 3); }),
              HasSubstr("dev.csv:7: sequence: has 4 tokens, the model at most 3"));
}

// By hand: three classes, labels 0 0 0 1 1 2, predictions 0 0 1 1 1 0.
TEST(ConfusionMatrix, GivesAccuracyCorrelationAndF1) {
  ConfusionMatrix confusion(3);
  const int64_t labels[] = {0, 0, 0, 1, 1, 2}, predictions[] = {0, 0, 1, 1, 1, 0};
  for (size_t i = 0; i < 6; ++i) confusion.add(labels[i], predictions[i]);
  EXPECT_DOUBLE_EQ(confusion.accuracy(), 4.0 / 6);
  // Σ p·t = 3·3 + 3·2 + 0·1 = 15, Σ p² = 18, Σ t² = 14: (4·6 − 15) / √((36 − 18)(36 − 14))
  EXPECT_DOUBLE_EQ(confusion.mcc(), 9 / std::sqrt(18.0 * 22));
  // F1: 2·2/6, 2·2/5, 0
  EXPECT_DOUBLE_EQ(confusion.macro_f1(), (4.0 / 6 + 4.0 / 5 + 0) / 3);
  ConfusionMatrix one_answer(2);
  one_answer.add(0, 1), one_answer.add(1, 1);
  EXPECT_EQ(one_answer.mcc(), 0) << "where the root is 0";
}

// A motif in half of the sequences, among letters of the same composition.
TEST(KmerFloor, FindsAMotif) {
  std::vector<LabelledSequence> sequences;
  for (int i = 0; i < 60; ++i) {
    std::string letters;
    for (int j = 0; j < 24; ++j) letters += "ACGT"[(i * 7 + j * (j + 3) + i * j / 5) % 4];
    const bool motif = i % 2 == 0;
    sequences.push_back({letters + (motif ? "GATTA" : "GTATA"), motif ? "1" : "0", "set"});
  }
  const LabelledTokens tokens(sequences, {"0", "1"}, DnaTokenizer(), 0);
  const KmerFloor floor = measure_kmer_floor(tokens, tokens, tokens, 2, {.sizes = {3, 5}, .iterations = 50});
  EXPECT_EQ(floor.test.accuracy(), 1);
  EXPECT_EQ(floor.dev.mcc(), 1);
}

}  // namespace labelled_sequences_test
}  // namespace based
