// Few-shot draws against CPython's random.sample.
#include "based/eval/tasks/few_shot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(FewShot, OneMoreExampleIsDrawnThanUsed) {
  const auto draws = draw_few_shot({.documents = 2, .pool = 250, .shots = 1});
  ASSERT_EQ(draws.size(), 2u);
  EXPECT_THAT(draws[0], ElementsAre(247));
  EXPECT_THAT(draws[1], ElementsAre(112));
}

TEST(FewShot, ADocumentIsNotItsOwnExample) {
  const auto draws = draw_few_shot({.documents = 3, .pool = 3, .shots = 2, .pool_is_evaluated = true});
  ASSERT_EQ(draws.size(), 3u);
  EXPECT_THAT(draws[0], UnorderedElementsAre(1, 2));
  EXPECT_THAT(draws[1], UnorderedElementsAre(0, 2));
  EXPECT_THAT(draws[2], UnorderedElementsAre(0, 1));
}

TEST(FewShot, APoolMustHaveOneDocumentMoreThanShots) {
  EXPECT_THAT(message_of<UsageError>([] { draw_few_shot({.documents = 1, .pool = 2, .shots = 2}); }), HasSubstr("--shots"));
  EXPECT_TRUE(draw_few_shot({.documents = 1, .pool = 0, .shots = 0})[0].empty());
}

}  // namespace few_shot_test
}  // namespace based
