// Few-shot draws against CPython's random.sample.
#include "based/eval/tasks/few_shot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "based/core/files.h"
#include "based/eval/tasks/python_random.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/goldens.h"

namespace based {
namespace few_shot_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Populations above and below the size from which CPython keeps a set of its draws. The values are of CPython.
TEST(PythonSample, EqualsCPython) {
  PythonRandom large(1234), small(1234), six_of_many(1234), six_of_few(1234);
  EXPECT_THAT(large.sample(250, 2), ElementsAre(247, 199));
  EXPECT_THAT(large.sample(250, 2), ElementsAre(112, 29));
  EXPECT_THAT(small.sample(21, 2), ElementsAre(14, 3));
  EXPECT_THAT(small.sample(21, 2), ElementsAre(0, 2));
  EXPECT_THAT(six_of_many.sample(400, 6), ElementsAre(398, 225, 59, 3, 46, 298));
  EXPECT_THAT(six_of_few.sample(85, 6), ElementsAre(56, 14, 0, 11, 74, 4));
}

TEST(PythonSample, EqualsTheGoldens) {
  const std::string path = test::golden("eval/cases/cases.json");
  BASED_NEEDS_FILE(path);
  for (const Json& c : parse_json(read_file(path), path).at("random_sample")) {
    PythonRandom random(c["seed"].get<uint32_t>());
    for (const Json& draw : c["draws"]) EXPECT_EQ(Json(random.sample(c["n"].get<int64_t>(), c["k"].get<int64_t>())), draw);
  }
}

// Hashes of rows with these contents.
std::vector<Hash128> rows(std::initializer_list<uint64_t> contents) {
  std::vector<Hash128> hashes;
  for (const uint64_t each : contents) hashes.push_back({each, each});
  return hashes;
}

std::vector<Hash128> different_rows(uint64_t first, size_t count) {
  std::vector<Hash128> hashes;
  for (uint64_t i = first; i < first + count; ++i) hashes.push_back({i, i});
  return hashes;
}

TEST(FewShot, OneMoreExampleIsDrawnThanUsed) {
  const std::vector<Hash128> documents = different_rows(1000, 2), pool = different_rows(0, 250);
  const auto draws = draw_few_shot({.documents = documents, .pool = pool, .shots = 1});
  ASSERT_EQ(draws.size(), 2u);
  EXPECT_THAT(draws[0], ElementsAre(247));
  EXPECT_THAT(draws[1], ElementsAre(112));
}

TEST(FewShot, ADocumentIsNotItsOwnExample) {
  const std::vector<Hash128> pool = different_rows(0, 3);
  const auto draws = draw_few_shot({.documents = pool, .pool = pool, .shots = 2});
  ASSERT_EQ(draws.size(), 3u);
  EXPECT_THAT(draws[0], UnorderedElementsAre(1, 2));
  EXPECT_THAT(draws[1], UnorderedElementsAre(0, 2));
  EXPECT_THAT(draws[2], UnorderedElementsAre(0, 1));
}

TEST(FewShot, ARowThatEqualsTheDocumentIsNoExampleInAnyPool) {
  const std::vector<Hash128> documents = rows({7, 8}), pool = rows({7, 1, 7, 2, 7, 3});
  for (int64_t seed = 0; seed < 20; ++seed) {
    const auto draws = draw_few_shot({.documents = documents, .pool = pool, .shots = 2, .seed = seed});
    for (const int64_t row : draws[0]) EXPECT_EQ(row % 2, 1) << "rows 0, 2 and 4 equal the document";
    PythonRandom random(static_cast<uint32_t>(seed));
    const std::vector<int64_t> first = random.sample(6, 3);
    if (std::count_if(first.begin(), first.end(), [](int64_t row) { return row % 2 == 1; }) < 2) {
      const std::vector<int64_t> again = random.sample(3, 2);  // from the rows 1, 3 and 5
      EXPECT_THAT(draws[0], ElementsAre(2 * again[0] + 1, 2 * again[1] + 1));
    }
    const std::vector<int64_t> second = random.sample(6, 3);
    EXPECT_THAT(draws[1], ElementsAre(second[0], second[1]));
  }
}

TEST(FewShot, APoolMustHaveOneDocumentMoreThanShots) {
  const std::vector<Hash128> one = rows({1}), two = rows({1, 2}), same = rows({1, 1, 1});
  EXPECT_THAT(message_of<UsageError>([&] { draw_few_shot({.documents = one, .pool = two, .shots = 2}); }),
              HasSubstr("--shots 2 needs 3 rows"));
  EXPECT_THAT(message_of<UsageError>([&] { draw_few_shot({.documents = one, .pool = same, .shots = 2}); }),
              HasSubstr("--shots 2 needs as many examples that differ"));
  EXPECT_TRUE(draw_few_shot({.documents = one, .pool = {}, .shots = 0})[0].empty());
}

}  // namespace few_shot_test
}  // namespace based
