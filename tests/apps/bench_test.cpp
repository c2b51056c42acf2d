// `based bench decode --compare`: the comparison of models as a table, as JSON and as figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace bench_test {

using testing::HasSubstr;

TEST(BenchCompare, MeasuresModelsAtTheSameSizesAndDrawsThem) {
  const TemporaryFolder folder;
  const Ran ran = run("bench decode --compare --quick --json --threads 1 --plot " + folder.file("figures"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  std::map<std::string, std::map<std::pair<int64_t, int64_t>, int64_t>> bytes;  // bytes of state by model and (sequences, tokens)
  const Json report = parse_json(ran.out, "output");
  for (const Json& result : report["results"]) {
    EXPECT_GT(result["value"].get<double>(), 0) << result.dump();
    EXPECT_GT(result["floor"].get<double>(), 0) << result.dump();
    EXPECT_EQ(result["unit"], "tokens/s");
    bytes[result["name"].get<std::string>()][{result["batch"].get<int64_t>(), result["context"].get<int64_t>()}] =
        result["state_bytes"].get<int64_t>();
  }
  ASSERT_EQ(bytes.size(), 2U);
  auto &based_bytes = bytes["decode based-tiny"], &attention_bytes = bytes["decode attn-tiny"];
  ASSERT_EQ(based_bytes.size(), attention_bytes.size());
  EXPECT_EQ((based_bytes[{4, 64}]), (based_bytes[{4, 1024}]));
  EXPECT_EQ((based_bytes[{16, 64}]), 4 * (based_bytes[{4, 64}]));
  // Keys and values of two layers of width 32 in bf16, for the tokens plus at most a page and a few steps per sequence.
  EXPECT_GE((attention_bytes[{4, 1024}]), 4 * 1024 * 2 * 2 * 32 * 2);
  EXPECT_LE((attention_bytes[{4, 1024}]), 4 * (1024 + 128) * 2 * 2 * 32 * 2);
  for (const char* name : {"decode_batch.svg", "decode_context.svg"}) {
    const std::string svg = read_file(folder.file("figures") + "/" + name);
    EXPECT_THAT(svg, HasSubstr("based-tiny"));
    EXPECT_THAT(svg, HasSubstr("attn-tiny"));
    EXPECT_THAT(svg, HasSubstr("tokens per second"));
  }
}

TEST(BenchCompare, KeepsThePicturesThatAreThere) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("decode_batch.png"), "mine");
  const std::string command = "bench decode --compare --quick --threads 1 --preset based-tiny --plot " + folder.path().string();
  const Ran refused = run(command);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("--plot " + folder.path().string() +
                        ": holds pictures of a comparison (decode_batch.png); --overwrite replaces that, another --plot keeps it"));
  EXPECT_EQ(read_file(folder.file("decode_batch.png")), "mine");
  EXPECT_EQ(run(command + " --overwrite").code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder.file("decode_batch.svg")));
}

TEST(BenchCompare, PrintsALineASize) {
  const Ran ran = run("bench decode --compare --quick --threads 1 --preset based-tiny");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("based-tiny"));
  EXPECT_THAT(ran.out, HasSubstr("ms/step"));
  EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'),
            3 + 5);  // the machine, two head lines, three numbers of sequences and two more lengths
}

TEST(BenchCompare, RefusesWhatItCannotCompare) {
  for (const char* arguments :
       {"bench --compare", "bench taylor --compare", "bench decode position --compare", "bench decode --plot out",
        "bench decode --preset based-tiny", "bench decode --compare --overwrite", "bench decode --compare --preset based-tine"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << ran.err;
    EXPECT_FALSE(ran.err.empty()) << arguments;
  }
}

}  // namespace bench_test
}  // namespace based
