// FASTA by names, BED files, and the rows that are cut from intervals.
#include "based/data/bed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "based/data/dna.h"
#include "based/data/shards.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace bed_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Bed : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) {
    std::ofstream(folder_.file(name)) << content;
    return folder_.file(name);
  }
  std::vector<FastaSequence> sequences(const std::string& letters) { return read_fasta({write("a.fa", ">one\n" + letters + "\n")}); }
  std::string refusal_of_fasta(const std::string& content) {
    const std::string path = write("bad.fa", content);
    return message_of<Error>([&] { read_fasta({path}); });
  }
  std::string refusal_of_bed(const std::string& content) {
    const std::string path = write("bad.bed", content);
    return message_of<Error>([&] { check_intervals(read_bed(path), sequences("ACGTACGTAC"), path); });
  }
  TemporaryFolder folder_;
};

TEST_F(Bed, FastaSequencesHaveNamesAndUpperCase) {
  const auto read = read_fasta({write("a.fa", ">one first\r\nacG\r\n\nTn\r\n>two\nRY*-"), write("b.fna", ">three\nA\n")});
  ASSERT_EQ(read.size(), 3U);
  EXPECT_EQ(read[0].name, "one");
  EXPECT_EQ(read[0].letters, "ACGTN");
  EXPECT_EQ(read[1].letters, "RY*-");
  EXPECT_EQ(read[1].place, folder_.file("a.fa") + ":5");
  EXPECT_EQ(read[2].name, "three");
}

TEST_F(Bed, FaultsOfFastaNameTheLine) {
  EXPECT_THAT(refusal_of_fasta("ACGT\n"), HasSubstr("bad.fa:1: a FASTA file must start with a line '>name'"));
  EXPECT_THAT(refusal_of_fasta(">one\nAC1T\n"), HasSubstr("bad.fa:2: '1' is no letter"));
  EXPECT_THAT(refusal_of_fasta(">one\nA\n>one\nC\n"), AllOf(HasSubstr("bad.fa:3: the sequence 'one' is there already"), HasSubstr(":1")));
  EXPECT_THAT(refusal_of_fasta(">one\n>two\nA\n"), HasSubstr("bad.fa:1: the record has no sequence"));
  EXPECT_THAT(refusal_of_fasta("> one\nA\n"), HasSubstr("bad.fa:1: the header has no name"));
  EXPECT_THAT(refusal_of_fasta(""), HasSubstr("has no sequence"));
  EXPECT_THAT(message_of<Error>([&] { read_fasta({folder_.file("a.fa.gz")}); }), HasSubstr("decompress it first"));
}

TEST_F(Bed, FaultsOfIntervalsNameTheLineAndTheColumn) {
  EXPECT_THAT(refusal_of_bed("one\t0\t5\ttrain\n\none\t5\t10\tvalid\r\n"), "");
  EXPECT_THAT(refusal_of_bed("one\t0\t5\ttrain\none\t5\t11\tvalid\n"), HasSubstr("bad.bed:2: end: 11 is beyond the 10 bases of 'one'"));
  EXPECT_THAT(refusal_of_bed("two\t0\t5\ttrain\n"), HasSubstr("bad.bed:1: sequence: no FASTA file has 'two'"));
  EXPECT_THAT(refusal_of_bed("one\tx\t5\ttrain\n"), HasSubstr("bad.bed:1: start: must be a number of bases from 0, is 'x'"));
  EXPECT_THAT(refusal_of_bed("one\t-1\t5\ttrain\n"), HasSubstr("bad.bed:1: start: "));
  EXPECT_THAT(refusal_of_bed("one\t0\t5.0\ttrain\n"), HasSubstr("bad.bed:1: end: "));
  EXPECT_THAT(refusal_of_bed("one\t0\t99999999999999999999\ttrain\n"), HasSubstr("bad.bed:1: end: "));
  EXPECT_THAT(refusal_of_bed("one\t5\t5\ttrain\n"), HasSubstr("bad.bed:1: end: must be above start"));
  EXPECT_THAT(refusal_of_bed("one\t0\t5\tdev\n"), HasSubstr("bad.bed:1: split: must be train, valid or test, is 'dev'"));
  EXPECT_THAT(refusal_of_bed("one 0 5 train\n"), HasSubstr("bad.bed:1: needs four columns"));
  EXPECT_THAT(refusal_of_bed("\n"), HasSubstr("has no intervals"));
}

TEST_F(Bed, RowsOfAnIntervalByEachForm) {
  const auto rows = [](const BedInterval& interval, int64_t length, int64_t sequence, RowForm form) {
    std::vector<std::pair<int64_t, int64_t>> list;
    for (const BaseRange& each : row_ranges(interval, length, sequence, form)) list.emplace_back(each.start, each.end);
    return list;
  };
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(rows({"one", 10, 22, "train"}, 5, 100, RowForm::tiles), (Pairs{{10, 15}, {15, 20}, {17, 22}}));
  EXPECT_EQ(rows({"one", 10, 13, "train"}, 5, 100, RowForm::tiles), (Pairs{{10, 13}})) << "no row leaves the interval";
  EXPECT_EQ(rows({"one", 10, 13, "train"}, 6, 100, RowForm::hyenadna), (Pairs{{9, 15}}));
  EXPECT_EQ(rows({"one", 1, 3, "train"}, 8, 100, RowForm::hyenadna), (Pairs{{0, 6}}));
  const Pairs pieces = rows({"one", 5, 9, "train"}, 1 << 19, 600'000, RowForm::caduceus);
  EXPECT_EQ(pieces, (Pairs{{5, (1 << 19) + 5}, {600'000 - (1 << 19), 600'000}}));
}

TEST_F(Bed, PacksTheRowsOfASplitAndKeepsOtherSplitsOut) {
  const auto read = sequences("AAAAACCCCCGGGGGTTTTT");
  const std::string bed = write("a.bed", "one\t0\t10\ttrain\none\t10\t13\tvalid\none\t16\t18\ttrain\n");
  DnaRowReport report = pack_dna_rows(read, bed, {.split = "train", .length = 5}, folder_.file("tiles"));
  EXPECT_EQ(report.intervals, 2);
  EXPECT_EQ(report.rows, 3);
  EXPECT_EQ(report.bases, 12);
  const TokenDataset data(folder_.file("tiles"));
  std::vector<int32_t> ids(static_cast<size_t>(data.tokens()));
  data.copy(0, ids);
  EXPECT_THAT(ids, ElementsAre(7, 7, 7, 7, 7, 1, 8, 8, 8, 8, 8, 1, 4, 4, 4, 10, 10, 1));
  EXPECT_EQ(data.tokenizer_hash(), dna_tokenizer_hash());
  report = pack_dna_rows(read, bed, {.split = "train", .length = 10, .form = RowForm::hyenadna}, folder_.file("hyenadna"));
  EXPECT_EQ(report.rows, 1);
  EXPECT_EQ(report.other_split, 1) << "16 … 18 is widened to 12 … 20, which overlaps valid";
  EXPECT_THAT(message_of<Error>([&] { pack_dna_rows(read, bed, {.split = "test"}, folder_.file("test")); }),
              HasSubstr("a.bed: split: no interval is in 'test'"));
  EXPECT_FALSE(std::filesystem::exists(folder_.file("test/00000.tokens")));
}

}  // namespace bed_test
}  // namespace based
